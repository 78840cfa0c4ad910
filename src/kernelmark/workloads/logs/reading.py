"""Read one or more logs, such as one per process, as one workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.registry import Registry
from kernelmark.workloads import naming
from kernelmark.workloads.logs import continued, folded, opening
from kernelmark.workloads.logs.base import Given, LogReader, Remark
from kernelmark.workloads.logs.counting import Counted, Counting, impossible, once_each
from kernelmark.workloads.logs.skips import Skips
from kernelmark.workloads.logs.unreadable import Tried, unreadable
from kernelmark.workloads.workload import Call, Workload

_HEAD = 1 << 16
registry: Registry[LogReader] = naming.logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A log that was read. `again` is the number of duplicates: calls that were also logged as
    another kind of line."""

    place: str
    sha256: str
    size: int  # bytes as stored
    lines: int
    calls: int
    formats: tuple[str, ...]
    again: int = 0
    notes: tuple[str, ...] = ()  # how it was interpreted, and what was not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The workload of some logs, with information on each log."""

    workload: Workload
    inputs: tuple[Input, ...]
    skipped: Skips


@dataclass(frozen=True, slots=True)
class _Read:
    """Information on a log, apart from its calls."""

    lines: int
    notes: tuple[str, ...] = ()
    columns: bool = False  # whether it has a header
    remarks: tuple[str, ...] = ()  # the notes on what the log has instead of calls


def names() -> list[str]:
    """Return the names of all formats, as in the CLI."""
    return naming.names(registry)


def named(name: str) -> LogReader:
    """Return the reader of a format, given by its name or a prefix of it."""
    return naming.find(registry, name)


def read(
    places: Sequence[str],
    *,
    name: str = "",
    arch: str = "",
    dtype: str = "",
    key: str = "",
    form: str | None = None,
) -> Reading:
    """Return the workload in logs; `-` is stdin. Counts of equal calls are summed over lines and
    files.

    Calls are equal if problem, BLAS fields and `lost` are equal; several distinct calls may have
    the same problem. `form` names the format (default: detected); `dtype` is that of lists of sizes
    (default: bf16); `key` names the values of an autotuner's key. Raise UsageError, with the
    formats tried, for a log without a readable call.
    """
    _refuse_twice(places)
    given = Given(arch=arch, dtype=dtype, key=key)
    skips = Skips()
    inputs, calls = [], _Merged()
    for place in places:
        with opening.opened(place) as source:
            found, read = _read_one(source, given, form, skips)
        kept, again = once_each(found)
        if not kept:
            tried = _tried(place, form)
            raise unreadable(source, skips, tried, columns=read.columns, remarks=read.remarks)
        calls.add(kept, place)
        inputs.append(
            Input(
                place=place,
                sha256=source.sha256,
                size=source.size,
                lines=read.lines,
                calls=sum(one.count for one in kept),
                formats=tuple(dict.fromkeys(one.format for one in kept)),
                again=again,
                notes=read.notes,
            )
        )
    workload = Workload(name=name or Path(places[0]).stem, calls=calls.sorted())
    return Reading(workload=workload, inputs=tuple(inputs), skipped=skips)


def recognized(place: str) -> str | None:
    """Return the format of the first bytes of a file; None if no format matches."""
    with opening.opened(place) as source:
        for reader in _readers(None):
            if reader.is_document(source.head):
                return reader.name
        counting = _counting(source, Given(), None, Skips())
        for lines in opening.lines([source.head]):
            counting.take(lines)
        formats = [one.format for one in counting.counted()] + counting.tables()
        return next(iter(formats), None)


def _refuse_twice(places: Sequence[str]) -> None:
    if not places:
        raise UsageError(Reason("no-log-given"))
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UsageError(
                Reason("file-twice", file=place),
                hint="its calls would be counted twice; name it once",
            )


def _readers(form: str | None) -> list[LogReader]:
    """Return the possible readers; those whose lines are not distinctive come last."""
    if form is not None:
        return [named(form)]
    return sorted((registry.get(name) for name in registry.names()), key=lambda one: one.alone)


def _tried(place: str, form: str | None) -> Tried:
    if form is None:
        return Tried(names())
    name = named(form).name
    other = recognized(place) if place != "-" else None
    return Tried([name], named=True, looks_like=other if other != name else None)


def _read_one(
    source: opening.Source, given: Given, form: str | None, skips: Skips
) -> tuple[list[Counted], _Read]:
    for reader in _readers(form):
        named = form is not None and type(reader).document is not LogReader.document
        if named or reader.is_document(source.head):
            return _document(reader, source, given, skips)
    counting = _counting(source, given, form, skips)
    pieces = opening.lines(source.chunks())
    last = b""
    if folded.is_folded(source.head):
        for lines, numbers in folded.joined(pieces):
            counting.take(lines, numbers)
    elif form is not None or continued.has_continued(source.head):
        for lines, numbers in continued.joined(pieces):
            counting.take(lines, numbers)
            last = lines[-1] if lines else last
    else:
        for lines in pieces:
            counting.take(lines)
            last = lines[-1]
    if source.complaint:
        skips.add(source.place, counting.lines + 1, source.complaint)
    notes = counting.notes()
    if not source.ended and counting.is_call(last):
        notes.append(Reason("may-be-cut", line=counting.lines))
    columns = bool(counting.tables())
    return list(counting.counted()), _Read(counting.lines, tuple(notes), columns)


def _counting(source: opening.Source, given: Given, form: str | None, skips: Skips) -> Counting:
    readers, first = _readers(form), _first_line(source.head)
    if form is None:
        readers = [
            reader for reader in readers if not reader.alone or _begins(reader, first, source.place)
        ]
    else:
        lines = source.head[:_HEAD].splitlines()
        first = next((line for line in lines if readers[0].rows(line) is not None), first)
    return Counting(readers, given, source.place, skips, first)


def _first_line(head: bytes) -> bytes:
    for line in head[:_HEAD].splitlines():
        if line.strip() and not line.lstrip().startswith(b"#"):
            return line
    return b""


def _begins(reader: LogReader, line: bytes, place: str) -> bool:
    return reader.rows(line) is not None or reader.table(line, place) is not None


def _document(
    reader: LogReader, source: opening.Source, given: Given, skips: Skips
) -> tuple[list[Counted], _Read]:
    counts: dict[Call, int] = {}
    notes: list[str] = []
    last = 0
    for line, found in reader.document(source.chunks(), given):
        last = max(last, line)
        if isinstance(found, Remark):
            notes.append(found.text)
        elif isinstance(found, str):
            skips.add(source.place, line, found)
        elif reason := impossible(found):
            skips.add(source.place, line, reason)
        else:
            counts[found] = counts.get(found, 0) + 1
    if source.complaint:
        skips.add(source.place, last + 1, source.complaint)
    counted = [
        Counted(format=reader.name, kind="document", call=call, count=count * call.count)
        for call, count in counts.items()
    ]
    return counted, _Read(last, tuple(notes), remarks=tuple(notes))


class _Merged:
    """Calls of several logs, with the counts of equal calls summed."""

    def __init__(self) -> None:
        self._counts: dict[Call, int] = {}
        self._sources: dict[Call, dict[str, None]] = {}

    def add(self, found: Iterable[Counted], place: str) -> None:
        for one in found:
            call = Call(problem=one.call.problem, blas=one.call.blas, lost=one.call.lost)
            self._counts[call] = self._counts.get(call, 0) + one.count
            self._sources.setdefault(call, {})[place] = None

    def sorted(self) -> tuple[Call, ...]:
        """Return the calls, most frequent first; ties do not depend on the order of lines and
        files."""
        found = [
            Call(
                problem=call.problem,
                count=count,
                blas=call.blas,
                lost=call.lost,
                sources=tuple(self._sources[call]),
            )
            for call, count in self._counts.items()
        ]
        return tuple(sorted(found, key=_order))


def _order(call: Call) -> tuple[int, str, list[tuple[str, str]], tuple[str, ...]]:
    return -call.count, call.problem.key, sorted(call.blas.items()), call.lost
