"""Suspects: the points of one night that are measured again before an alarm.

Stage one is cheap and lenient: it may flag every tenth kernel of a noisy machine, because stage two
measures the suspects again. The lenient limit catches a slowdown of 3 % in spite of a
night-to-night drift of the same size, which the strict screen of `history` misses three times out
of four (benchmarks/gate.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from kernelmark.compare.history import MIN_EFFECT, History, Point, Screen, Story, judged_s, story
from kernelmark.core.verdict import VerdictStatus

LEAST = 0.01  # a point this fraction above its level is a suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A series whose newest point may be slower, faster or broken. `before` is the last run before
    the change, `level_s` the level until then."""

    story: Story
    status: VerdictStatus
    level_s: float | None

    @property
    def before(self) -> str:
        return self.story.change[0]


def suspects(
    history: History, run_ids: Collection[str], *, least: float = LEAST, held: bool = True
) -> list[Suspect]:
    """Return the suspects among series whose newest point is of these runs, the largest change
    first. Without `held`, leave out alarms that a moved canary suppresses."""
    found = []
    for item in history.stories:
        if item.newest.run_id not in run_ids or (item.held and not held):
            continue
        status = _suspect_status(item, least)
        if status is not None:
            found.append(Suspect(story=item, status=status, level_s=level_s(item)))
    return sorted(found, key=lambda suspect: -abs((suspect.story.screen.ratio or 1e9) - 1))


def level_s(one: Story) -> float | None:
    """Return the level of a series before its newest point."""
    value, ratio = judged_s(one.newest), one.screen.ratio
    return value / ratio if value and ratio else None


def screened_again(one: Story, value: float, *, min_effect: float = MIN_EFFECT) -> Screen:
    """Return the strict screen of a series with its newest point replaced by this value."""
    newest = cast(Any, one.newest)
    field = "value" if newest.metric else "median_s"
    again = cast(Point, dataclasses.replace(newest, modes=(), **{field: value}))
    return story([*one.points[:-1], again], min_effect=min_effect).screen


def _suspect_status(one: Story, least: float) -> VerdictStatus | None:
    screen = one.screen
    if screen.status is VerdictStatus.BROKEN or screen.flagged:
        return screen.status
    # Only times have a lenient limit: metrics differ in unit and direction.
    lenient = screen.status is VerdictStatus.SAME and not one.newest.metric
    if lenient and screen.ratio is not None and screen.ratio >= 1 + least:
        return VerdictStatus.SLOWER
    return None
