"""Robust location and scale, and confidence intervals of a time, with the block (one process, one
set of allocations) as the unit.

Samples inside a block share its addresses, pages and clocks, so they do not show how the next block
would differ: an interval over samples is too narrow. Times are positive and their disturbances
multiply, hence logarithms.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Block, Mode
from kernelmark.core.units import time_text

# Modes: several values around which the samples of one case cluster.
#
# The samples are divided into clusters (exact k-means in one dimension, on logarithms). Clusters
# are modes where a clear gap separates each from the next, which is shown in one of two ways:
#
# - inside blocks: their distance exceeds √12 standard deviations. Two halves of a uniform density
#   are that far apart, so a drift, a jitter or a wide spread has no modes. Differences between
#   blocks (memory placement) are removed first, and a variance estimated from few samples is
#   replaced by its upper confidence bound;
# - between blocks: every block is on one of two values, and their distance exceeds 8 standard
#   deviations of the blocks on the same value.
#
# The constants are those with which simulation (tests/stats/test_modes.py) flags less than 1 % of
# each unimodal family and finds over 95 % of each mixture. Four blocks that are each far narrower
# than the spread of 1.5 % between them cannot be distinguished from modes: 5 % of such cases are
# flagged.

LEAST_SAMPLES = 8
# Closer modes are within the noise of memory placement (0.5 to 1 % between blocks).
LEAST_GAP = math.log1p(0.03)
# Smaller clusters are outliers: other work on a CPU disturbs a few per cent of the samples.
LEAST_SHARE = 0.05
_LEAST_COUNT = 3
_UNIFORM = math.sqrt(12.0)
# Error probability of the upper bound of a variance.
_UNDERRATED = 0.01
# Standard deviations between two values that blocks are on. The best division of normal blocks
# exceeds it in 13 % of draws of 4, 3 % of 6 and 0.2 % of 9; most of these are below LEAST_GAP.
_BLOCKS_APART = 8.0
_LEAST_BLOCKS = 4
# A block is on a mode if this fraction of its samples is: the others are outliers.
_WHOLE = 0.9
_MOST_CLUSTERS = 5
# Larger samples are replaced by this many quantiles before clustering.
_MOST_POINTS = 200
# Samples that differ by less are equal clock readings, apart from rounding.
_SAME = 1e-9
_Values = NDArray[np.float64]
_Labels = NDArray[np.intp]


def find_modes(blocks: Sequence[Sequence[float]]) -> tuple[Mode, ...]:
    """Return the modes of the samples of all blocks, fastest first; empty if unimodal."""
    times = [np.asarray(block, dtype=np.float64) for block in blocks]
    logs = np.log(np.concatenate(times)) if times else np.empty(0)
    # Most measurements return here: 90 % of their samples are within the least gap.
    if len(logs) < LEAST_SAMPLES or _central_width(logs) < LEAST_GAP:
        return ()
    owners = np.repeat(np.arange(len(times)), [len(block) for block in times])
    least = max(_LEAST_COUNT, math.ceil(LEAST_SHARE * len(logs)))
    ordered = np.sort(logs)
    reading = _reading_variance(ordered)
    best: tuple[Mode, ...] = ()
    for bounds in _partitions(ordered, _MOST_CLUSTERS):
        labels = np.searchsorted(bounds, logs, side="right")
        kept = [k for k in range(len(bounds) + 1) if np.sum(labels == k) >= least]
        joined = _join_clusters(logs, owners, labels, kept, reading)
        if len(joined) > max(1, len(best)):
            best = _build_modes(logs, labels, joined)
    return best


def mean_of(modes: Sequence[Mode]) -> float:
    """Return the geometric mean of the modes, each weighted by its share."""
    total = sum(mode.share for mode in modes)
    return math.exp(sum(mode.share * math.log(mode.value_s) for mode in modes) / total)


def modes_text(modes: Sequence[Mode]) -> str:
    """Format modes as `35.20 µs (55 %), 38.20 µs (45 %)`."""
    return ", ".join(f"{time_text(mode.value_s)} ({100 * mode.share:.0f} %)" for mode in modes)


def _central_width(logs: _Values) -> float:
    # np.quantile imports numpy.ma, which adds 10 ms to every km.bench.
    last = len(logs) - 1
    quantiles = [LEAST_SHARE * last, (1 - LEAST_SHARE) * last]
    low, high = np.interp(quantiles, np.arange(len(logs)), np.sort(logs))
    return float(high - low)


def _reading_variance(ordered: _Values) -> float:
    """Return the variance that a coarse clock adds. Its resolution is estimated by the least
    difference of two samples."""
    times = np.exp(ordered)
    steps = np.diff(times)
    steps = steps[steps > _SAME * times[0]]
    return float((steps.min() / times[0] / 2) ** 2) if len(steps) else 0.0


def _partitions(ordered: _Values, most: int) -> list[_Values]:
    """Return the bounds between clusters of the best divisions into `most`, …, 3 and 2 clusters."""
    points = ordered
    if len(points) > _MOST_POINTS:
        points = np.quantile(ordered, (np.arange(_MOST_POINTS) + 0.5) / _MOST_POINTS)
    points = points - points[0]
    count = len(points)
    sums = np.concatenate([[0.0], np.cumsum(points)])
    squares = np.concatenate([[0.0], np.cumsum(points**2)])
    first, last = np.ogrid[: count + 1, : count + 1]
    size = np.maximum(last - first, 1)
    total = sums[last] - sums[first]
    # costs[i, j]: the sum of squared distances of the points i … j - 1 from their mean.
    costs = np.where(last > first, squares[last] - squares[first] - total**2 / size, np.inf)
    best = costs[0]
    begins: list[_Labels] = []
    partitions = []
    for clusters in range(2, min(most, count) + 1):
        options = best[:, None] + costs
        begins.append(np.argmin(options, axis=0))
        best = np.min(options, axis=0)
        end, cuts = count, []
        for level in reversed(begins):
            end = int(level[end])
            cuts.append(end)
        assert len(cuts) == clusters - 1
        inner = np.array(sorted(cuts))
        partitions.append(ordered[0] + (points[inner - 1] + points[inner]) / 2)
    return partitions[::-1]


def _join_clusters(
    logs: _Values, owners: _Labels, labels: _Labels, kept: Sequence[int], reading: float
) -> list[list[int]]:
    """Return the clusters in groups, joined with neighbours that no gap separates from them."""
    groups = [[label] for label in kept[:1]]
    for pair in itertools.pairwise(kept):
        # A few blocks divided into more than two clusters have a gap somewhere by chance.
        between = len(kept) == 2 and _gap_between(logs, owners, labels, pair, reading)
        if between or _gap_inside(logs, owners, labels, pair, reading):
            groups.append([pair[1]])
        else:
            groups[-1].append(pair[1])
    return groups


def _gap_inside(
    logs: _Values, owners: _Labels, labels: _Labels, pair: tuple[int, int], reading: float
) -> bool:
    """Return whether blocks with samples of both clusters show a gap between them."""
    cells = [
        _block_moments(logs[labels == label], owners[labels == label], owners) for label in pair
    ]
    has_both = np.logical_and(*(counts > 0 for counts, _, _ in cells))
    dofs = [int((counts[has_both] - 1).sum()) for counts, _, _ in cells]
    if min(dofs) < _LEAST_COUNT:
        return False
    weights = 1 / sum(1 / counts[has_both] for counts, _, _ in cells)
    distance = float(np.average(cells[1][1][has_both] - cells[0][1][has_both], weights=weights))
    variances = [
        _variance_upper_bound(float(squares[has_both].sum()), dof) + reading
        for (_, _, squares), dof in zip(cells, dofs, strict=True)
    ]
    return distance >= LEAST_GAP and distance > _UNIFORM * math.sqrt(sum(variances) / 2)


def _block_moments(
    logs: _Values, owners: _Labels, every: _Labels
) -> tuple[_Values, _Values, _Values]:
    """Return, per block, the samples' count, mean and sum of squared distances from the mean."""
    blocks = int(every[-1]) + 1
    counts = np.bincount(owners, minlength=blocks)
    means = np.bincount(owners, logs, minlength=blocks) / np.maximum(counts, 1)
    squares = np.bincount(owners, np.square(logs - means[owners]), minlength=blocks)
    return counts.astype(np.float64), means, squares.astype(np.float64)


def _variance_upper_bound(squares: float, dof: int) -> float:
    """Return the upper bound of a variance by its sum of squares (Wilson–Hilferty quantile)."""
    part = 2 / (9 * dof)
    quantile = dof * max(1 - part + NormalDist().inv_cdf(_UNDERRATED) * math.sqrt(part), 0.0) ** 3
    return squares / quantile if quantile else math.inf


def _gap_between(
    logs: _Values, owners: _Labels, labels: _Labels, pair: tuple[int, int], reading: float
) -> bool:
    """Return whether every block is on one of two clusters and a gap separates these."""
    needed = np.maximum(_WHOLE * np.bincount(owners), _LEAST_COUNT)
    sides: list[list[float]] = []
    for label in pair:
        mine, of = logs[labels == label], owners[labels == label]
        whole = np.flatnonzero(np.bincount(of, minlength=len(needed)) >= needed)
        sides.append([float(np.median(mine[of == block])) for block in whole])
    if not all(sides) or len(sides[0]) + len(sides[1]) < max(len(needed), _LEAST_BLOCKS):
        return False
    distance = float(np.mean(sides[1]) - np.mean(sides[0]))
    squares = sum(float(np.var(side)) * len(side) for side in sides)
    deviation = math.sqrt(squares / (len(needed) - 2) + reading)
    return distance >= LEAST_GAP and distance > _BLOCKS_APART * deviation


def _build_modes(
    logs: _Values, labels: _Labels, groups: Sequence[Sequence[int]]
) -> tuple[Mode, ...]:
    """Return value and share of each mode; outliers count to the nearest one."""
    values = np.array([np.median(logs[np.isin(labels, group)]) for group in groups])
    nearest = np.argmin(np.abs(logs[:, None] - values[None, :]), axis=1)
    return tuple(
        Mode(value_s=math.exp(value), share=float(np.mean(nearest == position)))
        for position, value in enumerate(values)
    )


# Scales the median absolute deviation of normal data to its standard deviation.
NORMAL_MAD = 1.482602218505602

Samples = Sequence[float] | NDArray[np.float64]


def median(samples: Samples) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    # np.median imports numpy.ma at its first call, which takes 50 ms.
    return statistics.median(_sorted(samples))


def mad(samples: Samples, *, scaled: bool = False) -> float:
    """Return the median absolute deviation; `scaled` to a normal standard deviation."""
    values = _sorted(samples)
    middle = _interpolated(values, 0.5)
    deviation = _interpolated(sorted(abs(value - middle) for value in values), 0.5)
    return deviation * NORMAL_MAD if scaled else deviation


def quantile(samples: Samples, fraction: float) -> float:
    """Return the value below which `fraction` of the samples lie, interpolated linearly."""
    return _interpolated(_sorted(samples), fraction)


def _sorted(samples: Samples) -> list[float]:
    # NumPy is a hundred times slower for the few dozen values of a series.
    values = sorted(map(float, samples))
    if not values:
        raise ValueError("no samples")
    return values


def _interpolated(values: Sequence[float], fraction: float) -> float:
    position = fraction * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


_TINY = 1e-300
_TERMS = 300


@functools.lru_cache(maxsize=512)
def t_quantile(probability: float, dof: float) -> float:
    """Return the quantile of Student's t with `dof` degrees of freedom."""
    if not 0.0 < probability < 1.0 or dof <= 0:
        raise ValueError(f"no t quantile at {probability} with {dof} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    low, high = 0.0, 1.0
    while t_distribution(high, dof) < probability:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_distribution(middle, dof) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(value: float, dof: float) -> float:
    """Return P(T ≤ `value`) of Student's t with `dof` degrees of freedom."""
    square = value * value
    tail = _betainc(dof / 2, 0.5, dof / (dof + square)) / 2
    return 1.0 - tail if value >= 0 else tail


def _betainc(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The continued fraction converges fast only below the mean; above it, use the complement.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz's method)."""
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return fraction


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


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


def paired_blocks(
    blocks: Sequence[Block], others: Sequence[Block]
) -> tuple[float, float, float] | None:
    """Return the median ratio of the blocks of two measurements by turns, and its interval; None if
    fewer than two blocks of one have a counterpart of the other. What both share, such as the
    clock, cancels."""
    other = {(block.process, block.allocation): block for block in others}
    keys = [(block.process, block.allocation) for block in blocks]
    ratios = [
        _block_ratio(block, other[key])
        for block, key in zip(blocks, keys, strict=True)
        if key in other
    ]
    if len(ratios) < 2:
        return None
    return (statistics.median(ratios), *block_interval(ratios))


def _block_ratio(block: Block, other: Block) -> float:
    """Return the ratio of two blocks by turns: that of their samples in pairs, which were taken
    close to each other; of the medians if one has more samples."""
    if len(block.samples_s) != len(other.samples_s):
        return block.median_s / other.median_s
    pairs = zip(block.samples_s, other.samples_s, strict=True)
    return statistics.median(own_s / other_s for own_s, other_s in pairs)


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
    estimate = float(values[:-1] @ values[1:]) / squares + 1 / len(logs)
    correlation = min(max(estimate, 0.0), _LARGEST_CORRELATION)
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
