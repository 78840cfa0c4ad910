"""Continued lines: join commands and blocks that extend over several lines.

Scripts split commands into lines that end with a backslash. PyTorch's inductor writes strides and
dtypes of a tuned op to the two lines after its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_COMMAND = re.compile(rb"(?:-bench|MIOpenDriver(?:\.exe)?) [^\n]*\\\r?\n")
_BLOCK = re.compile(rb"(.*?)AUTOTUNE \w+\([^()]*\)\s*\Z")
_OF_BLOCK = (b"strides: ", b"dtypes: ")
_MOST_LINES = 200  # more lines are not one command


def has_continued(head: bytes) -> bool:
    """Return whether a log with these first bytes has commands or blocks over several lines."""
    return b"AUTOTUNE " in head or _COMMAND.search(head) is not None


def joined(lines: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield lists of lines and their numbers, with each command and block joined to one line, which
    has the number of its first line."""
    number, begun = 0, 0
    pieces: list[bytes] = []
    wanted: list[bytes] = []  # expected prefixes of the next lines of a block
    for some in lines:
        whole: list[bytes] = []
        numbers: list[int] = []
        for line in some:
            number += 1
            if wanted and line.startswith(wanted[0]):
                # Remove the prefix that a launcher writes before each line.
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
