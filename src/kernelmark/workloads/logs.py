"""Read logs of calls as workloads; `formats` has one module for the formats of each tool.

    reading = read(["rank0.log", "rank1.log.gz"], arch="gfx942")
    reading.workload.calls

Formats are detected by content, and a file may mix lines of several formats with other lines. A
line that cannot be read is skipped and reported; the rest of the file is still read.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.workloads import formats
from kernelmark.workloads import source as files
from kernelmark.workloads import workload as workload_file
from kernelmark.workloads.calls import LogOptions, LogReader, Remark, header
from kernelmark.workloads.counting import NO_CALL, Counted, Counting, Skips, impossible, once_each
from kernelmark.workloads.source import Continued, Folded, Source
from kernelmark.workloads.workload import Call, Workload

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
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_OURS = re.compile(rb'\s*\{\s*"kernelmark"')
_NAME = re.compile(r"[^\W\d][\w .:/()%#-]*\Z")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")


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
    if not places:
        raise UsageError("no log was given")
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UsageError(
                f"{place} is given twice", hint="its calls would be counted twice; name it once"
            )
    options = LogOptions(arch=arch, dtype=dtype, key=key)
    skips = Skips()
    inputs, calls = [], _Merged()
    for place in places:
        with files.opened(place) as source:
            counted, log = _read_log(source, options, form, skips)
        kept, again = once_each(counted)
        if not kept:
            raise _without_calls(source, skips, log, form)
        calls.add(kept, place)
        inputs.append(
            Input(
                place=place,
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
    return Reading(workload=workload, inputs=tuple(inputs), skipped=skips)


def recognized(place: str) -> str | None:
    """Return the format of the first bytes of a file; None if no format matches."""
    with files.opened(place) as source:
        for reader in _readers(None):
            if reader.is_document(source.head):
                return reader.name
        counting = _counting(source, LogOptions(), None, Skips())
        for lines in files.lines([source.head]):
            counting.take(lines)
        formats = [call.format for call in counting.counted()] + counting.tables()
        return next(iter(formats), None)


def save(reading: Reading, path: Path, *, arch: str = "", force: bool = False) -> None:
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


def _check_unchanged(reading: Reading, path: Path) -> None:
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
    source: Source, options: LogOptions, form: str | None, skips: Skips
) -> tuple[list[Counted], _Log]:
    for reader in _readers(form):
        is_named = form is not None and type(reader).document is not LogReader.document
        if is_named or reader.is_document(source.head):
            return _read_document(reader, source, options, skips)
    counting = _counting(source, options, form, skips)
    pieces = files.lines(source.chunks())
    last = b""
    if Folded.is_in(source.head):
        for lines, numbers in Folded().joined(pieces):
            counting.take(lines, numbers)
    elif form is not None or Continued.is_in(source.head):
        for lines, numbers in Continued().joined(pieces):
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
        notes.append(_MAY_BE_CUT.format(counting.lines))
    log = _Log(counting.lines, tuple(notes), has_header=bool(counting.tables()))
    return list(counting.counted()), log


def _counting(source: Source, options: LogOptions, form: str | None, skips: Skips) -> Counting:
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
    reader: LogReader, source: Source, options: LogOptions, skips: Skips
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

    def add(self, calls: Iterable[Counted], place: str) -> None:
        for item in calls:
            call = Call(problem=item.call.problem, blas=item.call.blas, lost=item.call.lost)
            self._counts[call] = self._counts.get(call, 0) + item.count
            self._sources.setdefault(call, {})[place] = None

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


def _without_calls(source: Source, skips: Skips, log: _Log, form: str | None) -> UsageError:
    """Return the error for a log without calls: the file is damaged, empty or not text, a line is
    broken, it looks like another format, or its columns make no problem."""
    place, head = source.place, source.head
    tried = registry.names() if form is None else [registry.find(form).name]
    hint = f"tried: {', '.join(tried)}" + ("; without --as every format is" if form else "")
    if source.complaint:
        again = "log again" if source.complaint == files.EXPANDS else "copy it again, or log again"
        return UsageError(f"{place} has no call before this: {source.complaint}", hint=again)
    if not head.strip():
        return UsageError(f"{place} is empty", hint=_LOG_AGAIN)
    broken = [
        group.first[0]
        for group in skips.groups()
        if group.reason != NO_CALL and any(line.file == place for line in group.first)
    ]
    if broken:
        first = broken[-1]  # the most frequent reason
        error = f"{place} has no call that can be read; line {first.line}: {first.reason}"
        return UsageError(error, hint=hint)
    if log.is_document and log.notes:
        times = f"its times are history without --workload: kmark import {shlex.quote(place)}"
        return UsageError(f"{place} has no call: {log.notes[0]}", hint=times)
    other = recognized(place) if form is not None and place != "-" else None
    if other and other not in tried:
        return UsageError(
            f"{place} has no call of {tried[0]}, but looks like {other}",
            hint=f"leave --as out, or: --as {other}",
        )
    if log.has_header:
        return UsageError(f"{place} has a header and no rows", hint=_LOG_AGAIN)
    for reader in _readers(None):
        if reader.without_sizes and reader.without_sizes[0] in head:
            error = f"{place} is a log of {reader.name} without the sizes of calls"
            return UsageError(error, hint=f"log again with {reader.without_sizes[1]}")
    return (
        _times_instead(source)
        or _not_text(place, head)
        or ("shapes" in tried and _useless_columns(place, head))
        or UsageError(f"{place} has no call in a known form", hint=hint)
    )


def _times_instead(source: Source) -> UsageError | None:
    from kernelmark.workloads import importers

    place = source.place
    importer = importers.known_by(PurePath(place).name.removesuffix(".gz"), source.head)
    if (importer is None and not _OURS.match(source.head)) or (importer and importer.is_log):
        return None
    name = "kernelmark" if importer is None else importer.name
    return UsageError(
        f"{place} has times of {name}, not calls",
        hint=f"without --workload it is taken for history: kmark import {shlex.quote(place)}",
    )


def _not_text(place: str, head: bytes) -> UsageError | None:
    encoding = next((name for start, name in _PACKED.items() if head.startswith(start)), "")
    if encoding:
        return UsageError(
            f"{place} is compressed with {encoding}",
            hint="unpack it first; what gzip compressed is read as it is",
        )
    if head.startswith(_UTF16):
        return UsageError(
            f"{place} is in UTF-16",
            hint=f"write it as UTF-8: iconv -f UTF-16 -t UTF-8 {shlex.quote(place)}",
        )
    # A log may have a stray control byte; of random bytes, every ninth is one.
    if 50 * len(_BINARY.findall(head[:4096])) > len(head[:4096]):
        return UsageError(f"{place} is not text", hint="logs are text, also compressed with gzip")
    return None


def _useless_columns(place: str, head: bytes) -> UsageError | None:
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
    return UsageError(f"{place} has columns that make no problem: {shown}", hint=_COLUMNS)
