"""Head over base for compared kernels."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.core.units import value_text
from kernelmark.report.changes import Change, ranked, verdict_text
from kernelmark.report.figures._parts import (
    MOST_BARS,
    NO_CHANGE,
    WIDTH,
    by_field,
    drawn_interval,
    tooltips,
)
from kernelmark.report.vega import Spec

# Colours of the palette; warm ones for regressions.
_VERDICTS = {
    "slower": "#D55E00",
    "broken": "#CC79A7",
    "slower, suppressed": "#F0E442",
    "faster": "#0072B2",
    "faster, suppressed": "#F0E442",
    "fixed": "#56B4E9",
    "unsure": "#E69F00",
    "same": "#999999",
}


def changes(found: Sequence[Change]) -> Spec:
    """Return head over base of each compared kernel with its interval, by cost per call."""
    moved = ranked(found)
    rest = sorted((c for c in found if c not in moved), key=lambda c: -c.impact)
    values = [
        {
            "kernel": f"{one.problem}, {one.backend}",
            "ratio": one.ratio,
            "low": low,
            "high": high,
            "verdict": verdict_text(one),
            "base": value_text(one.base, one.unit) if one.base else "",
            "head": value_text(one.head, one.unit) if one.head else "",
            "again": one.again,
        }
        for one in [*moved, *rest][:MOST_BARS]
        if one.ratio
        for low, high in [drawn_interval(one.ratio, one.low, one.high)]
    ]
    if not values:
        raise NothingToDo(Reason("nothing-to-draw", what="row", needs="a ratio"))
    left = sum(bool(one.ratio) for one in found) - len(values)
    y: Spec = {"field": "kernel", "type": "nominal", "sort": None, "title": None}
    y |= {"axis": {"labelLimit": 360}}
    ratio = {"field": "ratio", "type": "quantitative", "scale": {"zero": False}}
    ratio["title"] = "time of head over base (1 is no change)"
    seen = [name for name in _VERDICTS if any(value["verdict"] == name for value in values)]
    colour = by_field("verdict")
    colour |= {"scale": {"domain": seen, "range": [_VERDICTS[name] for name in seen]}}
    tips = {"tooltip": tooltips("kernel", "verdict", "base", "head", "ratio", "again")}
    ends = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    return {
        "width": WIDTH,
        "height": {"step": 18},
        "data": {"values": values},
        **({"description": f"{left} more kernels are not shown"} if left else {}),
        "layer": [
            NO_CHANGE,
            {"mark": "rule", "encoding": {"y": y, **ends, "color": colour}},
            {
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {"y": y, "x": ratio, "color": colour, **tips},
            },
        ],
    }
