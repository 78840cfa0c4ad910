"""Check of a random projection of an output against the largest sum of a correct kernel's errors.

The errors e_j of a row are fixed when the signs r_j are drawn. If each is within its tolerance τ_j,
then |Σ r_j e_j| exceeds √(2·ln(2·rows/FALSE_ALARM)) · ‖τ‖ in one of the rows with a probability of
at most FALSE_ALARM, however the errors depend on each other (Hoeffding), and never exceeds √cols ·
‖τ‖ (Cauchy-Schwarz). With τ_j from the op's tolerance, ‖τ‖ ≤ per_magnitude · magnitude + per_value
· ‖expected‖ + absolute · √cols.

The bound can be tightened, as it depends on ‖e‖, and `per_magnitude` is a bound that one sum in 10⁹
exceeds. In its model (ops/_error.py) the root mean square of the errors is a fifteenth of it for
roundings, which have the tail exp(-21·e/τ), and a sixth for the digits that a matrix unit
truncates. Columns are independent sums, so over many of them ‖e‖ stays well below ‖τ‖/3. Without
that factor of 1/3, a kernel could leave out a tenth of an 8-bit GEMM with 8192 terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.tensor import Contraction, Tolerance
from kernelmark.numerics.project import Projection
from kernelmark.ops._error import FALSE_ALARM, POSITIONS

Floats = NDArray[np.float64]

_F64 = dtype("f64")
# Sums of integers are exact below this magnitude.
_EXACT = 2.0**_F64.digits
# The root mean square of a row's errors stays below this fraction of the tolerance per magnitude,
# from this many columns and terms on.
_SPREAD, _MANY_COLS, _MANY_TERMS = 1 / 3, 64, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionCheck:
    """The worst `ratio` of an error to the error allowed, the number of rows compared, the number
    of `bad` rows (ratio above 1), and the index of the worst row in the contraction's shape."""

    ratio: float
    rows: int
    bad: int
    where: tuple[int, ...]


def check_projection(
    contraction: Contraction, projection: Projection, tolerance: Tolerance, kind: DType
) -> ProjectionCheck:
    """Compare both sides of a projection of an output of dtype `kind`."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        error = np.abs(projection.got - projection.expected)
        allowed = _allowed(contraction, projection, tolerance)
        allowed += _rounding(contraction, projection, exact=kind.kind == "int")
        ratio = np.where(error == 0.0, 0.0, error / allowed)
    # A non-finite error comes from a non-finite output.
    ratio = np.where(np.isfinite(error) & ~np.isnan(ratio), ratio, np.inf)
    worst = int(np.argmax(ratio))
    return ProjectionCheck(
        ratio=float(ratio[worst]),
        rows=contraction.rows,
        bad=int(np.count_nonzero(ratio > 1.0)),
        where=tuple(int(i) for i in np.unravel_index(worst, contraction.shape)),
    )


def _allowed(contraction: Contraction, projection: Projection, tolerance: Tolerance) -> Floats:
    """Return the largest sum of errors within the tolerance, for each row."""
    cols = math.sqrt(contraction.cols)
    exponent = math.log(2 * contraction.rows / FALSE_ALARM)
    # A tolerance holds at POSITIONS outputs except for one check in 1 / FALSE_ALARM, with tails
    # that fall exponentially or faster; here it has to hold for whole rows of outputs.
    more = max(1.0, exponent / math.log(2 * POSITIONS / FALSE_ALARM))
    # |expected| ≤ |out| + τ. A far too large output must not raise its own limit: no expected value
    # is larger than the sum of its absolute terms.
    share = min(tolerance.per_value, 0.5)
    value = np.minimum(projection.out_norm / (1 - share), projection.magnitude)
    many = contraction.cols >= _MANY_COLS and contraction.terms >= _MANY_TERMS
    spread = tolerance.per_magnitude * (_SPREAD if many else 1.0)
    norm = spread / (1 - share) * projection.magnitude
    norm += tolerance.per_value * value + tolerance.absolute / (1 - share) * cols
    return np.asarray(min(math.sqrt(2 * exponent), cols) * more * norm)


def _rounding(contraction: Contraction, projection: Projection, *, exact: bool) -> Floats:
    """Return the largest error of summing in float64, in any order: n · u · Σ|terms|, where the
    absolute terms of a row add up to at most √cols · magnitude, or √cols · ‖out‖."""
    cols = math.sqrt(contraction.cols)
    expected, got = cols * projection.magnitude, cols * projection.out_norm
    lengths = contraction.cols + contraction.terms + len(contraction.added) + 8
    bound = _F64.unit_roundoff * (lengths * expected + (contraction.cols + 8) * got)
    # An infinite output must not be allowed an infinite error; it is rejected in any case.
    bound = np.where(np.isfinite(bound), bound, 0.0)
    if exact:
        return np.where(np.maximum(expected, got) < 0.99 * _EXACT, 0.0, bound)
    return bound
