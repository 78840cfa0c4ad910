"""Which alarms fail a command, and which of them are suspects to confirm."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernelmark.compare.history import (
    MIN_EFFECT,
    History,
    Point,
    Screen,
    Story,
    is_reliable,
    judged_s,
    story,
)
from kernelmark.core.errors import UsageError, located
from kernelmark.core.result import Status
from kernelmark.core.verdict import Verdict, VerdictStatus

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*%?\Z")
_HELD = "held"
_UNDECIDED = "undecided"  # the word of the answer for `unsure`
# A smaller number without % was probably meant as a fraction: 0.03 for 3 %.
_LEAST_BARE = 0.1
# Tolerance for a change that is exactly on a limit in decimal but not in binary.
_ROUNDING = 1e-9
_SIZED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """Verdicts that fail a comparison, each with the least size of the change (0.03 is 3 %);
    `held`: suppressed alarms fail too."""

    sizes: tuple[tuple[VerdictStatus, float], ...] = (
        (VerdictStatus.SLOWER, 0.0),
        (VerdictStatus.BROKEN, 0.0),
    )
    held: bool = False

    @property
    def undecided(self) -> bool:
        """Whether rows that were not decided fail."""
        return any(status is VerdictStatus.UNSURE for status, _ in self.sizes)

    def __contains__(self, verdict: object) -> bool:
        if not isinstance(verdict, Verdict):
            return False
        ratio = 1 + _size(verdict)
        return any(
            verdict.status is status and ratio >= (1 + size) * (1 - _ROUNDING)
            for status, size in self.sizes
        )


@located("--fail-on")
def parse(names: Sequence[str]) -> FailOn:
    """Parse words like `slower:3%`. `none` fails on nothing; `held` and `undecided` add
    suppressed alarms and undecided rows, alone to the default. Where all verdicts have a size,
    `broken` is added."""
    suppressed, undecided = _HELD in names, _UNDECIDED in names
    names = [word for word in names if word not in (_HELD, _UNDECIDED)]
    unsure = ((VerdictStatus.UNSURE, 0.0),) if undecided else ()
    if names == ["none"]:
        return FailOn(sizes=unsure, held=suppressed)
    if not names:
        return FailOn(sizes=(*FailOn().sizes, *unsure), held=suppressed)
    status_names = [status.value for status in VerdictStatus]
    sizes = []
    for word in names:
        name, colon, size = word.partition(":")
        if name not in status_names:
            raise UsageError(
                f"unknown verdict {name!r}",
                hint=f"known: {', '.join(status_names)}, undecided, held, or none",
            )
        status = VerdictStatus(name)
        size_match = _SIZE.match(size.strip())
        if colon and (size_match is None or status not in _SIZED):
            raise UsageError(
                f"{word!r} is not a verdict with a size",
                hint="slower:3% fails on rows that are at least 3 % slower",
            )
        sizes.append((status, _fraction(word, size_match[1]) if size_match else 0.0))
    if all(":" in word for word in names):
        sizes.append((VerdictStatus.BROKEN, 0.0))
    return FailOn(sizes=(*sizes, *unsure), held=suppressed)


def _fraction(word: str, size: str) -> float:
    percent = float(size)
    if 0 < percent < _LEAST_BARE and not word.endswith("%"):
        raise UsageError(
            f"{word!r} means {percent:g} %, which is less than any rule can detect",
            hint=f"{100 * percent:g} % is written {word.partition(':')[0]}:{100 * percent:g}%",
        )
    return percent / 100


def _size(verdict: Verdict) -> float:
    """Return the distance of the ratio from 1, as a fraction of the smaller time."""
    if not verdict.ratio:
        return 0.0
    return max(verdict.ratio, 1 / verdict.ratio) - 1


LEAST = 0.01  # a point this fraction above its level is a suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A series whose newest point may be slower, faster or broken. `before` is the last good run,
    `since` the first run of the change, `level_s` the last good level."""

    story: Story
    status: VerdictStatus
    level_s: float | None
    before: str
    since: str


def suspects(
    history: History,
    run_ids: Collection[str],
    *,
    least: float = LEAST,
    suppressed: bool = True,
    few: bool = False,
) -> list[Suspect]:
    """Return the suspects among series whose newest point is of these runs, the largest change
    first. Regressions that are confirmed already are left out. Without `suppressed`, so are alarms
    that a moved canary suppresses; with `few`, the lenient limit also holds in the first nights."""
    suspected = []
    for item in history.stories:
        if item.newest.run_id not in run_ids or (item.held and not suppressed) or item.confirmed:
            continue
        status = _suspect_status(item, least, few=few)
        if status is not None:
            before, since = _began(item, least)
            level = level_s(item)
            if level is None and not is_reliable(item.newest):
                level = _rough_level(item)
            suspected.append(
                Suspect(story=item, status=status, level_s=level, before=before, since=since)
            )
    return sorted(suspected, key=lambda suspect: -abs((suspect.story.screen.ratio or 1e9) - 1))


def _began(series_story: Story, least: float) -> tuple[str, str]:
    """Return the last good run and the one after it. Where nothing proves when a slowdown began,
    the last good run is the last one that was faster by the lenient limit."""
    newest, screen = judged_s(series_story.newest), series_story.screen
    is_known = bool(screen.since or screen.gone) or screen.status is VerdictStatus.FASTER
    if is_known or not newest or series_story.newest.metric:
        return series_story.change
    points = [p for p in series_story.points if p.status is Status.OK and judged_s(p)]
    if is_reliable(series_story.newest):
        points = [p for p in points if is_reliable(p)]
    for i in range(len(points) - 2, -1, -1):
        if (judged_s(points[i]) or newest) * (1 + least) <= newest:
            return points[i].run_id, points[i + 1].run_id
    return series_story.change


def _rough_level(series_story: Story) -> float | None:
    """Return the median of the points before the newest one, reliable or not; None without any."""
    times = [judged_s(p) for p in series_story.points[:-1] if p.status is Status.OK]
    return statistics.median(positive) if (positive := [t for t in times if t]) else None


def level_s(series_story: Story) -> float | None:
    """Return the level of a series before its newest point."""
    value, ratio = judged_s(series_story.newest), series_story.screen.ratio
    return value / ratio if value and ratio else None


def screened_again(series_story: Story, value: float, *, min_effect: float = MIN_EFFECT) -> Screen:
    """Return the strict screen of a series with its newest point replaced by this value."""
    newest = cast(Any, series_story.newest)
    field = "value" if newest.metric else "median_s"
    again = cast(Point, dataclasses.replace(newest, modes=(), **{field: value}))
    return story(
        [*series_story.points[:-1], again], min_effect=min_effect, marks=series_story.marks
    ).screen


def _suspect_status(series_story: Story, least: float, *, few: bool) -> VerdictStatus | None:
    screen = series_story.screen
    if screen.status is VerdictStatus.BROKEN or screen.flagged:
        return screen.status
    # Only times have a lenient limit: metrics differ in unit and direction.
    newest, level = judged_s(series_story.newest), _rough_level(series_story)
    if series_story.newest.metric or newest is None:
        return None
    if few and not is_reliable(series_story.newest) and series_story.newest.status is Status.OK:
        # History cannot judge it; paired rounds can.
        return VerdictStatus.SLOWER if level and newest >= level * (1 + least) else None
    if screen.ratio is None:
        return None
    first_nights = screen.status in (VerdictStatus.NEW, VerdictStatus.UNSURE)
    lenient = screen.status is VerdictStatus.SAME or (few and first_nights)
    return VerdictStatus.SLOWER if lenient and screen.ratio >= 1 + least else None
