"""How often each backend is fastest, by op and problem category."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.ops.base import Parameter
from kernelmark.report.tables import NONE, Column, Row, Table
from kernelmark.workloads.generate import categories

ALL = "all"
_GEMMS = ("gemm", "batched_gemm")
_COLUMNS = (
    *(Column(name="op"), Column(name="category"), Column(name="backend")),
    Column(name="problems", align="right"),
    Column(name="fastest in", align="right"),
    Column(name="share", align="right"),
    Column(name="vs best other", align="right"),
)

# Seconds by backend, for one problem on one device in one timing.
_Field = dict[str, float]


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
    """Return a table of how often each backend is fastest and its geometric-mean speed-up over the
    best other backend; None if no problem was measured by several backends."""
    fields: dict[tuple[str, str, str], tuple[Problem, _Field]] = {}
    for row in rows:
        measured = row.result.measurement
        if not row.ranks or row.sentinel or measured is None:
            continue
        case = row.result.case
        key = (case.problem.key, row.result.device, case.timing.identity)
        _, field = fields.setdefault(key, (case.problem, {}))
        field[row.backend] = min(measured.median_s, field.get(row.backend, measured.median_s))
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
        ratios = [
            min(s for name, s in field.items() if name != backend) / field[backend]
            for field in with_it
        ]
        wins = sum(ratio > 1 for ratio in ratios)
        line = (
            *(op, category, backend, str(len(with_it)), str(wins)),
            f"{wins / len(with_it):.0%}",
            f"{statistics.geometric_mean(ratios):.2f} ×" if ratios else NONE,
        )
        made.append((-wins, line))
    return [line for _, line in sorted(made, key=lambda one: one[0])]
