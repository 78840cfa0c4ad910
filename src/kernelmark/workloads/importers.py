"""Import results of other tools as runs; `formats` has one module for the formats of each tool.

A format describes how a file is recognised and yields a row for each time in it. The engine opens
and decodes the file, splits it into lines, tables or JSON, adds file and position to every error,
and builds the run. A bare mean becomes a measurement of one sample. It has no dispersion, so it is
used by history and threshold rules only, never for an interval.

Launches of profilers are grouped into cases, from text and from SQLite databases.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import Environment
from kernelmark.core.errors import UNEXPECTED, KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import MOST_BYTES
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Option, Problem, parse_value
from kernelmark.core.reason import NO_REASON, Reason, prefixed, suffixed
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import (
    Block,
    Case,
    Config,
    KernelInfo,
    Measurement,
    Result,
    ResultSet,
    Run,
    RunState,
    Status,
    StopReason,
    bad_size,
    check_results,
    is_moment,
)
from kernelmark.core.timing import MOST_S, Cache, Timer, Timing
from kernelmark.core.units import counted
from kernelmark.stats.interval import measured_interval
from kernelmark.workloads import formats
from kernelmark.workloads.source import (
    BadLine,
    Fields,
    check_columns,
    not_text,
    opened,
    parse_number,
    size_fault,
)
from kernelmark.workloads.workload import Call

registry = formats.importers
CUT = "the file was cut: give it whole, or without that line"
EACH_TABLE = "import each table in a file of its own"
_HEAD_BYTES = 16384
_LEAST_S = 1e-11  # below the mean of an empty loop, 0.2 ns: a time in another unit
_MOST_CASES = 3  # shown of those with times that were dropped
# Why times were left out, by `why` of the reason.
_LEFT_OUT = {"none": "of 0 or less", "ignored": "of further rows of a key, which the tool ignores,"}
_NOTED = ("may-be-cut", "graphs-untraced", "times-left-out")
# Words in a file's name that identify a run, not what was measured.
_SIDES = {"golden", "tot", "base", "baseline", "head", "before", "after", "old", "new", "main"}
_DATE = re.compile(
    r"(?<![0-9])20[0-9]{2}[-_.]?[01][0-9][-_.]?[0-3][0-9]"
    r"([-_.t]?[0-2][0-9][-_.:]?[0-5][0-9]([-_.:]?[0-5][0-9])?z?)?(?![0-9])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Facts about a file that the user gives (`kmark import --label …`). `started` is in seconds
    since the epoch."""

    label: str = ""
    backend: str = ""
    device: str = ""
    arch: str = ""
    started: float | None = None


class Repeats(StrEnum):
    """The meaning of further rows of a case or key: samples, or what the tool makes of them."""

    SAMPLES = "samples"
    FIRST = "first"  # the tool reads the first row, and ignores the others
    REFUSED = "refused"  # the tool reads no table with two different rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One row of a file: what ran, and its times in seconds as written; a bare mean is a single
    time. `doubt` is the reason why the row may differ from what the tool wrote. Rows with one `key`
    are those that the tool takes for one, whatever it ran; `repeats` is what it makes of them."""

    problem: Problem
    backend: str
    samples_s: tuple[float, ...] = ()
    timing: Timing = field(default_factory=Timing)
    config: Config = field(default_factory=FrozenDict)
    status: Status = Status.OK
    error: str = ""
    kernel: str = ""
    binary_hash: str = ""
    device: str = ""
    arch: str = ""
    also: Mapping[str, float] = field(default_factory=FrozenDict)
    doubt: str = ""
    key: tuple[str, ...] = ()
    repeats: Repeats = Repeats.SAMPLES


class ResultFile:
    """A file of results, with what the user says about it. `at` is the position that is being
    read, which begins errors; a format sets `environment` and `started` if the file has them."""

    def __init__(self, path: Path, overrides: Overrides | None = None) -> None:
        self.path = path
        self.overrides = overrides or Overrides()
        self.name = path.name.removesuffix(".gz")
        self.at = ""
        self.environment = Environment()
        self.started: float | None = None

    @functools.cached_property
    def text(self) -> str:
        """The text of the file, with its line ends normalised."""
        parts, size = [], 0
        with opened(str(self.path)) as source:
            for part in source.chunks():
                parts.append(part)
                if (size := size + len(part)) > MOST_BYTES:
                    raise UsageError(f"the file has more than {MOST_BYTES >> 20} MiB")
            if source.complaint:
                raise UsageError(source.complaint, hint="copy it again")
        try:
            text = b"".join(parts).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError("the file is not text in UTF-8") from None
        return text.replace("\r\n", "\n").replace("\r", "\n")

    @functools.cached_property
    def texts(self) -> list[str]:
        """The lines, without line ends."""
        return self.text.splitlines()

    @property
    def ended(self) -> bool:
        """Whether the last line ends with a newline; many tools write files without it."""
        return self.text.endswith("\n")

    @property
    def doubt(self) -> Reason:
        """The reason why the line at the current position may be truncated, if it may be."""
        if not self.at or self.ended or self.at != f"line {len(self.texts)}":
            return NO_REASON
        return Reason(
            "the file ends without a line end: if it is truncated, so may be its last value",
            "may-be-cut",
        )

    def lines(self, begin: int = 0) -> Iterator[str]:
        """Yield some lines, by index, each as the current position."""
        for number, text in enumerate(self.texts[begin:], begin + 1):
            self.at = f"line {number}"
            yield text
        self.at = ""

    def table(
        self, begin: int = 0, end: int | None = None, *, least: int = 0, separator: str = ","
    ) -> tuple[list[str], Iterator[Fields]]:
        """Return the header of a CSV table that begins at this line, by index, and its rows, each
        as the current position. A row has at least `least` values (default: one for each column).
        Empty lines and lines that begin with == are not part of the table; a column that occurs
        twice is refused.
        """
        # Strict: an unclosed quote means that the file is truncated.
        rows = csv.reader(self.texts[begin:end], delimiter=separator, strict=True)
        try:
            columns = next(rows, [])
        except csv.Error as error:
            raise UsageError(f"line {begin + 1} is not CSV: {error}", hint=CUT) from None
        if fault := check_columns(columns):
            raise UsageError(f"line {begin + 1}: {fault}", hint="name each column once")
        return columns, self._rows(rows, columns, begin, least or len(columns))

    def _rows(self, rows: Any, columns: list[str], begin: int, least: int) -> Iterator[Fields]:
        try:
            for row in rows:
                self.at = f"line {begin + rows.line_num}"
                if not row or row[0].startswith("=="):
                    continue
                if not least <= len(row) <= len(columns):
                    raise uneven_row(len(row), len(columns))
                yield Fields(dict(zip(columns, row, strict=False)))
        except csv.Error as error:
            self.at = f"line {begin + rows.line_num}"
            raise UsageError(f"the table is damaged: {error}", hint=CUT) from None
        self.at = ""

    def document(self) -> Fields:
        """Parse a file that is one JSON object."""
        return Fields.of(codec.parse(self.text, foreign=True), "")

    def python_document(self) -> Any:
        """Parse a JSON file of Python, which may have Infinity; the codec refuses that."""
        try:
            return json.loads(self.text, object_pairs_hook=codec.once)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the file is not JSON: {error}") from None


class Importer(ABC):
    """The importer of one format. Errors have neither file nor line: the engine adds both."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    method: str  # how the tool measures, as stored with the results
    is_log = False  # whether its files can also be imported as call logs (--workload)

    @abstractmethod
    def recognizes(self, name: str, head: bytes) -> bool:
        """Return whether a file with this name and these first bytes has this format."""

    @abstractmethod
    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        """Yield the rows of the file. Raise BadLine or another UsageError if it cannot be read."""


def recognized(path: Path) -> Importer | None:
    """Return the importer that recognises the file by its name and first bytes."""
    with path.open("rb"):  # a missing file is an OSError, as for other readers
        pass
    with opened(str(path)) as source:
        return known_by(path.name.removesuffix(".gz"), source.head)


def known_by(name: str, head: bytes) -> Importer | None:
    """Return the importer that recognises a file by its name and first bytes `head`."""
    importers = map(registry.get, registry.names())
    return next(
        (importer for importer in importers if importer.recognizes(name, head[:_HEAD_BYTES])), None
    )


def read(path: Path, overrides: Overrides, name: str | None = None) -> ResultSet:
    """Return the run in a file of another tool; `name` is its format (default: detected)."""
    importer = registry.find(name) if name is not None else None
    with opened(str(path)) as source:
        if not source.head:
            raise UsageError(f"{path}: the file is empty", hint="leave it out, or measure again")
        importer = importer or known_by(path.name.removesuffix(".gz"), source.head)
        head = source.head
    if not head.startswith(SQLITE) and (error := not_text(str(path), head)):
        raise error
    if importer is None:
        raise UsageError(
            f"{path} is in no format that can be read",
            hint=f"kmark import --as FORMAT reads it as one of: {', '.join(registry.names())}",
        )
    file = ResultFile(path, overrides)
    try:
        rows = _placed(importer.rows(file), file)
        return check_results(build_run(file, rows, importer.method))
    except UNEXPECTED as error:
        # No importer anticipates everything that can be wrong with a file.
        text = f"{type(error).__name__}: {str(error)[:80]}"
        raise UsageError(f"{path} is not a whole file of {importer.name}: {text}") from error
    except KernelmarkError as error:
        where = f"{path}: {file.at}" if file.at else str(path)
        kind = NothingToDo if isinstance(error, NothingToDo) else UsageError
        # Without a hint, callers would add one for kernelmark's own files.
        hint = f"it was read as {importer.name}: is it whole, and as that tool wrote it?"
        reason = prefixed(error.message, f"{where}: ")
        raise kind(reason, hint=error.hint or hint) from None


def _placed(rows: Iterable[ResultRow], file: ResultFile) -> Iterator[ResultRow]:
    """Yield the rows, checked, and with the doubt about the line that they are from."""
    for number, row in enumerate(rows, 1):
        if absurd := _absurd(row):
            file.at = file.at or f"result {number}"
            raise UsageError(absurd, hint="is the file damaged?")
        doubt = row.doubt or file.doubt
        yield dataclasses.replace(row, doubt=doubt) if doubt else row


def uneven_row(cells: int, columns: int) -> UsageError:
    """Return the error for a row with fewer or more cells than columns."""
    return BadLine(
        f"{cells} values for {columns} columns",
        hint=CUT if cells < columns else "a value with the separator in it must be in quotes",
    )


def notes(results: Iterable[Result]) -> list[Reason]:
    """Return notes on the file that these results come from: whether it may be truncated, kernels
    without a name in it, and times that were dropped."""
    noted = [r for r in results if any(reason.code in _NOTED for reason in _reasons(r))]
    pairs = [(result, reason) for result in noted for reason in _reasons(result)]
    collected = []
    for result, reason in pairs:
        if reason.code == "may-be-cut":
            collected.append(suffixed(reason, f" ({_shown(result)})"))
            break
    collected += [reason for _, reason in pairs if reason.code == "graphs-untraced"][:1]
    for why, text in _LEFT_OUT.items():
        left_out = [
            (int(reason.fields["count"]), _shown(result))
            for result, reason in pairs
            if reason.code == "times-left-out" and reason.fields.get("why", "none") == why
        ]
        if not left_out:
            continue
        count = sum(times for times, _ in left_out)
        cases = [f"{times} of {case}" for times, case in left_out[:_MOST_CASES]]
        if more := len(left_out[_MOST_CASES:]):
            cases.append(f"and those of {counted(more, 'more result')}")
        collected.append(Reason(f"{counted(count, 'time')} {text} left out: {'; '.join(cases)}"))
    return collected


def _shown(result: Result) -> str:
    return f"{result.case.problem.key} by {result.case.backend}"


def _reasons(result: Result) -> list[Reason]:
    """Return the warnings of a result and its error, which may contain a second reason."""
    warned = result.measurement.warnings if result.measurement else ()
    if not result.error:
        return list(warned)
    doubted = result.error.fields.get("doubt", NO_REASON)
    return [*warned, result.error.root, doubted]


def build_run(file: ResultFile, rows: Iterable[ResultRow], method: str) -> ResultSet:
    """Return a run of these rows. Its id is a digest of the file and of what the user says about
    it, so that importing a file twice changes nothing.

    Rows of one case are its repetitions: each is a block, unless their `repeats` says otherwise.
    """
    overrides = file.overrides
    cases: dict[tuple[str, str, str], list[ResultRow]] = {}
    ignored: dict[tuple[str, str, str], list[ResultRow]] = {}
    firsts: dict[tuple[str, ...], ResultRow] = {}  # of each key
    devices: set[str] = set()
    for row in rows:
        devices.add(row.device)
        device = overrides.device or row.device or "unknown"
        first = firsts.setdefault((device, *row.key), row) if row.key else row
        case = _case(first, overrides).id, device, overrides.arch or row.arch
        if first is row:
            cases.setdefault(case, []).append(row)
        elif row.repeats is Repeats.FIRST:
            ignored.setdefault(case, []).append(row)
        elif dataclasses.replace(row, doubt=first.doubt) != first:
            raise BadLine(
                f"a second row of {row.problem.key}, and not the same",
                hint="leave one of them out: the tool has one row for it",
            )
    if not cases:
        raise NothingToDo(
            "the file has no results", hint="is the file truncated, or in another format (--as)?"
        )
    if overrides.device and len(devices) > 1:
        raise UsageError(
            f"the results are of {len(devices)} devices, not only {overrides.device}",
            hint="leave --device out: the results keep their own devices",
        )
    path = file.path
    when = next(
        (t for t in (overrides.started, file.started) if t and is_moment(t)), path.stat().st_mtime
    )
    run = Run(
        id=_id(path, overrides, when),
        started=when,
        finished=when,
        environment=file.environment,
        label=overrides.label,
        suite=path.name,
        cases=len(cases),
        state=RunState.DONE,
    )
    results = []
    for case, repetitions in cases.items():
        file.at = repetitions[0].problem.key
        others = ignored.get(case, ())
        results.append(_result(repetitions, case[1], overrides, method, when, others))
    file.at = ""
    return ResultSet(run=run, results=tuple(results))


def _absurd(row: ResultRow) -> str:
    """Return the reason for an impossible size or time of a row, if there is one. Times of 0 or
    less are left to `_left_out`."""
    if bad := bad_size(row.problem):
        return f"{row.problem.op} {bad} is not possible"
    wrong = [t for t in row.samples_s if MOST_S <= t < math.inf or 0 < t < _LEAST_S]
    return f"{row.problem.key}: {wrong[0]:g} s is not possible" if wrong else ""


def problem_of(op: str, values: Mapping[str, str | int | float | bool]) -> Problem:
    """Return a problem for a benchmark of another tool. Names and words are made valid; integers
    become dims, names of dtypes become dtypes, everything else options."""
    dims: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    options: dict[str, Option] = {}
    for name, value in values.items():
        key = _unused(legal_name(name), {*dims, *dtypes, *options})
        parsed = parse_value(value) if isinstance(value, str) and value else value
        if isinstance(parsed, bool):
            options[key] = parsed
        elif isinstance(parsed, int):
            dims[key] = parsed
        elif isinstance(parsed, float):
            options[key] = parsed if math.isfinite(parsed) else legal_word(str(value))
        elif parsed in DTYPES:
            dtypes[key] = parsed
        else:
            options[key] = legal_word(parsed)
    return Problem(op=legal_name(op), dims=dims, dtypes=dtypes, options=options)


def _unused(name: str, used: Container[str]) -> str:
    """Return the name, with a number if it is used."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(one for one in names if one not in used)


def config_of(values: Iterable[tuple[str, str]]) -> dict[str, int | str]:
    """Return a config of named texts. Names are made valid, and stay different."""
    config: dict[str, int | str] = {}
    for name, text in values:
        config[_unused(legal_name(name), config)] = setting(text)
    return config


def exact_problem(call: Call) -> Problem:
    """Return the problem of a timed call: that of an op that computes exactly this; else one with
    what the op leaves out."""
    # The type of a bias is not part of a problem.
    lost = [name for name in call.lost if name != "bias_type"]
    if not lost:
        return call.problem
    problem = call.problem
    facts = (name.partition("=") for name in lost)
    more = {name: value or call.blas.get(name) or "yes" for name, _, value in facts}
    return problem_of(
        f"{problem.op}_plus", {**problem.dims, **problem.dtypes, **problem.options, **more}
    )


def lost_bias(call: Call) -> dict[str, str]:
    """Return the config that keeps calls apart whose problem does not have the type of the bias."""
    return {"bias_type": call.blas["bias_type"]} if "bias_type" in call.lost else {}


def name_words(file_name: str) -> list[str]:
    """Return the words of a file's name, without those that identify a run."""
    stem = Path(file_name).stem.lower()
    parts = re.split(r"[^a-z0-9.]+", _DATE.sub("_", stem))
    return [word for word in parts if word and word not in _SIDES]


def legal_name(text: str) -> str:
    """Return `text` as a valid name of an op or a parameter."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if name[:1].isalpha() else f"x{name}"


def legal_word(text: str) -> str:
    """Return `text` as a valid value of an option. If it had to be changed, a digest of the
    original is added, so that different texts stay different."""
    word = re.sub(r"[^A-Za-z0-9_.:/-]+", "_", text)
    if word != text:
        word = word.strip("_") or "none"
    if not re.match(r"[A-Za-z_]", word) or word.lower() in {"yes", "no", "true", "infinity"}:
        word = f"_{word}"
    if word.lower() in {"inf", "nan"} or word in DTYPES:
        word = f"_{word}"
    if word == text:
        return word
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{word[:80]}.{mark}"


def setting(text: str) -> int | str:
    """Return a value of a config: an integer if the text is one, else a valid word."""
    is_whole = not size_fault(text)
    return int(text) if is_whole else legal_word(text)


def iso_time(text: object) -> float | None:
    """Parse an ISO date to seconds since the epoch (UTC if it has no zone); None for anything
    else."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _case(row: ResultRow, overrides: Overrides) -> Case:
    return Case(
        problem=row.problem,
        backend=overrides.backend or row.backend,
        timing=row.timing,
        config=row.config,
    )


def _result(
    rows: Sequence[ResultRow],
    device: str,
    overrides: Overrides,
    method: str,
    when: float,
    ignored: Sequence[ResultRow],
) -> Result:
    first = rows[0]
    failed = next((row for row in rows if row.status is not Status.OK), None)
    flops, size = _costs(first.problem)
    shown = failed or first
    left_out = _left_out(rows) or _ignored(rows, ignored)
    if failed is None and not any(_times(row) for row in rows):
        error = left_out or Reason("the file has no time of it")
        shown = dataclasses.replace(first, status=Status.RUNTIME_ERROR, error=error)
    error, doubt = Reason.of(shown.error), Reason.of(shown.doubt)
    doubted = error or doubt
    if error and doubt:
        doubted = Reason(f"{error}; {doubt}", error.code, **{**error.fields, "doubt": doubt})
    return Result(
        case=_case(first, overrides),
        device=device,
        arch=overrides.arch or first.arch,
        status=shown.status,
        error=doubted,
        flops=flops,
        bytes=size,
        measurement=_measurement(rows, method, left_out),
        kernel=KernelInfo(name=first.kernel, binary_hash=first.binary_hash),
        started=when,
    )


def _times(row: ResultRow) -> tuple[float, ...]:
    """Return the times of a row above 0; others are not measurements."""
    return tuple(time_s for time_s in row.samples_s if time_s > 0)


def _left_out(rows: Sequence[ResultRow]) -> Reason:
    """Summarise the times of a case that were dropped: non-positive ones, and missing ones, which
    count as 0."""
    good = [row for row in rows if row.status is Status.OK]
    every = [time_s for row in good for time_s in row.samples_s or (0.0,)]
    none = [time_s for time_s in every if not time_s > 0]
    if not none or not any(row.samples_s for row in good):
        return NO_REASON
    return Reason(
        f"{len(none)} of {len(every)} times in the file left out: {none[0]:g} s is no time",
        "times-left-out",
        count=len(none),
        every=len(every),
        first=none[0],
    )


def _ignored(read: Sequence[ResultRow], rows: Sequence[ResultRow]) -> Reason:
    """Summarise the times of further rows of a key, which the tool itself ignores."""
    times = [time_s for row in rows for time_s in row.samples_s]
    if not times:
        return NO_REASON
    every = len(times) + sum(len(row.samples_s) for row in read)
    return Reason(
        f"{len(times)} of {every} times in the file left out: the tool reads the first row of a "
        "key",
        "times-left-out",
        count=len(times),
        every=every,
        first=times[0],
        why="ignored",
    )


def _measurement(rows: Sequence[ResultRow], method: str, left_out: Reason) -> Measurement | None:

    blocks = tuple(
        Block(process=i, allocation=0, samples_s=times)
        for i, times in enumerate(filter(None, map(_times, rows)))
    )
    if not blocks:
        return None
    interval = measured_interval(blocks)
    bare = all(len(block.samples_s) == 1 for block in blocks)
    warnings = (
        [Reason("a mean without dispersion: for history and threshold rules only")]
        if bare and len(blocks) == 1
        else []
    )
    if interval.note and not bare:
        warnings.append(interval.note)
    doubts = [Reason.of(row.doubt) for row in rows]
    warnings += dict.fromkeys(filter(None, (left_out, *doubts)))
    return Measurement(
        blocks=blocks,
        low_s=interval.low_s,
        high_s=interval.high_s,
        method=method,
        launches=1,
        sets=1,
        footprint_bytes=0,
        stop=StopReason.FIXED,
        warmup_s=0.0,
        timed_s=0.0,
        warnings=tuple(warnings),
        also=rows[0].also,
        modes=interval.modes,
    )


@functools.lru_cache(maxsize=64)  # the results of a problem are usually consecutive
def _costs(problem: Problem) -> tuple[int, int]:
    """Return FLOPs and bytes of a problem of a known op; zeros for any other."""
    try:
        op = ops.registry.get(problem.op)
        parsed = ops.parse(problem.key)
    except KernelmarkError:
        return 0, 0
    return op.flops(parsed), op.bytes(parsed)


def _id(path: Path, overrides: Overrides, when: float) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))
    with path.open("rb") as file:  # a database may not fit into memory
        digest = hashlib.file_digest(file, "sha256")
    facts = repr(overrides).replace("Overrides", "Given", 1)  # as in older versions: ids stay
    digest.update(f"({path.name!r}, {facts}, {when!r})".encode())
    return f"{stamp}-{digest.hexdigest()[:6]}"


# Profiled launches are those of the program: the caches hold data of earlier kernels.
PROFILED = Timing(cache=Cache.HOT, timer=Timer.PROFILER)
SQLITE = b"SQLite format 3\0"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_STEP = 1 << 16
# Limit for steps of SQLite's virtual machine per byte of the file. A view over several tables takes
# about five; only a view crafted to run endlessly takes this many.
_STEPS_PER_BYTE = 1000
_STEPS = 1 << 24
_LONGEST_VALUE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The key of a launch: launches with equal keys are samples of one block."""

    kernel: str
    sizes: tuple[tuple[str, str | int], ...] = ()
    device: str = ""
    arch: str = ""
    process: str = ""


class Launches:
    """The times of all launches in a file, by key."""

    def __init__(self, backend: str, timing: Timing = PROFILED) -> None:
        self._backend = backend
        self._timing = timing
        self._times: dict[Launch, list[float]] = {}
        self._doubts: dict[Launch, str] = {}
        self.total_s = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, launch: Launch, seconds: float, doubt: str = "") -> None:
        self._times.setdefault(launch, []).append(seconds)
        self.total_s += seconds
        if doubt:
            self._doubts[launch] = doubt

    def rows(self) -> Iterator[ResultRow]:
        for launch, times in self._times.items():
            doubt = self._doubts.get(launch, "")
            row = mean_row(launch, tuple(times), self._backend, timing=self._timing)
            yield dataclasses.replace(row, doubt=doubt)

    def rows_by_agent(self) -> Iterator[ResultRow]:
        """Yield the rows with devices only if there are several; a single one is the device given
        by --device."""
        several = len({launch.device for launch in self._times}) > 1
        for launch, row in zip(self._times, self.rows(), strict=True):
            device = f"agent:{launch.device}" if several else ""
            yield dataclasses.replace(row, device=device)


def mean_row(
    launch: Launch,
    times_s: tuple[float, ...],
    backend: str,
    *,
    timing: Timing = PROFILED,
    also: Mapping[str, float] | None = None,
) -> ResultRow:
    """Return a row with the samples of a launch, or its mean; a table has one row for it."""
    return ResultRow(
        problem=problem_of("kernel", {"name": launch.kernel, **dict(launch.sizes)}),
        backend=backend,
        timing=timing,
        samples_s=times_s,
        kernel=launch.kernel,
        device=launch.device,
        arch=launch.arch,
        also=also or {},
        key=(launch.process, launch.kernel, *(f"{name}={size}" for name, size in launch.sizes)),
        repeats=Repeats.REFUSED,
    )


def elapsed_s(start: object, end: object, where: str) -> float:
    """Return the seconds between two times in ns; raise BadLine if the end is before the start."""
    start_ns, end_ns = instant_ns(start, where), instant_ns(end, where)
    if end_ns < start_ns:
        raise BadLine(
            f"{where}: ends {start_ns - end_ns} ns before it starts",
            hint="leave that launch out, or profile again",
        )
    return (end_ns - start_ns) * SECONDS["ns"]


def instant_ns(value: object, where: str) -> int | float:
    """Return a time in ns, as an int if possible: ns since 1970 exceed the precision of a float."""
    text = str(value).strip()
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    if "e" in text.lower() and value is not None:
        raise BadLine(
            f"{where}: the time {text[:24]!r} was rounded, as by a spreadsheet",
            hint="import the file as the profiler wrote it",
        )
    return parse_number(None if value is None else text, where)


def is_database(path: Path) -> bool:
    """Return whether a file, which may be compressed, is a SQLite database."""
    with opened(str(path)) as source:
        return source.head.startswith(SQLITE)


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield the path of a file as it is when it is not compressed."""
    with opened(str(path)) as source, tempfile.NamedTemporaryFile(suffix=".db") as file:
        if not source.packed:
            yield path
            return
        for piece in source.chunks():
            file.write(piece)
        if source.complaint:
            raise UsageError(source.complaint, hint="copy it again")
        file.flush()
        yield Path(file.name)


@contextlib.contextmanager
def database(place: Path, what: str, hint: str) -> Iterator[sqlite3.Connection]:
    """Open the database of a profiler read-only. Raise UsageError, with `what` as the kind of
    database, if it is damaged, lacks a table, or takes far too long for its size."""
    with _unpacked(place) as path, _connected(path, what, hint) as connection:
        yield connection


@contextlib.contextmanager
def _connected(path: Path, what: str, hint: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    left = (_STEPS + _STEPS_PER_BYTE * path.stat().st_size) // _STEP

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.set_progress_handler(is_over, _STEP)
        yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's messages may be damaged too
        raise UsageError(f"cannot be read as {what}: {error}", hint=hint) from None
    finally:
        connection.close()


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table or view; the empty set if it does not exist."""
    return {str(row[1]) for row in connection.execute(f'PRAGMA table_info("{table}")')}
