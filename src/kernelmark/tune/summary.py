"""Summary: the time that each problem of a workload takes with the reference, and its share.

The cost of a problem is its number of calls times the time of one call. A problem that failed with
the reference has a reason and no share.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.files import csv_text
from kernelmark.core.problem import Problem
from kernelmark.core.result import Result, Status
from kernelmark.stats.interval import Interval
from kernelmark.tune.folder import hinted, unreadable, write_whole
from kernelmark.workloads.workload import Workload

_US = 1e6
_DIGITS = 6  # after the decimal point


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The conditions of a measurement. Times of different bases are not mixed; devices of the same
    model have the same basis."""

    backend: str
    version: str
    model: str
    arch: str
    timing: str
    device: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one distinct problem. `status` is None until it is timed; `share` and
    `cumulative` are fractions of the workload's time, 0 to 1."""

    problem: Problem
    count: int
    status: Status | None = None
    time_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    reason: str = ""
    run: str = ""
    share: float = 0.0
    cumulative: float = 0.0
    selected: bool = True

    @property
    def no_time(self) -> bool:
        """Whether the reference failed or was wrong."""
        return self.status not in (None, Status.OK)

    @property
    def rel_half_width(self) -> float:
        """Relative half-width of the interval, as for a measurement; infinite without one."""
        width = Interval(low_s=self.low_s, high_s=self.high_s).rel_half_width
        return width if math.isfinite(width) else math.inf

    @property
    def total_s(self) -> float:
        """Seconds of all calls; 0 without a valid time."""
        return self.count * self.time_s if self.status is Status.OK else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Costs, the largest first. `thr` is the threshold in percent that selected them, if given;
    users may have changed the selection since."""

    basis: Basis
    costs: tuple[Cost, ...]
    thr: float | None = None

    @property
    def total_s(self) -> float:
        return math.fsum(cost.total_s for cost in self.costs)

    @property
    def selected(self) -> tuple[Cost, ...]:
        return tuple(cost for cost in self.costs if cost.selected)

    @property
    def coverage(self) -> float:
        """The total share of the selected problems."""
        return math.fsum(cost.share for cost in self.selected)

    @property
    def failed(self) -> tuple[Cost, ...]:
        """The problems on which the reference failed or was wrong."""
        return tuple(cost for cost in self.costs if cost.no_time)

    @property
    def timed(self) -> Summary:
        """The summary of the problems that have a valid time."""
        timed = tuple(cost for cost in self.costs if cost.status is Status.OK)
        return dataclasses.replace(self, costs=timed)


def counts(workload: Workload) -> dict[Problem, int]:
    """Return the number of calls by problem. Logged calls that differ only in properties that a
    Problem does not have (leading dimensions, an activation) are the same problem."""
    calls: dict[Problem, int] = {}
    for call in workload.calls:
        calls[call.problem] = calls.get(call.problem, 0) + call.count
    return calls


def timed(problem: Problem, count: int, result: Result, run: str = "") -> Cost:
    """Return the cost from a result; a wrong result keeps its time but has no share."""
    measured = result.measurement
    reason = "" if result.status is Status.OK else result.why or "no reason was given"
    cost = Cost(
        problem=problem, count=count, status=result.status, run=run, reason=_one_line(reason)
    )
    if measured is None:
        return cost
    return dataclasses.replace(
        cost, time_s=measured.median_s, low_s=measured.low_s, high_s=measured.high_s
    )


def counted(cost: Cost, count: int) -> Cost:
    """Return `cost` with another number of calls."""
    return dataclasses.replace(cost, count=count)


def summary(basis: Basis, costs: Iterable[Cost], *, thr: float | None = None) -> Summary:
    """Sort the costs, and compute their shares. Problems below `thr` percent are not selected.

    A threshold of 0 selects all problems, also those without a time; None keeps the selection."""
    every = sorted(costs, key=lambda cost: (-cost.total_s, -cost.count, cost.problem.key))
    whole = math.fsum(cost.total_s for cost in every)
    ranked: list[Cost] = []
    so_far = 0.0
    for cost in every:
        so_far += cost.total_s
        share = cost.total_s / whole if whole else 0.0
        ranked.append(
            dataclasses.replace(
                cost,
                share=share,
                cumulative=min(1.0, so_far / whole) if whole else 0.0,
                selected=cost.selected if thr is None else 100 * share >= thr,
            )
        )
    return Summary(basis=basis, costs=tuple(ranked), thr=thr)


def records(costs_summary: Summary) -> list[dict[str, str | int | float | None]]:
    """Return the rows of summary.csv, one per problem."""
    every = {name: getattr(costs_summary.basis, name) for name in _BASIS} | {
        "threshold_pct": costs_summary.thr
    }
    rows = [
        every | {name: c.cell(getattr(cost, c.field)) for name, c in _CELLS.items()}
        for cost in costs_summary.costs
    ]
    return [{name: row[name] for name in COLUMNS} for row in rows]


def write(path: Path, costs_summary: Summary) -> None:
    write_whole(path, csv_text(records(costs_summary), COLUMNS))


def read(path: Path) -> Summary | None:
    """Load a summary; return None if the file does not exist or is empty. Users may have edited
    `selected`."""
    with hinted(f"delete it and summarise again: kmark tune summarise {path.parent}"):
        return _read(path)


def _read(path: Path) -> Summary | None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: is not CSV: {error}") from None
    if not rows:
        return None
    first = rows[0][1]
    if missing := [name for name in COLUMNS if name not in first and name != "threshold_pct"]:
        raise UsageError(f"{path}: has no column {missing[0]}")
    costs = []
    for line, row in rows:
        values = {
            column.field: _value(path, line, name, row.get(name) or "", column.value)
            for name, column in _CELLS.items()
            if column.value is not None
        }
        costs.append(Cost(**values))
    # Older versions did not write the threshold.
    threshold = first.get("threshold_pct") or ""
    thr = _value(path, rows[0][0], "threshold_pct", threshold, _number)
    return Summary(
        basis=Basis(**{name: first[name] or "" for name in _BASIS}),
        costs=tuple(costs),
        thr=None if math.isnan(thr) else thr,
    )


def _value(path: Path, line: int, name: str, cell: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(cell)
    except KernelmarkError as error:
        raise UsageError(f"{path}: line {line}: {name}: {error.message}", hint=error.hint) from None
    except ValueError as error:
        raise UsageError(f"{path}: line {line}: {name} is {cell!r}, {error}") from None


def _number(cell: str) -> float:
    """Parse a number; an empty cell is NaN."""
    try:
        value = float(cell or "nan")
    except ValueError:
        value = math.inf
    if math.isinf(value) or (cell and math.isnan(value)):
        raise ValueError("not a number")
    return value


def _fraction(cell: str) -> float:
    if not cell:
        raise ValueError("not a number")
    return _number(cell) / 100


def _count(cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ValueError("not a whole number")
    return int(cell)


def _is_selected(cell: str) -> bool:
    if cell not in ("yes", "no"):
        raise ValueError("neither yes nor no")
    return cell == "yes"


def _status(cell: str) -> Status | None:
    if cell and cell not in tuple(Status):
        raise ValueError(f"not one of {', '.join(Status)}")
    return Status(cell) if cell else None


def _us(seconds: float) -> float | None:
    """Return microseconds, rounded to a picosecond; None for NaN (no interval with one block)."""
    return round(seconds * _US, _DIGITS) if math.isfinite(seconds) else None


def _pct(share: float) -> float:
    return round(100 * share, _DIGITS)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the file: the field of a cost, its cell, and the value of a cell (None: it is
    computed)."""

    field: str
    cell: Callable[[Any], str | int | float | None]
    value: Callable[[str], Any] | None


_CELLS = {
    "problem": _Column("problem", lambda problem: problem.key, ops.parse),
    "count": _Column("count", int, _count),
    "time_us": _Column("time_s", _us, lambda cell: _number(cell) / _US),
    "low_us": _Column("low_s", _us, lambda cell: _number(cell) / _US),
    "high_us": _Column("high_s", _us, lambda cell: _number(cell) / _US),
    "total_us": _Column("total_s", _us, None),
    "pct_of_total": _Column("share", _pct, _fraction),
    "cumulative_pct": _Column("cumulative", _pct, _fraction),
    "selected": _Column("selected", lambda selected: "yes" if selected else "no", _is_selected),
    "status": _Column("status", lambda status: status.value if status else "", _status),
    "reason": _Column("reason", str, str),
    "run": _Column("run", str, str),
}
_BASIS = ("backend", "version", "device", "model", "arch", "timing")
COLUMNS = (
    *("problem", "count", "time_us", "low_us", "high_us", "total_us"),
    *("pct_of_total", "cumulative_pct", "selected", "threshold_pct", "status", "reason"),
    *(*_BASIS, "run"),
)
