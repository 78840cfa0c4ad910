"""ratio: head's time over base's against two fixed limits, without regard to noise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.compare.match import Pair
from kernelmark.compare.rules.base import (
    Judgement,
    Preset,
    centre_s,
    checked,
    disagreement,
    medians_s,
    mode_facts,
    noted,
    times,
)
from kernelmark.core.reason import NO_REASON, Reason, prefixed
from kernelmark.core.units import exact, time_text, told_apart
from kernelmark.core.verdict import VerdictStatus

# Tolerance for a ratio that is exactly on a limit in decimal but not in binary.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(Preset):
    """Slower above `fail`, a warning (unsure) above `warn`, faster below 1 / `warn`."""

    warn: float = 1.10
    fail: float = 1.15

    @property
    def name(self) -> str:
        return "ratio"

    def fault(self) -> Reason:
        if self.warn < 1:
            expected = "at least 1, the ratio of equal times"
            return Reason(f"warn={self.warn:g} is not {expected}")
        if self.warn > self.fail:
            return Reason(f"warn={self.warn:g} is above fail={self.fail:g}")
        return NO_REASON

    def weigh(self, pairs: Sequence[Pair]) -> list[Judgement]:
        return [self._judge_pair(pair) for pair in pairs]

    def _judge_pair(self, pair: Pair) -> Judgement:
        base_s, head_s = medians_s(pair)
        base, head = (centre_s(side, pair) for side in times(pair))
        judged = head / base
        status, limits = self._status(judged)
        contrary = functools.partial(disagreement, pair, judged)
        status, why = checked(pair, status, lambda: limits, contrary)
        reason = why()
        return Judgement(
            status=status,
            why=noted(reason, pair, head_s / base_s),
            base_s=base_s,
            head_s=head_s,
            ratio=head_s / base_s,
            judged=judged if pair.multimodal else None,
            explanation=(
                ("base", time_text(base)),
                ("head", time_text(head)),
                *mode_facts(pair),
                ("ratio", exact(judged)),
                ("limits", f"warn {self.warn:g}, fail {self.fail:g}"),
                ("verdict", f"{status.value}: {reason}"),
            ),
        )

    def _status(self, ratio: float) -> tuple[VerdictStatus, Reason]:
        if ratio > self.fail * (1 + _ROUNDING):
            return VerdictStatus.SLOWER, _above(ratio, self.fail)
        if ratio > self.warn * (1 + _ROUNDING):
            return VerdictStatus.UNSURE, prefixed(_above(ratio, self.warn), "warning: ")
        if ratio * self.warn < 1 - _ROUNDING:
            shown = told_apart(ratio, 1 / self.warn)[0]
            return VerdictStatus.FASTER, Reason(f"{shown} is below 1/{self.warn:g}")
        shown = told_apart(ratio, self.warn)[0]
        return VerdictStatus.SAME, Reason(f"{shown} is not above {exact(self.warn)}")


def _above(ratio: float, limit: float) -> Reason:
    return Reason(f"{told_apart(ratio, limit)[0]} is above {exact(limit)}")


rule = Ratio()
