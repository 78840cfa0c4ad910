"""Kernel launches in files of profilers: group them into cases, and read SQLite databases."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.fields import BadLine, parse_number
from kernelmark.workloads.importers import ResultRow, problem_of

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
            yield mean_row(launch, tuple(times), self._backend, timing=self._timing, doubt=doubt)

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
    doubt: str = "",
) -> ResultRow:
    """Return a row with the samples of a launch, or its mean."""
    return ResultRow(
        problem=problem_of("kernel", {"name": launch.kernel, **dict(launch.sizes)}),
        backend=backend,
        timing=timing,
        samples_s=times_s,
        kernel=launch.kernel,
        device=launch.device,
        arch=launch.arch,
        also=also or {},
        doubt=doubt,
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


@contextlib.contextmanager
def database(path: Path, what: str, hint: str) -> Iterator[sqlite3.Connection]:
    """Open the database of a profiler read-only. Raise UsageError, with `what` as the kind of
    database, if it is damaged, lacks a table, or takes far too long for its size."""
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
