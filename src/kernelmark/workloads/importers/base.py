"""Importer: the interface to read a file of another tool as a run; and shared helpers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import read_whole
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Option, Problem, parse_value
from kernelmark.core.reason import NO_REASON, Reason
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
)
from kernelmark.core.timing import MOST_S, Timing
from kernelmark.core.validation import bad_size, is_moment
from kernelmark.stats.interval import measured_interval

# Words in a file's name that identify a run, not what was measured.
_SIDES = {"golden", "tot", "base", "baseline", "head", "before", "after", "old", "new", "main"}
_DATE = re.compile(
    r"(?<![0-9])20[0-9]{2}[-_.]?[01][0-9][-_.]?[0-3][0-9]"
    r"([-_.t]?[0-2][0-9][-_.:]?[0-5][0-9]([-_.:]?[0-5][0-9])?z?)?(?![0-9])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts about a file that the user gives (`kmark import --label …`). `started` is in seconds
    since the epoch."""

    label: str = ""
    backend: str = ""
    device: str = ""
    arch: str = ""
    started: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One row of a file: what ran, and its times in seconds as written; a bare mean is a single
    time. `doubt` is the reason why the row may differ from what the tool wrote."""

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


class Importer(ABC):
    """The importer of one format."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    packed = False  # whether it reads gzipped files
    is_log = False  # whether its files can also be imported as call logs (--workload)

    @abstractmethod
    def recognizes(self, name: str, head: bytes) -> bool:
        """Return whether a file with this name and these first bytes has this format."""

    @abstractmethod
    def read(self, path: Path, given: Given) -> ResultSet:
        """Return the whole file as a run. Raise UsageError, with file and line, if it cannot be
        read."""


def build_run(
    path: Path,
    given: Given,
    rows: Iterable[Found],
    *,
    method: str,
    environment: Environment | None = None,
    started: float | None = None,
) -> ResultSet:
    """Return a run of these rows. Its id is a digest of the file and of `given`, so that importing
    a file twice changes nothing.

    Rows of one case are its repetitions: each is a block.
    """
    cases: dict[tuple[str, str], list[Found]] = {}
    devices: set[str] = set()
    for number, row in enumerate(rows, 1):
        device = given.device or row.device or "unknown"
        devices.add(row.device)
        if absurd := _absurd(row):
            reason = Reason("at", where=f"{path}: result {number}", cause=absurd)
            raise UsageError(reason, hint="is the file damaged?")
        case = Case(
            problem=row.problem,
            backend=given.backend or row.backend,
            timing=row.timing,
            config=row.config,
        )
        cases.setdefault((case.id, device), []).append(row)
    if not cases:
        raise NothingToDo(
            Reason("file-without-results", file=str(path)),
            hint="is the file truncated, or in another format (--as)?",
        )
    if given.device and len(devices) > 1:
        raise UsageError(
            Reason("devices-several", file=str(path), count=len(devices), device=given.device),
            hint="leave --device out: the results keep their own devices",
        )
    written = path.stat().st_mtime
    when = next((t for t in (given.started, started) if t and is_moment(t)), written)
    run = Run(
        id=_id(path, given, when),
        started=when,
        finished=when,
        environment=environment or Environment(),
        label=given.label,
        suite=path.name,
        cases=len(cases),
        state=RunState.DONE,
    )
    results = []
    for (_, device), found in cases.items():
        try:
            results.append(_result(found, device, given, method, when))
        except UsageError as error:
            where = f"{path}: {found[0].problem.key}"
            reason = Reason("at", where=where, cause=error.message)
            raise UsageError(reason, hint=error.hint) from None
    return ResultSet(run=run, results=tuple(results))


def _absurd(row: Found) -> Reason:
    """Return the reason for an impossible size or time of a row, if there is one. Times of 0 or
    less are left to `_left_out`."""
    if bad := bad_size(row.problem):
        return Reason("size-impossible", op=row.problem.op, given=bad)
    late = next((time_s for time_s in row.samples_s if MOST_S <= time_s < math.inf), None)
    if late is None:
        return NO_REASON
    return Reason("time-impossible", problem=row.problem.key, seconds=late)


def problem_of(op: str, values: Mapping[str, str | int | float | bool]) -> Problem:
    """Return a problem for a benchmark of another tool. Names and words are made valid; integers
    become dims, names of dtypes become dtypes, everything else options."""
    dims: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    options: dict[str, Option] = {}
    for name, value in values.items():
        key = _unused(legal_name(name), (*dims, *dtypes, *options))
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


def name_words(path: Path) -> list[str]:
    """Return the words of a file's name, without those that identify a run."""
    words = re.split(r"[^a-z0-9.]+", _DATE.sub("_", path.stem.lower()))
    return [word for word in words if word and word not in _SIDES]


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


def unexpected(place: str, expected: str, value: object, hint: str | None = None) -> CodecError:
    """Return the error for a value that is not what is expected at this place in a file."""
    found = "nothing" if value is None else repr(str(value)[:40])
    reason = Reason("field-expected", where=place, expected=expected, found=found)
    return CodecError(reason, hint=hint)


def fields_of(value: object, place: str) -> Mapping[str, Any]:
    """Return a JSON object; raise CodecError with the place for anything else."""
    if not isinstance(value, dict):
        raise unexpected(place, "an object", value)
    return value


def json_object(path: Path) -> Mapping[str, Any]:
    """Parse a file that is one JSON object."""
    try:
        document = codec.parse(text_of(path))
    except CodecError as error:
        reason = Reason("in-file", file=str(path), cause=error.message)
        raise CodecError(reason, hint=error.hint) from None
    return fields_of(document, str(path))


def json_with_infinity(path: Path) -> Any:
    """Parse a JSON file of Python, which may have Infinity; the codec refuses that."""
    try:
        return json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        cause = Reason("not-json", error=str(error))
        raise CodecError(Reason("in-file", file=str(path), cause=cause)) from None


def items_of(value: object, place: str) -> Sequence[Any]:
    """Return a JSON list, () for a missing one; raise CodecError with the place for anything
    else."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise unexpected(place, "a list", value)
    return value


def whole(value: object, place: str) -> int:
    """Parse an integer of at least 0; raise CodecError with the place for anything else."""
    found = number(value, place)
    if found < 0 or not found.is_integer():
        raise unexpected(place, "a whole number", value)
    return int(found)


def number(text: object, place: str) -> float:
    """Parse a finite number; raise UsageError with the place for anything else. A number with a
    comma is refused: it may be a decimal or a thousands separator."""
    if text is None or text == "":
        raise UsageError(Reason("number-missing", where=place), hint="is the file truncated?")
    try:
        value = float(str(text))
    except ValueError:
        raise unexpected(place, "a number", text) from None
    if not math.isfinite(value):
        raise unexpected(place, "a finite number", text)
    return value


def iso_time(text: object) -> float | None:
    """Parse an ISO date to seconds since the epoch (UTC if it has no zone); None for anything
    else."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(path: Path) -> str:
    """Read a text file, with its line ends normalised."""
    try:
        text = read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(Reason("file-not-utf8", file=str(path))) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unused(name: str, taken: Sequence[str]) -> str:
    suffix = 2
    made = name
    while made in taken:
        made, suffix = f"{name}_{suffix}", suffix + 1
    return made


def _result(found: Sequence[Found], device: str, given: Given, method: str, when: float) -> Result:
    first = found[0]
    failed = next((row for row in found if row.status is not Status.OK), None)
    case = Case(
        problem=first.problem,
        backend=given.backend or first.backend,
        timing=first.timing,
        config=first.config,
    )
    flops, size = _costs(first.problem)
    shown = failed or first
    left_out = _left_out(found)
    if failed is None and not any(_times(row) for row in found):
        error = left_out or Reason("no-times")
        shown = dataclasses.replace(first, status=Status.RUNTIME_ERROR, error=error)
    return Result(
        case=case,
        device=device,
        arch=given.arch or first.arch,
        status=shown.status,
        error=_error(shown),
        flops=flops,
        bytes=size,
        measurement=_measurement(found, method, left_out),
        kernel=KernelInfo(name=first.kernel, binary_hash=first.binary_hash),
        started=when,
    )


def _times(row: Found) -> tuple[float, ...]:
    """Return the times of a row above 0; others are not measurements."""
    return tuple(time_s for time_s in row.samples_s if time_s > 0)


def _error(row: Found) -> Reason:
    error, doubt = Reason.of(row.error), Reason.of(row.doubt)
    both = bool(error) and bool(doubt)
    return Reason("doubtful", cause=error, doubt=doubt) if both else error or doubt


def _left_out(found: Sequence[Found]) -> Reason:
    """Summarise the non-positive times of a case that were dropped."""
    every = [time_s for row in found if row.status is Status.OK for time_s in row.samples_s]
    none = [time_s for time_s in every if not time_s > 0]
    if not none:
        return NO_REASON
    return Reason("times-left-out", count=len(none), every=len(every), first=none[0])


def _measurement(found: Sequence[Found], method: str, left_out: Reason) -> Measurement | None:
    blocks = tuple(
        Block(process=i, allocation=0, samples_s=times)
        for i, times in enumerate(filter(None, map(_times, found)))
    )
    if not blocks:
        return None
    interval = measured_interval(blocks)
    bare = all(len(block.samples_s) == 1 for block in blocks)
    warnings = [Reason("no-dispersion")] if bare and len(blocks) == 1 else []
    if interval.note and not bare:
        warnings.append(interval.note)
    doubts = [Reason.of(row.doubt) for row in found]
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
        also=found[0].also,
        modes=interval.modes,
    )


@functools.lru_cache(maxsize=64)  # the results of a problem are usually consecutive
def _costs(problem: Problem) -> tuple[int, int]:
    """Return FLOPs and bytes of a problem of a known op; zeros for any other."""
    try:
        op = ops.registry.get(problem.op)
        known = ops.parse(problem.key)
    except KernelmarkError:
        return 0, 0
    return op.flops(known), op.bytes(known)


def _id(path: Path, given: Given, when: float) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))
    with path.open("rb") as file:  # a database may not fit into memory
        whole = hashlib.file_digest(file, "sha256")
    whole.update(repr((path.name, given, when)).encode())
    return f"{stamp}-{whole.hexdigest()[:6]}"
