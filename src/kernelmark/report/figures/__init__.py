"""Figures of results as Vega-Lite specs; vega.py renders them.

Every function takes rows (`tables.rows`) or stories and returns a spec that needs no network.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelmark.report.figures._backends import bars, ecdf, heatmap
from kernelmark.report.figures._comparisons import changes, history
from kernelmark.report.figures._parts import HEIGHT, PALETTE, WIDTH, Values, by_field, themed
from kernelmark.report.figures._results import ceilings, roofline, samples, sweep
from kernelmark.report.vega import Spec

__all__ = [
    "HEIGHT",
    "OPTIONS",
    "PALETTE",
    "RESULT_KINDS",
    "TITLES",
    "WIDTH",
    "Values",
    "bars",
    "by_field",
    "ceilings",
    "changes",
    "ecdf",
    "heatmap",
    "history",
    "roofline",
    "samples",
    "sweep",
    "themed",
]

RESULT_KINDS: dict[str, Callable[..., Spec]] = {
    "roofline": roofline,
    "bars": bars,
    "ecdf": ecdf,
    "sweep": sweep,
    "heatmap": heatmap,
    "samples": samples,
}
# Parameters of each kind in addition to its rows.
OPTIONS: dict[str, tuple[str, ...]] = {
    "ecdf": ("base",),
    "sweep": ("x",),
    "heatmap": ("x", "y", "base", "head"),
}
TITLES = {
    "roofline": "Roofline, with measured roofs",
    "bars": "Backends, problem by problem",
    "ecdf": "Speed-ups",
    "sweep": "Rates over a dim",
    "heatmap": "Speed of one backend over another",
    "samples": "Samples by block",
    "history": "History",
    "changes": "Head over base",
    "roofs": "Measured roofs",
    "tuning": "Tuning: progress, importance of parameters, candidates",
}
