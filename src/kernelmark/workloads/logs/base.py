"""LogReader: one format of logged calls, and what the reading of all of them shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.workloads.workload import Call


class BadLine(UsageError):
    """A line that should be a call and cannot be read; the message is what is said of it."""


LIST_DTYPE = "bf16"
ASSUMED_DTYPE = f"names no dtype: read as {LIST_DTYPE}; another: --dtype"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a log does not say of itself and the user may: the architecture that it was made on,
    the dtype of lists that hold nothing but sizes, and the names of an autotuner's key. Empty is
    not given."""

    arch: str = ""
    dtype: str = ""
    key: str = ""

    @property
    def list_dtype(self) -> str:
        """The dtype of a plain list of sizes, which is bf16 unless another is given."""
        return self.dtype or LIST_DTYPE


@dataclass(frozen=True, slots=True)
class Remark:
    """Notes on a document: how it was interpreted, what was not read."""

    text: str


# (kind of line, what of it makes the call, how many calls it stands for)
Part = tuple[str, bytes, int]
# A line of ours that is no call.
NOTHING: Part = ("", b"", 0)


class RowReader:
    """Lines that each stand on their own.

    `part` is asked of every distinct line of a log, a million times if it must: it finds out
    cheaply whether a line is one of these, and leaves out what differs from call to call (times,
    pointers, the kernel that was chosen). `calls` is asked once for each distinct part.
    """

    # The rows are a set: a call counts once, however many of them make it.
    once = False

    def part(self, line: bytes) -> Part | None:
        """None if the line is not ours."""
        return None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterable[Call]:
        """Return the calls of a part; `BadLine` or any `UsageError` if they cannot be read."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Notes on a log with such lines: how they were interpreted, what was not read."""
        return ()


class LogReader(RowReader):
    """Reads one format. A format is made of lines, of tables under a header, or is a document."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    # Its lines look like nothing in particular: only a file that begins with one is read so.
    alone = False

    def rows(self, line: bytes) -> RowReader | None:
        """Return what reads a file that begins with this line, a row without a header above it."""
        return None

    def table(self, line: bytes, place: str) -> RowReader | None:
        """Return what reads the rows under this line, if it is a header of ours in the file
        `place`."""
        return None

    def is_document(self, head: bytes) -> bool:
        """Return whether a file that begins so is a document of ours."""
        return False

    def document(
        self, chunks: Iterable[bytes], given: Given
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        """Line numbers of a document with the call that is there, or with why it cannot be read;
        a remark is of the whole."""
        return iter(())
