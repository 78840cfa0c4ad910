"""Samples of results by block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernelmark.core.units import counted, time_text
from kernelmark.report.figures._parts import (
    HEIGHT,
    PALETTE,
    WIDTH,
    Values,
    by_field,
    dots,
    interval_of,
    measurement_of,
    require_rows,
    time_unit,
    timed_rows,
)
from kernelmark.report.results import ResultRow
from kernelmark.report.vega import Spec

_MOST_SAMPLES = 6  # maximum number of results


def samples(rows: Sequence[ResultRow]) -> Spec:
    """Return every sample of some results, by block in measured order, with the clock below."""
    every = require_rows(timed_rows(rows))
    timed = every[:_MOST_SAMPLES]
    words = "colours are blocks; the band is the 95 % interval of the median"
    if left := len(every) - len(timed):
        words += f"; {counted(left, 'more result')} not shown"
    panels = []
    for row in timed:
        values: Values = []
        unit, scale = time_unit(measurement_of(row).median_s)
        count = itertools.count()
        for number, block in enumerate(measurement_of(row).blocks):
            clocks = itertools.chain(block.clocks_mhz, itertools.repeat(None))
            for sample, clock in zip(block.samples_s, clocks, strict=False):
                point = {"at": next(count), "time": sample * scale, "block": f"block {number}"}
                values.append(point if clock is None else point | {"MHz": clock})
        measured = measurement_of(row)
        times = {"field": "time", "type": "quantitative", "scale": {"zero": False}}
        times["title"] = f"time, {unit}"
        along: Spec = {"field": "at", "type": "quantitative", "axis": {"tickMinStep": 1}}
        along["scale"] = {"padding": 8, "nice": False}
        along["title"] = "sample, in the order taken"
        low_s, high_s = interval_of(measured)
        band = [{"low": low_s * scale, "high": high_s * scale}]
        layers: list[Spec] = [
            {
                "mark": dots(len(values)),
                "encoding": {"x": along, "y": times, "color": by_field("block", legend=False)},
            }
        ]
        if low_s < high_s:
            box = {"type": "rect", "opacity": 0.15, "color": PALETTE[0]}
            ends = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
            layers.insert(0, {"data": {"values": band}, "mark": box, "encoding": ends})
        title = f"{row.problem}, {row.backend}: {time_text(measured.median_s)}"
        one: Spec = {"width": WIDTH, "height": HEIGHT // 2, "layer": layers}
        parts: list[Spec] = [{"title": title, "data": {"values": values}, **one}]
        if any("MHz" in value for value in values):
            clock_y = {"field": "MHz", "type": "quantitative", "scale": {"zero": False}}
            clock_y["title"] = "clock, MHz"
            strip = {"x": along, "y": clock_y}
            line = {"type": "line", "color": "#888888"}
            data = {"data": {"values": values}, "width": WIDTH, "height": 50}
            parts.append({**data, "mark": line, "encoding": strip})
        panels.append({"vconcat": parts})
    return {"description": words, "vconcat": panels}
