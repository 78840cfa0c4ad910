"""How inputs are drawn and outputs are checked: dtypes that go together, distributions, positions,
sums of products there, and the error of correct kernels.

The bound is the distance of a correct kernel from the exact result.

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

Values of unknown origin (`any_values`) need not walk at random, nor need their roundings: equal
terms are rounded in one direction for as long as the exponent of the sum stays. Then roundings are
at most u·Σ|S_j|, and a matrix unit, which truncates each product at a digit of the partial sum, may
lose 2·2^-digits·Σ|S_j|. Both are computed from the partial sums along k, with SIGMAS standard
deviations of what is lost at random: u/√3·√n·Σ|t_j| for roundings in an order whose partial sums
are larger than those along k, and 2·2^-digits/√12·√(ΣS_j² + group·Σt_j²) for truncation.

MX operands are 4- and 8-bit floats with one e8m0 scale per 32 elements along k.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import Axis, Contraction, TensorSpec, Tolerance, WeightedSum
from kernelmark.numerics.floats import GROUP
from kernelmark.numerics.generate import Inputs

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyValues:
    """Inputs that kernelmark did not draw: their largest magnitudes by name, the matrix unit that
    may multiply them, and the unit roundoff of the accumulator."""

    largest: Mapping[str, float]
    unit: _MatrixUnit | None
    roundoff: float


_ANY: ContextVar[AnyValues | None] = ContextVar("any_values", default=None)


@contextlib.contextmanager
def any_values(inputs: Sequence[str], acc: str, largest: Mapping[str, float]) -> Iterator[None]:
    """Derive tolerances and magnitudes for any values of the inputs, instead of those that
    kernelmark draws. `inputs` are their dtypes, `largest` the largest magnitudes by name."""
    kinds = [dtype(name) for name in inputs]
    units = [_UNITS[kind.bits] for kind in kinds if kind.kind == "float" and kind.bits in _UNITS]
    unit = min(units, key=lambda unit: unit.digits, default=None)
    known = AnyValues(largest=largest, unit=unit, roundoff=dtype(acc).unit_roundoff)
    token = _ANY.set(known)
    try:
        yield
    finally:
        _ANY.reset(token)


def largest(tensor: str, drawn: float) -> float:
    """Return the largest magnitude in an input; `drawn` is that of the values kernelmark draws."""
    known = _ANY.get()
    return drawn if known is None else known.largest.get(tensor, 0.0)


def accumulation(terms: int, inputs: DType, acc: DType) -> float:
    """Return the error of a sum of `terms` products, relative to the sum of absolute terms, or to
    what `contract` returns in its place."""
    if acc.kind == "int":
        return 0.0
    unit = _UNITS.get(inputs.bits)
    if _ANY.get() is not None:
        return terms * (acc.unit_roundoff + (2 * 2.0**-unit.digits if unit else 0.0))
    error = min(terms, _WALK) * acc.unit_roundoff
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


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Limit of the input elements that a reference gathers: about 10 ns each.
GATHER = 2**20
_TILES = (16, 32, 64, 128, 256)
_CHUNK = 2**20
_PRODUCT = 2**22
# Points along a sum at which its size is looked at.
_CHECKPOINTS = 32


def rng_for(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def axis(length: int, count: int, rng: np.random.Generator) -> Ints:
    """Return up to `count` coordinates: both ends, edges of outer tiles, random ones."""
    if length <= count:
        return np.arange(length, dtype=np.int64)
    if count == 1:
        return rng.integers(0, length, 1)
    edges = set()
    for tile in _TILES:
        last = (length - 1) // tile * tile
        edges |= {tile - 1, tile, last - 1, last}
    inner = np.array(sorted(e for e in edges if 0 < e < length - 1), dtype=np.int64)
    edge_count = min(len(inner), (count - 2 + 1) // 2)
    picked = np.unique(
        np.concatenate([[0, length - 1], rng.choice(inner, edge_count, replace=False)])
    )
    while len(picked) < count:
        more = rng.integers(0, length, count - len(picked))
        picked = np.unique(np.concatenate([picked, more]))
    return picked.astype(np.int64)


def sides(rows: int, cols: int, terms: int, groups: int) -> tuple[int, int]:
    """Return the number of rows and columns of an output to check in each of `groups` groups. What
    a short side does not use goes to the other; at least a corner of 4 × 4 is checked."""
    positions = POSITIONS // groups
    lines = max(8, GATHER // (groups * terms))
    row_count = min(rows, math.isqrt(positions), max(4, lines // 2))
    col_count = min(cols, positions // row_count, max(4, lines - row_count))
    row_count = min(rows, positions // col_count, max(4, lines - col_count))
    return row_count, col_count


def grid(shape: tuple[int, ...], axes: tuple[Ints, ...]) -> Ints:
    """Return the flat positions of every combination of coordinates, sorted."""
    flat = np.zeros((), dtype=np.int64)
    for size, coordinates in zip(shape, axes, strict=True):
        flat = flat[..., None] * size + coordinates
    return np.unique(flat)


def spread_positions(shape: tuple[int, ...], seed: int) -> Ints:
    """Return flat positions in an output of this shape: at most POSITIONS, in a grid of coordinates
    of each dim."""
    rng, axes = rng_for(seed), dict.fromkeys(range(len(shape)), np.zeros(0, np.int64))
    budget = POSITIONS
    # Short dims first: what they do not use goes to the long ones.
    for used, dim in enumerate(sorted(axes, key=lambda dim: shape[dim])):
        each = int(budget ** (1 / (len(shape) - used)) + 1e-9)
        axes[dim] = axis(shape[dim], max(1, each), rng)
        budget //= len(axes[dim])
    return grid(shape, tuple(axes.values()))


def contract(
    where: tuple[Ints, Ints, Ints],
    terms: int,
    left: Callable[[int, Ints, Ints], Floats],
    right: Callable[[int, Ints, Ints], Floats],
) -> tuple[Floats, Floats]:
    """Return Σ_t left·right and Σ_t |left·right| at positions `where` = (group, row, column).

    `left(group, rows, t)` and `right(group, columns, t)` return elements for arrays that broadcast.
    Rows and columns shared by several positions are gathered once. For any values, the second is
    the error of the sum as a multiple of `accumulation` instead, which is at most Σ_t |left·right|.
    """
    known = _ANY.get()
    group, row, col = where
    value, magnitude = np.empty(len(row)), np.empty(len(row))
    pending = [np.flatnonzero(group == g) for g in np.unique(group)]
    while pending:
        chosen = pending.pop()
        rows, row_index = np.unique(row[chosen], return_inverse=True)
        cols, col_index = np.unique(col[chosen], return_inverse=True)
        if len(rows) * len(cols) > _PRODUCT:
            pending += np.array_split(chosen, 2)
            continue
        total = np.zeros((len(rows), len(cols)))
        size = np.zeros_like(total)
        path, square, terms_square = (np.zeros_like(total) for _ in range(3))
        step = max(1, _CHUNK // (len(rows) + len(cols)))
        if known is not None:
            step = min(step, -(-terms // _CHECKPOINTS))
        for start in range(0, terms, step):
            t = np.arange(start, min(start + step, terms), dtype=np.int64)
            a = left(int(group[chosen[0]]), rows[:, None], t[None, :])
            b = right(int(group[chosen[0]]), cols[None, :], t[:, None])
            total += a @ b
            size += np.abs(a) @ np.abs(b)
            if known is not None:
                path += np.abs(total) * len(t)
                square += total**2 * len(t)
                terms_square += a**2 @ b**2
        if known is not None:
            size = _any_magnitude(known, terms, size, path, square, terms_square)
        value[chosen] = total[row_index, col_index]
        magnitude[chosen] = size[row_index, col_index]
    return value, magnitude


def _any_magnitude(
    known: AnyValues, terms: int, size: Floats, path: Floats, square: Floats, terms_square: Floats
) -> Floats:
    """Return the error of sums of any values, as a multiple of `accumulation`, from Σ|t|, Σ|S|, ΣS²
    and Σt²; see the top of this file."""
    u = known.roundoff
    error = u * np.minimum(path + SIGMAS * math.sqrt(terms / 3) * size, terms * size)
    whole = terms * u
    if known.unit is not None:
        cut = 2.0**-known.unit.digits
        random = SIGMAS / math.sqrt(3) * np.sqrt(square + known.unit.group * terms_square)
        error += cut * np.minimum(2 * path + random, 2 * terms * size)
        whole += 2 * terms * cut
    return np.asarray(error / whole if whole else size)


# With factors in this range, squares of values and their sums stay well inside float64.
_LEAST_FACTOR, _LARGEST_FACTOR = 1e-100, 1e100
# Headroom for rounding and for the digits that matrix units truncate.
_ROOM = 1.25


def stays_finite(
    *, inputs: str, out: str, outputs: int, terms: int, alpha: float = 1.0, added: float = 0.0
) -> bool:
    """Return whether no correct value overflows or saturates, except in one check in 1 /
    FALSE_ALARM.

    `added` is the sum of the absolute factors of the terms added to alpha · Σ.
    """
    top = 128.0 if dtype(inputs).kind == "int" else 1.0
    # A product of two uniform numbers has variance at most top⁴/8 as a sub-Gaussian.
    sigmas = math.sqrt(2 * math.log(2 * outputs / FALSE_ALARM))
    # Operands of one dtype are parts of one pool: a row of A may equal a column of B. Their dot
    # product is then a sum of squares, about a third of `terms`.
    sums = min(float(terms), max(sigmas * math.sqrt(terms / 8), terms / 2))
    largest = sums * abs(alpha) * top**2 + added * top
    return largest * _ROOM <= dtype(out).max_value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """A batch of matrices in memory: a tensor and its strides in elements."""

    tensor: str
    batch: int
    row: int
    col: int

    def transposed(self) -> _Matrix:
        return dataclasses.replace(self, row=self.col, col=self.row)

    def sums(
        self, batch: int, rows: int, cols: int, *, weight: int = 0, factor: float = 1.0
    ) -> WeightedSum:
        """Return weighted sums of its rows; `weight` is the stride of weights between matrices."""
        return WeightedSum(
            tensor=self.tensor,
            rows=(
                Axis(size=batch, stride=self.batch, result=rows),
                Axis(size=rows, stride=self.row, result=1),
            ),
            cols=cols,
            col_stride=self.col,
            group_weight=weight,
            factor=factor,
        )


def matmul_contraction(problem: Problem, batch: int) -> Contraction | None:
    """Return D = alpha · op(A) · op(B) + beta · C + bias, projected along the shorter side of D,
    which leaves more rows to compare, and every element if D is a single row or column."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    options, types = problem.options, problem.dtypes
    alpha, beta, bias = float(options["alpha"]), float(options["beta"]), bool(options["bias"])
    sane = _LEAST_FACTOR <= abs(alpha) <= _LARGEST_FACTOR and abs(beta) <= _LARGEST_FACTOR
    finite = sane and stays_finite(
        inputs=types["a"],
        out=types["c"],
        outputs=batch * m * n,
        terms=k,
        alpha=alpha,
        added=abs(beta) + bias,
    )
    if not finite:
        return None
    a_row, a_col = (1, m) if options["ta"] == "t" else (k, 1)
    b_row, b_col = (1, k) if options["tb"] == "t" else (n, 1)
    left = _Matrix(tensor="a", batch=m * k, row=a_row, col=a_col)
    right = _Matrix(tensor="b", batch=k * n, row=b_row, col=b_col)
    out = _Matrix(tensor="d", batch=m * n, row=n, col=1)
    added = [(dataclasses.replace(out, tensor="c"), beta)] if beta else []
    added += [(_Matrix(tensor="bias", batch=0, row=0, col=1), 1.0)] if bias else []
    rows, cols = m, n
    if m < n:  # Dᵀ = op(B)ᵀ · op(A)ᵀ + …
        rows, cols, left, right = n, m, right.transposed(), left.transposed()
        out, added = out.transposed(), [(matrix.transposed(), f) for matrix, f in added]
    unit = "row" if m >= n else "column"
    return Contraction(
        names=("batch", unit),
        shape=(batch, rows),
        cols=cols,
        terms=k,
        projected=batch * k,
        right=(right.sums(batch, k, cols),),
        left=(left.sums(batch, rows, k, weight=k, factor=alpha),),
        added=tuple(matrix.sums(batch, rows, cols, factor=f) for matrix, f in added),
        out=out.sums(batch, rows, cols),
        unit=unit,
    )


F8_OCP = ("f8e4m3", "f8e5m2")
F8_FNUZ = ("f8e4m3fnuz", "f8e5m2fnuz")


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeRule:
    """The dtypes that go with one input dtype: of the other input, the output and the accumulator.

    The first of each is the default. No accumulator is narrower than its inputs, and matrix units
    sum products of 8-bit floats and bf16 in f32 only.
    """

    partners: tuple[str, ...]
    out: tuple[str, ...]
    acc: tuple[str, ...]


def _f8_rule(family: tuple[str, ...]) -> DtypeRule:
    return DtypeRule(partners=family, out=("bf16", "f16", "f32", *family), acc=("f32",))


PRODUCTS: dict[str, DtypeRule] = {
    "f64": DtypeRule(partners=("f64",), out=("f64",), acc=("f64",)),
    "f32": DtypeRule(partners=("f32",), out=("f32",), acc=("f32",)),
    "f16": DtypeRule(partners=("f16",), out=("f16", "f32"), acc=("f32", "f16")),
    "bf16": DtypeRule(partners=("bf16",), out=("bf16", "f32"), acc=("f32",)),
    "i8": DtypeRule(partners=("i8",), out=("i32",), acc=("i32",)),
    **{name: _f8_rule(F8_OCP) for name in F8_OCP},
    **{name: _f8_rule(F8_FNUZ) for name in F8_FNUZ},
}


def is_int(dtype_name: str) -> bool:
    return dtype(dtype_name).kind == "int"


def input_spec(name: str, shape: tuple[int, ...], dtype_name: str) -> TensorSpec:
    """Return an input: floats uniform in [-1, 1], integers uniform over all i8 values, so that a
    sum of products fits i32."""
    if is_int(dtype_name):
        return TensorSpec(name=name, shape=shape, dtype=dtype_name, low=-128.0, high=127.0)
    return TensorSpec(name=name, shape=shape, dtype=dtype_name)


def weight_bound(terms: int) -> float:
    """Return the power of two below which weights are drawn, so that a sum of `terms` products with
    numbers in [-1, 1] is about 1: f16 does not overflow, and activations are neither linear nor
    0."""
    return min(1.0, 2.0 ** round(math.log2(3 / math.sqrt(terms))))


Element = Callable[[int, Ints, Ints], Floats]
ScaleIndex = Callable[[int, Ints, Ints], Ints]

# Scales that differ by powers of two make terms differ more in size: the ratio of their root mean
# square to their mean magnitude is up to √2 times that of terms with one scale.
SPREAD = math.sqrt(2)


def operand_spec(name: str, shape: tuple[int, ...], dtype_name: str) -> TensorSpec:
    """Return an input; f4e2m1 is drawn from [-6, 6], as [-1, 1] has 5 of its 15 values."""
    if dtype_name != "f4e2m1":
        return input_spec(name, shape, dtype_name)
    return TensorSpec(name=name, shape=shape, dtype=dtype_name, low=-6.0, high=6.0)


def scale_spec(name: str, shape: tuple[int, ...], top: float = 1.0) -> TensorSpec:
    """Return scales that are powers of two from top/8 to top, as in other tests of such kernels."""
    return TensorSpec(name=name, shape=shape, dtype="f8e8m0", low=top / 8, high=top)


def scaled(
    element: Element, inputs: Inputs, name: str, scale_index: ScaleIndex, group: int = GROUP
) -> Element:
    """Return elements times the scales `name`; `scale_index` locates the scale of a group."""

    def scaled_element(item: int, lines: Ints, t: Ints) -> Floats:
        return element(item, lines, t) * inputs.take(name, scale_index(item, lines, t // group))

    return scaled_element


def summed_like(dtype_name: str) -> str:
    """Return the dtype whose accumulation error is assumed: that of 8-bit floats for f4e2m1."""
    return "f8e4m3" if dtype_name == "f4e2m1" else dtype_name
