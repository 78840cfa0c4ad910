"""Second opinions: whether a case is at fault or its device, where there are several devices.

A case that fails on one device is tried once on another before it counts as failed, and its device
gets nothing new meanwhile. A device that fails what others can do, and again the next time, is
given up: a sick one fails quickly, and would get more cases than the healthy ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.reason import BRIEF, format_reason
from kernelmark.core.result import Case, Result, Status
from kernelmark.runners.lane import Lane, harmless

# Cases in a row that a device failed and another did not, until it is given up.
MOST_STRIKES = 2
# A backend with so many failures of its own is believed without asking, unless a device fails as
# many in a row.
_BELIEVED = 3


@dataclass(slots=True, kw_only=True, eq=False)
class Doubt:
    """A failure that another device is asked about."""

    lane: Lane
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """The result that counts, and what there is to say about the device of the first."""

    result: Result
    note: str = ""
    lost: str = ""


class SecondOpinions:
    """Who is doubted, and why."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._doubted: set[Lane] = set()
        self._strikes: Counter[Lane] = Counter()
        self._streaks: Counter[Lane] = Counter()  # failures in a row, whoever is at fault
        self._own: Counter[str] = Counter()  # failures that were the case's own, by backend

    def doubt(self, lane: Lane, case: Case, result: Result) -> Doubt | None:
        """The doubt to ask another device about, where it is worth asking."""
        if harmless(result):
            self._streaks[lane] = 0
            if result.status is Status.OK:
                self._strikes[lane] = 0
            return None
        self._streaks[lane] += 1
        believed = self._own[case.backend] >= _BELIEVED and self._streaks[lane] < _BELIEVED
        if believed or not self.others(lane):
            return None
        self._doubted.add(lane)
        return Doubt(lane=lane, result=result)

    def others(self, lane: Lane) -> bool:
        """Whether there is a living device besides it."""
        return any(not other.dead and other is not lane for other in self._lanes)

    def may_take(self, lane: Lane, doubt: Doubt | None) -> bool:
        """Whether the lane may have a case: a doubted one only to say what it thinks of another's
        failure, and nobody twice."""
        return lane not in self._doubted if doubt is None else doubt.lane is not lane

    def settle(self, doubt: Doubt, second: Result | None) -> Opinion:
        """What counts, after another device's result or without one."""
        lane, first = doubt.lane, doubt.result
        self._doubted.discard(lane)
        if second is None:
            return Opinion(result=first)
        if not harmless(second):
            self._own[first.case.backend] += 1
            self._strikes[lane] = 0
            return Opinion(result=first)
        self._strikes[lane] += 1
        said = format_reason(first.error, BRIEF) or first.status.value
        if self._strikes[lane] < MOST_STRIKES or lane.dead:
            note = f"failed on {lane.info.name} ({said}) and not on {second.device}"
            return Opinion(result=second, note=f"{first.case.problem.key}: {note}")
        lost = f"it failed {MOST_STRIKES} cases in a row that {second.device} can do: {said}"
        return Opinion(result=second, lost=lost)
