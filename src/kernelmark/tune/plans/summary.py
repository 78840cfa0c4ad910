"""Summary: the time that each problem of a workload takes with the reference, and its share.

The cost of a problem is its number of calls times the time of one call. A problem that failed with
the reference has a reason and no share.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.files import csv_text
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, Status
from kernelmark.stats.interval import Interval
from kernelmark.tune.folder import hinted, unreadable, write_whole
from kernelmark.workloads.workload import Workload

_US = 1e6
_DIGITS = 6  # after the decimal point
COLUMNS = (
    *("problem", "count", "time_us", "low_us", "high_us", "total_us"),
    *("pct_of_total", "cumulative_pct", "selected", "threshold_pct", "status", "reason"),
    *("backend", "version", "device", "model", "arch", "timing", "run"),
)
_Line = Mapping[str, Any]  # file and line, as fields of a reason
_LATER = ("threshold_pct",)  # columns that older versions did not write


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


def records(found: Summary) -> list[dict[str, str | int | float | None]]:
    """Return the rows of summary.csv, one per problem."""
    basis = found.basis
    return [
        {
            "problem": cost.problem.key,
            "count": cost.count,
            "time_us": _us(cost.time_s),
            "low_us": _us(cost.low_s),
            "high_us": _us(cost.high_s),
            "total_us": _us(cost.total_s),
            "pct_of_total": round(100 * cost.share, _DIGITS),
            "cumulative_pct": round(100 * cost.cumulative, _DIGITS),
            "selected": "yes" if cost.selected else "no",
            "threshold_pct": found.thr,
            "status": cost.status.value if cost.status else "",
            "reason": cost.reason,
            "backend": basis.backend,
            "version": basis.version,
            "device": basis.device,
            "model": basis.model,
            "arch": basis.arch,
            "timing": basis.timing,
            "run": cost.run,
        }
        for cost in found.costs
    ]


def write(path: Path, found: Summary) -> None:
    write_whole(path, csv_text(records(found), COLUMNS))


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
        raise UsageError(Reason("file-not-utf8", file=str(path))) from None
    except csv.Error as error:
        reason = Reason("line-not-csv", file=str(path), line=reader.line_num, error=str(error))
        raise UsageError(reason) from None
    if not rows:
        return None
    number, first = rows[0]
    if missing := [name for name in COLUMNS if name not in first and name not in _LATER]:
        raise UsageError(Reason("column-missing", file=str(path), column=missing[0]))
    costs = [_cost(row, {"file": str(path), "line": number}) for number, row in rows]
    basis = Basis(**{name: first[name] or "" for name in _BASIS})
    thr = _real(
        first.get("threshold_pct") or "", "threshold_pct", {"file": str(path), "line": number}
    )
    return Summary(basis=basis, costs=tuple(costs), thr=None if math.isnan(thr) else thr)


_BASIS = ("backend", "version", "device", "model", "arch", "timing")


def _cost(row: Mapping[str, str | None], where: _Line) -> Cost:
    cells = {name: row.get(name) or "" for name in COLUMNS}

    def seconds(name: str) -> float:
        return _real(cells[name], name, where) / _US

    def share(name: str) -> float:
        return _real(cells[name], name, where, needed=True) / 100

    if cells["selected"] not in ("yes", "no"):
        raise UsageError(
            Reason("cell-not-yes-or-no", **where, column="selected", given=cells["selected"]),
            hint="write yes or no",
        )
    try:
        problem = ops.parse(cells["problem"])
    except KernelmarkError as error:
        raise UsageError(
            Reason("cell-refused", **where, column="problem", cause=error.message), hint=error.hint
        ) from None
    return Cost(
        problem=problem,
        count=_whole(cells["count"], "count", where),
        status=_status(cells["status"], where),
        time_s=seconds("time_us"),
        low_s=seconds("low_us"),
        high_s=seconds("high_us"),
        reason=cells["reason"],
        run=cells["run"],
        share=share("pct_of_total"),
        cumulative=share("cumulative_pct"),
        selected=cells["selected"] == "yes",
    )


def _whole(text: str, name: str, where: _Line) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(Reason("cell-not-whole", **where, column=name, given=text))
    return int(text)


def _real(text: str, name: str, where: _Line, *, needed: bool = False) -> float:
    """Parse a number; an empty cell is NaN unless `needed`."""
    if not text and not needed:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(Reason("cell-not-number", **where, column=name, given=text))
    return value


def _status(text: str, where: _Line) -> Status | None:
    known = tuple(status.value for status in Status)
    if text and text not in known:
        raise UsageError(Reason("cell-unknown", **where, column="status", given=text, known=known))
    return Status(text) if text else None


def _us(seconds: float) -> float | None:
    """Return microseconds, rounded to a picosecond; None for NaN (no interval with one block)."""
    return round(seconds * _US, _DIGITS) if math.isfinite(seconds) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
