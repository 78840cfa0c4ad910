"""Matmuls that NumPy computes exactly as a problem specifies, and plans of GEMMs and copies.

How NumPy accumulates was measured and is checked by tests: `matmul` of f16 multiplies and sums in
f32 and rounds once, so acc=f32 holds. `einsum` with `dtype=` converts through a small fixed buffer
and sums in that dtype, which gives f16 → f32 and i8 → i32 without converted copies of the inputs;
`matmul` would make such copies in every launch.

NumPy has no bf16, 8-bit or 4-bit floats: gemm_epilogue upcasts them to f32, which is exact and part
of the measured time, multiplies by BLAS and applies the epilogue step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.backends._rules import wrong_dtypes
from kernelmark.core.dtype import dtype
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.units import bytes_text, join_or
from kernelmark.numerics import floats
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.ops.gemm_epilogue import ACTIVATIONS, scale_place

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
            Reason(
                f"{bytes_text(nbytes)} needed for numpy's workspace, {bytes_text(free_bytes)} free",
                "out-of-memory",
                needed=nbytes,
                free=free_bytes,
                what="numpy's workspace",
            )
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
        return Reason(
            f"numpy would round this {problem.op} to {out} before it applies {join_or(names)}"
        )
    return None


def has_epilogue(problem: Problem) -> bool:
    """Return whether the problem has alpha, beta or bias."""
    options = problem.options
    return (
        options.get("alpha", 1.0) != 1.0
        or options.get("beta", 0.0) != 0.0
        or bool(options.get("bias", False))
    )


def plan_gemm(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan D = alpha·op(A)·op(B) + beta·C + bias, each step in place in D."""
    multiply = MATMULS[types(problem)]
    options = problem.options
    scratch: Array | None = None
    if options["beta"] not in (0.0, 1.0):
        scratch = workspace(arrays[0]["d"].shape, arrays[0]["d"].dtype, free_bytes)
    launches: list[list[Step]] = []
    for tensors in arrays:
        a = tensors["a"].swapaxes(-1, -2) if options["ta"] == "t" else tensors["a"]
        b = tensors["b"].swapaxes(-1, -2) if options["tb"] == "t" else tensors["b"]
        d = tensors["d"]
        # partial of the ufunc itself: one Python call less in a small GEMM's time
        first = partial(np.matmul, a, b, d) if multiply is matmul else partial(multiply, a, b, d)
        launches.append([first, *_gemm_epilogue(problem, tensors, scratch)])
    called = "matmul" if multiply is matmul else "einsum"
    workspace_bytes = 0 if scratch is None else scratch.nbytes
    return Plan(name=f"numpy.{called}", launches=launches, workspace_bytes=workspace_bytes)


def _gemm_epilogue(
    problem: Problem, tensors: dict[str, Array], scratch: Array | None
) -> list[Step]:
    d = tensors["d"]
    steps: list[Step] = []
    alpha, beta = (d.dtype.type(problem.options[name]) for name in ("alpha", "beta"))
    if alpha != 1:
        steps.append(partial(np.multiply, d, alpha, d))
    if scratch is not None:
        steps.append(partial(np.multiply, tensors["c"], beta, scratch))
        steps.append(partial(np.add, d, scratch, d))
    elif beta == 1:
        steps.append(partial(np.add, d, tensors["c"], d))
    if problem.options["bias"]:
        steps.append(partial(np.add, d, tensors["bias"], d))
    return steps


_F32 = np.dtype(np.float32)


def plan_gemm_epilogue(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan one launch per argument set; all share an f32 workspace."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    sizes = {"a": m * k, "b": k * n, "x": m * n}
    # Halve the limit for temporaries: the output is converted to its type through float64.
    room = free_bytes // (2 * len(sizes))
    space = {name: workspace((count,), _F32, room) for name, count in sizes.items()}
    return Plan(
        name="numpy.matmul in f32",
        launches=[[partial(_launch_gemm_epilogue, problem, tensors, space)] for tensors in arrays],
        workspace_bytes=sum(item.nbytes for item in space.values()),
    )


def _launch_gemm_epilogue(
    problem: Problem, tensors: dict[str, Array], space: dict[str, Array]
) -> None:
    options, types = problem.options, problem.dtypes
    a, b = (_upcast(tensors[name], types[name], space[name]) for name in "ab")
    if options["scale"] == "mx":
        for operand, codes in ((a, tensors["a_scale"]), (b, tensors["b_scale"])):
            blocks = operand.reshape(len(operand), -1, floats.GROUP)
            line, block = np.ogrid[: blocks.shape[0], : blocks.shape[1]]
            scales = decode(codes.ravel()[scale_place(problem, line, block)], "f8e8m0")
            np.multiply(blocks, scales[..., None], out=blocks, casting="same_kind")
    x = space["x"].reshape(problem.dims["m"], problem.dims["n"])
    np.matmul(a.T if options["ta"] == "t" else a, b.T if options["tb"] == "t" else b, out=x)
    if options["scale"] == "tensor":
        x *= tensors["a_scale"] * tensors["b_scale"]
    if options["bias"]:
        x += decode(tensors["bias"].view(storage(types["bias_type"])), types["bias_type"])
    y = ACTIVATIONS[str(options["act"])].apply(x)
    if "d_scale" in tensors:
        top = dtype(types["c"]).max_value
        y = np.clip(y * tensors["d_scale"], -top, top)
    out = tensors["d"].view(storage(types["c"]))
    out[...] = encode(y.astype(np.float64), types["c"])


def _upcast(stored: Array, kind: str, space: Array) -> Array:
    """Return an operand in f32: itself, or a copy in `space`."""
    if kind == "f32":
        return stored
    wide = space.reshape(len(stored), -1)
    if kind == "f16":
        np.copyto(wide, stored)
    elif kind == "f4e2m1":
        np.take(_values(kind), stored, axis=0, out=wide.reshape(*stored.shape, 2), mode="clip")
    else:
        np.take(_values(kind), stored, out=wide, mode="clip")
    return wide


@cache
def _values(kind: str) -> NDArray[np.float32]:
    """Return the value of every code; for f4e2m1 both values of every byte, low half first."""
    codes = np.arange(2 ** max(8, dtype(kind).bits)).astype(storage(kind))
    if kind == "f4e2m1":
        codes = np.stack([codes & 15, codes >> 4], axis=-1)
    with np.errstate(invalid="ignore"):
        return decode(codes, kind).astype(np.float32)


def plan_copy(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan one call per set, on one thread: NumPy has no parallel copy."""
    launches: list[list[Step]] = [
        [partial(np.copyto, tensors["y"], tensors["x"])] for tensors in arrays
    ]
    return Plan(name="numpy.copyto", launches=launches)
