"""What changed: head over base for compared kernels, and time series over runs."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kernelmark.compare.history import History, Point, Screen, Story, is_reliable, judged_s
from kernelmark.core.environment import Environment, difference
from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import Status
from kernelmark.core.units import counted, value_text
from kernelmark.report.changes import Change, ranked, verdict_text
from kernelmark.report.figures import (
    HEIGHT,
    MOST_BARS,
    NO_CHANGE,
    PALETTE,
    WIDTH,
    Values,
    by_field,
    drawn_interval,
    failed_cross,
    time_unit,
    tooltips,
)
from kernelmark.report.history import changes_text
from kernelmark.report.history import parts as series_parts
from kernelmark.report.tables import date_text
from kernelmark.report.vega import Spec
from kernelmark.workloads.suites import CANARIES, canary_keys

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


def changes(kernel_changes: Sequence[Change]) -> Spec:
    """Return head over base of each compared kernel with its interval, by cost per call."""
    moved = ranked(kernel_changes)
    rest = sorted((c for c in kernel_changes if c not in moved), key=lambda c: -c.impact)
    values = [
        {
            "kernel": f"{item.problem}, {item.backend}",
            "ratio": item.ratio,
            "low": low,
            "high": high,
            "verdict": verdict_text(item),
            "base": value_text(item.base, item.unit) if item.base else "",
            "head": value_text(item.head, item.unit) if item.head else "",
            "again": item.again,
        }
        for item in [*moved, *rest][:MOST_BARS]
        if item.ratio
        for low, high in [drawn_interval(item.ratio, item.low, item.high)]
    ]
    if not values:
        raise NothingToDo("no row has a ratio to draw")
    left = sum(bool(item.ratio) for item in kernel_changes) - len(values)
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


_MOST_SERIES = 12
_LEAST_RANGE = 0.03  # half range of a history axis, relative to its middle
_DAY_S = 86400.0


def history(stories: Sequence[Story], environments: Iterable[Environment] = ()) -> Spec:
    """Return each series over its runs: the expected range of the newest point as a band, steps as
    lines, and changes of the environment, which are named if they are among `environments`."""
    panels = []
    by_fingerprint = {environment.fingerprint: environment for environment in environments}
    for story in stories[:_MOST_SERIES]:
        newest = story.newest
        unit, scale = newest.unit, 1.0
        if not newest.metric:
            medians = [point.median_s for point in story.points if point.median_s]
            unit, scale = time_unit(statistics.median(medians) if medians else 0.0)
        values: Values = [
            {"at": point.started * 1000, "value": value * scale, "run": point.run_id}
            | {"shown": value_text(value, point.unit or "s")}
            | {"environment": point.fingerprint[:8]}
            for point in story.points
            if point.status is Status.OK and (value := judged_s(point))
        ]
        if not values:
            continue
        failed: Values = [
            {"at": point.started * 1000, "run": point.run_id, "state": point.status.value}
            for point in story.points
            if point.status.failed
        ]
        along = _over_time(story.points[0].started, newest.started)
        y: Spec = {"field": "value", "type": "quantitative", "title": unit}
        y["scale"] = {"zero": False, "domain": _domain(values, story.screen, scale)}
        tips = tooltips("run", "shown", "environment")
        layers: list[Spec] = [
            {
                "mark": {"type": "line", "color": PALETTE[0], "opacity": 0.6},
                "encoding": {"x": along, "y": y},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 45, "color": PALETTE[0]},
                "encoding": {"x": along, "y": y, "tooltip": tips},
            },
        ]
        layers += _environment_strip(story.points, along, by_fingerprint)
        screen = story.screen
        if screen.low_s and screen.high_s and math.isfinite(screen.high_s):
            # Only since the last step: before it, another level was expected.
            since = max([step.started for step in story.steps], default=story.points[0].started)
            band = [{"low": screen.low_s * scale, "high": screen.high_s * scale}]
            band[0] |= {"since": since * 1000, "until": newest.started * 1000}
            box = {"type": "rect", "opacity": 0.12, "color": PALETTE[2]}
            ends = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
            ends |= {"x": along | {"field": "since"}, "x2": {"field": "until"}}
            layers.insert(0, {"data": {"values": band}, "mark": box, "encoding": ends})
        if story.steps:
            marks = [
                {"at": step.started * 1000, "text": f"{100 * (step.ratio - 1):+.1f} %"}
                for step in story.steps
            ]
            rule = {"type": "rule", "strokeDash": [4, 4]}
            where = {"x": along}
            label = {"type": "text", "align": "left", "dx": 4, "fontSize": 10}
            above = {"y": {"value": 8}, "text": {"field": "text"}}
            steps = {"data": {"values": marks}}
            layers.append({**steps, "mark": rule, "encoding": where})
            layers.append({**steps, "mark": label, "encoding": where | above})
        if failed:
            low = {
                "x": along,
                "y": {"value": HEIGHT // 3 - 18},
                "tooltip": tooltips("run", "state"),
            }
            layers.append({"data": {"values": failed}, "mark": failed_cross(), "encoding": low})
        named = series_parts(story)
        title = f"{named['problem']}, {named['backend']}  {newest.metric}".rstrip()
        data = {"title": title, "data": {"values": values}}
        panels.append({**data, "width": WIDTH, "height": HEIGHT // 3, "layer": layers})
    if not panels:
        raise NothingToDo("no series has a time to draw")
    description = "band: where the newest point was expected; dashed lines: change points"
    if (left := len(stories) - _MOST_SERIES) > 0:
        description += f"; {left} more series not shown"
    return {"description": description, "vconcat": panels}


def trend(past: History) -> Spec:
    """Return the geometric mean of each suite's times by each backend over the runs. Each series is
    relative to its median, so that a run with fewer problems has no other mean."""
    suites = {run.id: run.suite or "no suite" for run in past.runs}
    started = {run.id: run.started for run in past.runs}
    canaries = set(canary_keys(CANARIES))
    ratios: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for story in past.stories:
        if story.newest.metric or story.problem in canaries:
            continue
        timed = [
            (point.run_id, value)
            for point in story.points
            if point.status is Status.OK and is_reliable(point) and (value := judged_s(point))
        ]
        usual_s = statistics.median([value for _, value in timed]) if timed else 1.0
        named = series_parts(story)
        for run_id, value in timed:
            line = suites[run_id], named["backend"].partition(" ")[0], named["arch"]
            ratios.setdefault(line, {}).setdefault(run_id, []).append(value / usual_s)
    lines = sorted(
        (line for line in ratios if len(ratios[line]) > 1), key=lambda line: -len(ratios[line])
    )
    if not lines:
        raise NothingToDo("no suite was measured twice")
    shown = lines[: len(PALETTE)]
    varying = [at for at in range(3) if at == 1 or len({line[at] for line in shown}) > 1]
    values: Values = [
        {"at": started[run_id] * 1000, "ratio": statistics.geometric_mean(own), "run": run_id}
        | {"backend": ", ".join(line[at] for at in varying), "count": len(own)}
        for line in shown
        for run_id, own in ratios[line].items()
    ]
    drawn = [value["ratio"] for value in values]
    margin = 0.1 * (max(drawn) - min(drawn))
    low = max(0.0, min(1 - _LEAST_RANGE, min(drawn) - margin))
    high = max(1 + _LEAST_RANGE, max(drawn) + margin)
    y: Spec = {"field": "ratio", "type": "quantitative", "title": "time over the usual time"}
    y["scale"] = {"zero": False, "domain": [low, high]}
    description = "geometric mean of a suite's kernels by backend; 1 is the median of these runs"
    if left := len(lines) - len(shown):
        description += f"; {counted(left, 'more line')} not shown"
    tips = tooltips("backend", "run", "ratio", "count")
    along = _over_time(min(started.values()), max(started.values()))
    return {
        "width": WIDTH,
        "height": HEIGHT // 3,
        "description": description,
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 30}},
        "encoding": {"x": along, "y": y, "color": by_field("backend"), "tooltip": tips},
    }


def _domain(values: Values, screen: Screen, scale: float) -> list[float]:
    """Return the range of a history's axis, wide enough not to magnify noise."""
    medians = [value["value"] for value in values]
    if screen.low_s and screen.high_s and math.isfinite(screen.high_s):
        medians += [screen.low_s * scale, screen.high_s * scale]
    low, high = min(medians), max(medians)
    middle = (low + high) / 2
    half = max(0.6 * (high - low), _LEAST_RANGE * middle)
    return [middle - half, middle + half]


def _environment_names(
    points: Sequence[Point], environments: Mapping[str, Environment]
) -> list[str]:
    """Return per point what its environment changed, and when. Environments that differ only in
    the commit have one name: in a nightly run every point has another commit."""
    names: dict[str, str] = {}
    previous: Environment | None = None
    named = []

    @functools.cache  # many points have one environment
    def bare(fingerprint: str) -> tuple[Environment, str]:
        environment = replace(environments[fingerprint], commit="", dirty=False)
        return environment, environment.fingerprint

    for point in points:
        if point.fingerprint not in environments:
            named.append(point.fingerprint[:8])
            continue
        environment, key = bare(point.fingerprint)
        if key not in names:
            changed = changes_text(difference(previous, environment)) if previous else "first"
            names[key] = f"{date_text(point.started)[:10]}: {changed}"
        named.append(names[key])
        previous = environment
    return named


def _environment_strip(
    points: Sequence[Point], along: Spec, environments: Mapping[str, Environment]
) -> list[Spec]:
    """Return a strip below a history, one colour per environment; [] if it never changed."""
    lanes: Values = []
    for point, name in zip(points, _environment_names(points, environments), strict=True):
        if not lanes or lanes[-1]["environment"] != name:
            lanes.append({"environment": name, "since": point.started * 1000})
    if len(lanes) < 2:
        return []
    last = points[-1].started * 1000
    # Extend the newest environment, which may have a single point.
    ends = [*(lane["since"] for lane in lanes[1:]), last + (last - lanes[0]["since"]) / 50]
    for lane, until in zip(lanes, ends, strict=True):
        lane["until"] = until
    few = len({lane["environment"] for lane in lanes}) <= len(PALETTE)
    legend: Spec = {"orient": "top", "title": "environment", "symbolType": "square"}
    if environments:  # their names are sentences
        legend |= {"labelLimit": WIDTH, "direction": "vertical"}
    bottom = HEIGHT // 3
    drawn = {
        "x": along | {"field": "since"},
        "x2": {"field": "until"},
        "y": {"value": bottom - 7},
        "y2": {"value": bottom},
        "color": {"field": "environment", "type": "nominal", "legend": legend if few else None},
        "tooltip": tooltips("environment"),
    }
    return [{"data": {"values": lanes}, "mark": {"type": "rect"}, "encoding": drawn}]


def _over_time(first_s: float, last_s: float) -> Spec:
    """Return a UTC time axis: dates, or dates and hours if it spans at most four days."""
    axis: Spec = {"format": "%m-%d %H:%M", "tickCount": 8, "labelOverlap": True}
    axis["tickMinStep"] = 60_000  # labels show minutes
    if last_s - first_s > 4 * _DAY_S:
        axis |= {"format": "%Y-%m-%d", "tickMinStep": _DAY_S * 1000}
    scale = {"type": "utc", "padding": 8}
    return {"field": "at", "type": "temporal", "title": None, "axis": axis, "scale": scale}
