"""Contractions of GEMMs, and the condition under which an output can be checked by one."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import Axis, Contraction, WeightedSum
from kernelmark.ops._error import FALSE_ALARM
from kernelmark.ops._types import is_int

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
    top = 128.0 if is_int(inputs) else 1.0
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
