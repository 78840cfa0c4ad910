"""Dependence of kernel times on the core clock, to compare two runs at one clock.

A GPU at its power cap changes its clock from block to block and from run to run, with temperature
and with the work before. On an H200 the block medians of GEMMs at the cap had spreads of 2 to 5 %,
and 0.2 to 1.4 % around a line in the logarithm of the clock, with slopes of -0.6 to -1.1
(benchmarks/gpu/clocks.py).
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Fewer blocks give no usable slope.
LEAST_BLOCKS = 8
# Slope of log time over log clock: -1 for a compute-bound kernel, 0 for a memory-bound one. Outside
# this range something else changed with the clock.
_STEEPEST, _FLATTEST = -1.3, -0.3
# Fraction of the blocks' variance that the clock has to explain.
_LEAST_EXPLAINED = 0.5

Groups = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """Log time against log clock: `slope`, its standard `error`, and the clock (its logarithm) at
    which both runs are compared."""

    slope: float
    error: float
    at: float

    def moved(self, log_time: float, log_clock: float) -> float:
        """Return the log time of a block at the common clock."""
        return log_time - self.slope * (log_clock - self.at)


def clock_line(times: Groups, clocks: Groups) -> ClockLine | None:
    """Return the line that fits the blocks of several runs, fitted within runs: differences between
    runs do not affect the slope. None where times do not follow the clock.

    `times` and `clocks` are logarithms, one list per run.
    """
    count = sum(map(len, times))
    free = count - len(times) - 1
    if count < LEAST_BLOCKS or free < 1:
        return None
    # Plain floats: arrays of ten values take several times as long, for each row of a suite.
    t = [value for some in times for value in _centred(some)]
    c = [value for some in clocks for value in _centred(some)]
    total, spread = _product(t, t), _product(c, c)
    if total == 0 or spread == 0:
        return None
    slope = _product(c, t) / spread
    rest = [time - slope * clock for time, clock in zip(t, c, strict=True)]
    left = _product(rest, rest)
    if not _STEEPEST <= slope <= _FLATTEST or left > (1 - _LEAST_EXPLAINED) * total:
        return None
    middle = statistics.fmean(map(statistics.fmean, clocks))
    return ClockLine(slope=slope, error=(left / free / spread) ** 0.5, at=middle)


def _centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def _product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(operator.mul, a, b))
