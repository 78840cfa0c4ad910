"""Logs as bytes and as lines: plain or gzipped files, stdin; large ones a piece at a time."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable
from kernelmark.core.reason import Reason

_CHUNK = 1 << 22
_PACKED = 1 << 12
_HEAD = 1 << 20
_LONGEST_LINE = 1 << 24
_GZIP = b"\x1f\x8b"
DAMAGED = Reason("file-damaged")
CUT_OFF = Reason("file-cut")
# A log of one call over and over shrinks to a few thousandths. What shrinks more and is larger than
# any such log was made to fill the reader's memory or time.
MOST_RATIO = 400
MOST_UNPACKED = 1 << 30
EXPANDS = (
    f"the compressed file expands to more than {MOST_UNPACKED >> 30} GiB and {MOST_RATIO} times its"
    " size: the rest is not read"
)
_MARK = b"\xef\xbb\xbf"  # of UTF-8, at the beginning of files from Windows


class Source:
    """One opened log. Its digest and size are of the bytes as stored, and whole once every chunk
    was taken; `complaint` says what was wrong with them."""

    def __init__(self, place: str, file: BinaryIO) -> None:
        self.place = place
        self.size = 0
        self.unpacked = 0
        self.complaint = ""
        self.packed = False
        self.ended = True  # by the end of a line
        self._file = file
        self._digest = hashlib.sha256()
        self._pieces = self._unpacked()
        self.head = self._first().removeprefix(_MARK)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def _first(self) -> bytes:
        """Return the beginning: what is packed comes in pieces too small to tell a format by."""
        head = b""
        while len(head) < _HEAD and (piece := next(self._pieces, None)) is not None:
            head += piece
        return head

    def chunks(self) -> Iterator[bytes]:
        """Yield every byte, unpacked; once."""
        for data in itertools.chain([self.head], self._pieces):
            if data:
                self.ended = data.endswith(b"\n")
            yield data

    def _raw(self) -> Iterator[bytes]:
        while data := self._file.read(_CHUNK):
            self.size += len(data)
            self._digest.update(data)
            yield data

    def _unpacked(self) -> Iterator[bytes]:
        unpack = None
        for number, data in enumerate(self._raw()):
            if number == 0 and data.startswith(_GZIP):
                unpack, self.packed = zlib.decompressobj(wbits=31), True
            if unpack is None:
                yield data
                continue
            # Of damaged data nothing is given, so little of it is tried at once.
            for at in range(0, len(data), _PACKED):
                piece = data[at : at + _PACKED]
                while piece and not self.complaint:
                    try:
                        unpacked = unpack.decompress(piece, _CHUNK)
                    except zlib.error:
                        self.complaint = DAMAGED
                        break
                    self.unpacked += len(unpacked)
                    if self.unpacked > max(MOST_UNPACKED, MOST_RATIO * self.size):
                        self.complaint = EXPANDS
                        break
                    yield unpacked
                    piece = unpack.unconsumed_tail or unpack.unused_data
                    if unpack.eof and piece:  # several files in one, as `cat a.gz b.gz` makes
                        unpack = zlib.decompressobj(wbits=31)
        if unpack is not None and not unpack.eof and not self.complaint:
            self.complaint = CUT_OFF


@contextlib.contextmanager
def opened(place: str) -> Iterator[Source]:
    """Yield the log at `place`, `-` for stdin."""
    if place == "-":
        yield Source(place, sys.stdin.buffer)
        return
    try:
        with Path(place).expanduser().open("rb") as file:
            yield Source(place, file)
    except FileNotFoundError:
        raise UsageError(
            Reason("file-missing", file=place),
            hint="look at its spelling; 'kmark import --help' says which files can be read",
        ) from None
    except IsADirectoryError:
        raise UsageError(
            Reason("file-is-folder", file=place),
            hint=f"name the files in it: {place.rstrip('/')}/*",
        ) from None
    except OSError as error:
        raise UsageError(
            file_unreadable(place, error),
            hint="copy it to where it can be read, or change its permissions",
        ) from None


def lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines in lists, without their ends; a line that is too long for one is cut."""
    rest, too_long = b"", False
    for chunk in chunks:
        whole = (rest + chunk).split(b"\n")
        rest = whole.pop()
        if too_long and whole:
            del whole[0]  # what follows the part of it that was given
            too_long = False
        if whole:
            yield whole
        if too_long:
            rest = b""
        elif len(rest) > _LONGEST_LINE:
            yield [rest]
            rest, too_long = b"", True
    if rest:
        yield [rest]
