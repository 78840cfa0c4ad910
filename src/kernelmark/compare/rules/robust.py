"""robust: the interval of the ratio over blocks, an effect floor, and few false alarms in a suite.

The unit is the block (one process, one set of allocations), or the process where processes differ
by more than their blocks explain. A row's spread is estimated from its own blocks and, as they are
few, from what the spreads of the suite's rows have in common. Rows become slower or faster only
as discoveries of the whole suite (Benjamini–Hochberg), and only beyond the floor.

A block counts by its median. Where the samples of a side are multimodal, block medians jump from
one mode to another, so the blocks of both sides count by their geometric means instead.

Swapping base and head mirrors every verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from kernelmark.compare.match import Pair, groups
from kernelmark.compare.rules.base import (
    Judgement,
    Preset,
    centre_s,
    measured,
    mode_facts,
    noted,
    times,
)
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result
from kernelmark.core.units import detectable_text, span_text, time_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.fdr import adjusted
from kernelmark.stats.interval import exp, replicates
from kernelmark.stats.paired import detectable
from kernelmark.stats.shrink import Common, common

# No clock resolves a spread below this share; blocks that agree exactly are not infinitely sure.
_RESOLUTION = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Logarithms of the times that count as independent."""

    logs: tuple[float, ...]

    @property
    def centre(self) -> float:
        return statistics.fmean(self.logs)

    @property
    def variance(self) -> float:
        # statistics.variance computes in fractions, which takes ten times as long.
        centre = self.centre
        squares = [(log - centre) ** 2 for log in self.logs]
        return math.fsum(squares) / (len(squares) - 1) if len(squares) > 1 else 0.0

    @property
    def dof(self) -> int:
        return len(self.logs) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """A row's log ratio (head over base), its standard error and degrees of freedom."""

    base: _Side
    head: _Side
    centre: float
    error: float
    dof: float

    @property
    def p_value(self) -> float:
        return float(2 * stdtr(self.dof, -abs(self.centre) / self.error))

    def half_width(self, alpha: float) -> float:
        return self.error * float(stdtrit(self.dof, 1 - alpha / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(Preset):
    """`delta` is the least effect that counts, `q` the share of alarms that may be false."""

    delta: float = 0.01
    q: float = 0.01

    @property
    def name(self) -> str:
        return "robust"

    def fault(self) -> str:
        for name, value in self.settings.items():
            if value >= 1:
                return f"{name} = {value:g} is not a share below 1: 0.01 is 1 %"
        return ""

    def weigh(self, found: Sequence[Pair]) -> list[Judgement]:
        sides = [
            tuple(_side(result, means=pair.multimodal) for result in times(pair)) for pair in found
        ]
        enough = [all(side.dof > 0 for side in both) for both in sides]
        known = common(
            [side.variance for both in sides for side in both],
            [side.dof for both in sides for side in both],
        )
        weighed = [
            _weigh(base, head, known)
            for (base, head), good in zip(sides, enough, strict=True)
            if good
        ]
        shares = iter(adjusted([row.p_value for row in weighed]))
        alarms = sum(share <= self.q for share in adjusted([row.p_value for row in weighed]))
        rows = iter(weighed)
        made = []
        for pair, good in zip(found, enough, strict=True):
            if good:
                row = next(rows)
                made.append(self._judged(pair, row, next(shares), len(weighed), alarms))
            else:
                made.append(_too_few(pair))
        return made

    def _judged(self, pair: Pair, row: _Weighed, share: float, rows: int, alarms: int) -> Judgement:
        half = row.half_width(self.q)
        low, high = row.centre - half, row.centre + half
        # What one more row would have to reach to be a discovery among these.
        bar = self.q * max(1, alarms) / rows
        found = detectable(row.half_width(bar), math.log1p(self.delta), bar)
        status, reason = self._status(row, low, high, share, found)
        base, head = times(pair)
        return Judgement(
            status=status,
            reason=noted(reason, pair),
            base_s=centre_s(base, pair),
            head_s=centre_s(head, pair),
            ratio=math.exp(row.centre),
            low=exp(low),
            high=exp(high),
            p_value=row.p_value,
            detectable=found,
            facts=(
                ("base", _side_text(row.base, base)),
                ("head", _side_text(row.head, head)),
                *mode_facts(pair),
                ("log ratio", f"{row.centre:+.5f} (head / base = {math.exp(row.centre):.4f})"),
                (
                    "standard error",
                    f"{row.error:.5f}, {row.dof:.1f} degrees of freedom, "
                    "with what the suite's rows have in common",
                ),
                (
                    f"{100 * (1 - self.q):g} % interval",
                    span_text(low, high),
                ),
                ("effect floor", f"{100 * self.delta:g} %"),
                (
                    "chance",
                    f"p = {row.p_value:.2g}; as one of {rows} rows {share:.2g}, "
                    f"which must be at most {self.q:g}",
                ),
                ("would be found", f"a slowdown of {detectable_text(found)}, nine times of ten"),
                ("verdict", f"{status.value}: {reason}"),
            ),
        )

    def _status(
        self, row: _Weighed, low: float, high: float, share: float, found: float
    ) -> tuple[VerdictStatus, Reason]:
        floor = math.log1p(self.delta)
        span = {"low": exp(low), "high": exp(high)}
        if share <= self.q and abs(row.centre) > floor:
            status = VerdictStatus.SLOWER if row.centre > 0 else VerdictStatus.FASTER
            return status, Reason("changed", ratio=exp(row.centre), **span)
        if low >= -floor and high <= floor:
            return VerdictStatus.SAME, Reason("within", limit=self.delta, **span)
        if share <= self.q:
            return VerdictStatus.UNSURE, Reason("perhaps-within", limit=self.delta, **span)
        if row.p_value <= self.q:
            alone = Reason("span", **span)
            return VerdictStatus.UNSURE, Reason("perhaps-chance", cause=alone, rows="rows")
        return VerdictStatus.UNSURE, Reason("not-detectable", detectable=found, **span)


def _weigh(base: _Side, head: _Side, known: Common) -> _Weighed:
    """Welch's difference of means, with each side's variance helped by what is common."""
    parts = []
    for side in (base, head):
        variance, dof = known.mixed(side.variance, side.dof)
        parts.append((max(variance, _RESOLUTION**2) / len(side.logs), dof))
    total = parts[0][0] + parts[1][0]
    dof = total**2 / sum(part**2 / free for part, free in parts)
    return _Weighed(
        base=base,
        head=head,
        centre=head.centre - base.centre,
        error=math.sqrt(total),
        dof=dof,
    )


def _side(result: Result, *, means: bool) -> _Side:
    units = replicates(groups(measured(result), means=means))
    return _Side(logs=tuple(sorted(map(math.log, units))))


def _too_few(pair: Pair) -> Judgement:
    """A row that has no spread on some side cannot be judged by one."""
    base, head = times(pair)
    base_s, head_s = centre_s(base, pair), centre_s(head, pair)
    sides = (("base", base), ("head", head))
    single = tuple(name for name, result in sides if measured(result).samples == 1)
    reason = Reason("sides-without-dispersion", sides=single) if single else Reason("one-block")
    return Judgement(
        status=VerdictStatus.UNSURE,
        reason=reason,
        base_s=base_s,
        head_s=head_s,
        ratio=head_s / base_s,
        facts=(("base", time_text(base_s)), ("head", time_text(head_s)), ("verdict", reason)),
    )


def _side_text(side: _Side, result: Result) -> str:
    processes = len(groups(measured(result)))
    spread = 100 * math.sqrt(side.variance)
    return (
        f"geometric mean {time_text(math.exp(side.centre))} of {len(side.logs)} independent times "
        f"({len(measured(result).blocks)} blocks, {processes} processes), spread {spread:.2f} %"
    )


rule = Robust()
