"""Files of other tools: their bytes, lines and values.

They are read in chunks: plain or gzipped, or from stdin. Some calls extend over several lines,
which are joined to one: commands that end with a backslash, the blocks of PyTorch's inductor, and
maps that a YAML writer folded.

A row of a table and an object of a JSON document are `Fields`, with typed access to their values.
Every error names the field and what was expected; the engines that read files add the file and the
line or position. So no format has code for positions.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import itertools
import math
import re
import shlex
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar, overload

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, user_path

D = TypeVar("D")
_LONGEST_SIZE = 18  # digits of an integer: 64 bits
_QUOTED = 40
_YES = ("yes", "true", "1")
_NO = ("no", "false", "0", "none", "")


class BadLine(UsageError):
    """A line, row or object that cannot be read as what its format says."""


def unexpected(what: str, expected: str, value: object, hint: str | None = None) -> BadLine:
    """Return the error for a value that is not what is expected."""
    shown = "nothing" if value is None else repr(str(value)[:_QUOTED])
    return BadLine(f"{what}: expected {expected}, found {shown}", hint=hint)


def size_fault(text: str) -> str:
    """Return why a text is not a size or count; "" if it is one."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        return "is not a whole number"
    if digits != text:
        return "is negative"
    return "is too large" if len(text) > _LONGEST_SIZE else ""


def parse_number(value: object, what: str) -> float:
    """Parse a finite number. One with a comma is refused: it may be a decimal or a thousands
    separator. So is what only Python takes for a number: other digits, and 1_000."""
    if value is None or value == "":
        raise BadLine(f"{what} is missing", hint="is the file truncated?")
    text = str(value)
    try:
        number = float(text if text.isascii() and "_" not in text else "")
    except (ValueError, OverflowError):
        raise unexpected(what, "a number", value) from None
    if not math.isfinite(number):
        raise unexpected(what, "a finite number", value)
    return number


def parse_whole(value: object, what: str) -> int:
    """Parse a whole number of at least 0, which may be written as 384.0."""
    text = str(value).strip()
    if not size_fault(text):
        return int(text)
    number = parse_number(value, what)
    if not number.is_integer() or not 0 <= number < 2**53:
        raise unexpected(what, "a whole number of at least 0", value)
    return int(number)


def check_columns(names: Iterable[str], read: Iterable[str] | None = None) -> str:
    """Return why a header is ambiguous: a column that is read (default: any) occurs twice."""
    columns = [name for name in names if name]
    for name in columns if read is None else read:
        if columns.count(name) > 1:
            return f"the column {name!r} occurs twice"
    return ""


class Fields(Mapping[str, Any]):
    """The fields of a row or object; `where` is its position, which begins errors."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self.where = where

    @classmethod
    def of(cls, value: object, where: str) -> Fields:
        """Return a JSON object; raise BadLine for anything else."""
        if not isinstance(value, dict):
            raise unexpected(where, "an object", value)
        return cls(value, where)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def at(self, name: str) -> str:
        """Return the position of a field."""
        return f"{self.where}, {name}" if self.where else name

    def required(self, name: str) -> Any:
        """Return a field that may not be missing or empty."""
        value = self._values.get(name)
        if value is None or value == "":
            raise BadLine(f"{self.at(name)} is missing", hint="is the file truncated?")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name)
        return default if value is None or value == "" else str(value)

    def number(self, name: str) -> float:
        return parse_number(self._values.get(name), self.at(name))

    @overload
    def whole(self, name: str) -> int: ...
    @overload
    def whole(self, name: str, default: D) -> int | D: ...
    def whole(self, name: str, default: Any = ...) -> Any:
        """Return a whole number of at least 0; the default if it is missing or empty."""
        value = self._values.get(name)
        if default is not ... and (value is None or value == ""):
            return default
        return parse_whole(value, self.at(name))

    def flag(self, name: str) -> bool:
        """Return a boolean; a missing one is False."""
        text = self.text(name).lower()
        if text not in _YES and text not in _NO:
            raise unexpected(self.at(name), "yes or no", text)
        return text in _YES

    def object(self, name: str) -> Fields:
        """Return an object; an empty one if it is missing."""
        value = self._values.get(name)
        return Fields.of({} if value is None else value, self.at(name))

    def list(self, name: str) -> list[Any]:
        """Return a list; an empty one if it is missing."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise unexpected(self.at(name), "a list", value)
        return value

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects in a list."""
        for number, value in enumerate(self.list(name), 1):
            yield Fields.of(value, f"{self.at(name)} {number}")


_CHUNK = 1 << 22
_PACKED = 1 << 12
_HEAD = 1 << 20
_LONGEST_LINE = 1 << 24
_GZIP = b"\x1f\x8b"
# Encodings that are not unpacked: gzip's only once.
_ENCODINGS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    _GZIP: "gzip twice",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
DAMAGED = "the compressed file is damaged from here on"
CUT_OFF = "the compressed file is cut off here"
# A log that repeats one call compresses to a few thousandths. A large file that compresses better
# is a decompression bomb.
MOST_RATIO = 400
MOST_UNPACKED = 1 << 30
EXPANDS = f"the file unpacks to more than {MOST_UNPACKED:,} bytes, {MOST_RATIO} times its size"


class InputFile:
    """An open file. Digest and size are those of the stored bytes, and complete after the last
    chunk; `complaint` is the reason if the file is damaged."""

    def __init__(self, place: str, file: BinaryIO) -> None:
        self.place = place
        self.size = 0
        self.unpacked = 0
        self.complaint = ""
        self.packed = False
        self.ended = True  # whether the last chunk ends with a newline
        self._file = file
        self._digest = hashlib.sha256()
        self._pieces = self._unpacked()
        self.head = self._first().removeprefix(codecs.BOM_UTF8)

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


def not_text(path: str, head: bytes) -> UsageError | None:
    """Return the error for a file that begins with these bytes, if they are no text; else None."""
    encoding = next((name for start, name in _ENCODINGS.items() if head.startswith(start)), "")
    if encoding:
        return UsageError(
            f"{path} is compressed with {encoding}",
            hint="unpack it first; what gzip compressed once is read as it is",
        )
    if head.startswith(_UTF16):
        return UsageError(
            f"{path} is in UTF-16",
            hint=f"write it as UTF-8: iconv -f UTF-16 -t UTF-8 {shlex.quote(path)}",
        )
    # A log may have a stray control byte; of random bytes, every ninth is one.
    if 50 * len(_BINARY.findall(head[:4096])) > len(head[:4096]):
        return UsageError(f"{path} is not text", hint="logs are text, also compressed with gzip")
    return None


@contextlib.contextmanager
def opened(path: str) -> Iterator[InputFile]:
    """Open the file at path `path`; `-` is stdin."""
    if path == "-":
        yield InputFile(path, sys.stdin.buffer)
        return
    try:
        with user_path(path).open("rb") as file:
            yield InputFile(path, file)
    except FileNotFoundError:
        raise UsageError(
            f"there is no file {path}",
            hint="look at its spelling; 'kmark import --help' says which files can be read",
        ) from None
    except IsADirectoryError:
        raise UsageError(
            f"{path} is a folder, not a file", hint=f"name the files in it: {path.rstrip('/')}/*"
        ) from None
    except OSError as error:
        raise UsageError(
            file_unreadable(path, error),
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


class Joiner(ABC):
    """A rule by which several lines are one."""

    @abstractmethod
    def begins(self, line: bytes) -> bool:
        """Return whether the line may be continued by the next one."""

    @abstractmethod
    def continues(self, pieces: list[bytes], line: bytes) -> bytes | None:
        """Return what the line adds to the pieces so far; None if it is a line of its own."""

    @abstractmethod
    def text(self, pieces: list[bytes]) -> bytes:
        """Return the pieces as one line."""

    def joined(self, pieces_of: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[int]]]:
        """Yield lists of lines and their numbers; a joined line has the number of its first."""
        number, begun = 0, 0
        pieces: list[bytes] = []
        for some in pieces_of:
            whole: list[bytes] = []
            numbers: list[int] = []
            for line in some:
                number += 1
                if pieces:
                    if (more := self.continues(pieces, line)) is not None:
                        pieces.append(more)
                        continue
                    whole.append(self.text(pieces))
                    numbers.append(begun)
                    pieces = []
                if self.begins(line):
                    pieces, begun = [line.rstrip()], number
                else:
                    whole.append(line)
                    numbers.append(number)
            yield whole, numbers
        if pieces:
            yield [self.text(pieces)], [begun]


class Continued(Joiner):
    """Commands that scripts split with backslashes, and the blocks of PyTorch's inductor, which
    have strides and dtypes in the two lines after the name of the op."""

    _COMMAND = re.compile(rb"(?:-bench|MIOpenDriver(?:\.exe)?) [^\n]*\\\r?\n")
    _BLOCK = re.compile(rb"(.*?)AUTOTUNE \w+\([^()]*\)\s*\Z")
    _OF_BLOCK = (b"strides: ", b"dtypes: ")
    _MOST_LINES = 200  # more lines are not one command

    @classmethod
    def is_in(cls, head: bytes) -> bool:
        """Return whether a log with these first bytes has commands or blocks over several lines."""
        return b"AUTOTUNE " in head or cls._COMMAND.search(head) is not None

    def begins(self, line: bytes) -> bool:
        if b"AUTOTUNE " in line and self._BLOCK.match(line):
            return True
        return line.rstrip(b" \t\r").endswith(b"\\")

    def continues(self, pieces: list[bytes], line: bytes) -> bytes | None:
        if pieces[-1].endswith(b"\\"):
            return line.rstrip(b" \t\r") if len(pieces) <= self._MOST_LINES else None
        if len(pieces) > len(self._OF_BLOCK) or not (block := self._BLOCK.match(pieces[0])):
            return None
        # A launcher may write the same prefix before each line.
        name = self._OF_BLOCK[len(pieces) - 1]
        return line[len(block[1]) :].strip() if line.startswith(block[1] + name) else None

    def text(self, pieces: list[bytes]) -> bytes:
        return b" ".join(piece.removesuffix(b"\\") for piece in pieces)


class Folded(Joiner):
    """Maps that a YAML writer folded at 80 columns, or wrote with one field per line."""

    _WHOLE = re.compile(rb"^[ \t]*-?[ \t]*\{[^\n]*\}[ \t\r]*$", re.MULTILINE)
    _FLOW = re.compile(rb"^[ \t]*- *\{[^}\n]*\n[ \t]+[\w'\"]+: ", re.MULTILINE)
    _BLOCK = re.compile(rb"^[ \t]*- +[\w'\"]+: [^\n{}]*\n[ \t]+[\w'\"]+: ", re.MULTILINE)
    _ENTRY = re.compile(rb"\s*(?:- +)?[\w'\"]+:(?: |\r?\Z)")

    @classmethod
    def is_in(cls, head: bytes) -> bool:
        """Return whether a log with these first bytes has maps over several lines only."""
        head = head[: 1 << 16]
        if b"transA" not in head or cls._WHOLE.search(head):
            return False
        return bool(cls._FLOW.search(head) or cls._BLOCK.search(head))

    def begins(self, line: bytes) -> bool:
        return line.lstrip().startswith(b"- ")

    def continues(self, pieces: list[bytes], line: bytes) -> bytes | None:
        flow = pieces[0].lstrip(b"- \t").startswith(b"{")
        ended = flow and pieces[-1].endswith(b"}")
        inside = not ended and line[:1].isspace() and bool(line.strip())
        return line.strip() if inside and not self.begins(line) else None

    def text(self, pieces: list[bytes]) -> bytes:
        first = pieces[0].strip()[1:].strip()
        if first.startswith(b"{"):
            return b"- " + b" ".join([first, *pieces[1:]])
        if len(pieces) > 1 or self._ENTRY.match(first):
            return b"- { " + b", ".join([first, *pieces[1:]]) + b" }"
        return pieces[0]
