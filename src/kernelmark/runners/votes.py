"""Second votes: use another device to decide whether a failure is caused by the case or the device.

A case that fails on one device is tried once on another before it counts as failed; meanwhile the
first device gets no new case. A device that fails twice in a row where others succeed is given up:
a broken device fails quickly, and would get more cases than the healthy ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.reason import BRIEF, NO_REASON, Reason, format_reason
from kernelmark.core.result import Case, Result, Status
from kernelmark.runners.jobs import harmless
from kernelmark.runners.pool import Slot

# A device is given up after failing this many cases in a row that another device could run.
MOST_STRIKES = 2
# After this many confirmed failures of a backend, its further failures are not put to a vote,
# unless a device fails as many cases in a row.
_CONFIRMED = 3


@dataclass(slots=True, kw_only=True, eq=False)
class Doubt:
    """A failure that another device votes on."""

    slot: Slot
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result that counts, and a note about the first device or the reason to give it up."""

    result: Result
    note: str = ""
    lost: Reason = NO_REASON


class SecondVotes:
    """The devices whose failures are put to a vote, and the outcomes of earlier votes."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._doubted: set[Slot] = set()
        self._strikes: Counter[Slot] = Counter()
        self._streaks: Counter[Slot] = Counter()  # consecutive failures, whatever the cause
        self._confirmed: Counter[str] = Counter()  # failures on two devices, by backend

    def doubt(self, slot: Slot, case: Case, result: Result) -> Doubt | None:
        """Return the failure to put to a vote, or None if the result counts without one."""
        if harmless(result):
            self._streaks[slot] = 0
            if result.status is Status.OK:
                self._strikes[slot] = 0
            return None
        self._streaks[slot] += 1
        confirmed = self._confirmed[case.backend] >= _CONFIRMED
        known = confirmed and self._streaks[slot] < _CONFIRMED
        if known or not self.has_others(slot):
            return None
        self._doubted.add(slot)
        return Doubt(slot=slot, result=result)

    def has_others(self, slot: Slot) -> bool:
        """Return whether any other device is left."""
        return any(not other.lost and other is not slot for other in self._slots)

    def may_take(self, slot: Slot, doubt: Doubt | None) -> bool:
        """Return whether the slot may run a case: a slot with a doubtful failure only votes on the
        failures of others, and no slot votes on its own."""
        return slot not in self._doubted if doubt is None else doubt.slot is not slot

    def settle(self, doubt: Doubt, second: Result | None) -> Decision:
        """Decide which result counts, given another device's result or None."""
        slot, first = doubt.slot, doubt.result
        self._doubted.discard(slot)
        if second is None:
            return Decision(result=first)
        if not harmless(second):
            self._confirmed[first.case.backend] += 1
            self._strikes[slot] = 0
            return Decision(result=first)
        self._strikes[slot] += 1
        error = first.error or Reason("failed", status=first.status.value)
        if self._strikes[slot] < MOST_STRIKES or slot.lost:
            why = format_reason(error, BRIEF)
            note = f"failed on {slot.info.name} ({why}) and not on {second.device}"
            return Decision(result=second, note=f"{first.case.problem.key}: {note}")
        lost = Reason("fails-alone", count=MOST_STRIKES, device=second.device, cause=error)
        return Decision(result=second, lost=lost)
