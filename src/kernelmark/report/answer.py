"""The summary of a run in one or two sentences: which backend is fastest, by how much, and which
result is furthest from its roof."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelmark.core.result import Measurement
from kernelmark.core.units import counted
from kernelmark.report.tables import Row, share_text
from kernelmark.stats.student import t_quantile

_LEAST_PROBLEMS = 3  # minimum for an interval of the geometric mean
_LEVEL = 0.95

_Times = Mapping[str, Mapping[str, Measurement]]  # by backend, then by problem


def answer(rows: Sequence[Row]) -> list[str]:
    """Return sentences that summarise the rows; [] if there is nothing to compare."""
    asked = [row for row in rows if not row.sentinel]
    ranked = [row for row in asked if row.ranks]
    lines = _versus(_shared(ranked), _left_out(asked, ranked))
    found = [row for row in ranked if row.share is not None]
    if len(found) > 1:
        worst = min(found, key=lambda row: row.share.value if row.share else math.inf)
        lines.append(
            f"furthest from its roof: {worst.problem} by {worst.backend}, {share_text(worst.share)}"
        )
    return lines


def _left_out(asked: Sequence[Row], ranked: Sequence[Row]) -> int:
    """Count the problems requested of several backends with fewer than two backends ranked."""

    def compared(rows: Sequence[Row]) -> set[str]:
        backends: dict[str, set[str]] = {}
        for row in rows:
            backends.setdefault(row.result.case.problem.key, set()).add(row.backend)
        return {key for key, names in backends.items() if len(names) > 1}

    return len(compared(asked) - compared(ranked))


def _shared(rows: Sequence[Row]) -> dict[str, dict[str, Measurement]]:
    """Return measurements by backend and problem, for problems that several backends measured."""
    counts = Counter(row.result.case.problem.key for row in rows)
    found: dict[str, dict[str, Measurement]] = {}
    for row in rows:
        key = f"{row.result.case.problem.key} | {row.result.device}"
        if counts[row.result.case.problem.key] > 1 and row.result.measurement is not None:
            found.setdefault(row.backend, {})[key] = row.result.measurement
    return found


def _versus(times: _Times, left_out: int) -> list[str]:
    problems = dict.fromkeys(key for found in times.values() for key in found)
    if len(times) < 2:
        return [f"{counted(left_out, 'problem')} not ranked"] if left_out else []
    clear = [_fastest(times, key) for key in problems]
    wins = Counter(name for name in clear if name)
    first = max(times, key=lambda name: (wins[name], -_total(times[name])))
    others = [name for name in times if name != first and times[name].keys() & times[first].keys()]
    if not others:
        return []
    ratios = {name: _ratios(times, first, name) for name in others}
    second = min(others, key=lambda name: statistics.geometric_mean(ratios[name]))
    rest = f"; {counted(left_out, 'problem')} not ranked" if left_out else ""
    if len(problems) == 1:
        key = next(iter(problems))
        where = f" in {counted(1, 'problem')}" if left_out else ""
        return [_one(first, times[first][key], second, times[second][key]) + where + rest]
    mean = statistics.geometric_mean(ratios[second])
    count = counted(len(problems), "problem")
    speed = _geomean(ratios[second], second, len(problems)) + rest
    if not wins:
        return [f"no backend is fastest beyond the noise in any of {count}; {first} is {speed}"]
    ties = clear.count("")
    share = f"{first} is fastest in {wins[first]} of {count}"
    share += f", {second} in {wins[second]}" if wins[second] else ""
    share += f" ({ties} within the noise)" if ties else ""
    return [f"{share}, {'but ' if mean < 1 else ''}{speed}"]


def _fastest(times: _Times, key: str) -> str:
    """Return the fastest backend if its interval lies below the runner-up's, else ""."""
    found = sorted((_s(times[name][key]), name) for name in times if key in times[name])
    if len(found) < 2:
        return found[0][1]
    (_, first), (_, second) = found[:2]
    return first if is_clear(times[first][key], times[second][key]) else ""


def is_clear(fast: Measurement, slow: Measurement) -> bool:
    """Return whether the intervals are disjoint; else the table marks the ratio with ≈."""
    return fast.high_s < slow.low_s


def _one(first: str, fast: Measurement, second: str, slow: Measurement) -> str:
    ratio = slow.median_s / fast.median_s
    width = ratio * math.hypot(_width(fast), _width(slow))
    if not width < ratio:
        return f"{first} ran about {ratio:.3g} times as fast as {second}: too noisy to say more"
    if not is_clear(fast, slow):
        return (
            f"{first} and {second} do not differ beyond the noise: their intervals overlap "
            f"(medians: {ratio:.3g} ×)"
        )
    # as many decimals as two digits of the width need
    digits = min(3, max(0, 1 - math.floor(math.log10(width)))) if width else 3
    shown = f"{ratio:.{digits}f} ± {max(width, 10**-digits):.{digits}f}"
    return f"{first} ran {shown} times as fast as {second}"


def _geomean(ratios: Sequence[float], of: str, problems: int) -> str:
    mean = statistics.geometric_mean(ratios)
    shared = "" if len(ratios) == problems else f" of the {len(ratios)} that both measured"
    speed = f"{_factor(mean)} × the speed of {of} in the geomean{shared}"
    if len(ratios) < _LEAST_PROBLEMS:
        return speed
    logs = [math.log(ratio) for ratio in ratios]
    quantile = t_quantile(0.5 + _LEVEL / 2, len(logs) - 1)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = _factor(math.exp(-half) * mean), _factor(math.exp(half) * mean)
    return f"{speed} ({100 * _LEVEL:.0f} % interval {low} to {high})"


def _factor(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else f"{value:.2g}"


def _ratios(times: _Times, first: str, other: str) -> list[float]:
    both = times[first].keys() & times[other].keys()
    return [_s(times[other][key]) / _s(times[first][key]) for key in both]


def _width(measured: Measurement) -> float:
    return (measured.high_s - measured.low_s) / 2 / measured.median_s


def _total(found: Mapping[str, Measurement]) -> float:
    return sum(map(_s, found.values()))


def _s(measured: Measurement) -> float:
    return measured.median_s
