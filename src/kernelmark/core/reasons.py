"""Why a result is not ok: all that is known, and the one line of it that matters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from kernelmark.core.result import Result, Status

# Their errors go on with what the worker wrote to standard error, which is mostly our own stack.
ENDED_WORKERS = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (.+)')
# Frames that are there whatever the kernel is: ours, and those of Python itself.
_USUAL_FRAME = re.compile(
    r"/kernelmark/(backends|core|devices|gpu|kernels|measure|numerics|ops|runners|stats)/"
    r"|<frozen |/python3\.\d+/(?!site-packages/|dist-packages/)"
)
_DUMP = ("Fatal Python error", "Current thread", "Thread 0x", "Extension modules", "Traceback")
_SET = re.compile(r"; (?=set \d+: )")
_MORE = re.compile(r"; and (\d+) more$")
_LONGEST = 200


def whole_reason(result: Result) -> str:
    """Everything that is known; empty where nothing is."""
    if result.error:
        return result.error
    if result.check is not None and not result.check.passed:
        return result.check.detail or "the output is not what it must be"
    return ""


def reason_line(result: Result) -> str:
    """One line: how a worker ended and where, a wrong answer once, else the first line."""
    lines = whole_reason(result).splitlines()
    if not lines:
        return ""
    if result.status is Status.WRONG:
        return _once(" ".join(lines))
    if result.status in ENDED_WORKERS:
        said = [one.strip() for one in lines[1:] if one.strip() and not one[0].isspace()]
        said = [one for one in said if not one.startswith(_DUMP)]
        return _cut(": ".join([lines[0], *said[-1:]])) + _place(lines[1:])
    return _cut(lines[0]) + (" …" if len(lines) > 1 else "")


def _place(lines: Sequence[str]) -> str:
    """`, at own.py line 10 in launch`: the innermost frame that is not always there."""
    start = next((i for i, one in enumerate(lines) if one.startswith("Current thread")), 0)
    for found in filter(None, map(_FRAME.match, lines[start:])):
        if not _USUAL_FRAME.search(found[1]):
            return f", at {PurePath(found[1]).name} line {found[2]} in {found[3]}"
    return ""


def _once(text: str) -> str:
    """Sentences about sets of arguments that differ only in their numbers, told once."""
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for part in _SET.split(text):
        more = _MORE.search(part)
        sentence = _MORE.sub("", part)
        kind = re.sub(r"^.*?\bset \d+: ", "", sentence).partition("; worst is")[0]
        kind = re.sub(r"\d+", "#", kind)
        first.setdefault(kind, sentence)
        counts[kind] = counts.get(kind, 0) + 1 + (int(more[1]) if more else 0)
    return "; ".join(
        sentence if counts[kind] == 1 else f"{sentence} (the first of {counts[kind]} like this)"
        for kind, sentence in first.items()
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
