"""Summary: what each problem of a workload costs with the reference, and its share of the whole.

A problem's cost is its number of calls times the time of one. What the reference could not do has
its reason and no share.
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
_DIGITS = 6  # after the point
COLUMNS = (
    *("problem", "count", "time_us", "low_us", "high_us", "total_us"),
    *("pct_of_total", "cumulative_pct", "selected", "threshold_pct", "status", "reason"),
    *("backend", "version", "device", "model", "arch", "timing", "run"),
)
_Line = Mapping[str, Any]  # file and line, as fields of a reason
_LATER = ("threshold_pct",)  # what files of old do not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What times were taken with. Those of another basis are not mixed in; which of several like
    devices it was makes no other one."""

    backend: str
    version: str
    model: str
    arch: str
    timing: str
    device: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One distinct problem. `status` is None until it is timed; `share` and `cumulative` are of
    the whole workload's time, 0 to 1."""

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
        """Whether the reference could not do it or did it wrongly."""
        return self.status not in (None, Status.OK)

    @property
    def rel_half_width(self) -> float:
        """As of a measurement; infinite where there is no interval."""
        width = Interval(low_s=self.low_s, high_s=self.high_s).rel_half_width
        return width if math.isfinite(width) else math.inf

    @property
    def total_s(self) -> float:
        """Seconds over all calls; 0 where there is no time that counts."""
        return self.count * self.time_s if self.status is Status.OK else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Costs, the largest first. `thr` is the threshold in percent that selected them, None where
    none was given; single ones may have been selected by hand since."""

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
        """The share of the selected problems."""
        return math.fsum(cost.share for cost in self.selected)

    @property
    def failed(self) -> tuple[Cost, ...]:
        """What the reference could not do or did wrongly."""
        return tuple(cost for cost in self.costs if cost.no_time)

    @property
    def timed(self) -> Summary:
        """Of those that have a time, and so a part in the whole."""
        timed = tuple(cost for cost in self.costs if cost.status is Status.OK)
        return dataclasses.replace(self, costs=timed)


def counts(workload: Workload) -> dict[Problem, int]:
    """Calls of each distinct problem: logged calls that differ only in what our problem does not
    tell apart (leading dimensions, an activation) are one problem."""
    calls: dict[Problem, int] = {}
    for call in workload.calls:
        calls[call.problem] = calls.get(call.problem, 0) + call.count
    return calls


def timed(problem: Problem, count: int, result: Result, run: str = "") -> Cost:
    """Return the cost that a result shows; a wrong result keeps its time but has no share."""
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
    """Return the same time with another number of calls."""
    return dataclasses.replace(cost, count=count)


def summary(basis: Basis, costs: Iterable[Cost], *, thr: float | None = None) -> Summary:
    """Costs sorted, with their shares; `thr` is in percent: problems below it are not selected.

    A threshold of 0 selects every problem, also those that could not be timed; without one they
    stay as they are."""
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
    """Return one flat record a problem: the rows of summary.csv, with units in the columns'
    names."""
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
    """Return the summary in a file; None if there is none yet. `selected` may have been edited."""
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


def _cost(row: Mapping[str, str | None], place: _Line) -> Cost:
    cells = {name: row.get(name) or "" for name in COLUMNS}

    def seconds(name: str) -> float:
        return _real(cells[name], name, place) / _US

    def share(name: str) -> float:
        return _real(cells[name], name, place, needed=True) / 100

    if cells["selected"] not in ("yes", "no"):
        raise UsageError(
            Reason("cell-not-yes-or-no", **place, column="selected", given=cells["selected"]),
            hint="write yes or no",
        )
    try:
        problem = ops.parse(cells["problem"])
    except KernelmarkError as error:
        raise UsageError(
            Reason("cell-refused", **place, column="problem", cause=error.message), hint=error.hint
        ) from None
    return Cost(
        problem=problem,
        count=_whole(cells["count"], "count", place),
        status=_status(cells["status"], place),
        time_s=seconds("time_us"),
        low_s=seconds("low_us"),
        high_s=seconds("high_us"),
        reason=cells["reason"],
        run=cells["run"],
        share=share("pct_of_total"),
        cumulative=share("cumulative_pct"),
        selected=cells["selected"] == "yes",
    )


def _whole(text: str, name: str, place: _Line) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(Reason("cell-not-whole", **place, column=name, given=text))
    return int(text)


def _real(text: str, name: str, place: _Line, *, needed: bool = False) -> float:
    """Return a number; an empty cell is one that is not known."""
    if not text and not needed:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(Reason("cell-not-number", **place, column=name, given=text))
    return value


def _status(text: str, place: _Line) -> Status | None:
    known = tuple(status.value for status in Status)
    if text and text not in known:
        raise UsageError(Reason("cell-unknown", **place, column="status", given=text, known=known))
    return Status(text) if text else None


def _us(seconds: float) -> float | None:
    """Microseconds to a picosecond; None for what is not known, as an interval of one block."""
    return round(seconds * _US, _DIGITS) if math.isfinite(seconds) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
