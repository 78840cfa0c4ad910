"""Reason: the sentence of a refusal, warning, failure or verdict, and what programs need of it.

A reason is a `str`, its sentence. Where a program or a document depends on it, it also has a `code`
of `CODES` and `fields`; no program searches a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.units import counted

# Warnings whose remedy is a field of Timing.
NAME_SETTINGS = frozenset(
    {
        "interval-above-target",
        "not-settled",
        "few-samples",
        "few-blocks",
        "blocks-disagree",
        "fixed-cost",
    }
)
TEXT = "text"  # the code of a sentence that no program reads
_LONGEST = 200  # characters of a brief sentence
_INFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_NO_FIELDS: FrozenDict[Any] = FrozenDict()

# Every code with its meaning: docs/fields.md lists them, and a test compares them with the sources.
CODES = {
    # Warnings of a measurement
    "no-reference": "the values of the output were not checked",
    "interval-above-target": "the interval is wider than the target",
    "interval-one-sample": "one sample: there is no interval",
    "interval-one-block": "the interval covers the samples of one allocation only",
    "other-load": "other work used the measured cores",
    "clock-moved": "the clock changed while timing",
    "throttled": "the device throttled",
    "not-settled": "times had not settled after the warm-up",
    "few-samples": "the time limit allowed fewer samples than required",
    "few-blocks": "fewer blocks than required: not ranked",
    "blocks-disagree": "blocks differ too much: not ranked",
    "audited-slower": "an audited block took longer than the median: not ranked",
    "data-dependent": "the time depends on the values of the inputs",
    "fixed-cost": "samples include a replay's fixed cost",
    "cache-evicted": "the cache was evicted before each sample instead of rotated",
    "not-cross-checked": "the profiler could not check the time",
    "profiler-unstable": "runs under the profiler differ too much",
    "above-roof": "faster than the measured roof",
    "multimodal": "times have several modes",
    # Checks that an output failed
    "check-failed": "at least one check failed; `findings` are its reasons",
    "late-write": "the output was written after the launch had ended",
    "inputs-changed": "inputs were changed",
    "stray-write": "a launch wrote to the outputs of another",
    "not-written": "elements of the output were not written",
    "guards-overwritten": "memory next to the output was overwritten",
    "projection-wrong": "a random projection of the output is wrong",
    "values-wrong": "checked positions of the output are wrong",
    "less-work": "timed launches skip work",
    "library-used": "a judged kernel calls a library, which is forbidden",
    "above-limit": "faster than the hardware can be",
    "above-physical": "a metric above its physical limit",
    "below-physical": "a metric below its physical limit",
    "no-measurement": "a metric that is no number",
    # Failures of a case
    "raised": "the kernel raised an error",
    "out-of-memory": "not enough memory",
    "library-failed": "a call of a library failed",
    "driver-failed": "a call of the GPU driver failed",
    "clock-stalled": "the clock did not advance during a sample",
    "below-noise": "the time is below the noise of the background load",
    "worker-signalled": "the worker was killed by a signal",
    "worker-out-of-memory": "the kernel killed the worker: out of memory",
    "worker-killed": "the worker was killed by signal 9",
    "worker-exited": "the worker ended by itself",
    "worker-not-started": "no worker could be started",
    "machine-lost": "the machine, or Ray's process on it, was lost during the case",
    "no-answer": "the worker did not reply in time",
    # Refusals
    "op-unsupported": "the backend does not have the op",
    "device-unsupported": "the backend does not run on the device",
    "dtypes-unsupported": "the backend does not have the dtypes",
    "layout-unsupported": "the backend does not have the layout",
    "epilogue-missing": "the backend does not have the epilogue",
    "dtype-converted": "the backend would convert the operands first",
    "timer-unsupported": "the device does not have the timer",
    "config-unknown-name": "the config names an unknown setting",
    "library-missing": "a library was not found",
    "backend-unavailable": "the backend cannot run here",
    # Verdicts
    "only-in-base": "head has no such result",
    "only-in-head": "base has no such result",
    "failed": "it failed",
    "failed-before": "base failed",
    "both-failed": "both sides failed",
    "sides-failed": "all repetitions failed",
    "changed": "changed by more than the limit",
    "within": "within the limit",
    "perhaps-within": "changed, but perhaps by less than the limit",
    "open": "the rounds leave it open",
    "perhaps-chance": "significant alone, but not among all rows",
    "not-detectable": "changes of the limit's size cannot be detected",
    "beside-load": "other work ran during one side",
    "sides-unreliable": "a side is unreliable",
    "medians-disagree": "medians and means of blocks disagree",
    "perhaps-run": "runs may differ as much",
    "one-block": "a side has a single block",
    "by-block-means": "multimodal, judged by means of blocks",
    "at-equal-clock": "judged at equal clocks",
    "canary-change": "a canary changed; `problem` is its key",
    "canary-moved": "a canary changed, and so did the machine",
    # Whether a tuned config is kept
    "nothing-to-tune": "the backend has no space for the problem",
    "disturbed": "too noisy to judge: other work ran",
    "slower": "slower than the reference",
    "faster": "faster than the reference",
    "not-faster": "not significantly faster",
    "too-noisy": "too noisy to judge",
    "gain-too-small": "gains a smaller factor, or less time, than required",
    # Imported results
    "times-left-out": "times of a file were left out; `why`: impossible, or ignored by its tool",
    "may-be-cut": "the file may be truncated",
    "graphs-untraced": "kernels of replayed graphs are not in the file",
    # Stores
    "store-missing": "there is no store yet",
    "store-empty": "the store has no runs yet",
    "store-locked": "another process locks the store",
    "store-damaged": "the store is damaged",
    "store-disk-full": "the disk is full",
    "store-unwritable": "the store cannot be written to",
    "store-not-sqlite": "the file is not an SQLite database",
    "store-too-new": "the store is of a newer version",
    "store-read-only": "the store is read-only",
    "store-folder-read-only": "the folder of the store is read-only",
    "run-differs": "the store has another run with this id",
    "run-unknown": "the store has no such run",
    "run-ambiguous": "several runs fit",
}


class Reason(str):
    """A sentence, with a code and fields where a program decides by them."""

    __slots__ = ("code", "fields")
    code: str
    fields: Mapping[str, Any]

    def __new__(cls, text: str, code: str = TEXT, /, **fields: Any) -> Self:
        reason = super().__new__(cls, text)
        reason.code, reason.fields = code, FrozenDict(fields) if fields else _NO_FIELDS
        return reason

    @classmethod
    def of(cls, text: str) -> Reason:
        """Return `text` itself if it is a reason, else a reason without a code."""
        if isinstance(text, Reason):
            return text
        return cls(text) if text else NO_REASON

    @property
    def root(self) -> Reason:
        """The innermost cause; the reason itself if it has none."""
        cause = self.fields.get("cause")
        return cause.root if isinstance(cause, Reason) else self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Reason) and (self.code, self.fields) != (other.code, other.fields):
            return False
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (str(self), self.code, dict(self.fields))


NO_REASON = Reason("")


def _restored(text: str, code: str, fields: Mapping[str, Any]) -> Reason:
    return Reason(text, code, **fields)


def prefixed(reason: str, prefix: str) -> Reason:
    """Return a reason with text before its sentence, and with its code and fields."""
    cause = Reason.of(reason)
    return Reason(f"{prefix}{cause}", cause.code, **cause.fields)


def suffixed(reason: str, suffix: str) -> Reason:
    """Return a reason with text after its first line, and with its code and fields."""
    cause = Reason.of(reason)
    head, newline, rest = cause.partition("\n")
    return Reason(f"{head}{suffix}{newline}{rest}", cause.code, **cause.fields)


def in_phase(phase: str) -> str:
    """Return the words about the phase of a case in which something happened."""
    return f" (in phase {phase})" if phase else ""


def failed_checks(findings: Sequence[Reason], more: int = 0) -> Reason:
    """Return the reason of an output that failed checks, `more` of which are not in `findings`."""
    if not findings:
        return NO_REASON
    rest = [f"and {counted(more, 'more failed check')}"] if more else []
    sentence = "; ".join([*findings, *rest])
    return Reason(sentence, "check-failed", findings=tuple(findings), more=more)


def shorten(reason: str) -> str:
    """Return the first line of a reason, cut to fit a row of a table."""
    first, *rest = reason.splitlines() or [""]
    cut = first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
    return f"{cut} …" if rest else cut


# To and from JSON


def reason_document(reason: Reason) -> Any:
    """Return sentence, code and fields as JSON values; only the sentence if it has no code."""
    if reason.code == TEXT:
        return str(reason)
    return {"code": reason.code, "fields": _plain(reason.fields), "text": str(reason)}


def read_reason(document: Any, text: str = "") -> Reason:
    """Return the reason in a document. Documents of older versions may have no text: it is then the
    sentence next to them, or made of the code and the fields."""
    if document is None:
        return Reason.of(text)
    if not isinstance(document, Mapping):
        return Reason.of(str(document))
    code = str(document.get("code", TEXT))
    fields = _read_fields(document.get("fields"))
    pairs = ", ".join(f"{name}={value}" for name, value in fields.items())
    sentence = document.get("text") or text or f"{code} ({pairs})"
    return _restored(str(sentence), code, fields)


def reason_documents(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents of all values that are coded reasons, or lists with such reasons."""
    documents: dict[str, Any] = {}
    for name, value in values.items():
        if _is_coded(value):
            documents[name] = _without_text(value)
        elif isinstance(value, tuple | list) and any(map(_is_coded, value)):
            documents[name] = [_without_text(item) if _is_coded(item) else None for item in value]
    return documents


def _without_text(reason: Reason) -> dict[str, Any]:
    """Return the document of a reason whose sentence stands next to it."""
    return {"code": reason.code, "fields": _plain(reason.fields)}


def _is_coded(value: object) -> bool:
    return isinstance(value, Reason) and value.code != TEXT


def _plain(value: Any) -> Any:
    if isinstance(value, Reason):
        return reason_document(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _read_fields(document: Any) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        return {}
    return {str(name): _read(value) for name, value in document.items()}


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return read_reason(value)
    if isinstance(value, list):
        return tuple(map(_read, value))
    return _INFINITE.get(value, value) if isinstance(value, str) else value
