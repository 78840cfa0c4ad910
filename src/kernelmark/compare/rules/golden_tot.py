"""golden-tot: the rule agreed for a golden and a top-of-tree compiler stack.

Rows whose golden time is under 4 µs are ignored. Of the others, one is a regression exactly when
tot > 1.005 × golden + 0.5 µs. A side's time is the mean of three runs in a row that agree within
5 %; a side without such three is unstable, and its row is marked and not judged.

A run is one process, or one set of allocations where there is a single process; its time is the
mean of its block medians. A single mean of an earlier tool is taken as it is, and said to be one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.compare.match import Pair, groups
from kernelmark.compare.rules.base import Judgement, Preset, measured, times
from kernelmark.core.result import Result
from kernelmark.core.units import time_text
from kernelmark.core.verdict import VerdictStatus

_US = 1e-6
# A value that is on a threshold in decimal may be a rounding beyond it in binary.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stable:
    """A side's time. `agreed` is None where fewer runs than the rule asks for were made, and
    these do not contradict each other."""

    time_s: float
    runs: int
    agreed: bool | None


def stable_time(runs_s: Sequence[float], count: int = 3, within: float = 0.05) -> Stable:
    """The mean of the first `count` runs in a row of which the largest is at most `within` above
    the smallest; the mean of all where there are none."""
    for end in range(count, len(runs_s) + 1):
        window = runs_s[end - count : end]
        if max(window) <= min(window) * (1 + within) * (1 + _ROUNDING):
            return Stable(time_s=statistics.fmean(window), runs=end, agreed=True)
    apart = max(runs_s) > min(runs_s) * (1 + within) * (1 + _ROUNDING)
    agreed = None if len(runs_s) < count and not apart else False
    return Stable(time_s=statistics.fmean(runs_s), runs=len(runs_s), agreed=agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTot(Preset):
    """Thresholds in µs; `runs` must agree within the share `within`."""

    ignore_below_us: float = 4.0
    factor: float = 1.005
    slack_us: float = 0.5
    runs: int = 3
    within: float = 0.05

    @property
    def name(self) -> str:
        return "golden-tot"

    def holds(self, pair: Pair) -> bool:
        return False  # a regression exactly by its threshold, as agreed

    def weigh(self, found: Sequence[Pair]) -> list[Judgement]:
        return [self._one(*times(pair)) for pair in found]

    def _one(self, base: Result, head: Result) -> Judgement:
        golden = stable_time(_runs(base), int(self.runs), self.within)
        tot = stable_time(_runs(head), int(self.runs), self.within)
        status, reason = self._status(golden, tot)
        return Judgement(
            status=status,
            reason=reason,
            base_s=golden.time_s,
            head_s=tot.time_s,
            ratio=tot.time_s / golden.time_s,
            facts=(
                ("golden", self._side(golden)),
                ("tot", self._side(tot)),
                ("ignored below", f"{self.ignore_below_us:g} µs of golden"),
                ("threshold", f"{self._formula()} = {time_text(self._limit(golden.time_s))}"),
                ("verdict", f"{status.value}: {reason}"),
            ),
        )

    def _status(self, golden: Stable, tot: Stable) -> tuple[VerdictStatus, str]:
        if golden.time_s < self.ignore_below_us * _US * (1 - _ROUNDING):
            return (
                VerdictStatus.IGNORED,
                f"golden {golden.time_s / _US:.6g} µs is under {self.ignore_below_us:g} µs",
            )
        unstable = [
            name for name, side in (("golden", golden), ("tot", tot)) if side.agreed is False
        ]
        if unstable:
            return (
                VerdictStatus.UNSURE,
                f"unstable: no {self.runs:g} runs of {' and '.join(unstable)} agree within "
                f"{100 * self.within:g} %",
            )
        note = "" if golden.agreed and tot.agreed else " (stability not known)"
        limit = self._limit(golden.time_s)
        if tot.time_s > limit * (1 + _ROUNDING):
            return VerdictStatus.SLOWER, f"above {self._formula()} = {time_text(limit)}{note}"
        if golden.time_s > self._limit(tot.time_s) * (1 + _ROUNDING):
            return VerdictStatus.FASTER, f"golden is above {self.factor:g} × tot + slack{note}"
        return VerdictStatus.SAME, f"not above {time_text(limit)}{note}"

    def _limit(self, time_s: float) -> float:
        return self.factor * time_s + self.slack_us * _US

    def _formula(self) -> str:
        return f"{self.factor:g} × golden + {self.slack_us:g} µs"

    def _side(self, side: Stable) -> str:
        if side.agreed is None:
            how = f"mean of {side.runs}, stability not known" if side.runs > 1 else "a single run"
        elif side.agreed:
            how = f"mean of {self.runs:g} runs that agree within {100 * self.within:g} %"
        else:
            how = f"mean of {side.runs} runs, unstable"
        return f"{time_text(side.time_s)}, {how}"


def _runs(result: Result) -> list[float]:
    """The time of each run, in the order they were made."""
    by_process = groups(measured(result))
    if len(by_process) == 1:
        return by_process[0]
    return [statistics.fmean(medians) for medians in by_process]


rule = GoldenTot()
