"""Continued lines: what a program spreads over several lines, as one line each.

A script spreads a command over lines that end in a backslash. PyTorch's inductor writes the strides
and dtypes of what it tunes on the two lines after its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_COMMAND = re.compile(rb"(?:-bench|MIOpenDriver(?:\.exe)?) [^\n]*\\\r?\n")
_BLOCK = re.compile(rb"(.*?)AUTOTUNE \w+\([^()]*\)\s*\Z")
_OF_BLOCK = (b"strides: ", b"dtypes: ")
_MOST_LINES = 200  # of one command; more is no command


def has_continued(head: bytes) -> bool:
    """Return whether a log that begins so has a command or a block over several lines."""
    return b"AUTOTUNE " in head or _COMMAND.search(head) is not None


def joined(lines: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield each command and block on one line, with the number of its first line; other lines as
    they are."""
    number, begun = 0, 0
    pieces: list[bytes] = []
    wanted: list[bytes] = []  # what the next lines of a block begin with
    for some in lines:
        whole: list[bytes] = []
        numbers: list[int] = []
        for line in some:
            number += 1
            if wanted and line.startswith(wanted[0]):
                # What a launcher writes before each line is not a part of it.
                pieces.append(line[len(wanted[0]) - len(_OF_BLOCK[-len(wanted)]) :].strip())
                wanted = wanted[1:]
                continue
            if pieces and (wanted or not pieces[-1].endswith(b"\\")):
                whole.append(_one_line(pieces))
                numbers.append(begun)
                pieces, wanted = [], []
            begun = begun if pieces else number
            if not pieces and b"AUTOTUNE " in line and (block := _BLOCK.match(line)):
                pieces, wanted = [line.strip()], [block[1] + word for word in _OF_BLOCK]
                continue
            text = line.rstrip(b" \t\r")
            if text.endswith(b"\\") and len(pieces) < _MOST_LINES:
                pieces.append(text)
                continue
            whole.append(_one_line([*pieces, line]))
            numbers.append(begun)
            pieces = []
        yield whole, numbers
    if pieces:
        yield [_one_line(pieces)], [begun]


def _one_line(pieces: list[bytes]) -> bytes:
    *first, last = pieces
    return b" ".join([*(piece.removesuffix(b"\\") for piece in first), last.removesuffix(b"\\")])
