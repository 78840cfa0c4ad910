"""Texts of files, libraries and users: safe to print, and searched with a time limit."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

from kernelmark.core.errors import UsageError

# Control characters except tab and line feed, and bidirectional overrides: they can move the
# cursor, change colours, hide text or make a terminal send input. Lone surrogates, as in JSON's
# "\\ud800" and in file names that are not UTF-8, cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = ("=", "+", "-", "@", "\t")


def printable(text: str) -> str:
    """Return `text` with U+FFFD in place of each control character and lone surrogate."""
    return _CONTROL.sub("\ufffd", text)


def markdown_cell(text: str) -> str:
    """Return `text` escaped as one cell of a Markdown table, without tags or links."""
    whole = text.replace("&", "&amp;").replace("<", "&lt;") if "<" in text else text
    return re.sub(r"([\\|\[])", r"\\\1", whole).replace("\n", "<br>")


def csv_word(text: str) -> str:
    """Return `text` safe for a terminal and a spreadsheet: without control characters, and with an
    apostrophe in front of what looks like a formula and is not a number."""
    text = printable(text)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


# A sensible expression takes microseconds per key; `(a+)+$` takes exponential time.
LIMIT_S = 2.0
_LONGEST = 1000


def found_in(pattern: str, texts: Iterable[str], *, hint: str | None = None) -> list[bool]:
    """Return for each text whether it contains a match."""
    if len(pattern) > _LONGEST:
        raise UsageError(f"a regular expression of {len(pattern)} characters is too long", hint)
    try:
        with _limited():
            compiled = re.compile(pattern)
            return [compiled.search(text) is not None for text in texts]
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}", hint) from None
    except TimeoutError:
        raise UsageError(
            f"the regular expression {pattern!r} takes more than {LIMIT_S:g} s",
            hint="repeat nothing that is itself repeated, such as (a+)+",
        ) from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise TimeoutError after LIMIT_S of CPU time, which does not pass faster on a busy machine.
    `re` checks for signals while it searches. There is no limit in threads other than the main
    thread, which cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    left_s, interval_s = signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, left_s, interval_s)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)
