"""Bounds of the distance of a correct kernel from the exact result.

A sum of n products t_j of inputs that are independent and uniform in [-1, 1] has Σ|t_j| ≈ n/4. A
kernel's order of additions is unknown; the worst is one term after the other. Step j rounds the
partial sum S_j: an error of at most u·|S_j| (u: unit roundoff of the accumulator), modelled as
uniform and independent, so the total has standard deviation u/√3·√(ΣS_j²). The partial sums walk at
random with steps of variance 1/9, so ΣS_j² is n²/9 times ∫W² of a Brownian motion W, whose upper
tail is exp(-π²x/8). Both tails together:

    P(error > c·u·n/4) ≈ exp(-(3√3π/8)·c)

(the smallest sum of the two exponents over x). A check compares up to POSITIONS outputs and may
raise a false alarm with probability FALSE_ALARM, so c = 8/(3√3π)·L with
L = ln(2·POSITIONS/FALSE_ALARM). No sum of n terms has a larger error than n·u·Σ|t_j|, whatever the
data, hence c = min(n, …). In contrast to the usual bound, c does not grow with n: the check stays
sensitive for long sums.

Matrix units that multiply 16-bit and 8-bit floats do not round each addition: they align a group
of products and the accumulator, and truncate. With `digits` kept, truncation is like a rounding
error of 2^-digits (same c) plus a bias of 2^-digits·|S| for every group. Σ|S| over all n steps is
n^1.5/3 times ∫|W|, with upper tail exp(-3x²/2), hence n^1.5/3·√(2L/3), of which one step in
`group` counts.

This holds for partial sums without a trend. If a sum ends far from 0, S_j also contains
(j/n)·value: its roundings add u/√3·√(n/3) of the value (σ), its truncations n/2/group·2^-digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.tensor import Tolerance

POSITIONS = 1024
FALSE_ALARM = 1e-6

_L = math.log(2 * POSITIONS / FALSE_ALARM)
# Limit of a sum of independent errors in standard deviations.
SIGMAS = math.sqrt(2 * _L)
_WALK = 8 / (3 * math.sqrt(3) * math.pi) * _L


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatrixUnit:
    """The least exact matrix unit on the market that is specified to accumulate in f32."""

    digits: int
    group: int


# 16-bit: 24 digits, groups of 4 products (the smallest instruction shapes of both vendors).
# 8-bit: Hopper keeps 14 digits inside an instruction over 32 products.
_UNITS = {16: _MatrixUnit(digits=24, group=4), 8: _MatrixUnit(digits=14, group=32)}


def accumulation(terms: int, inputs: DType, acc: DType) -> float:
    """Return the error of a sum of `terms` products, relative to the sum of absolute terms."""
    if acc.kind == "int":
        return 0.0
    error = min(terms, _WALK) * acc.unit_roundoff
    unit = _UNITS.get(inputs.bits)
    if unit is not None:
        cut = 2.0**-unit.digits
        bias = 4 / 3 * SIGMAS / math.sqrt(3) * math.sqrt(terms) / unit.group
        error += min(2 * terms, _WALK + bias) * cut
    return error


def trend(terms: int, inputs: DType, acc: DType) -> float:
    """Return the error of a sum of `terms` numbers, as a fraction of its value, if the partial sums
    grow linearly to it, as those of positive numbers do."""
    error = min(terms, SIGMAS / 3 * math.sqrt(terms)) * acc.unit_roundoff
    unit = _UNITS.get(inputs.bits)
    return error if unit is None else error + terms / (2 * unit.group) * 2.0**-unit.digits


def product_tolerance(
    *, terms: int, inputs: str, acc: str, out: str, epilogue: int = 0
) -> Tolerance:
    """Return the tolerance of one sum of products, `epilogue` operations in the accumulator's type
    and one rounding."""
    acc_type, out_type = dtype(acc), dtype(out)
    if acc_type.kind == "int":
        return Tolerance(
            per_magnitude=0.0, per_value=0.0, absolute=0.0, why="integer arithmetic is exact"
        )
    summed = accumulation(terms, dtype(inputs), acc_type)
    per_magnitude = (summed + epilogue * acc_type.unit_roundoff) * (1 + out_type.unit_roundoff)
    per_value = out_type.unit_roundoff + trend(terms, dtype(inputs), acc_type)
    return Tolerance(
        per_magnitude=per_magnitude,
        per_value=per_value,
        absolute=out_type.smallest_step / 2,
        why=(
            f"{terms} products of {inputs} summed in {acc}: {per_magnitude:.2g} of the sum of "
            f"absolute terms and {per_value - out_type.unit_roundoff:.2g} of the value (a false "
            f"alarm once in {1 / FALSE_ALARM:.0e} checks), then one rounding to {out}: "
            f"{out_type.unit_roundoff:.2g} of the value"
        ),
    )
