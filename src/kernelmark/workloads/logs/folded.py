"""Folded maps: join maps that a YAML writer split into several lines.

The log of a library has one map per line. After another tool, maps may be folded at 80 columns, or
be in block style with one field per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_WHOLE = re.compile(rb"^[ \t]*-?[ \t]*\{[^\n]*\}[ \t\r]*$", re.MULTILINE)
_FOLDED = re.compile(rb"^[ \t]*- *\{[^}\n]*\n[ \t]+[\w'\"]+: ", re.MULTILINE)
_BLOCK = re.compile(rb"^[ \t]*- +[\w'\"]+: [^\n{}]*\n[ \t]+[\w'\"]+: ", re.MULTILINE)
_ENTRY = re.compile(rb"\s*(?:- +)?[\w'\"]+:(?: |\r?\Z)")


def is_folded(head: bytes) -> bool:
    """Return whether a log with these first bytes has maps over several lines only."""
    head = head[: 1 << 16]
    if b"transA" not in head or _WHOLE.search(head):
        return False
    return bool(_FOLDED.search(head) or _BLOCK.search(head))


def joined(lines: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield lists of lines and their numbers, with each map joined to one line, which has the
    number of its first line."""
    number, begun = 0, 0
    pieces: list[bytes] = []
    for some in lines:
        whole: list[bytes] = []
        numbers: list[int] = []
        for line in some:
            number += 1
            starts = line.lstrip().startswith(b"- ")
            if pieces and not starts and _continues(line, pieces):
                pieces.append(line.strip())
                continue
            if pieces:
                whole.append(_one_line(pieces))
                numbers.append(begun)
                pieces = []
            if starts:
                pieces, begun = [line.strip()], number
            else:
                whole.append(line)
                numbers.append(number)
        yield whole, numbers
    if pieces:
        yield [_one_line(pieces)], [begun]


def _continues(line: bytes, pieces: list[bytes]) -> bool:
    flow = pieces[0].lstrip(b"- ").startswith(b"{")
    ended = flow and pieces[-1].endswith(b"}")
    return not ended and line[:1].isspace() and bool(line.strip())


def _one_line(pieces: list[bytes]) -> bytes:
    first = pieces[0][1:].strip()
    if first.startswith(b"{"):
        return b"- " + b" ".join([first, *pieces[1:]])
    if len(pieces) > 1 or _ENTRY.match(first):
        return b"- { " + b", ".join([first, *pieces[1:]]) + b" }"
    return pieces[0]
