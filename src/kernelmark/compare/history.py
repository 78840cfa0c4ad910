"""Steps in the series of a case over runs, and whether the newest point fits the last good level.

A regression is open until it is measured good again or accepted. A failure is open if the kernel
ever worked. A slowdown is fresh while the newest point is outside the range that its level expects.
Once a step proves it, or a confirmed regression is stored, the newest point is compared with the
best level until then, however long ago that was.

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
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Mode, Run, Status, is_wide
from kernelmark.core.units import NOISY, time_text, value_text
from kernelmark.core.verdict import Mark, MarkKind, VerdictStatus
from kernelmark.stats.changepoint import change_points
from kernelmark.stats.interval import mad, mean_of, quantile, t_quantile

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
# By how much a point of the present level may be faster than the newest one.
_PRESENT = 0.03
# The first nights of a series: the fewest points, and by what fraction, and how many times their
# range, a further point must be outside it. On a steady GPU no noise is that large.
_FEW_POINTS = 2
_FEW_EFFECT = 0.1
_FEW_RANGES = 3.0


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
    counts the points before the newest that have left the level in the same direction.

    If a step or a stored mark proves the regression, or if the newest point failed, `since` is the
    first run of that state, `before` the last good run, and the level is the last good one."""

    status: VerdictStatus
    reason: Reason
    ratio: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    runs: int = 0
    gone: int = 0
    before: str = ""
    since: str = ""

    @property
    def flagged(self) -> bool:
        return self.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER)

    @property
    def fresh(self) -> bool:
        """Whether the newest point left its level, rather than stayed at a level that is bad."""
        return self.flagged and not self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A series with its steps, marks and screen. `held` is why the alarm of its newest point is
    suppressed, `accepted` the acceptance without which there would be an alarm, `confirmed` the
    mark of the open regression if it was measured again."""

    series: str
    points: tuple[Point, ...]
    steps: tuple[SeriesStep, ...]
    screen: Screen
    marks: tuple[Mark, ...] = ()
    held: str = ""
    accepted: Mark | None = None
    confirmed: Mark | None = None

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
        if self.screen.since:
            return self.screen.before, self.screen.since
        timed = [i for i, p in enumerate(self.points) if p.status is Status.OK and judged_s(p)]
        gone = self.screen.gone
        first = timed[-1 - gone] if gone else len(self.points) - 1
        return self.points[max(first - 1, 0)].run_id, self.points[first].run_id

    @property
    def first_failure(self) -> Point:
        """The first point of the failures that end the series."""
        first = len(self.points) - 1
        while first and self.points[first - 1].status is not Status.OK:
            first -= 1
        return self.points[first]

    @property
    def present_level(self) -> Point:
        """The first of the newest points that are about as slow as the newest one."""
        timed = _timed(self.points)
        sign = -1.0 if self.newest.metric and self.newest.better == "higher" else 1.0
        newest, first = timed[-1][1], len(timed) - 1
        least = math.log1p(_PRESENT)
        while first and sign * math.log(newest / timed[first - 1][1]) <= least:
            first -= 1
        starts = [i for i, (p, _) in enumerate(timed) if p.run_id == self.change[1]]
        return timed[max(first, *starts, 0)][0]

    @property
    def since_before(self) -> float | None:
        """The newest point over the last point before its state began; None without one."""
        before = next((p for p in self.points if p.run_id == self.change[0]), None)
        times = [judged_s(p) for p in (before, self.newest) if p is not None]
        return times[1] / times[0] if len(times) == 2 and times[0] and times[1] else None

    @property
    def alarm(self) -> bool:
        """Whether the newest point needs confirmation or is broken, and is not suppressed."""
        return not self.held and (self.screen.flagged or self.is_regression)

    @property
    def is_regression(self) -> bool:
        """Whether the newest point is slower or broken."""
        return self.screen.status in (VerdictStatus.SLOWER, VerdictStatus.BROKEN)


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
        """Open regressions, and series that a recent run measured as faster."""
        recent = {run.id for run in self.runs[-_RECENT:]}
        return [
            item
            for item in self.stories
            if item.alarm and (item.is_regression or item.newest.run_id in recent)
        ]


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
    return Reason(f"unreliable: its interval is {NOISY}")


Marks = Mapping[str, Sequence[Mark]]
_NO_MARKS: Marks = FrozenDict()


def stories(
    points: Iterable[Point], *, min_effect: float = MIN_EFFECT, marks: Marks = _NO_MARKS
) -> list[Story]:
    """Return each series with its steps and its screen; `points` are in chronological order."""
    points_by_series: dict[str, list[Point]] = {}
    for point in points:
        points_by_series.setdefault(point.series, []).append(point)
    return [
        story(item, min_effect=min_effect, marks=marks.get(series, ()))
        for series, item in points_by_series.items()
    ]


def story(
    points: Sequence[Point], *, min_effect: float = MIN_EFFECT, marks: Sequence[Mark] = ()
) -> Story:
    """Return one series, oldest point first. If a run has several results, on devices of one kind,
    the median one counts; a failure takes precedence."""
    points = [_middle(list(group)) for _, group in itertools.groupby(points, lambda p: p.run_id)]
    timed = _timed(points)
    steps = change_points([math.log(t) for _, t in timed], min_effect=math.log1p(min_effect))
    judged = _Judged(points, timed, [step.index for step in steps], marks, min_effect)
    screen = judged.screen()
    accepted = judged.accepted
    if accepted is not None:
        rest = [mark for mark in marks if mark is not accepted]
        other = _Judged(points, timed, [step.index for step in steps], rest, min_effect).screen()
        accepted = accepted if other.status in _WORSE and screen.status not in _WORSE else None
    confirmed = judged.regressed
    judged_story = Story(
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
        screen=screen,
        marks=tuple(marks),
        accepted=accepted,
    )
    is_open = (
        confirmed is not None
        and judged_story.is_regression
        and confirmed.run_id == judged_story.change[1]
    )
    return replace(judged_story, confirmed=confirmed) if is_open else judged_story


_WORSE = (VerdictStatus.SLOWER, VerdictStatus.BROKEN)


class _Judged:
    """The points of a series, split into levels by its steps and its marks."""

    def __init__(
        self,
        points: Sequence[Point],
        timed: Sequence[tuple[Point, float]],
        steps: Sequence[int],
        marks: Sequence[Mark],
        min_effect: float,
    ) -> None:
        self._points, self._timed, self._min_effect = points, timed, min_effect
        by_kind = {mark.kind: mark for mark in marks}
        self.accepted = by_kind.get(MarkKind.ACCEPTED)
        self.regressed = by_kind.get(MarkKind.REGRESSED)
        if self.accepted and self.regressed and self.regressed.started <= self.accepted.started:
            self.regressed = None
        newest = points[-1]
        refuted = by_kind.get(MarkKind.REFUTED)
        self._refuted = refuted is not None and refuted.run_id == newest.run_id
        # Of a metric that has no better direction, no level is good or bad.
        self._direction = (
            {"higher": -1.0, "": 0.0}.get(newest.better, 1.0) if newest.metric else 1.0
        )
        self._logs = [math.log(time_s) for _, time_s in timed]
        firsts = [self._first_of(mark) for mark in (self.accepted, self.regressed)]
        self._starts = sorted({*steps, *(first for first in firsts if 0 < first < len(timed))})

    def _first_of(self, mark: Mark | None) -> int:
        """Return the index of the first timed point since a slowdown's mark; 0 without one."""
        if mark is None or mark.state != VerdictStatus.SLOWER:
            return 0
        return sum(point.started < mark.started for point, _ in self._timed)

    def screen(self) -> Screen:
        """Return the newest point against its level, or against the last good one if that is
        another."""
        newest = self._points[-1]
        if newest.status is not Status.OK or not judged_s(newest):
            return self._failed()
        repaired = len(self._points) > 1 and self._points[-2].status is not Status.OK
        fixed = Screen(
            status=VerdictStatus.FIXED,
            reason=_failed_before(self._points[-2]) if repaired else Reason(""),
        )
        doubt = None if newest.metric else _why_not_judged(newest)
        if doubt is None:
            screen = self._regression() or self._against_level()
            if self._refuted and screen.fresh:
                reason = Reason(f"looked {screen.status.value}; measured again, not confirmed")
                screen = replace(screen, status=VerdictStatus.UNSURE, reason=reason)
        else:
            screen = self._unreliable(doubt)
        return fixed if repaired and screen.status is not VerdictStatus.SLOWER else screen

    def _failed(self) -> Screen:
        """Return the screen of a failure: broken if the kernel ever worked."""
        newest = self._points[-1]
        worked = [i for i, point in enumerate(self._points[:-1]) if point.status is Status.OK]
        last = worked[-1] if worked else -1
        reason, mark = _failed(newest), self.accepted
        if (
            mark is not None
            and mark.state == newest.status.value
            and (last < 0 or self._points[last].started < mark.started)
        ):
            return Screen(status=VerdictStatus.IGNORED, reason=reason)
        regressed = self.regressed
        if regressed is not None and regressed.state == VerdictStatus.SLOWER:
            regressed = None
        if worked:
            before, since = self._points[last].run_id, self._points[last + 1].run_id
        elif regressed is not None:
            before, since = regressed.before_id, regressed.run_id
        else:
            return Screen(status=VerdictStatus.IGNORED, reason=reason)
        return Screen(status=VerdictStatus.BROKEN, reason=reason, before=before, since=since)

    def _unreliable(self, doubt: Reason) -> Screen:
        """Return the screen of a point that cannot be judged, which ends no regression."""
        unsure = Screen(status=VerdictStatus.UNSURE, reason=doubt)
        regressed, newest = self.regressed, judged_s(self._points[-1])
        if not self._timed and regressed is not None and regressed.level and newest:
            # No point of the series can be judged, but paired rounds confirmed the slowdown.
            is_slow = newest > regressed.level * (1 + self._min_effect)
            if regressed.state == VerdictStatus.SLOWER and is_slow:
                return Screen(
                    status=VerdictStatus.SLOWER,
                    reason=Reason(f"the last good level is {time_text(regressed.level)}"),
                    ratio=newest / regressed.level,
                    before=regressed.before_id,
                    since=regressed.run_id,
                )
        if not self._timed:
            return unsure
        last = self._regression() or self._against_level()
        if last.status is not VerdictStatus.SLOWER or last.since:
            return last if last.since else unsure
        first = len(self._timed) - 1 - last.gone
        before, since = (self._timed[max(i, 0)][0].run_id for i in (first - 1, first))
        return replace(last, before=before, since=since)

    def _against_level(self) -> Screen:
        newest = self._timed[-1][0]
        levels = _levels(self._logs, self._starts)
        screen = _screened(self._points, levels, self._logs[-1], self._min_effect)
        screen = _screen_metric(screen, newest) if newest.metric else screen
        before = self._timed[self._starts[-1] if self._starts else 0 : -1]
        return _by_modes(screen, newest, [p for p, _ in before[: len(before) - screen.gone]])

    def _regression(self) -> Screen | None:
        """Return the screen of a level that is worse than the best level until then; None if there
        is none, or if the newest points are at the best level again."""
        if not self._timed or not self._direction:
            return None
        worse = [self._direction * log for log in self._logs]
        least = self._least(worse)
        good, first = self._good(worse, least)
        if first is None:
            return None
        # One noisy point at the good level is no repair: nothing measured since may be as good.
        back = len(worse)
        while back > first and worse[back - 1] <= good.median + least:
            back -= 1
        bad = worse[first:back]
        if not bad or (back < len(worse) and max(worse[back:]) < min(bad)):
            return None
        log = worse[-1]
        low = min(good.median - least, quantile(good.logs, _WILD) if good.logs else math.inf)
        high = max(good.median + least, quantile(good.logs, 1 - _WILD) if good.logs else -math.inf)
        bounds = sorted(math.exp(self._direction * bound) for bound in (low, high))
        level = math.exp(self._direction * good.median)
        newest = self._timed[-1][0]
        text = value_text(level, newest.unit or "s")
        screen = Screen(
            status=VerdictStatus.SLOWER,
            reason=Reason(f"the last good level is {text}"),
            ratio=math.exp(self._direction * (log - good.median)),
            low_s=bounds[0],
            high_s=bounds[1],
            runs=len(good.logs),
            before=self._timed[first - 1][0].run_id if first else good.before_id,
            since=self._timed[first][0].run_id if first or not good.since_id else good.since_id,
        )
        screen = _by_modes(screen, newest, [p for p, _ in self._timed[:first]])
        return screen if screen.flagged else None

    def _least(self, worse: Sequence[float]) -> float:
        """Return by how much a level is worse. Paired rounds confirm smaller changes than history
        sees: half of one that they confirmed is enough."""
        least, regressed = math.log1p(self._min_effect), self.regressed
        if regressed is None or regressed.state != VerdictStatus.SLOWER or not regressed.level:
            return least
        first = min(self._first_of(regressed), len(worse) - 1)
        shift = worse[first] - self._direction * math.log(regressed.level)
        return min(least, shift / 2) if shift > 0 else least

    def _good(self, worse: Sequence[float], least: float) -> tuple[_Good, int | None]:
        """Return the best level, and the index of the first point of the levels after it that are
        all worse; None if the last level is not."""
        good, first = _Good(median=math.inf), None
        regressed = self.regressed
        if (
            regressed is not None
            and regressed.state == VerdictStatus.SLOWER
            and regressed.level
            and self._first_of(regressed) == 0
        ):
            # The runs of the good level are no longer among the points.
            median = self._direction * math.log(regressed.level)
            good = _Good(median=median, before_id=regressed.before_id, since_id=regressed.run_id)
            first = 0
        accepted = self._first_of(self.accepted)
        for start, end in itertools.pairwise([0, *self._starts, len(worse)]):
            if end <= accepted:
                continue
            # The newest point is part of no level, unless it is all there is of one.
            logs = tuple(worse[start : min(end, len(worse) - 1)] or worse[start:end])
            median = statistics.median(logs)
            if median < good.median + least:
                first = None
                good = _Good(median=median, logs=logs) if median < good.median else good
            elif first is None:
                first = start
        return good, first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Good:
    """The best level: logarithms, negative where more is better. `before_id` and `since_id` are the
    runs of the change if the level is known by a mark only."""

    median: float
    logs: tuple[float, ...] = ()
    before_id: str = ""
    since_id: str = ""


def _timed(points: Sequence[Point]) -> list[tuple[Point, float]]:
    """Return the newest points that can be judged, with the time of each."""
    judged = [
        (p, time_s)
        for p in points
        if p.status is Status.OK and is_reliable(p) and (time_s := judged_s(p))
    ]
    return judged[-_MOST_POINTS:]


def hold(
    judged_stories: Sequence[Story], sentinels: Mapping[str, str], marked_runs: Iterable[str] = ()
) -> tuple[list[Story], list[Reason]]:
    """Suppress alarms where the machine itself changed. Return the stories, and the canaries that
    moved.

    `sentinels` maps the series that are canaries to their problem keys; `marked_runs` are earlier
    runs in which canaries moved. A canary moved in a run if
    every backend whose newest point is of that run was flagged in the same direction: then the
    machine is the common cause. The alarms that began with it are suppressed, also later, when
    steps prove both.
    """
    flags: dict[tuple[str, str], list[VerdictStatus]] = {}
    began: dict[tuple[str, str], set[str]] = {}
    for item in judged_stories:
        if item.series in sentinels:
            key = item.newest.run_id, sentinels[item.series]
            status = item.screen.status if item.screen.fresh else VerdictStatus.SAME
            flags.setdefault(key, []).append(status)
            began.setdefault(key, set()).update((item.newest.run_id, item.change[1]))
    moved = {
        key: statuses[0]
        for key, statuses in flags.items()
        if len(set(statuses)) == 1 and statuses[0] in (VerdictStatus.SLOWER, VerdictStatus.FASTER)
    }
    runs = {run_id for key in moved for run_id in began[key]} | set(marked_runs)
    newest = (
        max(judged_stories, key=lambda entry: entry.newest.started).newest.run_id
        if judged_stories
        else ""
    )
    suppressed = [
        replace(entry, held=HELD) if entry.screen.flagged and entry.change[1] in runs else entry
        for entry in judged_stories
    ]
    reasons = [
        _change(key, status.value) for (run_id, key), status in moved.items() if run_id == newest
    ]
    return suppressed, reasons


def _change(key: str, verdict: str) -> Reason:
    """Return the reason that a canary changed."""
    return Reason(f"{key}: {verdict}", "canary-change", problem=key, verdict=verdict)


def marked(
    judged_stories: Sequence[Story], sentinels: Mapping[str, str], *, min_effect: float = MIN_EFFECT
) -> dict[str, tuple[Reason, ...]]:
    """Return, by run, the canaries that have a step at the run or are an outlier among the runs
    around it; as in `hold`, every backend must agree in direction."""
    by_key: dict[str, list[Story]] = {}
    for item in judged_stories:
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


def _find_moves(series_story: Story, min_effect: float) -> dict[str, float]:
    """Return the ratio by which the series moved, by run: its steps, and points outside the range
    expected from the rest of their level. The newest point is left to the screen."""
    moves = {step.run_id: step.ratio for step in series_story.steps}
    timed = [(point.run_id, time_s) for point, time_s in _timed(series_story.points)]
    places = [i for i, (run_id, _) in enumerate(timed) if run_id in moves]
    for a, b in itertools.pairwise([0, *places, len(timed)]):
        logs = [math.log(time_s) for _, time_s in timed[a:b]]
        for i, (run_id, _) in enumerate(timed[a:b]):
            rest = [*logs[:i], *logs[i + 1 :]]
            if len(rest) < LEAST_POINTS or run_id in moves or run_id == series_story.newest.run_id:
                continue
            # Divided over the points of a level, so that the level as a whole has SCREEN_ALPHA.
            alpha = SCREEN_ALPHA / len(logs)
            screen = _expected(logs[i], rest, _Spread.of(rest), min_effect, alpha)
            if screen.flagged and screen.ratio is not None:
                moves[run_id] = screen.ratio
    return moves


def _direction(ratio: float) -> str:
    return (VerdictStatus.SLOWER if ratio > 1 else VerdictStatus.FASTER).value


def _middle(points: Sequence[Point]) -> Point:
    if len(points) == 1:
        return points[0]
    failed = [p for p in points if judged_s(p) is None or p.status is not Status.OK]
    ordered = sorted(points, key=lambda point: judged_s(point) or 0.0)
    return failed[0] if failed else ordered[(len(ordered) - 1) // 2]


def _levels(logs: Sequence[float], starts: Sequence[int]) -> list[list[float]]:
    """Return the points between steps; the last level excludes the newest point."""
    ends = [*starts, max(len(logs) - 1, 0)]
    return [list(logs[a:b]) for a, b in zip([0, *starts], ends, strict=True)]


def _screened(
    points: Sequence[Point], levels: Sequence[Sequence[float]], log: float, min_effect: float
) -> Screen:
    """Return the newest point against its level."""
    level = levels[-1]
    if len(level) >= LEAST_POINTS:
        gone = _count_departed(level, log, min_effect)
        kept = level[: len(level) - gone]
        return replace(_expected(log, kept, _Spread.of(kept), min_effect), gone=gone)
    if len(levels) > 1 and level:
        return _expected(log, level, _Spread.of(level, _shift_onto_newest(levels)), min_effect)
    many = len(points) > LEAST_POINTS
    few = Screen(
        status=VerdictStatus.UNSURE if many else VerdictStatus.NEW,
        reason=Reason(f"{len(level)} points at this level, {LEAST_POINTS} are needed"),
        ratio=math.exp(log - statistics.median(level)) if level else None,
        runs=len(level),
    )
    if len(level) < _FEW_POINTS:
        return few
    # Too few for a standard deviation: only what is far outside the range of all of them.
    low, high = min(level), max(level)
    margin = max(math.log1p(_FEW_EFFECT), _FEW_RANGES * (high - low))
    if low - margin <= log <= high + margin:
        return few
    status = VerdictStatus.SLOWER if log > high else VerdictStatus.FASTER
    low_s, high_s = math.exp(low - margin), math.exp(high + margin)
    reason = Reason(f"expected {time_text(low_s)} to {time_text(high_s)}")
    return replace(few, status=status, reason=reason, low_s=low_s, high_s=high_s)


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
        kept, departed = level[:-count], (newest, *level[-count:])
        # All are outside the range of the level's own points at least. A spread takes longer.
        low, high = quantile(kept, _WILD), quantile(kept, 1 - _WILD)
        if min(departed) <= high and max(departed) >= low:
            continue
        spread = _Spread.of(kept)
        first = _expected(newest, kept, spread, min_effect)
        if first.flagged and all(
            _expected(point, kept, spread, min_effect).status is first.status
            for point in level[-count:]
        ):
            return count
    return 0


def _shift_onto_newest(levels: Sequence[Sequence[float]]) -> list[float]:
    """Return the points of a level before the newest one, shifted onto it. Their spread stands in
    for that of the newest level, which has too few points."""
    # A mark and a step that do not agree on a run leave a level of a point or two between them.
    before = [older for older in levels[:-1] if len(older) >= LEAST_POINTS] or levels[:-1]
    older, level = before[-1], levels[-1]
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
        return cls(
            sigma=max(estimates), dof=max(len(older or level) - 1, 1), points=(*older, *level)
        )


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
