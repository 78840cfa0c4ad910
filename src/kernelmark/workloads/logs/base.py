"""LogReader: the interface of a log format, and types that all formats share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.workload import Call


class BadLine(UsageError):
    """A line that should be a call and cannot be read; the message follows "line N"."""


LIST_DTYPE = "bf16"
ASSUMED_DTYPE = Reason("dtype-assumed", dtype=LIST_DTYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts that the user gives because a log lacks them: the architecture, the dtype of lists that
    have only sizes, and the names of the values in an autotuner's key. "" is not given."""

    arch: str = ""
    dtype: str = ""
    key: str = ""

    @property
    def list_dtype(self) -> str:
        """The dtype for a list of sizes: the given one, or bf16."""
        return self.dtype or LIST_DTYPE


@dataclass(frozen=True, slots=True)
class Remark:
    """A note on a document: how it was interpreted, or what was not read."""

    text: str


# (kind of line, the part that identifies the call, number of calls)
Part = tuple[str, bytes, int]
# A line of the format that is not a call.
NOTHING: Part = ("", b"", 0)


class RowReader:
    """A reader of independent lines.

    `part` is called for every distinct line of a log, possibly a million times: it must be fast,
    and removes what differs from call to call (times, pointers, the chosen kernel). `calls` is
    called once for each distinct part.
    """

    # Whether the rows are a set: a call then counts once, however many rows it has.
    once = False

    def part(self, line: bytes) -> Part | None:
        """Return the part that identifies the call; None for a line of another format."""
        return None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterable[Call]:
        """Return the calls of a part; raise BadLine or another UsageError if it cannot be read."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return notes on a log with such lines: how they were interpreted, what was not read."""
        return ()


class LogReader(RowReader):
    """The reader of one format: of lines, of tables under a header, or of a document."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    # Whether its lines are not distinctive: then only a file that begins with one is read.
    alone = False

    def rows(self, line: bytes) -> RowReader | None:
        """Return the reader of a file that begins with this row, without a header; else None."""
        return None

    def table(self, line: bytes, place: str) -> RowReader | None:
        """Return the reader of the rows below this line of the file `place`, if it is a header of
        the format; else None."""
        return None

    def is_document(self, head: bytes) -> bool:
        """Return whether a file with these first bytes is a document of the format."""
        return False

    def document(
        self, chunks: Iterable[bytes], given: Given
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        """Yield (line number, call) of a document. Instead of the call, a string is the reason why
        it cannot be read, and a remark is a note on the whole document."""
        return iter(())
