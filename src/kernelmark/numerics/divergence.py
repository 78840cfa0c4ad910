"""Divergence: the difference of an array of results from another, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype

# Upper bounds of the histogram's bins in units in the last place; one more bin holds the rest. A
# correctly rounded result is within half a unit, a faithfully rounded one within one.
ULP_BOUNDS = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0)
# Kernels differ in the order of their sums. Dot products of 11,520 uniform terms (the longest of
# SDXL's convolutions), added one by one in f32, were at most 4.3e-6 from float64; rounding them to
# f16 adds 3e-4. Sums of 576 terms in f16 instead of f32 are off by over 4e-3 in 3 % of elements.
TOLERANCES = {"f64": 1e-10, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}
_SMALL_FLOAT_TOLERANCE = 0.25  # for 8-bit floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Differences between values and a reference of equal shape.

    An element is bad where |value - reference| > tolerance · (|reference| + rms(reference)): sums
    that cancel have the absolute error of their terms, so that no relative bound holds for them.
    """

    count: int
    tolerance: float
    max_abs: float
    max_rel: float
    bad: int
    first_bad: tuple[int, ...] | None
    ulps: tuple[int, ...]

    @property
    def fraction_bad(self) -> float:
        return self.bad / self.count if self.count else 0.0

    @property
    def passed(self) -> bool:
        return self.bad == 0


def default_tolerance(dtype_name: str) -> float:
    """Return the tolerance for outputs of a dtype: 0 for integers."""
    if dtype(dtype_name).kind == "int":
        return 0.0
    return TOLERANCES.get(dtype_name, _SMALL_FLOAT_TOLERANCE)


def measure_divergence(
    values: NDArray[np.float64],
    reference: NDArray[np.float64],
    dtype_name: str,
    tolerance: float | None = None,
) -> Divergence:
    """Compare values that were stored as `dtype_name` with a reference, both exact in float64."""
    if values.shape != reference.shape:
        raise ValueError(f"shapes differ: {values.shape} and {reference.shape}")
    allowed = default_tolerance(dtype_name) if tolerance is None else tolerance
    finite = np.isfinite(reference)
    scale = float(np.sqrt(np.mean(np.square(reference[finite])))) if finite.any() else 0.0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(values - reference)
        # Equal infinities agree, and so do two NaNs; a number agrees with neither.
        agree = (values == reference) | (np.isnan(values) & np.isnan(reference))
        error = np.where(agree, 0.0, np.where(np.isnan(error), np.inf, error))
        bad = error > allowed * (np.abs(reference) + scale)
        relative = np.where(error > 0, error / np.abs(reference), 0.0)
        ulps = np.where(error > 0, error / _ulp(reference, dtype_name), 0.0)
    first = np.argmax(bad) if bad.any() else None
    return Divergence(
        count=values.size,
        tolerance=allowed,
        max_abs=float(error.max(initial=0.0)),
        max_rel=float(relative.max(initial=0.0)),
        bad=int(bad.sum()),
        first_bad=None
        if first is None
        else tuple(int(i) for i in np.unravel_index(int(first), bad.shape)),
        ulps=_histogram(ulps),
    )


def _histogram(ulps: NDArray[np.float64]) -> tuple[int, ...]:
    bins = np.searchsorted(ULP_BOUNDS, ulps.ravel(), side="left")
    return tuple(int(n) for n in np.bincount(bins, minlength=len(ULP_BOUNDS) + 1))


def _ulp(reference: NDArray[np.float64], dtype_name: str) -> NDArray[np.float64]:
    """Return the spacing of a dtype's numbers at each reference value."""
    kind = dtype(dtype_name)
    if kind.kind == "int":
        return np.ones_like(reference)
    _, exponent = np.frexp(np.where(np.isfinite(reference), reference, 1.0))
    exponent = np.maximum(exponent - 1, kind.min_exponent)
    return np.asarray(np.ldexp(1.0, exponent - (kind.digits - 1)), np.float64)
