"""robust: the interval of the ratio over blocks, an effect floor, and few false alarms in a suite.

The unit is the block (one process, one set of allocations), or the process where processes differ
by more than their blocks explain. A row's spread is estimated from its own few blocks and from the
common variance of the suite's rows. Rows are slower or faster only as discoveries of the whole
suite (Benjamini–Hochberg), and only beyond the floor.

The blocks of a run do not show how runs differ, which on a CPU is most of the variation. There the
rows of the comparison show it, most of which have not changed: what they have in common is the
machine's, and how they differ around that is the scatter of a row. The interval leaves both out,
but the p-value is that of a row's own change. Rows on a CPU count by the lower quartile of their
samples, because other work only makes samples longer.

A block counts by its median. Where the samples of a side are multimodal, block medians jump from
one mode to another, so the blocks of both sides count by their geometric means instead.

The change that is shown is that of the medians, as in kmark show and history. The interval is that
of the mean over blocks, extended where needed to contain the change. A row is slower or faster only
if medians and means agree in direction and neither side is unreliable.

Where the blocks follow the core clock, as at a power cap, both sides are compared at one clock,
which removes the effect of temperature and of the work before. A time that changed only with the
clock is unsure, as the kernel may draw more power.

Swapping base and head mirrors every verdict.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from kernelmark.compare.match import Pair, groups
from kernelmark.compare.rules.base import (
    Facts,
    Judgement,
    Preset,
    checked,
    disagreement,
    measured,
    medians_s,
    mode_facts,
    noted,
    times,
)
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Measurement, Result
from kernelmark.core.units import (
    change_span,
    change_text,
    detectable_text,
    join_and,
    span_text,
    time_text,
)
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import exp, quantile, replicates
from kernelmark.stats.paired import (
    LEAST_BLOCKS,
    ClockLine,
    Common,
    Scatter,
    adjusted,
    clock_line,
    common,
    detectable,
    scatter_of,
)

# Least relative spread: no clock resolves less, and blocks that agree exactly are not exact.
_RESOLUTION = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Logarithms of the times that count as independent, their mean and variance."""

    logs: tuple[float, ...]
    centre: float
    variance: float

    @property
    def dof(self) -> int:
        return len(self.logs) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Both sides of a pair; `scattered` if equal runs differ by more than their blocks show, as on
    a CPU, and `equal_cases` if both measured the same case. With a `line`, both are corrected to
    one clock; then `apart` is the log ratio of the times as measured, and `line_error` the error
    that the line adds."""

    base: _Side
    head: _Side
    scattered: bool = False
    equal_cases: bool = False
    line: ClockLine | None = None
    line_error: float = 0.0
    apart: float = 0.0

    def __iter__(self) -> Iterator[_Side]:
        return iter((self.base, self.head))

    def centred_by(self, pair: Pair) -> str:
        """The name of the time that a side counts by."""
        means = not self.scattered or pair.multimodal or self.line is not None
        return "geometric mean" if means else "lower quartile"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """A row's log ratio (head over base) and the part of it that is `common` to all rows, its
    standard error over blocks, the standard error with the variation between runs, the degrees of
    freedom of each, and the p-value by the latter. A common part that is not `usual` for a machine
    may be a change of all rows."""

    sides: _Sides
    centre: float
    common: float
    usual: bool
    error: float
    dof: float
    full_error: float
    full_dof: float
    p_value: float = 1.0

    @property
    def own(self) -> float:
        """The log ratio without the part that all rows have in common because of the machine."""
        return self.centre - (self.common if self.usual else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A row among all: its p-value corrected for their number, `rows`, the half width of its
    interval, and the least change that would be detected nine times of ten."""

    q_value: float
    rows: int
    half: float
    detectable: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(Preset):
    """`delta` is the least effect that counts, `q` the false discovery rate."""

    delta: float = 0.01
    q: float = 0.01

    @property
    def name(self) -> str:
        return "robust"

    def fault(self) -> Reason:
        for name, value in self.settings.items():
            if value >= 1:
                expected = "a fraction below 1: 0.05 is 5 %"
                return Reason(f"{name}={value:g} is not {expected}")
        return NO_REASON

    def weigh(self, pairs: Sequence[Pair]) -> list[Judgement]:
        sides = [_sides(pair) for pair in pairs]
        enough = [all(side.dof > 0 for side in row_sides) for row_sides in sides]
        common_factors = common(
            [side.variance for row_sides in sides for side in row_sides],
            [side.dof for row_sides in sides for side in row_sides],
        )
        weighed = _weigh(
            [row_sides for row_sides, good in zip(sides, enough, strict=True) if good],
            common_factors,
        )
        q_values = adjusted([row.p_value for row in weighed])
        alarms = sum(q_value <= self.q for q_value in q_values)
        # The p-value that one more row would need to be a discovery.
        bar = self.q * max(1, alarms) / max(1, len(weighed))
        halves = _half_widths([row.error for row in weighed], [row.dof for row in weighed], self.q)
        full = _half_widths([r.full_error for r in weighed], [r.full_dof for r in weighed], bar)
        tests = [
            _Test(
                q_value=q_value,
                rows=len(weighed),
                half=half,
                detectable=detectable(full_half, math.log1p(self.delta), bar),
            )
            for q_value, half, full_half in zip(q_values, halves, full, strict=True)
        ]
        tested = iter(zip(weighed, tests, strict=True))
        return [
            self._judged(pair, *next(tested)) if good else _judge_too_few(pair)
            for pair, good in zip(pairs, enough, strict=True)
        ]

    def _judged(self, pair: Pair, row: _Weighed, test: _Test) -> Judgement:
        low, high = row.centre - test.half, row.centre + test.half
        base_s, head_s = medians_s(pair)
        # Not the logarithm of the quotient: swapping the sides must mirror the result exactly.
        shown = math.log(head_s) - math.log(base_s)
        widened = min(low, shown), max(high, shown)
        judged, effect = None, shown
        contrary: Callable[[], Reason] = functools.partial(disagreement, pair, exp(row.centre))
        if pair.multimodal or row.sides.line is not None:
            judged, effect = exp(row.centre), row.centre
        else:
            low, high = widened
        status, reason = self._status(row, test, effect, low, high)
        if row.sides.line is not None:
            contrary = reason  # this reason has both ratios: at equal clocks, and as measured
        status, reason = checked(pair, status, reason, contrary)
        if load := _excess_load(pair, status):
            side = "head" if status is VerdictStatus.SLOWER else "base"
            status, reason = VerdictStatus.UNSURE, functools.partial(_add_load, reason, side, load)
        return Judgement(
            status=status,
            why=functools.partial(_at_equal_clock, reason, pair, row.sides, head_s / base_s),
            base_s=base_s,
            head_s=head_s,
            ratio=head_s / base_s,
            judged=judged,
            low=exp(widened[0]),
            high=exp(widened[1]),
            p_value=row.p_value,
            detectable=test.detectable,
            common=exp(row.common) if row.sides.scattered else None,
            explanation=functools.partial(
                self._facts, pair, row, test, (low, high), (status, reason)
            ),
        )

    def _facts(
        self,
        pair: Pair,
        row: _Weighed,
        test: _Test,
        interval: tuple[float, float],
        verdict: tuple[VerdictStatus, Callable[[], Reason]],
    ) -> Facts:
        base, head = times(pair)
        by = row.sides.centred_by(pair)
        status, reason = verdict
        return (
            ("base", _side_text(row.sides.base, base, by=by)),
            ("head", _side_text(row.sides.head, head, by=by)),
            *mode_facts(pair),
            *_clock_facts(row.sides),
            ("log ratio", f"{row.centre:+.5f} (head / base = {math.exp(row.centre):.4f})"),
            (
                "standard error",
                f"{row.error:.5f}, {row.dof:.1f} degrees of freedom, "
                "with what the suite's rows have in common",
            ),
            *_run_facts(row),
            (f"{100 * (1 - self.q):g} % interval", span_text(*interval)),
            ("effect floor", f"{100 * self.delta:g} %"),
            (
                "chance",
                f"p = {row.p_value:.2g}; as one of {test.rows} rows {test.q_value:.2g}, "
                f"which must be at most {self.q:g}",
            ),
            (
                "would be found",
                f"a slowdown of {detectable_text(test.detectable)}, nine times of ten",
            ),
            ("verdict", f"{status.value}: {reason()}"),
        )

    def _status(
        self, row: _Weighed, test: _Test, effect: float, low: float, high: float
    ) -> tuple[VerdictStatus, Callable[[], Reason]]:
        """Return the verdict by the mean over blocks; `effect` is the log ratio in the reason,
        which must be beyond the floor too."""
        floor = math.log1p(self.delta)
        span = {"low": exp(low), "high": exp(high)}
        limit = f"{100 * self.delta:g} %"

        def interval() -> str:
            return change_span(span["low"], span["high"])

        # Not the machine alone: the row has changed, and by more than the others.
        least_effect = min(abs(row.own), abs(row.centre), abs(effect))
        if test.q_value <= self.q and least_effect > floor:
            status = VerdictStatus.SLOWER if row.own > 0 else VerdictStatus.FASTER
            ratio = exp(effect)
            return status, lambda: Reason(
                f"{change_text(ratio)} ({interval()})", "changed", ratio=ratio, **span
            )
        if low >= -floor and high <= floor:
            by_clock = row.sides.line is not None and abs(row.sides.apart) > floor
            status = VerdictStatus.UNSURE if by_clock else VerdictStatus.SAME
            return status, lambda: Reason(
                f"within {limit} ({interval()})", "within", limit=self.delta, **span
            )
        if test.q_value <= self.q:
            return VerdictStatus.UNSURE, lambda: Reason(
                f"changed, but perhaps by less than {limit} ({interval()})",
                "perhaps-within",
                limit=self.delta,
                **span,
            )
        if row.p_value <= self.q:
            return VerdictStatus.UNSURE, lambda: Reason(
                f"{interval()}: significant alone, but may be chance among all rows",
                "perhaps-chance",
                **span,
            )
        span |= {"detectable": test.detectable}
        least = detectable_text(test.detectable)
        if row.full_error > row.error and low * high > 0:  # by the blocks alone: changed
            return VerdictStatus.UNSURE, lambda: Reason(
                f"{interval()}: runs may differ as much; detectable from {least}",
                "perhaps-run",
                **span,
            )
        return VerdictStatus.UNSURE, lambda: Reason(
            f"{interval()}; detectable from {least}", "not-detectable", **span
        )


def _excess_load(pair: Pair, status: VerdictStatus) -> float:
    """Return the number of cores used by other work during the slower side of a change, if clearly
    more than during the faster side; else 0. Such times are too long by an unknown amount: with one
    of two cores taken, a GEMM on two threads took 100 times as long."""
    if status not in (VerdictStatus.SLOWER, VerdictStatus.FASTER):
        return 0.0
    base, head = map(_other_load, times(pair))
    faster, slower = (base, head) if status is VerdictStatus.SLOWER else (head, base)
    return slower if slower > 2 * faster else 0.0


def _add_load(reason: Callable[[], Reason], side: str, load: float) -> Reason:
    return Reason(
        f"{reason()}, but other work used up to {load:.1f} cores during {side}:"
        f" measure {side} again",
        "beside-load",
        cause=reason(),
        side=side,
        load=load,
    )


def _other_load(result: Result) -> float:
    warnings = measured(result).warnings
    return max((float(w.fields["load"]) for w in warnings if w.code == "other-load"), default=0.0)


def _run_facts(row: _Weighed) -> Facts:
    if row.full_error == row.error:
        return ()
    return (
        ("common to all rows", change_text(math.exp(row.common))),
        ("with variation between runs", f"{row.full_error:.5f}"),
    )


def _weigh(rows: Sequence[_Sides], common_factors: Common) -> list[_Weighed]:
    """Compare the means of both sides by Welch's test, with variances shrunk to the common one."""
    by_blocks = []
    for sides in rows:
        parts = []
        for side in sides:
            variance, dof = common_factors.mixed(side.variance, side.dof)
            parts.append((max(variance, _RESOLUTION**2) / len(side.logs), dof))
        (base, base_dof), (head, head_dof) = parts
        scale = base**2 / base_dof + head**2 / head_dof
        centre = sides.head.centre - sides.base.centre
        by_blocks.append((centre, base + head, scale))
    scatter = _scatter(rows, [(centre, total) for centre, total, _ in by_blocks])
    weighed = []
    for sides, (centre, total, scale) in zip(rows, by_blocks, strict=True):
        dof = total**2 / scale
        full, full_dof, shared = total, dof, 0.0
        if sides.scattered:
            full, full_dof = total + scatter.variance, scatter.dof
            shared = scatter.common if sides.equal_cases else 0.0
        errors = [math.hypot(math.sqrt(item), sides.line_error) for item in (total, full)]
        dofs = dof, full_dof
        row = _Weighed(
            sides=sides,
            centre=centre,
            common=shared,
            usual=scatter.usual,
            error=errors[0],
            dof=dofs[0],
            full_error=errors[1],
            full_dof=dofs[1],
        )
        weighed.append(row)
    # One call, as in `_half_widths`.
    distances = [-abs(row.own) / row.full_error for row in weighed]
    chances = 2 * stdtr([row.full_dof for row in weighed], distances)
    return [
        dataclasses.replace(row, p_value=p_value)
        for row, p_value in zip(weighed, chances.tolist(), strict=True)
    ]


def _scatter(rows: Sequence[_Sides], changes: Sequence[tuple[float, float]]) -> Scatter:
    """Return how equal rows on a CPU differ between these runs, by the log ratios of all rows and
    the variances of these."""
    chosen = [
        change
        for sides, change in zip(rows, changes, strict=True)
        if sides.scattered and sides.equal_cases
    ]
    return scatter_of([ratio for ratio, _ in chosen], [variance for _, variance in chosen])


def _half_widths(errors: Sequence[float], dofs: Sequence[float], alpha: float) -> list[float]:
    """Return half of each row's interval at level 1 - `alpha`. In one call: a scipy call per row
    takes longer than the rest of its judgement."""
    quantiles = stdtrit(dofs, 1 - alpha / 2)
    return [error * quantile for error, quantile in zip(errors, quantiles.tolist(), strict=True)]


def _sides(pair: Pair) -> _Sides:
    base, head = (measured(result) for result in times(pair))
    logs: list[list[float]] = []
    clocks: list[list[float]] = []
    if len(base.blocks) + len(head.blocks) >= LEAST_BLOCKS:
        logs = [[math.log(block.median_s) for block in side.blocks] for side in (base, head)]
        clocks = [_block_clocks(side) for side in (base, head)]
    line = clock_line(logs, clocks) if clocks and all(clocks) else None
    scattered = pair.shown.device.startswith("cpu")
    equal_cases = len({result.case.id for result in times(pair)}) == 1
    if line is None:
        means = pair.multimodal
        row_sides = [_side(groups(side, means=means, quartiles=scattered)) for side in (base, head)]
        if scattered and not means:
            row_sides = [
                dataclasses.replace(row_side, centre=_undisturbed(side))
                for row_side, side in zip(row_sides, (base, head), strict=True)
            ]
        return _Sides(
            base=row_sides[0], head=row_sides[1], scattered=scattered, equal_cases=equal_cases
        )
    moved = []
    for side, times_, at in zip((base, head), logs, clocks, strict=True):
        by_process: dict[int, list[float]] = {}
        for block, time, clock in zip(side.blocks, times_, at, strict=True):
            by_process.setdefault(block.process, []).append(math.exp(line.moved(time, clock)))
        moved.append(_side(list(by_process.values())))
    clock_means = [statistics.fmean(some) for some in clocks]
    return _Sides(
        base=moved[0],
        head=moved[1],
        scattered=scattered,
        equal_cases=equal_cases,
        line=line,
        line_error=line.error * abs(clock_means[1] - clock_means[0]),
        apart=statistics.fmean(logs[1]) - statistics.fmean(logs[0]),
    )


def _undisturbed(measurement: Measurement) -> float:
    """Return the logarithm of the lower quartile of all samples. Other work on a CPU only makes
    samples longer, and whole blocks of them for seconds."""
    return math.log(quantile([s for block in measurement.blocks for s in block.samples_s], 0.25))


def _block_clocks(measurement: Measurement) -> list[float]:
    """Return the logarithms of the blocks' core clocks; empty if one was not measured."""
    clocks = [block.clock_mhz for block in measurement.blocks]
    return [math.log(clock) for clock in clocks if clock] if all(clocks) else []


def _side(by_process: Sequence[Sequence[float]]) -> _Side:
    logs = tuple(sorted(map(math.log, replicates(by_process))))
    # statistics.fmean takes longer for its checks than for the sum, and statistics.variance
    # computes in fractions.
    centre = math.fsum(logs) / len(logs)
    squares = [(log - centre) ** 2 for log in logs]
    variance = math.fsum(squares) / (len(squares) - 1) if len(squares) > 1 else 0.0
    return _Side(logs=logs, centre=centre, variance=variance)


def _at_equal_clock(
    reason: Callable[[], Reason], pair: Pair, sides: _Sides, shown: float
) -> Reason:
    """Return the reason, wrapped in what it was judged by: equal clocks or block means. `shown` is
    the ratio of the medians."""
    if sides.line is None:
        return noted(reason(), pair, shown)
    return Reason(
        f"{reason()} at equal clocks, {change_text(shown)} as measured",
        "at-equal-clock",
        cause=reason(),
        apart=shown,
    )


def _clock_facts(sides: _Sides) -> Facts:
    if sides.line is None:
        return ()
    text = (
        f"times as clock^{sides.line.slope:.2f}; both sides at {math.exp(sides.line.at):.0f} MHz; "
        f"as measured {100 * math.expm1(sides.apart):+.1f} %"
    )
    return (("clock", text),)


def _judge_too_few(pair: Pair) -> Judgement:
    """Return the judgement of a row with too few blocks on a side for a spread."""
    base, head = times(pair)
    base_s, head_s = medians_s(pair)
    sides = (("base", base), ("head", head))
    single = tuple(name for name, result in sides if measured(result).samples == 1)
    reason = (
        Reason(
            f"{join_and(single)}: a mean without dispersion, for history and threshold rules only"
        )
        if single
        else Reason(
            "one block on a side: the variation between allocations is unknown", "one-block"
        )
    )
    return Judgement(
        status=VerdictStatus.UNSURE,
        why=reason,
        base_s=base_s,
        head_s=head_s,
        ratio=head_s / base_s,
        explanation=(("base", time_text(base_s)), ("head", time_text(head_s)), ("verdict", reason)),
    )


def _side_text(side: _Side, result: Result, *, by: str) -> str:
    processes = len(groups(measured(result)))
    spread = 100 * math.sqrt(side.variance)
    return (
        f"{by} {time_text(math.exp(side.centre))} of {len(side.logs)} independent times "
        f"({len(measured(result).blocks)} blocks, {processes} processes), spread {spread:.2f} %"
    )


rule = Robust()
