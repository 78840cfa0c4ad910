"""golden-tot: the rule agreed for a golden and a top-of-tree compiler stack.

Rows whose golden time is under 4 µs are ignored. Of the others, one is a regression exactly when
tot > 1.005 × golden + 0.5 µs. A side's time is the mean of three consecutive runs that agree within
5 %; a side without three such runs is unstable, and its row is marked and not judged.

A run is one process, or one set of allocations if there is a single process; its time is the mean
of its block medians, or of its block means if a side is multimodal. A side with fewer runs is
unstable too, as its stability is unknown. A single mean imported from another tool is accepted and
marked as a single run.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelmark.compare.match import Pair, groups
from kernelmark.compare.rules.base import Judgement, Preset, measured, mode_facts, noted, times
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Result
from kernelmark.core.units import counted, exact, join_and, told_apart
from kernelmark.core.verdict import VerdictStatus

_US = 1e-6
# Tolerance for a value that is exactly on a threshold in decimal but not in binary.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stable:
    """A side's time. `agreed` is None if there are fewer runs than required and these agree."""

    time_s: float
    runs: int
    agreed: bool | None


def stable_time(runs_s: Sequence[float], count: int = 3, within: float = 0.05) -> Stable:
    """Return the mean of the first `count` consecutive runs of which the largest is at most
    `within` above the smallest; if there are none, the mean of all."""
    for end in range(count, len(runs_s) + 1):
        window = runs_s[end - count : end]
        if max(window) <= min(window) * (1 + within) * (1 + _ROUNDING):
            return Stable(time_s=statistics.fmean(window), runs=end, agreed=True)
    apart = max(runs_s) > min(runs_s) * (1 + within) * (1 + _ROUNDING)
    agreed = None if len(runs_s) < count and not apart else False
    return Stable(time_s=statistics.fmean(runs_s), runs=len(runs_s), agreed=agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTot(Preset):
    """Thresholds in µs; `runs` consecutive runs must agree within the fraction `within`."""

    ignore_below_us: float = 4.0
    factor: float = 1.005
    slack_us: float = 0.5
    runs: int = 3
    within: float = 0.05

    @property
    def name(self) -> str:
        return "golden-tot"

    def fault(self) -> Reason:
        for name, fits, expected in (
            ("runs", self.runs == int(self.runs), "a whole number"),
            ("factor", self.factor >= 1, "at least 1, the ratio of equal times"),
            ("within", self.within < 1, "a fraction below 1: 0.05 is 5 %"),
        ):
            if not fits:
                return Reason(f"{name}={self.settings[name]:g} is not {expected}")
        return NO_REASON

    def holds(self, pair: Pair) -> bool:
        return False  # as agreed, the threshold alone decides

    def weigh(self, pairs: Sequence[Pair]) -> list[Judgement]:
        return [self._judge_pair(pair) for pair in pairs]

    def _judge_pair(self, pair: Pair) -> Judgement:
        golden, tot = (self._stable(side, means=pair.multimodal) for side in times(pair))
        status, reason = self._status(golden, tot)
        return Judgement(
            status=status,
            why=noted(reason, pair),
            base_s=golden.time_s,
            head_s=tot.time_s,
            ratio=tot.time_s / golden.time_s,
            explanation=(
                ("golden", self._side(golden)),
                ("tot", self._side(tot)),
                *mode_facts(pair, ("golden", "tot")),
                ("ignored below", f"{self.ignore_below_us:g} µs of golden"),
                ("threshold", f"{self._formula()} = {_us(self._limit(golden.time_s))}"),
                ("verdict", f"{status.value}: {reason}"),
            ),
        )

    def _stable(self, result: Result, *, means: bool) -> Stable:
        stable = stable_time(_runs(result, means=means), int(self.runs), self.within)
        unknown = stable.agreed is None and not _is_bare(result)
        return dataclasses.replace(stable, agreed=False) if unknown else stable

    def _status(self, golden: Stable, tot: Stable) -> tuple[VerdictStatus, Reason]:
        if golden.time_s < self.ignore_below_us * _US * (1 - _ROUNDING):
            return VerdictStatus.IGNORED, Reason(
                f"golden {_apart(golden.time_s / _US, self.ignore_below_us)} µs is under"
                f" {self.ignore_below_us:g} µs"
            )
        if unstable := self._unstable({"golden": golden, "tot": tot}):
            return VerdictStatus.UNSURE, unstable
        unknown = not (golden.agreed and tot.agreed)
        limit = self._limit(golden.time_s)
        if tot.time_s > limit * (1 + _ROUNDING):
            reason = self._above("tot", tot, "golden", golden, unknown=unknown)
            return VerdictStatus.SLOWER, reason
        if golden.time_s > self._limit(tot.time_s) * (1 + _ROUNDING):
            reason = self._above("golden", golden, "tot", tot, unknown=unknown)
            return VerdictStatus.FASTER, reason
        return VerdictStatus.SAME, Reason(
            f"tot {_apart(tot.time_s / _US, limit / _US)} µs is not above"
            f" {_apart(limit / _US, tot.time_s / _US)} µs{_STABILITY if unknown else ''}"
        )

    def _unstable(self, sides: Mapping[str, Stable]) -> Reason | None:
        """Return which sides are unstable and why; None if both are stable."""
        unstable = [(name, side) for name, side in sides.items() if side.agreed is False]
        few = tuple(name for name, side in unstable if side.runs < self.runs)
        apart = tuple(name for name, side in unstable if side.runs >= self.runs)
        if not unstable:
            return None
        causes = [f"fewer than {self.runs:g} runs of {join_and(few)}"] if few else []
        if apart:
            within = f"{100 * self.within:g} %"
            causes.append(f"no {self.runs:g} runs of {join_and(apart)} agree within {within}")
        return Reason(f"unstable: {'; '.join(causes)}")

    def _above(
        self, name: str, side: Stable, other_name: str, other: Stable, *, unknown: bool
    ) -> Reason:
        time_us, limit_us = side.time_s / _US, self._limit(other.time_s) / _US
        return Reason(
            f"{name} {_apart(time_us, limit_us)} µs is above {self.factor:g} × {other_name} +"
            f" {self.slack_us:g} µs = {_apart(limit_us, time_us)} µs"
            f"{_STABILITY if unknown else ''}"
        )

    def _limit(self, time_s: float) -> float:
        return self.factor * time_s + self.slack_us * _US

    def _formula(self) -> str:
        return f"{self.factor:g} × golden + {self.slack_us:g} µs"

    def _side(self, side: Stable) -> str:
        if side.agreed is None:
            how = "a single run"
        elif side.agreed:
            how = f"mean of {self.runs:g} runs that agree within {100 * self.within:g} %"
        else:
            how = f"mean of {counted(side.runs, 'run')}, unstable"
        return f"{_us(side.time_s)}, {how}"


_STABILITY = " (stability not known)"


def _apart(value: float, limit: float) -> str:
    return told_apart(value, limit)[0]


def _us(seconds: float) -> str:
    return f"{exact(seconds / _US)} µs"


def _is_bare(result: Result) -> bool:
    """Return whether the result is a mean imported from another tool, without dispersion."""
    measurement = measured(result)
    return measurement.samples == 1 and measurement.timed_s == 0


def _runs(result: Result, *, means: bool) -> list[float]:
    """Return the time of each run, in the order they were made."""
    by_process = groups(measured(result), means=means)
    if len(by_process) == 1:
        return by_process[0]
    return [statistics.fmean(medians) for medians in by_process]


rule = GoldenTot()
