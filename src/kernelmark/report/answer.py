"""The answer of a run in one or two sentences: which backend is fastest, by how much, and what is
furthest from the roof."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelmark.core.result import Measurement
from kernelmark.core.units import counted
from kernelmark.report.tables import Row, share_text
from kernelmark.stats.student import t_quantile

_LEAST_PROBLEMS = 3  # for an interval of the geometric mean
_LEVEL = 0.95

_Times = Mapping[str, Mapping[str, Measurement]]  # by backend, then by problem


def answer(rows: Sequence[Row]) -> list[str]:
    """What a person would say of these rows; nothing where there is nothing to compare."""
    ranked = [row for row in rows if row.ranks and not row.sentinel]
    lines = _versus(_shared(ranked))
    found = [row for row in ranked if row.share is not None]
    if len(found) > 1:
        worst = min(found, key=lambda row: row.share.value if row.share else math.inf)
        lines.append(
            f"furthest from its roof: {worst.problem} by {worst.backend}, {share_text(worst.share)}"
        )
    return lines


def _shared(rows: Sequence[Row]) -> dict[str, dict[str, Measurement]]:
    """Measurements of the problems that several backends measured."""
    counts = Counter(row.result.case.problem.key for row in rows)
    found: dict[str, dict[str, Measurement]] = {}
    for row in rows:
        key = f"{row.result.case.problem.key} | {row.result.device}"
        if counts[row.result.case.problem.key] > 1 and row.result.measurement is not None:
            found.setdefault(row.backend, {})[key] = row.result.measurement
    return found


def _versus(times: _Times) -> list[str]:
    problems = dict.fromkeys(key for found in times.values() for key in found)
    if len(times) < 2:
        return []
    best = {
        key: min((name for name in times if key in times[name]), key=lambda n: _s(times[n][key]))
        for key in problems
    }
    wins = Counter(best.values())
    first = max(times, key=lambda name: (wins[name], -_total(times[name])))
    others = [name for name in times if name != first and times[name].keys() & times[first].keys()]
    if not others:
        return []
    ratios = {name: _ratios(times, first, name) for name in others}
    second = min(others, key=lambda name: statistics.geometric_mean(ratios[name]))
    if len(problems) == 1:
        key = next(iter(problems))
        return [_one(first, times[first][key], second, times[second][key])]
    share = f"{first} is fastest in {wins[first]} of {counted(len(problems), 'problem')}"
    return [f"{share}, {_geomean(ratios[second])} the speed of {second}"]


def _one(first: str, fast: Measurement, second: str, slow: Measurement) -> str:
    ratio = slow.median_s / fast.median_s
    width = ratio * math.hypot(_width(fast), _width(slow))
    if not width < ratio:
        return f"{first} ran about {ratio:.3g} times as fast as {second}: too noisy to say more"
    if ratio - width < 1:
        return f"{first} and {second} do not differ beyond the noise ({ratio:.3f} ± {width:.3f})"
    return f"{first} ran {ratio:.3g} ± {width:.2g} times as fast as {second}"


def _geomean(ratios: Sequence[float]) -> str:
    mean = statistics.geometric_mean(ratios)
    if len(ratios) < _LEAST_PROBLEMS:
        return f"in the geomean {mean:.3g} ×"
    logs = [math.log(ratio) for ratio in ratios]
    quantile = t_quantile(0.5 + _LEVEL / 2, len(logs) - 1)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(-half) * mean, math.exp(half) * mean
    return f"in the geomean {mean:.3g} × ({low:.3g} to {high:.3g})"


def _ratios(times: _Times, first: str, other: str) -> list[float]:
    both = times[first].keys() & times[other].keys()
    return [_s(times[other][key]) / _s(times[first][key]) for key in both]


def _width(measured: Measurement) -> float:
    return (measured.high_s - measured.low_s) / 2 / measured.median_s


def _total(found: Mapping[str, Measurement]) -> float:
    return sum(map(_s, found.values()))


def _s(measured: Measurement) -> float:
    return measured.median_s
