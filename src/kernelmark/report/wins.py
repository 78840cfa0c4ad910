"""How often each backend is fastest, by op and problem category."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.core.result import Measurement
from kernelmark.ops.base import Parameter
from kernelmark.report.answer import is_clear
from kernelmark.report.tables import Column, Row, Table
from kernelmark.workloads.generate import categories

ALL = "all"
_GEMMS = ("gemm", "batched_gemm")
_COLUMNS = (
    *(Column(name="op"), Column(name="category"), Column(name="backend")),
    Column(name="problems", align="right"),
    Column(name="fastest in", align="right"),
    Column(name="tied in", align="right"),
    Column(name="share", align="right"),
    Column(name="vs best other", align="right"),
)

# Measurements by backend, for one problem on one device in one timing.
_Field = dict[str, Measurement]


def category_names(problem: Problem) -> tuple[str, ...]:
    """Return the categories of a problem (docs/suites.md); () for ops without categories."""
    d = problem.dims
    if problem.op in _GEMMS:
        op = ops.registry.get(problem.op)
        given: dict[str, Parameter] = {**d, **problem.dtypes}
        kinds = categories(problem.op).items()
        return tuple(name for name, kind in kinds if kind.holds(op, given))
    if problem.op == "attention":
        if d["seq_q"] == 1:
            return ("decode",)
        return ("extend",) if d["seq_q"] < d["seq_kv"] else ("prefill",)
    if problem.op == "conv":
        if d["stride_h"] * d["stride_w"] > 1:
            return ("strided",)
        return ("pointwise",) if d["r"] * d["s"] == 1 else ("spatial",)
    return ()


def wins_table(rows: Sequence[Row]) -> Table | None:
    """Return a table of how often each backend is fastest beyond the noise, how often it is tied
    with the fastest, and its geometric-mean speed-up over the best other backend; None if no
    problem was measured by several backends."""
    fields: dict[tuple[str, str, str], tuple[Problem, _Field]] = {}
    for row in rows:
        measured = row.result.measurement
        if not row.ranks or row.sentinel or measured is None:
            continue
        case = row.result.case
        key = (case.problem.key, row.result.device, case.timing.identity)
        _, field = fields.setdefault(key, (case.problem, {}))
        known = field.get(row.backend, measured)
        field[row.backend] = min(known, measured, key=_median_s)
    groups: dict[tuple[str, str], list[_Field]] = {}
    for problem, field in fields.values():
        if len(field) > 1:
            for name in (ALL, *category_names(problem)):
                groups.setdefault((problem.op, name), []).append(field)
    cells = [line for group, found in sorted(groups.items()) for line in _lines(*group, found)]
    if not cells:
        return None
    return Table(columns=_COLUMNS, rows=tuple(cells), title="Fastest backend by category")


def _lines(op: str, category: str, found: Sequence[_Field]) -> list[tuple[str, ...]]:
    """Return one row per backend, most wins first."""
    made = []
    for backend in dict.fromkeys(name for field in found for name in field):
        with_it = [field for field in found if backend in field]
        ratios, wins, ties = [], 0, 0
        for field in with_it:
            own = field[backend]
            other = min((one for name, one in field.items() if name != backend), key=_median_s)
            ratios.append(other.median_s / own.median_s)
            wins += is_clear(own, other)
            ties += not is_clear(own, other) and not is_clear(other, own)
        line = (
            *(op, category, backend, str(len(with_it)), str(wins), str(ties)),
            f"{100 * wins / len(with_it):.0f} %",
            f"{statistics.geometric_mean(ratios):.2f} ×",
        )
        made.append((-wins, line))
    return [line for _, line in sorted(made, key=lambda one: one[0])]


def _median_s(measured: Measurement) -> float:
    return measured.median_s
