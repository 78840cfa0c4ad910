"""Steps in the series of a case over runs, and whether the newest point fits the level.

Detection has two stages. The screen here is cheap and covers every series of every run; what it
flags is confirmed by paired rounds (`kmark ab`), which cost many runs and decide.

A point counts by its median, a multimodal point by the mean of its modes, as its median is on one
of them by chance. A run may also have seen only one of several modes. So a multimodal point after
unimodal ones, or a unimodal point after multimodal ones, is a change only if no mode of one side is
within the range of the other.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kernelmark.compare.verdicts import HELD, Audit
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Mode, Run, Status, is_wide
from kernelmark.core.units import time_text, value_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.changepoint import change_points
from kernelmark.stats.estimators import mad, quantile, t_quantile
from kernelmark.stats.modes import mean_of

MIN_EFFECT = 0.02
SCREEN_ALPHA = 0.01
LEAST_POINTS = 4  # needed to screen a new point
_MOST_POINTS = 200  # newest points in which steps are searched
# Scales the median distance of neighbours to a standard deviation, for normal noise.
_NORMAL_MOVE = 1.0483
_LEAST_SPREAD = 1e-4
_WILD = 0.03  # fraction of points that may be outliers on either side
_RECENT = 10  # runs; some series are measured only in every other run
# The most points that may have left a level before a step can be proven.
_MOST_GONE = 8


class Point(Protocol):
    """One result of a series, as a store returns it."""

    @property
    def series(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def started(self) -> float: ...
    @property
    def status(self) -> Status: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def median_s(self) -> float | None: ...
    @property
    def low_s(self) -> float | None: ...
    @property
    def high_s(self) -> float | None: ...
    @property
    def modes(self) -> tuple[Mode, ...]: ...
    @property
    def doubt(self) -> Reason | None: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def better(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStep:
    """A change of the level at run `run_id`; `before_id` is the last run of the old level. `ratio`
    is the new level over the old: above 1 is slower."""

    run_id: str
    before_id: str
    started: float
    ratio: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The newest point compared with the level before it. `status` is slower, faster, same, broken
    or fixed; with too few points new, or unsure if many points failed. `low_s` and `high_s` bound
    the expected range. `ratio` is relative to the median of the level's `runs` points; `gone`
    counts the points before the newest that have left the level in the same direction."""

    status: VerdictStatus
    reason: Reason
    ratio: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    runs: int = 0
    gone: int = 0

    @property
    def flagged(self) -> bool:
        return self.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A series with its steps and screen. `held` is why the alarm of its newest point is
    suppressed."""

    series: str
    points: tuple[Point, ...]
    steps: tuple[SeriesStep, ...]
    screen: Screen
    held: str = ""

    @property
    def problem(self) -> str:
        """The problem's key."""
        return self.series.partition(" | ")[0]

    @property
    def newest(self) -> Point:
        return self.points[-1]

    @property
    def change(self) -> tuple[str, str]:
        """The last run before the newest point's state began, and the first run with it."""
        timed = [i for i, p in enumerate(self.points) if p.status is Status.OK and judged_s(p)]
        gone = self.screen.gone
        first = timed[-1 - gone] if gone else len(self.points) - 1
        return self.points[max(first - 1, 0)].run_id, self.points[first].run_id

    @property
    def since_before(self) -> float | None:
        """The newest point over the last point before its state began; None without one."""
        before = next((p for p in self.points if p.run_id == self.change[0]), None)
        times = [judged_s(p) for p in (before, self.newest) if p is not None]
        return times[1] / times[0] if len(times) == 2 and times[0] and times[1] else None

    @property
    def alarm(self) -> bool:
        """Whether the newest point needs confirmation or is broken, and is not suppressed."""
        return not self.held and (self.screen.flagged or self.screen.status is VerdictStatus.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Series with their steps and screens, and their runs, oldest first.

    `changes` are the environment differences at each step, by (run before, run after); `moved` are
    the canaries that moved in the newest run, `marked` those that moved in earlier runs, by run;
    `watched` is true if the newest run has canaries; `baseline` has the times of a pinned run by
    series.
    """

    stories: tuple[Story, ...]
    runs: tuple[Run, ...]
    changes: Mapping[tuple[str, str], tuple[tuple[str, str, str], ...]]
    moved: tuple[Reason, ...]
    marked: Mapping[str, tuple[Reason, ...]]
    watched: bool
    audit: Audit
    baseline_name: str
    baseline: Mapping[str, float]

    @property
    def alarms(self) -> list[Story]:
        """Series whose newest point needs confirmation or is broken, without series that no recent
        run has measured."""
        recent = {run.id for run in self.runs[-_RECENT:]}
        return [item for item in self.stories if item.alarm and item.newest.run_id in recent]


def judged_s(point: Point) -> float | None:
    """Return the time by which a point is judged, or the value of its metric."""
    if point.metric:
        return point.value
    return mean_of(point.modes) if point.modes else point.median_s


def counted_s(measurement: Measurement) -> float:
    """Return the time of a measurement as a point of history."""
    return mean_of(measurement.modes) if measurement.modes else measurement.median_s


def is_reliable(point: Point) -> bool:
    """Return whether a point has enough blocks and these agree. If not, its median may be a time
    that no launch took: the point is shown, but neither judged nor part of a level."""
    return bool(point.metric) or _why_not_judged(point) is None


def _why_not_judged(point: Point) -> Reason | None:
    """Return why a point is not judged; None if it is. Stores of earlier versions have no `doubt`,
    so the width of the interval decides."""
    low_s, high_s = point.low_s, point.high_s
    if point.doubt is not None or low_s is None or high_s is None or not is_wide(low_s, high_s):
        return point.doubt
    return Reason(f"unreliable: its interval goes from {time_text(low_s)} to {time_text(high_s)}")


def stories(points: Iterable[Point], *, min_effect: float = MIN_EFFECT) -> list[Story]:
    """Return each series with its steps and its screen; `points` are in chronological order."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    return [story(item, min_effect=min_effect) for item in found.values()]


def story(points: Sequence[Point], *, min_effect: float = MIN_EFFECT) -> Story:
    """Return one series, oldest point first. If a run has several results, on devices of one kind,
    the median one counts; a failure takes precedence."""
    points = [_middle(list(group)) for _, group in itertools.groupby(points, lambda p: p.run_id)]
    timed = _timed(points)
    logs = [math.log(time_s) for _, time_s in timed]
    steps = change_points(logs, min_effect=math.log1p(min_effect))
    screen = _screened(points, _levels(logs, [step.index for step in steps]), min_effect)
    screen = _screen_metric(screen, points[-1]) if points[-1].metric else screen
    before = [point for point, _ in timed[steps[-1].index if steps else 0 : -1]]
    return Story(
        series=points[0].series,
        points=tuple(points),
        steps=tuple(
            SeriesStep(
                run_id=timed[step.index][0].run_id,
                before_id=timed[step.index - 1][0].run_id,
                started=timed[step.index][0].started,
                ratio=math.exp(step.size),
                p_value=step.p_value,
            )
            for step in steps
        ),
        screen=_by_modes(screen, points[-1], before[: len(before) - screen.gone]),
    )


def _timed(points: Sequence[Point]) -> list[tuple[Point, float]]:
    """Return the newest points that can be judged, with the time of each."""
    judged = [
        (p, time_s)
        for p in points
        if p.status is Status.OK and is_reliable(p) and (time_s := judged_s(p))
    ]
    return judged[-_MOST_POINTS:]


def hold(found: Sequence[Story], sentinels: Mapping[str, str]) -> tuple[list[Story], list[Reason]]:
    """Suppress alarms where the machine itself changed. Return the stories, and the canaries that
    moved.

    `sentinels` maps the series that are canaries to their problem keys. A canary moved in a run if
    every backend whose newest point is of that run was flagged in the same direction: then the
    machine is the common cause. The alarms of that run are suppressed.
    """
    flags: dict[tuple[str, str], list[VerdictStatus]] = {}
    for item in found:
        if item.series in sentinels:
            key = item.newest.run_id, sentinels[item.series]
            flags.setdefault(key, []).append(item.screen.status)
    moved = {
        key: statuses[0]
        for key, statuses in flags.items()
        if len(set(statuses)) == 1 and statuses[0] in (VerdictStatus.SLOWER, VerdictStatus.FASTER)
    }
    runs = {run_id for run_id, _ in moved}
    newest = max(found, key=lambda entry: entry.newest.started).newest.run_id if found else ""
    held = [
        _suppress(entry, HELD) if entry.screen.flagged and entry.newest.run_id in runs else entry
        for entry in found
    ]
    reasons = [
        _change(key, status.value) for (run_id, key), status in moved.items() if run_id == newest
    ]
    return held, reasons


def _change(key: str, verdict: str) -> Reason:
    """Return the reason that a canary changed."""
    return Reason(f"{key}: {verdict}", "canary-change", problem=key, verdict=verdict)


def marked(
    found: Sequence[Story], sentinels: Mapping[str, str], *, min_effect: float = MIN_EFFECT
) -> dict[str, tuple[Reason, ...]]:
    """Return, by run, the canaries that have a step at the run or are an outlier among the runs
    around it; as in `hold`, every backend must agree in direction."""
    by_key: dict[str, list[Story]] = {}
    for item in found:
        if item.series in sentinels:
            by_key.setdefault(sentinels[item.series], []).append(item)
    reasons: dict[str, list[Reason]] = {}
    for key, mine in by_key.items():
        moves = {entry.series: _find_moves(entry, min_effect) for entry in mine}
        for run_id in dict.fromkeys(run_id for ratios in moves.values() for run_id in ratios):
            present = [entry for entry in mine if any(p.run_id == run_id for p in entry.points)]
            every = [moves[entry.series].get(run_id) for entry in present]
            ratios = [ratio for ratio in every if ratio is not None]
            if len(ratios) == len(present) and len({ratio > 1 for ratio in ratios}) == 1:
                reasons.setdefault(run_id, []).append(_change(key, _direction(ratios[0])))
    return {run_id: tuple(texts) for run_id, texts in reasons.items()}


def _find_moves(one: Story, min_effect: float) -> dict[str, float]:
    """Return the ratio by which the series moved, by run: its steps, and points outside the range
    expected from the rest of their level. The newest point is left to the screen."""
    moves = {step.run_id: step.ratio for step in one.steps}
    timed = [(point.run_id, time_s) for point, time_s in _timed(one.points)]
    places = [i for i, (run_id, _) in enumerate(timed) if run_id in moves]
    for a, b in itertools.pairwise([0, *places, len(timed)]):
        logs = [math.log(time_s) for _, time_s in timed[a:b]]
        for i, (run_id, _) in enumerate(timed[a:b]):
            rest = [*logs[:i], *logs[i + 1 :]]
            if len(rest) < LEAST_POINTS or run_id in moves or run_id == one.newest.run_id:
                continue
            # Divided over the points of a level, so that the level as a whole has SCREEN_ALPHA.
            alpha = SCREEN_ALPHA / len(logs)
            screen = _expected(logs[i], rest, _Spread.of(rest), min_effect, alpha)
            if screen.flagged and screen.ratio is not None:
                moves[run_id] = screen.ratio
    return moves


def _direction(ratio: float) -> str:
    return (VerdictStatus.SLOWER if ratio > 1 else VerdictStatus.FASTER).value


def _suppress(one: Story, reason: str) -> Story:
    return Story(
        series=one.series, points=one.points, steps=one.steps, screen=one.screen, held=reason
    )


def _middle(points: Sequence[Point]) -> Point:
    failed = [p for p in points if judged_s(p) is None or p.status is not Status.OK]
    ordered = sorted(points, key=lambda point: judged_s(point) or 0.0)
    return failed[0] if failed else ordered[(len(ordered) - 1) // 2]


def _levels(logs: Sequence[float], starts: Sequence[int]) -> list[list[float]]:
    """Return the points between steps; the last level excludes the newest point."""
    ends = [*starts, max(len(logs) - 1, 0)]
    return [list(logs[a:b]) for a, b in zip([0, *starts], ends, strict=True)]


def _screened(
    points: Sequence[Point], levels: Sequence[Sequence[float]], min_effect: float
) -> Screen:
    newest = points[-1]
    judged = judged_s(newest)
    if newest.status is not Status.OK or not judged:
        if len(points) > 1 and points[-2].status is Status.OK:
            return Screen(status=VerdictStatus.BROKEN, reason=_failed(newest))
        return Screen(status=VerdictStatus.IGNORED, reason=_failed(newest))
    if len(points) > 1 and points[-2].status is not Status.OK:
        return Screen(status=VerdictStatus.FIXED, reason=_failed_before(points[-2]))
    if not newest.metric and (doubt := _why_not_judged(newest)) is not None:
        return Screen(status=VerdictStatus.UNSURE, reason=doubt)
    level, log = levels[-1], math.log(judged)
    if len(level) >= LEAST_POINTS:
        gone = _count_departed(level, log, min_effect)
        kept = level[: len(level) - gone]
        return replace(_expected(log, kept, _Spread.of(kept), min_effect), gone=gone)
    if len(levels) > 1:
        return _expected(log, level, _Spread.of(level, _shift_onto_newest(levels)), min_effect)
    many = len(points) > LEAST_POINTS
    return Screen(
        status=VerdictStatus.UNSURE if many else VerdictStatus.NEW,
        reason=Reason(f"{len(level)} points at this level, {LEAST_POINTS} are needed"),
    )


def _screen_metric(screen: Screen, newest: Point) -> Screen:
    """Return the screen of a metric: in its unit, and slower where the metric is worse."""
    low, high = screen.low_s, screen.high_s
    if low is None or high is None:
        return screen
    status = screen.status
    if screen.flagged and not newest.better:
        status = VerdictStatus.UNSURE  # neither direction is better
    elif screen.flagged and newest.better == "higher":
        slower = status is VerdictStatus.SLOWER
        status = VerdictStatus.FASTER if slower else VerdictStatus.SLOWER
    reason = Reason(f"expected {value_text(low, newest.unit)} to {value_text(high, newest.unit)}")
    return replace(screen, status=status, reason=reason)


def _failed(point: Point) -> Reason:
    return Reason(point.status.value, "failed", status=point.status.value)


def _failed_before(point: Point) -> Reason:
    return Reason(f"it was {_failed(point)}", "failed-before", cause=_failed(point))


def _by_modes(screen: Screen, newest: Point, level: Sequence[Point]) -> Screen:
    """Return the screen of a point that is multimodal where its level is not, or the reverse: a
    change only if the modes of one are outside the range of the other."""
    modes = [mode.value_s for point in level for mode in point.modes]
    alike = bool(newest.modes) and sum(bool(p.modes) for p in level) >= LEAST_POINTS
    if not screen.flagged or alike or not (modes or newest.modes):
        return screen
    low_s, high_s = screen.low_s or 0.0, screen.high_s or math.inf
    low_s, high_s = min([low_s, *modes]), max([high_s, *modes])
    times = [mode.value_s for mode in newest.modes] or [newest.median_s or 0.0]
    if min(times) > high_s or max(times) < low_s:
        return screen
    reason = Reason(f"multimodal: expected {time_text(low_s)} to {time_text(high_s)}")
    return replace(
        screen, status=VerdictStatus.SAME, reason=reason, low_s=low_s, high_s=high_s, gone=0
    )


def _count_departed(level: Sequence[float], newest: float, min_effect: float) -> int:
    """Return how many of a level's last points have left it in the direction of the newest one.
    They are too few to prove a step, but must not make a lasting slowdown the expected level."""
    for count in range(min(len(level) - LEAST_POINTS, _MOST_GONE), 0, -1):
        kept = level[:-count]
        spread = _Spread.of(kept)
        first = _expected(newest, kept, spread, min_effect)
        if first.flagged and all(
            _expected(point, kept, spread, min_effect).status is first.status
            for point in level[-count:]
        ):
            return count
    return 0


def _shift_onto_newest(levels: Sequence[Sequence[float]]) -> list[float]:
    """Return the points of the level before the newest one, shifted onto it. Their spread stands in
    for that of the newest level, which has too few points."""
    older, level = levels[-2], levels[-1]
    shift = statistics.median(level) - statistics.median(older)
    return [point + shift for point in older]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The spread of points: their standard deviation, its degrees of freedom, and the points."""

    sigma: float
    dof: int
    points: tuple[float, ...]

    @classmethod
    def of(cls, level: Sequence[float], older: Sequence[float] = ()) -> _Spread:
        # The widest of several estimates, as few points may agree by chance in any of them.
        estimates = [_LEAST_SPREAD]
        for part in (level, older):
            moves = [abs(b - a) for a, b in itertools.pairwise(part)]
            if moves:
                estimates += [mad(part, scaled=True), _NORMAL_MOVE * statistics.median(moves)]
        return cls(sigma=max(estimates), dof=len(older or level) - 1, points=(*older, *level))


def _expected(
    newest: float,
    level: Sequence[float],
    spread: _Spread,
    min_effect: float,
    alpha: float = SCREEN_ALPHA,
) -> Screen:
    """Return the range expected for a further point of a level, and whether this one is inside."""
    centre = statistics.median(level)
    wide = spread.sigma * math.sqrt(1 + 1 / len(level))
    half = max(t_quantile(1 - alpha / 2, spread.dof) * wide, math.log1p(min_effect))
    # The range of the level's own points, without outliers, is expected too (a second mode).
    low = min(centre - half, quantile(spread.points, _WILD))
    high = max(centre + half, quantile(spread.points, 1 - _WILD))
    ratio = math.exp(newest - centre)
    low_s, high_s = math.exp(low), math.exp(high)
    reason = Reason(f"expected {time_text(low_s)} to {time_text(high_s)}")
    status = VerdictStatus.SAME
    if newest > high:
        status = VerdictStatus.SLOWER
    elif newest < low:
        status = VerdictStatus.FASTER
    return Screen(
        status=status, reason=reason, ratio=ratio, low_s=low_s, high_s=high_s, runs=len(level)
    )
