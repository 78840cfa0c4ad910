"""Figures of a tuning session: progress, importance of parameters, parallel coordinates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import Status
from kernelmark.core.units import time_text
from kernelmark.report.figures import HEIGHT, PALETTE, WIDTH, Values, by_field
from kernelmark.report.vega import Spec
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.records import journal
from kernelmark.tune.records.journal import Trial

_MOST_PLANS = 6  # maximum plans whose candidates are drawn
_MOST_LINES = 250  # maximum candidates per plan: more are not distinguishable
_TIME = "time"


def of_folder(folder: TuningFolder) -> Spec:
    """Return the figure of all plans in a tuning folder that have a journal."""
    there = [name for name in folder.names() if folder.journal(name).is_file()]
    return tuning({name: journal.read(folder.journal(name))[1] for name in there})


def tuning(trials: Mapping[str, Sequence[Trial]]) -> Spec:
    """Return the best time so far over evaluations, the importance of each parameter, and parallel
    coordinates of each plan's candidates."""
    progress: Values = []
    matter: Values = []
    for name, found in trials.items():
        timed = _timed(found)
        final = min((trial.seconds or math.inf for trial in timed), default=math.inf)
        best = math.inf
        for at, trial in enumerate(timed, 1):
            best = min(best, trial.seconds or math.inf)
            point = {"plan": name, "at": at, "us": best * 1e6, "ratio": best / final}
            progress.append(point | {"time": time_text(best)})
        for parameter, share in importance(timed).items():
            matter.append({"plan": name, "parameter": parameter, "share": share})
    if not progress:
        raise NothingToDo("no candidate has a time to draw")
    line = {
        "x": {"field": "at", "type": "quantitative", "title": "timings"},
        # Normalised to each plan's best, because small and large problems share the axis.
        "y": {"field": "ratio", "type": "quantitative", "scale": {"zero": False}}
        | {"title": "best so far over the best found"},
        "color": by_field("plan"),
        "tooltip": [{"field": item, "type": "nominal"} for item in ("plan", "at", "time")],
    }
    share_x = {"field": "share", "type": "quantitative", "axis": {"format": "%"}}
    share_x["title"] = "share of the variance of log time that the parameter explains alone"
    bar = {
        "y": {"field": "parameter", "type": "nominal", "sort": "-x", "title": None},
        "x": share_x,
        "color": by_field("plan", legend=False),
        "yOffset": {"field": "plan", "type": "nominal"},
    }
    first = {"width": WIDTH, "height": HEIGHT // 2, "data": {"values": progress}}
    panels: list[Spec] = [
        {**first, "mark": {"type": "line", "interpolate": "step-after"}, "encoding": line}
    ]
    if matter:
        second = {"width": WIDTH, "height": {"step": 16}, "data": {"values": matter}}
        panels.append({**second, "mark": "bar", "encoding": bar})
    panels += [
        spec
        for name, found in list(trials.items())[:_MOST_PLANS]
        if (spec := coordinates(name, found)) is not None
    ]
    return {"vconcat": panels}


def importance(trials: Sequence[Trial]) -> dict[str, float]:
    """Return each parameter's fraction of the variance of log time (η²)."""
    times = [math.log(trial.seconds) for trial in trials if trial.seconds]
    if len(times) < 3 or statistics.pvariance(times) == 0:
        return {}
    whole, mean = statistics.pvariance(times), statistics.fmean(times)
    found = {}
    for name in dict.fromkeys(name for trial in trials for name in trial.config):
        groups: dict[object, list[float]] = {}
        for trial, seconds in zip(trials, times, strict=True):
            groups.setdefault(trial.config.get(name), []).append(seconds)
        if len(groups) > 1:
            between = sum(len(g) * (statistics.fmean(g) - mean) ** 2 for g in groups.values())
            found[name] = between / len(times) / whole
    return found


def coordinates(name: str, trials: Sequence[Trial]) -> Spec | None:
    """Return parallel coordinates of one plan: one line per candidate over its parameters, the most
    important first, then its time; the fastest are drawn last and darkest. None if nothing
    varies."""
    best: dict[str, Trial] = {}
    for trial in _timed(trials):
        key = str(sorted(trial.config.items()))
        if key not in best or (trial.seconds or 0.0) < (best[key].seconds or 0.0):
            best[key] = trial
    found = sorted(best.values(), key=lambda trial: -(trial.seconds or 0.0))
    weight = importance(found)
    parameters = sorted(weight, key=lambda item: -weight[item])
    if not parameters:
        return None
    # The fastest candidates, and every n-th of the rest.
    step = max(1, math.ceil(len(found) / _MOST_LINES))
    half = found[-_MOST_LINES // 2 :]
    shown = [*found[: -len(half) : step], *half]
    places = {
        parameter: _heights([trial.config.get(parameter) for trial in found])
        for parameter in parameters
    }
    times = [math.log(trial.seconds or 1.0) for trial in found]
    low, high = min(times), max(times)
    lines: Values = []
    for number, trial in enumerate(shown):
        seconds = trial.seconds or 1.0
        height = (math.log(seconds) - low) / (high - low) if high > low else 0.5
        common = {"line": number, "us": seconds * 1e6, "time": time_text(seconds)}
        common["config"] = " ".join(f"{n}={v}" for n, v in sorted(trial.config.items()))
        lines += [
            {**common, "axis": parameter, "y": places[parameter][trial.config.get(parameter)]}
            for parameter in parameters
        ]
        lines.append({**common, "axis": _TIME, "y": height})
    labels: Values = [
        {"axis": parameter, "y": y, "value": "default" if value is None else str(value)}
        for parameter in parameters
        for value, y in places[parameter].items()
    ]
    ends = ((0.0, low), (1.0, high))
    labels += [{"axis": _TIME, "y": y, "value": time_text(math.exp(at))} for y, at in ends]
    axis = {"title": None, "labelAngle": 0, "domain": False, "ticks": False, "grid": True}
    x: Spec = {"field": "axis", "type": "nominal", "sort": [*parameters, _TIME], "axis": axis}
    # The plan's name as an axis title, because pages omit panel titles.
    bare = {"labels": False, "ticks": False, "domain": False, "grid": False, "title": name}
    y: Spec = {"field": "y", "type": "quantitative", "axis": bare}
    # Visible on light and dark backgrounds; either end of viridis fades on one of them.
    fading = [PALETTE[5], PALETTE[1], PALETTE[7]]
    scale = {"type": "log", "range": fading, "interpolate": "rgb", "nice": False}
    colour: Spec = {"field": "us", "type": "quantitative", "title": "µs", "scale": scale}
    tips = [{"field": item, "type": "nominal"} for item in ("time", "config")]
    drawn = {"x": x, "y": y, "detail": {"field": "line"}, "color": colour, "tooltip": tips}
    text = {"type": "text", "align": "left", "dx": 5, "dy": -7, "fontSize": 10}
    thin = {"type": "line", "strokeWidth": 1.2, "opacity": 0.55}
    return {
        "width": max(WIDTH, 90 * (len(parameters) + 1)),
        "height": HEIGHT * 2 // 3,
        "layer": [
            {"data": {"values": lines}, "mark": thin, "encoding": drawn},
            {
                "data": {"values": labels},
                "mark": text,
                "encoding": {"x": x, "y": y, "text": {"field": "value"}},
            },
        ],
    }


def _timed(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.seconds and t.status is Status.OK and not t.backend]


def _heights(values: Sequence[object]) -> dict[object, float]:
    """Return each value's height on its axis, evenly spaced: numbers in order, then others."""
    known = dict.fromkeys(values)
    numbers = sorted(v for v in known if isinstance(v, int | float))
    order: list[object] = [*numbers, *sorted((v for v in known if v not in numbers), key=str)]
    last = max(1, len(order) - 1)
    return {value: index / last for index, value in enumerate(order)}
