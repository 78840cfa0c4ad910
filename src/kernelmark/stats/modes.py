"""Modes: several values around which the samples of one case cluster.

The samples are divided into clusters (exact k-means in one dimension, on logarithms). Clusters are
modes where a clear gap separates each from the next, which is shown in one of two ways:

- inside blocks: their distance exceeds √12 standard deviations. Two halves of a uniform density
  are that far apart, so a drift, a jitter or a wide spread has no modes. Differences between
  blocks (memory placement) are removed first, and a variance estimated from few samples is
  replaced by its upper confidence bound;
- between blocks: every block is on one of two values, and their distance exceeds 8 standard
  deviations of the blocks on the same value.

The constants are those with which simulation (tests/stats/test_modes.py) flags less than 1 % of
each unimodal family and finds over 95 % of each mixture. Four blocks that are each far narrower
than the spread of 1.5 % between them cannot be distinguished from modes: 5 % of such cases are
flagged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.result import Mode
from kernelmark.core.units import time_text

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
    wanted = [LEAST_SHARE * last, (1 - LEAST_SHARE) * last]
    low, high = np.interp(wanted, np.arange(len(logs)), np.sort(logs))
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
    found = []
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
        found.append(ordered[0] + (points[inner - 1] + points[inner]) / 2)
    return found[::-1]


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
    both = np.logical_and(*(counts > 0 for counts, _, _ in cells))
    dofs = [int((counts[both] - 1).sum()) for counts, _, _ in cells]
    if min(dofs) < _LEAST_COUNT:
        return False
    weights = 1 / sum(1 / counts[both] for counts, _, _ in cells)
    distance = float(np.average(cells[1][1][both] - cells[0][1][both], weights=weights))
    variances = [
        _variance_upper_bound(float(squares[both].sum()), dof) + reading
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
        Mode(value_s=math.exp(value), share=float(np.mean(nearest == place)))
        for place, value in enumerate(values)
    )
