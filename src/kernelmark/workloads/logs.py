"""Read logs of calls as workloads; `formats` has one module for the formats of each tool.

    reading = read(["rank0.log", "rank1.log.gz"], options=LogOptions(arch="gfx942"))
    reading.workload.calls

Formats are detected by content, and a file may mix lines of several formats with other lines. A
line that cannot be read is skipped and reported; the rest of the file is still read.

Most lines of a log are repeated. Identical lines of a chunk are counted before they are parsed, and
what differs between lines of the same call is removed, so that a call is parsed once, not a million
times.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import re
import shlex
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from kernelmark.core.errors import UNEXPECTED, UsageError
from kernelmark.core.result import MOST_SIZE, bad_size
from kernelmark.workloads import formats
from kernelmark.workloads import source as files
from kernelmark.workloads import workload as workload_file
from kernelmark.workloads.calls import (
    NO_LOG_OPTIONS,
    NOTHING,
    LogOptions,
    LogReader,
    Remark,
    RowReader,
    header,
)
from kernelmark.workloads.source import Continued, Folded, InputFile, Joiner
from kernelmark.workloads.workload import Call, Skipped, Workload

NO_CALL = "is not a call in a known form"
_SHOWN_REASONS = 3
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
                    for line in lines[: _SHOWN_REASONS - len(some)]
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
            for reader in (reader.of_file(first) for reader in readers)
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
        rest: Counter[bytes] = Counter()
        readers, seen = self._known, self._seen
        for line, times in self._distinct(lines):
            for name, part_of, reader in readers:
                part = part_of(line)
                if part is not None:
                    kind, key, count = part
                    if not 0 <= count < MOST_SIZE:
                        bad[line] = _bad_count(count)
                        break
                    seen_call = seen.get((name, kind, key))
                    if seen_call is None:
                        seen_call = self._new(reader, name, kind, key)
                    seen_call.count += count * times
                    if seen_call.reason:
                        bad[line] = seen_call.reason
                    break
            else:
                rest[line] += times
        if rest:
            self._take_others(lines, numbers, rest, bad)
        if bad:
            for number, line in zip(numbers, lines, strict=True):
                if line in bad:
                    self._skips.add(self._file, number, bad[line])

    def _distinct(self, lines: Sequence[bytes]) -> Iterable[tuple[bytes, int]]:
        """Return distinct lines with their counts. If most lines differ, because of times and
        pointers, counting is useless: it is skipped, and tried again from time to time."""
        if self._differ and self._pieces % _TRY_AGAIN:
            counted_lines: Iterable[tuple[bytes, int]] = zip(lines, itertools.repeat(1))
        else:
            counts = Counter(lines)
            self._differ = 2 * len(counts) > len(lines)
            counted_lines = counts.items()
        self._pieces += 1
        return counted_lines

    def _new(self, reader: RowReader, name: str, kind: str, key: bytes) -> _Seen:
        seen = _Seen(calls=(), once=reader.once)
        if kind != NOTHING[0]:
            try:
                seen.calls = tuple(reader.calls(kind, key, self._options))
                seen.reason = next(filter(None, map(impossible, seen.calls)), "")
            except UsageError as error:
                seen.reason = error.message
            except UNEXPECTED as error:  # no reader anticipates all possible lines
                seen.reason = f"cannot be read ({type(error).__name__})"
            if seen.reason:
                seen.calls = ()
        # Do not cache broken lines: a log may have millions of different ones.
        if seen.reason:
            self._broken += 1
        if not seen.reason or self._broken < _BROKEN:
            self._seen[name, kind, key] = seen
        return seen

    def _take_others(
        self,
        lines: Sequence[bytes],
        numbers: Sequence[int],
        rest: Mapping[bytes, int],
        bad: dict[bytes, str],
    ) -> None:
        """Count rows of tables, whose meaning depends on the header above them; the rest is
        noise."""
        headers = [line for line in rest if self._is_header(line)]
        if not headers:
            for line, times in rest.items():
                if reason := self._row(line, times):
                    bad[line] = reason
            return
        for number, line in zip(numbers, lines, strict=True):
            if line in self._headers:
                self._table = self._headers[line]
            elif line in rest and (reason := self._row(line, 1)):
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
        seen = self._seen.get((name, kind, key)) or self._new(reader, name, kind, key)
        seen.count += count * times
        return seen.reason

    def is_known(self, line: bytes) -> bool:
        """Return whether the line is of a format, by itself or as a row of the table; any other is
        among the skipped lines."""
        readers: list[RowReader] = [reader for _, _, reader in self._known]
        readers += [self._table[0]] if self._table else []
        return any(reader.part(line) is not None for reader in readers)

    def tables(self) -> list[str]:
        """Return the formats of the headers that were found."""
        return [name.split()[0] for _, name in self._headers.values()]

    def notes(self) -> list[str]:
        """Return notes on how lines and tables were interpreted, and what was not read."""
        tables = [*self._headers.values(), *([self._table] if self._table else [])]
        called = {name for (name, _, _), seen in self._seen.items() if seen.calls}
        readers = [rows for rows, _ in tables]
        readers += [log_reader for name, _, log_reader in self._known if name in called]
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


def once_each(counted: Iterable[Counted]) -> tuple[list[Counted], int]:
    """Return each call once, and the number of duplicates left out. A library that logs at several
    levels writes several kinds of lines for a call: of each problem, the kind with the most calls
    counts."""
    counted = list(counted)
    totals: dict[tuple[str, str], Counter[str]] = {}
    for item in counted:
        totals.setdefault((item.format, item.call.problem.key), Counter())[item.kind] += item.count
    best = {key: max(kinds, key=lambda kind: kinds[kind]) for key, kinds in totals.items()}
    kept = [entry for entry in counted if entry.kind == best[entry.format, entry.call.problem.key]]
    return kept, sum(entry.count for entry in counted) - sum(entry.count for entry in kept)


registry = formats.logs
_HEAD = 1 << 16
_INPUTS = "inputs.json"
_MAY_BE_CUT = "line {}: the file ends without a line end: if it is truncated, so may be this call"
_LOG_AGAIN = "leave it out, or log again"
_COLUMNS = (
    "a list has M,N,K (GEMMs), heads,seqlen,head_dim (attention) or N,C,H,W,K,R,S "
    "(convolutions), and may have batch, dtype, count"
)
_SHOWN = 12  # columns of a header in errors
_OURS = re.compile(rb'\s*\{\s*"kernelmark"')
_NAME = re.compile(r"[^\W\d][\w .:/()%#-]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInput:
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
class LogReading:
    """The workload of some logs, with information on each log."""

    workload: Workload
    inputs: tuple[LogInput, ...]
    skipped: Skips


@dataclass(frozen=True, slots=True)
class _Log:
    """What is known of a log, apart from its calls."""

    lines: int
    notes: tuple[str, ...] = ()
    has_header: bool = False
    is_document: bool = False


def read(
    places: Sequence[str],
    *,
    name: str = "",
    options: LogOptions = NO_LOG_OPTIONS,
    form: str | None = None,
) -> LogReading:
    """Return the workload in logs; `-` is stdin. Counts of equal calls are summed over lines and
    files.

    Calls are equal if problem, BLAS fields and `lost` are equal; several distinct calls may have
    the same problem. `form` names the format (default: detected). Raise UsageError, with the
    formats tried, for a log without a readable call.
    """
    if not places:
        raise UsageError("no log was given")
    for number, path in enumerate(places):
        if path in places[:number]:
            raise UsageError(
                f"{path} is given twice", hint="its calls would be counted twice; name it once"
            )
    skips = Skips()
    inputs, calls = [], _Merged()
    for path in places:
        with files.opened(path) as source:
            counted, log = _read_log(source, options, form, skips)
        kept, again = once_each(counted)
        if not kept:
            raise _without_calls(source, skips, log, form)
        calls.add(kept, path)
        inputs.append(
            LogInput(
                place=path,
                sha256=source.sha256,
                size=source.size,
                lines=log.lines,
                calls=sum(call.count for call in kept),
                formats=tuple(dict.fromkeys(call.format for call in kept)),
                again=again,
                notes=log.notes,
            )
        )
    workload = Workload(name=name or Path(places[0]).stem, calls=calls.sorted())
    return LogReading(workload=workload, inputs=tuple(inputs), skipped=skips)


def recognized(path: str) -> str | None:
    """Return the format of the first bytes of a file; None if no format matches."""
    with files.opened(path) as source:
        for reader in _readers(None):
            if reader.is_document(source.head):
                return reader.name
        counting = _counting(source, LogOptions(), None, Skips())
        for lines in files.lines([source.head]):
            counting.take(lines)
        formats = [call.format for call in counting.counted()] + counting.tables()
        return next(iter(formats), None)


def save(reading: LogReading, path: Path, *, arch: str = "", force: bool = False) -> None:
    """Write a workload file at `path`, and next to it inputs.json, which names the logs.

    Raise UsageError if the file was made from other logs or was edited, unless `force`.
    """
    if path.exists() and not force:
        _check_unchanged(reading, path)
    workload_file.write(path, reading.workload)
    document = {
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "arch": arch,
        "workload_sha256": _digest(path),
        "inputs": [
            {
                "path": log.place,
                "sha256": log.sha256,
                "bytes": log.size,
                "lines": log.lines,
                "calls": log.calls,
                "formats": list(log.formats),
            }
            for log in reading.inputs
        ],
        "skipped_lines": len(reading.skipped),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path.with_name(_INPUTS).write_text(text, encoding="utf-8", errors="surrogateescape")


def formats_of(path: Path) -> set[str]:
    """Return the formats of the logs that the workload file at `path` was made from, if known."""
    inputs = _load_inputs(path).get("inputs", [])
    return {str(name) for log in inputs for name in log.get("formats", ())}


def _check_unchanged(reading: LogReading, path: Path) -> None:
    saved = _load_inputs(path)
    before = saved.get("inputs", [])
    if sorted(log["sha256"] for log in before) != sorted(log.sha256 for log in reading.inputs):
        names = ", ".join(str(log["path"]) for log in before[:3]) + (", …" if before[3:] else "")
        raise UsageError(
            f"{path} exists, and was made from {names or 'something else'}",
            hint="name another folder, or replace it: --force",
        )
    if saved.get("workload_sha256") != _digest(path):
        raise UsageError(
            f"{path} was changed since it was written",
            hint="name another folder, or lose the changes: --force",
        )


def _load_inputs(path: Path) -> dict[str, Any]:
    """Return the contents of inputs.json; {} if it does not exist or is not valid."""
    try:
        document = json.loads(path.with_name(_INPUTS).read_text(encoding="utf-8"))
        if all({"path", "sha256"} <= log.keys() for log in document["inputs"]):
            return dict(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readers(form: str | None) -> list[LogReader]:
    """Return the possible readers; those whose lines are not distinctive come last."""
    if form is not None:
        return [registry.find(form)]
    return sorted(map(registry.get, registry.names()), key=lambda reader: reader.alone)


def _read_log(
    source: InputFile, options: LogOptions, form: str | None, skips: Skips
) -> tuple[list[Counted], _Log]:
    for reader in _readers(form):
        is_named = form is not None and type(reader).document is not LogReader.document
        if is_named or reader.is_document(source.head):
            return _read_document(reader, source, options, skips)
    counting = _counting(source, options, form, skips)
    pieces = files.lines(source.chunks())
    last = b""
    joiner: Joiner | None = Folded() if Folded.is_in(source.head) else None
    if joiner is None and (form is not None or Continued.is_in(source.head)):
        joiner = Continued()
    if joiner is not None:
        for lines, numbers in joiner.joined(pieces):
            counting.take(lines, numbers)
            last = lines[-1] if lines else last
    else:
        for lines in pieces:
            counting.take(lines)
            last = lines[-1]
    if source.complaint:
        skips.add(source.place, counting.lines + 1, source.complaint)
    notes = counting.notes()
    if not source.ended and counting.is_known(last):
        notes.append(_MAY_BE_CUT.format(counting.lines))
    log = _Log(counting.lines, tuple(notes), has_header=bool(counting.tables()))
    return list(counting.counted()), log


def _counting(source: InputFile, options: LogOptions, form: str | None, skips: Skips) -> Counting:
    readers, lines = _readers(form), source.head[:_HEAD].splitlines()
    texts = (line for line in lines if line.strip() and not line.lstrip().startswith(b"#"))
    first = next(texts, b"")
    if form is None:
        readers = [
            reader
            for reader in readers
            if not reader.alone
            or reader.rows(first) is not None
            or reader.table(first, source.place) is not None
        ]
    else:
        first = next((line for line in lines if readers[0].rows(line) is not None), first)
    return Counting(readers, options, source.place, skips, first)


def _read_document(
    reader: LogReader, source: InputFile, options: LogOptions, skips: Skips
) -> tuple[list[Counted], _Log]:
    counts: dict[Call, int] = {}
    notes: list[str] = []
    last = 0
    for line, item in reader.document(source.chunks(), options):
        last = max(last, line)
        if isinstance(item, Remark):
            notes.append(item.text)
        elif isinstance(item, str):
            skips.add(source.place, line, item)
        elif reason := impossible(item):
            skips.add(source.place, line, reason)
        else:
            counts[item] = counts.get(item, 0) + 1
    if source.complaint:
        skips.add(source.place, last + 1, source.complaint)
    if not source.ended and counts and source.head.lstrip()[:1] not in (b"{", b"["):
        notes.append(_MAY_BE_CUT.format(last))  # JSON that was cut is refused
    counted = [
        Counted(format=reader.name, kind="document", call=call, count=count * call.count)
        for call, count in counts.items()
    ]
    return counted, _Log(last, tuple(notes), is_document=True)


class _Merged:
    """Calls of several logs, with the counts of equal calls summed."""

    def __init__(self) -> None:
        self._counts: dict[Call, int] = {}
        self._sources: dict[Call, dict[str, None]] = {}

    def add(self, calls: Iterable[Counted], path: str) -> None:
        for item in calls:
            call = Call(problem=item.call.problem, blas=item.call.blas, lost=item.call.lost)
            self._counts[call] = self._counts.get(call, 0) + item.count
            self._sources.setdefault(call, {})[path] = None

    def sorted(self) -> tuple[Call, ...]:
        """Return the calls, most frequent first; ties do not depend on the order of lines and
        files."""
        calls = [
            Call(
                problem=call.problem,
                count=count,
                blas=call.blas,
                lost=call.lost,
                sources=tuple(self._sources[call]),
            )
            for call, count in self._counts.items()
        ]
        return tuple(sorted(calls, key=_order))


def _order(call: Call) -> tuple[int, str, list[tuple[str, str]], tuple[str, ...]]:
    return -call.count, call.problem.key, sorted(call.blas.items()), call.lost


def _without_calls(source: InputFile, skips: Skips, log: _Log, form: str | None) -> UsageError:
    """Return the error for a log without calls: the file is damaged, empty or not text, a line is
    broken, it looks like another format, or its columns make no problem."""
    path, head = source.place, source.head
    format_names = registry.names() if form is None else [registry.find(form).name]
    hint = f"tried: {', '.join(format_names)}" + ("; without --as every format is" if form else "")
    if source.complaint:
        again = "log again" if source.complaint == files.EXPANDS else "copy it again, or log again"
        return UsageError(f"{path} has no call before this: {source.complaint}", hint=again)
    if not head.strip():
        return UsageError(f"{path} is empty", hint=_LOG_AGAIN)
    broken = [
        group.first[0]
        for group in skips.groups()
        if group.reason != NO_CALL and any(line.file == path for line in group.first)
    ]
    if broken:
        first = broken[-1]  # the most frequent reason
        error = f"{path} has no call that can be read; line {first.line}: {first.reason}"
        return UsageError(error, hint=hint)
    if log.is_document and log.notes:
        times = f"its times are history without --workload: kmark import {shlex.quote(path)}"
        return UsageError(f"{path} has no call: {log.notes[0]}", hint=times)
    other = recognized(path) if form is not None and path != "-" else None
    if other and other not in format_names:
        return UsageError(
            f"{path} has no call of {format_names[0]}, but looks like {other}",
            hint=f"leave --as out, or: --as {other}",
        )
    if log.has_header:
        return UsageError(f"{path} has a header and no rows", hint=_LOG_AGAIN)
    for reader in _readers(None):
        if reader.without_sizes and reader.without_sizes[0] in head:
            error = f"{path} is a log of {reader.name} without the sizes of calls"
            return UsageError(error, hint=f"log again with {reader.without_sizes[1]}")
    return (
        _times_instead(source)
        or files.not_text(path, head)
        or ("shapes" in format_names and _useless_columns(path, head))
        or UsageError(f"{path} has no call in a known form", hint=hint)
    )


def _times_instead(source: InputFile) -> UsageError | None:
    from kernelmark.workloads import importers

    path = source.place
    importer = importers.known_by(PurePath(path).name.removesuffix(".gz"), source.head)
    if (importer is None and not _OURS.match(source.head)) or (importer and importer.is_log):
        return None
    name = "kernelmark" if importer is None else importer.name
    return UsageError(
        f"{path} has times of {name}, not calls",
        hint=f"without --workload it is taken for history: kmark import {shlex.quote(path)}",
    )


def _useless_columns(path: str, head: bytes) -> UsageError | None:
    """Return the error for a file that begins with a header and has rows of as many cells; else
    None."""
    lines = [line for line in head.splitlines() if line.strip() and line.lstrip()[:1] != b"#"]
    cells, separator = header(lines[0]) if lines else ([], "")
    names = [name for name in cells if name]
    if not separator or len(names) < 2 or not all(_NAME.match(name) for name in names):
        return None
    if len(lines) > 1 and len(header(lines[1])[0]) != len(cells):
        return None
    shown = ", ".join(name[:24] for name in names[:_SHOWN]) + (", …" if names[_SHOWN:] else "")
    return UsageError(f"{path} has columns that make no problem: {shown}", hint=_COLUMNS)
