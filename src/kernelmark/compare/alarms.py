"""Which alarms fail a command, and which of them are suspects to confirm."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernelmark.compare.history import MIN_EFFECT, History, Point, Screen, Story, judged_s, story
from kernelmark.core.errors import UsageError, located
from kernelmark.core.verdict import Verdict, VerdictStatus

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*%?\Z")
_HELD = "held"
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

    def __contains__(self, verdict: object) -> bool:
        if not isinstance(verdict, Verdict):
            return False
        ratio = 1 + _size(verdict)
        return any(
            verdict.status is status and ratio >= (1 + size) * (1 - _ROUNDING)
            for status, size in self.sizes
        )


@located("--fail-on")
def parse(words: Sequence[str]) -> FailOn:
    """Parse words like `slower:3%`. `none` fails on nothing, `held` alone adds suppressed alarms to
    the default. Where all verdicts have a size, `broken` is added."""
    held = _HELD in words
    words = [word for word in words if word != _HELD]
    if words == ["none"]:
        return FailOn(sizes=(), held=held)
    if held and not words:
        return FailOn(held=True)
    known = [status.value for status in VerdictStatus]
    sizes = []
    for word in words:
        name, colon, size = word.partition(":")
        if name not in known:
            raise UsageError(
                f"unknown verdict {name!r}", hint=f"known: {', '.join(known)}, held, or none"
            )
        status = VerdictStatus(name)
        found = _SIZE.match(size.strip())
        if colon and (found is None or status not in _SIZED):
            raise UsageError(
                f"{word!r} is not a verdict with a size",
                hint="slower:3% fails on rows that are at least 3 % slower",
            )
        sizes.append((status, _fraction(word, found[1]) if found else 0.0))
    if all(":" in word for word in words):
        sizes.append((VerdictStatus.BROKEN, 0.0))
    return FailOn(sizes=tuple(sizes), held=held)


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
