"""Continued commands: a command that a script spreads over lines ending in a backslash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BEGUN = re.compile(rb"-bench [^\n]*\\\r?\n")
_MOST_LINES = 200  # of one command; more is no command


def has_continued(head: bytes) -> bool:
    """Whether a log that begins so has a benchmark's command over several lines."""
    return _BEGUN.search(head) is not None


def joined(lines: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Each command on one line, with the number of its first line; other lines as they are."""
    number, begun = 0, 0
    pieces: list[bytes] = []
    for some in lines:
        whole: list[bytes] = []
        numbers: list[int] = []
        for line in some:
            number += 1
            begun = begun if pieces else number
            text = line.rstrip(b" \t\r")
            if text.endswith(b"\\") and len(pieces) < _MOST_LINES:
                pieces.append(text[:-1])
                continue
            whole.append(b" ".join((*pieces, line)))
            numbers.append(begun)
            pieces = []
        yield whole, numbers
    if pieces:
        yield [b" ".join(pieces)], [begun]
