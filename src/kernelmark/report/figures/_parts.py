"""Parts shared by figures: colours, axes, marks and row selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import Measurement
from kernelmark.core.units import time_text
from kernelmark.report import vega
from kernelmark.report.names import rerun
from kernelmark.report.results import ResultRow, rate, share_text
from kernelmark.report.vega import SCHEMA, Spec

MOST_BARS = 40  # problems in a bar chart
WIDTH, HEIGHT = 620, 360
# The Okabe-Ito palette: distinguishable with every common colour blindness, in print and on dark.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
# The dark blue has too little contrast on a dark background.
_DARK_PALETTE = (PALETTE[4], *PALETTE[1:4], PALETTE[0], *PALETTE[5:])
_INK = {False: vega.LIGHT, True: vega.DARK}
_PAGE_INK = ("transparent", "currentColor", "var(--line)")
_TIP = {
    "shown": "value",
    "problem": "problem",
    "backend": "backend",
    "time": "median",
    "share": "of roof",
}
# A dashed line at ratio 1.
NO_CHANGE: Spec = {
    "data": {"values": [{"one": 1}]},
    "mark": {"type": "rule", "strokeDash": [4, 4]},
    "encoding": {"x": {"field": "one", "type": "quantitative"}},
}
Values = list[dict[str, Any]]


def themed(
    spec: Spec, *, title: str = "", subtitle: str = "", dark: bool = False, inline: bool = False
) -> Spec:
    """Return a figure with its title, in light or dark colours, or in the colours of the page it is
    embedded in (`inline`). The figure's description is appended to the subtitle."""
    paper, ink, grid = _PAGE_INK if inline else _INK[dark]
    lines = [line for line in (subtitle, spec.get("description", "")) if line]
    words = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "$schema": SCHEMA,
        "background": paper,
        "title": {"text": title, "subtitle": lines},
        "config": {
            "font": "sans-serif",
            "title": {"color": ink, "subtitleColor": ink, "fontSize": 14, "anchor": "start"}
            | {"offset": 12},
            "axis": {**words, "gridColor": grid, "domainColor": ink, "tickColor": ink},
            "legend": {**words, "symbolLimit": 60, "labelLimit": 320},
            "header": words,
            "text": {"color": ink},
            "rule": {"color": ink},
            "range": {"category": list(PALETTE if not dark else _DARK_PALETTE)},
            "view": {"stroke": None},
        },
        **spec,
    }


def time_unit(typical_s: float) -> tuple[str, float]:
    """Return the unit for times of this size, and its number per second."""
    if typical_s >= 1:
        return "s", 1.0
    return ("ms", 1e3) if typical_s >= 1e-3 else ("µs", 1e6) if typical_s >= 1e-6 else ("ns", 1e9)


def drawn_interval(middle: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the interval to draw; (middle, middle) if it is unknown or wider than a factor of 2,
    which would stretch the axis too far."""
    if low and high and middle <= 2 * low and high <= 2 * middle:
        return low, high
    return middle, middle


def log_axis(field: str, title: str, form: str = "~g") -> Spec:
    scale = {"type": "log", "nice": False}
    axis = {"format": form, "tickCount": 6}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def by_field(field: str, *, legend: bool = True) -> Spec:
    made: Spec = {"field": field, "type": "nominal", "title": None}
    return made if legend else {**made, "legend": None}


def tooltips(*names: str) -> list[Spec]:
    return [{"field": name, "type": "nominal", "title": _TIP.get(name, name)} for name in names]


def dots(count: int) -> Spec:
    """Return point marks that stay readable for ten thousand points."""
    size, opacity = (60, 0.9) if count <= 300 else (25, 0.6) if count <= 3000 else (8, 0.35)
    return {"type": "point", "filled": True, "size": size, "opacity": opacity}


def si_prefix(value: float) -> tuple[float, str]:
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return limit, prefix
    return 1.0, ""


def timed_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return rows with a time; canaries only if there is nothing else."""
    timed = [row for row in rows if row.timed]
    return [row for row in timed if not row.sentinel] or timed


def require_rows(rows: list[ResultRow]) -> list[ResultRow]:
    if not rows:
        raise NothingToDo("no result has a time to draw")
    return rows


def measurement_of(row: ResultRow) -> Measurement:
    assert row.result.measurement is not None
    return row.result.measurement


def point_of(row: ResultRow) -> dict[str, Any]:
    return {
        "problem": row.problem,
        "op": row.result.case.problem.op,
        "backend": row.backend,
        "time": time_text(measurement_of(row).median_s),
        "rate": rate(row),
        "share": share_text(row.shown_share),
        "again": rerun(row.result),
    }


def interval_of(measured: Measurement) -> tuple[float, float]:
    return drawn_interval(measured.median_s, measured.low_s, measured.high_s)


def times_by_backend(rows: Sequence[ResultRow]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in timed_rows(rows):
        key = row.result.case.problem.key
        found.setdefault(row.backend, {})[key] = measurement_of(row).median_s
    return found


def varying_dims(rows: Sequence[ResultRow], count: int) -> tuple[str, ...]:
    """Return the `count` dims with the most distinct values."""
    values: dict[str, set[int]] = {}
    for row in rows:
        for name, size in row.result.case.problem.dims.items():
            values.setdefault(name, set()).add(size)
    found = sorted((n for n in values if len(values[n]) > 1), key=lambda n: -len(values[n]))
    if len(found) < count:
        raise NothingToDo(
            f"{len(found)} of {count} dims vary", hint="measure several sizes: -a m=[256:4096:*2]"
        )
    return tuple(found[:count])


def dims_hint(rows: Sequence[ResultRow]) -> str:
    names = dict.fromkeys(name for row in rows for name in row.result.case.problem.dims)
    return f"dims: {', '.join(names)}"


def rows_of_main_op(rows: list[ResultRow]) -> tuple[list[ResultRow], str]:
    """Return the rows of the op with the most results, and a note if there are other ops: a dim of
    the same name in two ops, such as n of gemm and copy, is not one axis."""
    ops = [row.result.case.problem.op for row in rows]
    if len(set(ops)) < 2:
        return rows, ""
    main = max(dict.fromkeys(ops), key=ops.count)
    return [row for row in rows if row.result.case.problem.op == main], f"only {main}"
