"""Emitter: winners as a file that another library reads, and the check that it finds them."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, read_whole
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, config_key
from kernelmark.tune.records.outcome import Outcome

Fields = Mapping[str, str]
ON_AMD = "Not yet run on AMD hardware: files are only read back as the library's reader would."


class Unfit(Exception):
    """An outcome that cannot be written in a format, with the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a file. `fields` is its lookup key: all fields that the library compares."""

    fields: Fields
    config: Config
    kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A kept outcome that is not written, with the reason."""

    name: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The new text of one file; `path` is relative to the target, empty for the target itself."""

    path: Path
    before: str | None  # None: there is no such file
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The expected result of a lookup after the change: the config of the winner `name`, or,
    without a name, the config as before (None: no entry)."""

    fields: Fields
    config: Config | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The edits that would be written, and the lookups that check them. `also_read` are files,
    relative to the target, that a check reads and the change does not write."""

    emitter: str
    edits: tuple[Edit, ...]
    wanted: tuple[Wanted, ...]
    held: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()
    also_read: tuple[Path, ...] = ()

    @property
    def written(self) -> int:
        """The number of winners in the change."""
        return len({wanted.name for wanted in self.wanted if wanted.name})

    def diff(self, into: Path) -> str:
        """Return the unified diff of all files."""
        return "".join(_unified(edit, into) for edit in self.edits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """How to make a library read a file: set the environment `variables`, with {path} replaced, and
    run the default config of `backend`. `copy` is the file name that the library requires; `built`
    matches the files of a library that has to be built first."""

    backend: str
    variables: Mapping[str, str]
    copy: str = ""
    built: str = ""


class Emitter(ABC):
    """The writer of one format. It does not write files itself: it returns the edits."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    backends: tuple[str, ...]  # whose configs it can write
    options: Mapping[str, str] = FrozenDict()  # names of NAME=VALUE options, with help texts
    needs_base: bool = False  # whether it can only merge into existing files
    careful: bool = False  # whether files are written only on explicit request
    caution: str = ""
    override: Override | None = None  # None: no library reads the file by itself

    @abstractmethod
    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        """Return the change that adds all kept outcomes to `into`, which need not exist."""

    @abstractmethod
    def read(self, path: Path) -> list[Entry]:
        """Return all entries of a file or folder."""

    def find(self, path: Path, fields: Fields) -> Entry | None:
        """Return the entry that the library would find for a lookup key, or None."""
        entries = self.read(path) if path.exists() else []
        return next((entry for entry in entries if entry.fields == fields), None)

    def has_winner(self, outcome: Outcome, path: Path) -> bool | None:
        """Return whether a file has a winner's entry; None if the format has no lookup."""
        return None

    def takes(self, backend: str) -> bool:
        """Return whether the emitter can write a backend's configs."""
        return backend in self.backends

    def check(self, change: Change, path: Path) -> list[Reason]:
        """Return a reason for each winner that is not found and each other lookup that changed."""
        return [
            fault for wanted in change.wanted if (fault := self._fault(wanted, path)) is not None
        ]

    def _fault(self, wanted: Wanted, path: Path) -> Reason | None:
        entry = self.find(path, wanted.fields)
        config = None if entry is None else entry.config
        if config == wanted.config:
            return None
        shown = " ".join(f"{name}={value}" for name, value in wanted.fields.items())
        answer = "nothing" if config is None else config_key(config)
        expected = "nothing" if wanted.config is None else config_key(wanted.config)
        if wanted.name:
            return Reason(
                "winner-not-found", name=wanted.name, lookup=shown, found=answer, wanted=expected
            )
        return Reason("lookup-changed", lookup=shown, before=expected, after=answer)


def option(emitter: Emitter, given: Fields, name: str, default: str = "") -> str:
    """Return the value of an option; `checked_options` has rejected unknown names."""
    assert name in emitter.options
    return given.get(name, default)


def checked_options(emitter: Emitter, words: Iterable[str]) -> Fields:
    """Parse NAME=VALUE words as an emitter's options."""
    options: dict[str, str] = {}
    known = ", ".join(emitter.options) or "none"
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(
                Reason("not-of-form", given=word, form="NAME=VALUE"),
                hint=f"{emitter.name} knows: {known}",
            )
        if name not in emitter.options:
            raise UsageError(
                Reason("option-unknown", format=emitter.name, name=name),
                hint=f"{emitter.name} knows: {known}",
            )
        options[name] = value
    return FrozenDict(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The winners by lookup key, at most one per key, and the outcomes that are not written."""

    winners: Mapping[Fields, Outcome]
    others: tuple[Fields, ...]  # keys whose lookup must not change
    held: tuple[Held, ...]


def settle(
    emitter: Emitter, outcomes: Sequence[Outcome], lookup_key: Callable[[Outcome], Fields]
) -> Settled:
    """Return which outcomes may be written. An outcome is not written if another one with the same
    lookup key did not gain, or gained with another config: that one would become slower."""
    groups: dict[Fields, list[Outcome]] = {}
    held: list[Held] = []
    for outcome in outcomes:
        try:
            groups.setdefault(FrozenDict(lookup_key(outcome)), []).append(outcome)
        except Unfit as error:
            if outcome.kept:
                held.append(Held(name=outcome.name, reason=error.reason))
    winners: dict[Fields, Outcome] = {}
    others: list[Fields] = []
    for fields, group in groups.items():
        kept = [one for one in group if one.kept]
        reasons = {one.name: reason for one in kept if (reason := unwritable(emitter, one))}
        reason = _conflict(group)
        if kept and not reasons and reason is None:
            winners[fields] = max(kept, key=lambda one: one.saved_s)
        else:
            others.append(fields)
            for one in kept:
                why = reasons.get(one.name) or reason
                why = why or Reason("entry-of-unwritten", name=next(iter(reasons)))
                held.append(Held(name=one.name, reason=why))
    return Settled(winners=winners, others=tuple(others), held=tuple(held))


def kept_answers(
    before: Mapping[Fields, Config], others: Iterable[Fields], written: Container[Fields]
) -> list[Wanted]:
    """Return the expected lookups of all keys of a file, and of `others`, that are not `written`:
    the same as before."""
    return [
        Wanted(fields=fields, config=before.get(fields))
        for fields in dict.fromkeys((*before, *others))
        if fields not in written
    ]


def unwritable(emitter: Emitter, outcome: Outcome) -> Reason | None:
    """Return why a kept outcome must not be written by `emitter`, or None."""
    tuned = outcome.tuned
    if not emitter.takes(tuned.backend):
        return Reason("format-backend", backend=tuned.backend, format=emitter.name)
    if not tuned.verified:
        return Reason("winner-not-verified")
    if not tuned.config:
        return Reason("default-won")
    return None


def _conflict(group: Sequence[Outcome]) -> Reason | None:
    for outcome in group:
        if not outcome.kept:
            return Reason("entry-shared", name=outcome.name)
    configs = {config_key(outcome.tuned.config) for outcome in group}
    if len(configs) > 1:
        return Reason("entry-contested", names=tuple(outcome.name for outcome in group))
    return None


def check_weights(name: str, problem: Problem) -> None:
    """Raise Unfit unless the weights are n×k: the lookup key of some formats has no layout."""
    ta, tb = problem.options["ta"], problem.options["tb"]
    if (ta, tb) != ("n", "t"):
        raise Unfit(Reason("format-layout", format=name, ta=ta, tb=tb))


def solution_index(outcome: Outcome) -> int:
    """Return the library's index of the winner as it was in the final. Raise Unfit without a kernel
    name, by which the index can be checked later."""
    tuned = outcome.tuned
    # Some backends have the solution's name as config; the kernel then has the index.
    index = tuned.config.get("solution_index", tuned.kernel.resources.get("solution_index"))
    if not isinstance(index, int) or isinstance(index, bool):
        raise Unfit(Reason("index-unknown"))
    if not tuned.kernel.name:
        raise Unfit(Reason("index-unnamed", index=index))
    if any(sign in tuned.kernel.name for sign in ",\n\r"):
        raise Unfit(Reason("kernel-name-separator", name=tuned.kernel.name))
    return index


def text_at(path: Path) -> str | None:
    """Return a file's text, None if it does not exist."""
    try:
        return read_whole(path).decode()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise UsageError(Reason("file-is-folder", file=str(path)), hint="name a file") from None
    except UnicodeDecodeError:
        raise UsageError(Reason("file-not-utf8", file=str(path))) from None
    except OSError as error:
        raise UsageError(file_unreadable(path, error)) from None


def required_text(path: Path) -> str:
    """Return a file's text; raise UsageError if it does not exist."""
    text = text_at(path)
    if text is None:
        raise UsageError(Reason("file-missing", file=str(path)))
    return text


def read_json(path: Path, kind: str) -> dict[str, object]:
    """Load a JSON document of kernelmark; raise UsageError unless its `format` is `kind`."""
    text = required_text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        cause = Reason("not-json", error=str(error))
        raise UsageError(
            Reason("in-file", file=str(path), cause=cause), hint="is it truncated?"
        ) from None
    if not isinstance(document, dict) or document.get("format") != kind:
        raise UsageError(Reason("file-of-another-format", file=str(path), format=kind))
    return document


def _unified(edit: Edit, into: Path) -> str:
    path = str(into / edit.path)
    before = (edit.before or "").splitlines(keepends=True)
    lines = difflib.unified_diff(
        before,
        edit.after.splitlines(keepends=True),
        path if edit.before is not None else "/dev/null",
        path,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
