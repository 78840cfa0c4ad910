"""Count the calls of one log, most lines of which are repeated.

Identical lines of a chunk are counted before they are parsed, and what differs between lines of the
same call is removed, so that a call is parsed once, not a million times.
"""

from __future__ import annotations

import heapq
import itertools
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelmark.core.errors import UNEXPECTED, UsageError
from kernelmark.core.validation import MOST_SIZE, bad_size
from kernelmark.workloads.calls import NOTHING, LogOptions, LogReader, RowReader
from kernelmark.workloads.workload import Call, Skipped

NO_CALL = "is not a call in a known form"
_SHOWN = 3
_BROKEN = 10_000
_TRY_AGAIN = 8
_HEADER = 4096
# Tables within a log have a column K: a cheap test that rejects most other lines.
_HAS_K = re.compile(rb"(?:\A|[\s,;\"])[kK](?:[\s,;\"]|\Z)")
_SILENT = (b"#", b"---", b"//")  # comments, and the start of a YAML document


def impossible(call: Call) -> str:
    """Return why a call is impossible; "" if it is possible."""
    if bad := bad_size(call.problem):
        return f"{bad} is not possible"
    return "" if 0 <= call.count < MOST_SIZE else _bad_count(call.count)


def _bad_count(count: int) -> str:
    return f"count={count} is not possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines that were skipped for one reason: their number, and the first ones."""

    reason: str
    count: int
    first: tuple[Skipped, ...]


class Skips:
    """A compact list of skipped lines, possibly millions; iterates over `Skipped` in order."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, array[int]]] = {}

    def add(self, file: str, line: int, reason: str) -> None:
        """Add a line; the lines of a file must come in ascending order."""
        self._lines.setdefault(file, {}).setdefault(reason, array("Q")).append(line)

    def __len__(self) -> int:
        return sum(len(lines) for reasons in self._lines.values() for lines in reasons.values())

    def __iter__(self) -> Iterator[Skipped]:
        for file, reasons in self._lines.items():
            each = [zip(lines, itertools.repeat(why)) for why, lines in reasons.items()]
            for line, reason in heapq.merge(*each):
                yield Skipped(file=file, line=line, reason=reason)

    def groups(self) -> list[Group]:
        """Return the lines grouped by reason, the rarest first: a single broken line is more
        important than a million lines of noise."""
        counts: dict[str, int] = {}
        first: dict[str, list[Skipped]] = {}
        for file, reasons in self._lines.items():
            for why, lines in reasons.items():
                counts[why] = counts.get(why, 0) + len(lines)
                some = first.setdefault(why, [])
                some += [
                    Skipped(file=file, line=line, reason=why)
                    for line in lines[: _SHOWN - len(some)]
                ]
        groups = [
            Group(reason=why, count=count, first=tuple(first[why])) for why, count in counts.items()
        ]
        return sorted(groups, key=lambda group: (group.count, group.reason))


@dataclass(slots=True)
class _Seen:
    """A distinct part: its calls, or the reason why it cannot be read."""

    calls: tuple[Call, ...]
    reason: str = ""
    count: int = 0
    once: bool = False  # whether its calls count once in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A call with its count in the log, and the format and kind of its lines."""

    format: str
    kind: str
    call: Call
    count: int


class Counting:
    """A counter of the calls in one log, whose lines are passed to `take` in order. `first` is the
    first line that is neither empty nor a comment."""

    def __init__(
        self,
        readers: Sequence[LogReader],
        options: LogOptions,
        file: str,
        skips: Skips,
        first: bytes,
    ) -> None:
        self._readers = readers
        # Called for every distinct line, hence without readers that have no `part`.
        self._known = [
            (reader.name, reader.part, reader)
            for reader in readers
            if type(reader).part is not RowReader.part
        ]
        self._options = options
        self._file = file
        self._skips = skips
        self._seen: dict[tuple[str, str, bytes], _Seen] = {}
        self._headers: dict[bytes, tuple[RowReader, str]] = {}
        self._first = first.strip()
        self._table = next(
            ((rows, reader.name) for reader in readers if (rows := reader.rows(first)) is not None),
            None,
        )
        self._broken = 0
        self._differ = False
        self._pieces = 0
        self.lines = 0

    def take(self, lines: Sequence[bytes], numbers: Sequence[int] | None = None) -> None:
        """Count the calls in some lines. `numbers` are their line numbers (default:
        consecutive)."""
        if numbers is None:
            numbers = range(self.lines + 1, self.lines + 1 + len(lines))
        self.lines += len(lines)
        bad: dict[bytes, str] = {}
        others: Counter[bytes] = Counter()
        known, seen = self._known, self._seen
        for line, times in self._distinct(lines):
            for name, part_of, reader in known:
                part = part_of(line)
                if part is not None:
                    kind, key, count = part
                    if not 0 <= count < MOST_SIZE:
                        bad[line] = _bad_count(count)
                        break
                    found = seen.get((name, kind, key))
                    if found is None:
                        found = self._new(reader, name, kind, key)
                    found.count += count * times
                    if found.reason:
                        bad[line] = found.reason
                    break
            else:
                others[line] += times
        if others:
            self._take_others(lines, numbers, others, bad)
        if bad:
            for number, line in zip(numbers, lines, strict=True):
                if line in bad:
                    self._skips.add(self._file, number, bad[line])

    def _distinct(self, lines: Sequence[bytes]) -> Iterable[tuple[bytes, int]]:
        """Return distinct lines with their counts. If most lines differ, because of times and
        pointers, counting is useless: it is skipped, and tried again from time to time."""
        if self._differ and self._pieces % _TRY_AGAIN:
            found: Iterable[tuple[bytes, int]] = zip(lines, itertools.repeat(1))
        else:
            counts = Counter(lines)
            self._differ = 2 * len(counts) > len(lines)
            found = counts.items()
        self._pieces += 1
        return found

    def _new(self, reader: RowReader, name: str, kind: str, key: bytes) -> _Seen:
        found = _Seen(calls=(), once=reader.once)
        if kind != NOTHING[0]:
            try:
                found.calls = tuple(reader.calls(kind, key, self._options))
                found.reason = next(filter(None, map(impossible, found.calls)), "")
            except UsageError as error:
                found.reason = error.message
            except UNEXPECTED as error:  # no reader anticipates all possible lines
                found.reason = f"cannot be read ({type(error).__name__})"
            if found.reason:
                found.calls = ()
        # Do not cache broken lines: a log may have millions of different ones.
        if found.reason:
            self._broken += 1
        if not found.reason or self._broken < _BROKEN:
            self._seen[name, kind, key] = found
        return found

    def _take_others(
        self,
        lines: Sequence[bytes],
        numbers: Sequence[int],
        others: Mapping[bytes, int],
        bad: dict[bytes, str],
    ) -> None:
        """Count rows of tables, whose meaning depends on the header above them; the rest is
        noise."""
        headers = [line for line in others if self._is_header(line)]
        if not headers:
            for line, times in others.items():
                if reason := self._row(line, times):
                    bad[line] = reason
            return
        for number, line in zip(numbers, lines, strict=True):
            if line in self._headers:
                self._table = self._headers[line]
            elif line in others and (reason := self._row(line, 1)):
                self._skips.add(self._file, number, reason)

    def _is_header(self, line: bytes) -> bool:
        if line not in self._headers and len(line) < _HEADER and self._may_be_header(line):
            for reader in self._readers:
                if (table := reader.table(line, self._file)) is not None:
                    # The number distinguishes rows of tables with different columns.
                    self._headers[line] = table, f"{reader.name} {len(self._headers)}"
                    break
        return line in self._headers

    def _may_be_header(self, line: bytes) -> bool:
        if _HAS_K.search(line) or len(self._readers) == 1:
            return True
        return line.strip() == self._first

    def _row(self, line: bytes, times: int) -> str:
        text = line.strip()
        if not text or text.startswith(_SILENT):
            return ""
        if self._table is None:
            return NO_CALL
        reader, name = self._table
        part = reader.part(line)
        if part is None:
            return NO_CALL
        kind, key, count = part
        if not 0 <= count < MOST_SIZE:
            return _bad_count(count)
        found = self._seen.get((name, kind, key)) or self._new(reader, name, kind, key)
        found.count += count * times
        return found.reason

    def is_call(self, line: bytes) -> bool:
        """Return whether a reader takes the line for a call, independently of other lines."""
        parts = (part_of(line) for _, part_of, _ in self._known)
        return any(part is not None and part != NOTHING for part in parts)

    def tables(self) -> list[str]:
        """Return the formats of the headers that were found."""
        return [name.split()[0] for _, name in self._headers.values()]

    def notes(self) -> list[str]:
        """Return notes on how lines and tables were interpreted, and what was not read."""
        tables = [*self._headers.values(), *([self._table] if self._table else [])]
        called = {name for (name, _, _), seen in self._seen.items() if seen.calls}
        readers = [rows for rows, _ in tables]
        readers += [one for name, _, one in self._known if name in called]
        notes = (note for reader in readers for note in reader.notes())
        return list(dict.fromkeys(notes))

    def counted(self) -> Iterator[Counted]:
        """Yield every call that was found."""
        counted_once: set[tuple[str, Call]] = set()
        for (name, kind, _), seen in self._seen.items():
            for call in seen.calls:
                count = seen.count * call.count
                if seen.once:
                    count = int((name, call) not in counted_once)
                    counted_once.add((name, call))
                if count:
                    yield Counted(format=name.split()[0], kind=kind, call=call, count=count)


def once_each(found: Iterable[Counted]) -> tuple[list[Counted], int]:
    """Return each call once, and the number of duplicates left out. A library that logs at several
    levels writes several kinds of lines for a call: of each problem, the kind with the most calls
    counts."""
    found = list(found)
    totals: dict[tuple[str, str], Counter[str]] = {}
    for item in found:
        totals.setdefault((item.format, item.call.problem.key), Counter())[item.kind] += item.count
    best = {key: max(kinds, key=lambda kind: kinds[kind]) for key, kinds in totals.items()}
    kept = [entry for entry in found if entry.kind == best[entry.format, entry.call.problem.key]]
    return kept, sum(entry.count for entry in found) - sum(entry.count for entry in kept)
