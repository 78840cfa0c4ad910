"""Read logs in chunks, as bytes or lines: plain or gzipped files, and stdin."""

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
from kernelmark.core.reason import NO_REASON, Reason

_CHUNK = 1 << 22
_PACKED = 1 << 12
_HEAD = 1 << 20
_LONGEST_LINE = 1 << 24
_GZIP = b"\x1f\x8b"
DAMAGED = Reason("file-damaged")
CUT_OFF = Reason("file-cut")
# A log that repeats one call compresses to a few thousandths. A large file that compresses better
# is a decompression bomb.
MOST_RATIO = 400
MOST_UNPACKED = 1 << 30
EXPANDS = Reason("file-expands", most=MOST_UNPACKED, ratio=MOST_RATIO)
_MARK = b"\xef\xbb\xbf"  # the UTF-8 byte order mark of files from Windows


class Source:
    """An open log. Digest and size are those of the stored bytes, and complete after the last
    chunk; `complaint` is the reason if the file is damaged."""

    def __init__(self, place: str, file: BinaryIO) -> None:
        self.place = place
        self.size = 0
        self.unpacked = 0
        self.complaint = NO_REASON
        self.packed = False
        self.ended = True  # whether the last chunk ends with a newline
        self._file = file
        self._digest = hashlib.sha256()
        self._pieces = self._unpacked()
        self.head = self._first().removeprefix(_MARK)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def _first(self) -> bytes:
        """Return the first bytes: decompressed chunks are too small to detect a format."""
        head = b""
        while len(head) < _HEAD and (piece := next(self._pieces, None)) is not None:
            head += piece
        return head

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed contents; can be iterated once."""
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
            # zlib returns nothing from a damaged chunk, so keep chunks small.
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
                    if unpack.eof and piece:  # concatenated files: `cat a.gz b.gz`
                        unpack = zlib.decompressobj(wbits=31)
        if unpack is not None and not unpack.eof and not self.complaint:
            self.complaint = CUT_OFF


@contextlib.contextmanager
def opened(place: str) -> Iterator[Source]:
    """Open the log at path `place`; `-` is stdin."""
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
    """Yield lists of lines without newlines; lines that are too long are truncated."""
    rest, too_long = b"", False
    for chunk in chunks:
        whole = (rest + chunk).split(b"\n")
        rest = whole.pop()
        if too_long and whole:
            del whole[0]  # the rest of the truncated line
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
