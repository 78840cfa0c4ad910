"""Confidence intervals of a time, with the block (one process, one set of allocations) as the unit.

Samples inside a block share its addresses, pages and clocks, so they do not show how the next block
would differ: an interval over samples is too narrow. Times are positive and their disturbances
multiply, hence logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Block, Mode
from kernelmark.stats.estimators import t_quantile
from kernelmark.stats.modes import find_modes

LEVEL = 0.95
# Least number of blocks to estimate their serial correlation. At a power cap the clock swings over
# several blocks: correlations of 0.2 to 0.5 between neighbours on an H200, where 95 % intervals of
# 20 blocks covered the mean of ten processes in 80 % of cases without this factor, and in 93 % with
# it.
_LEAST_SERIAL = 8
_LARGEST_CORRELATION = 0.6
_LARGEST_LOG = 709.0  # the largest that exp can take


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Bounds of a median time, in seconds; `note` is the reason why they may be too narrow. `modes`
    are those of the samples, empty if unimodal."""

    low_s: float
    high_s: float
    note: Reason = NO_REASON
    modes: tuple[Mode, ...] = ()

    @property
    def rel_half_width(self) -> float:
        """Half of the width as a fraction of the geometric middle; infinite without bounds."""
        if self.low_s <= 0 or math.isinf(self.high_s):
            return math.inf
        return (self.high_s - self.low_s) / 2 / math.sqrt(self.low_s * self.high_s)


def block_interval(block_medians: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Return Student's t interval on the logarithms, extended where needed to contain the median.

    One block has no spread: (0, inf).
    """
    logs = _logs(block_medians)
    if len(logs) == 1:
        return 0.0, math.inf
    mean = statistics.fmean(logs)
    # statistics.stdev is exact and ten times slower, and a GPU waits for it after each block.
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    half = t_quantile(0.5 + level / 2, len(logs) - 1) * math.sqrt(variance)
    half *= serial_factor(logs) / math.sqrt(len(logs))
    middle = statistics.median(block_medians)
    # exp(log(x)) may differ from x by a rounding
    return min(exp(mean - half), middle), max(exp(mean + half), middle)


def serial_factor(logs: Sequence[float]) -> float:
    """Return the factor by which serial correlation of blocks widens an interval: that of a
    first-order autoregression, 1 for uncorrelated neighbours."""
    if len(logs) < _LEAST_SERIAL:
        return 1.0
    values = np.asarray(logs) - statistics.fmean(logs)
    squares = float(values @ values)
    if squares == 0:
        return 1.0
    # The estimate from n values is biased by about -1/n.
    found = float(values[:-1] @ values[1:]) / squares + 1 / len(logs)
    correlation = min(max(found, 0.0), _LARGEST_CORRELATION)
    return math.sqrt((1 + correlation) / (1 - correlation))


def exp(value: float) -> float:
    """Return e to the power of `value`; infinity on overflow."""
    return math.inf if value > _LARGEST_LOG else math.exp(value)


def order_interval(samples: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Return the narrowest pair of order statistics that contains the median with probability
    `level` or more, for any distribution; None with too few samples (under 6 for 95 %)."""
    values = sorted(samples)
    count = len(values)
    allowed = (1.0 - level) / 2
    below = 0.0
    rank = 0
    # Start 12 standard deviations below the middle: what is before that is negligible.
    for k in range(max(0, int(count / 2 - 6 * math.sqrt(count))), count // 2):
        below += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            - count * math.log(2)
        )
        if below > allowed:
            break
        rank = k + 1
    if rank == 0:
        return None
    return values[rank - 1], values[count - rank]


def single_interval(samples: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the interval of a single block, from its samples."""
    if len(samples) == 1:
        return Interval(
            low_s=0.0,
            high_s=math.inf,
            note=Reason(
                "interval: one sample: there is no interval; allow more time", "interval-one-sample"
            ),
        )
    low, high = order_interval(samples, level) or block_interval(samples, level)
    note = Reason(
        f"interval: only one block: the interval is over its {len(samples)}"
        " samples and does not cover other allocations",
        "interval-one-block",
        samples=len(samples),
    )
    return Interval(low_s=low, high_s=high, note=note)


def nested_interval(groups: Sequence[Sequence[float]], level: float = LEVEL) -> tuple[float, float]:
    """Return the interval over processes that measured several blocks each."""
    low, high = block_interval(replicates(groups), level)
    middle = statistics.median(value for group in groups for value in group)
    return min(low, middle), max(high, middle)


def replicates(groups: Sequence[Sequence[float]]) -> list[float]:
    """Return the times that count as independent, of processes with several blocks each.

    Where the processes differ by more than their blocks explain, one time per process; otherwise
    every block.
    """
    if len(groups) == 1 or not _groups_differ(groups):
        return [value for group in groups for value in group]
    return [math.exp(statistics.fmean(_logs(group))) for group in groups]


def measured_interval(blocks: Sequence[Block], level: float = LEVEL) -> Interval:
    """Return the interval of a measurement's median from its blocks, of one or many processes.

    Where samples have several modes, blocks may agree on one of them by chance. Each sample is on a
    mode at random, so the interval then also covers the order statistics of all samples.
    """
    modes = find_modes([block.samples_s for block in blocks])
    if len(blocks) == 1:
        return replace(single_interval(blocks[0].samples_s, level), modes=modes)
    interval = medians_interval(blocks, level)
    if modes:
        interval = with_samples(interval, blocks, level)
    return replace(interval, modes=modes)


def medians_interval(blocks: Sequence[Block], level: float = LEVEL) -> Interval:
    """Return the `measured_interval` of two or more blocks whose samples have no modes."""
    by_process: dict[int, list[float]] = {}
    for block in blocks:
        by_process.setdefault(block.process, []).append(block.median_s)
    low, high = nested_interval(list(by_process.values()), level)
    return Interval(low_s=low, high_s=high)


def with_samples(interval: Interval, blocks: Sequence[Block], level: float = LEVEL) -> Interval:
    """Return the interval extended by the order statistics of all samples."""
    samples = [time_s for block in blocks for time_s in block.samples_s]
    low, high = order_interval(samples, level) or (interval.low_s, interval.high_s)
    return replace(interval, low_s=min(low, interval.low_s), high_s=max(high, interval.high_s))


def widened(interval: Interval, fraction: float) -> Interval:
    """Return the interval with a further independent spread of ± `fraction` (0.01 is 1 %)."""
    if not fraction or interval.low_s <= 0 or math.isinf(interval.high_s):
        return interval
    middle = math.sqrt(interval.low_s * interval.high_s)
    half = math.hypot(math.log(interval.high_s / interval.low_s) / 2, fraction)
    return replace(interval, low_s=middle / exp(half), high_s=middle * exp(half))


def _groups_differ(groups: Sequence[Sequence[float]]) -> bool:
    """Return whether the mean square between groups exceeds the one within groups."""
    logs = [np.asarray(_logs(group)) for group in groups]
    within_dof = sum(len(group) - 1 for group in logs)
    if within_dof == 0:
        return False  # one block a process: block and process are the same unit
    everything = np.concatenate(logs)
    between = sum(len(g) * (g.mean() - everything.mean()) ** 2 for g in logs) / (len(logs) - 1)
    within = sum(((g - g.mean()) ** 2).sum() for g in logs) / within_dof
    return bool(between > within)


def _logs(times: Sequence[float]) -> list[float]:
    if not times:
        raise ValueError("no times to make an interval of")
    if not all(t > 0 and math.isfinite(t) for t in times):
        raise ValueError("times must be positive and finite")
    return [math.log(t) for t in times]
