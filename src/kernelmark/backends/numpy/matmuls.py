"""The matmuls that NumPy computes exactly as a problem specifies.

How NumPy accumulates was measured and is checked by tests: `matmul` of f16 multiplies and sums in
f32 and rounds once, so acc=f32 holds. `einsum` with `dtype=` converts through a small fixed buffer
and sums in that dtype, which gives f16 → f32 and i8 → i32 without converted copies of the inputs;
`matmul` would make such copies in every launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.backends._rules import wrong_dtypes
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason

Array = NDArray[Any]
Step = Callable[[], object]
Matmul = Callable[[Array, Array, Array], object]

NATIVE = ("f64", "f32", "f16", "i8", "i32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of each argument set, and the workspace they share."""

    name: str
    launches: list[list[Step]]
    workspace_bytes: int = 0


def workspace(shape: tuple[int, ...], dtype: np.dtype[Any], free_bytes: int) -> Array:
    """Return zeroed memory. The size is checked first: the system would overcommit and kill the
    process later."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > free_bytes:
        raise OutOfMemory(
            Reason("out-of-memory", needed=nbytes, free=free_bytes, what="numpy's workspace")
        )
    return np.zeros(shape, dtype)


def matmul(a: Array, b: Array, out: Array) -> None:
    """Compute a matmul with np.matmul: BLAS for f64 and f32."""
    np.matmul(a, b, out=out)


def einsum(a: Array, b: Array, out: Array) -> None:
    """Compute a matmul that sums in the dtype of `out`."""
    np.einsum("...ik,...kj->...ij", a, b, out=out, dtype=out.dtype, casting="safe")


# (input, accumulator, output) -> how NumPy computes exactly that
MATMULS: dict[tuple[str, str, str], Matmul] = {
    ("f64", "f64", "f64"): matmul,
    ("f32", "f32", "f32"): matmul,
    ("f16", "f32", "f16"): matmul,
    ("f16", "f32", "f32"): einsum,
    ("i8", "i32", "i32"): einsum,
}


def types(problem: Problem) -> tuple[str, str, str]:
    """Return the dtypes of the inputs (joined with × if they differ), accumulator and output."""
    specs = ops.registry.get(problem.op).tensors(problem)
    factors = specs[: 3 if problem.op == "attention" else 2]
    inputs = "×".join(dict.fromkeys(spec.dtype for spec in factors))
    return inputs, problem.dtypes["acc"], specs[-1].dtype


def missing(problem: Problem) -> str | None:
    """Return why NumPy cannot compute a problem in exactly its types, or None."""
    if problem.op == "gemm_epilogue":
        return None  # its operands are upcast, which is exact
    if any(name not in NATIVE for name in problem.dtypes.values()):
        return wrong_dtypes("numpy", problem)
    if problem.op == "copy":
        return None
    inputs, acc, out = types(problem)
    if (inputs, acc, out) not in MATMULS:
        return wrong_dtypes("numpy", problem)
    if problem.op == "attention" and (inputs, acc, acc) not in MATMULS:
        return wrong_dtypes("numpy", problem)
    if out == "f16" and has_epilogue(problem):
        names = ("alpha", "beta", "bias")
        return Reason("rounds-twice", backend="numpy", op=problem.op, dtype=out, names=names)
    return None


def has_epilogue(problem: Problem) -> bool:
    """Return whether the problem has alpha, beta or bias."""
    options = problem.options
    return (
        options.get("alpha", 1.0) != 1.0
        or options.get("beta", 0.0) != 0.0
        or bool(options.get("bias", False))
    )
