"""gemm_epilogue with NumPy: operands upcast to f32, a BLAS GEMM, then the epilogue step by step.

NumPy has no bf16, 8-bit or 4-bit floats. Upcasting them to f32 is exact, and is part of the
measured time.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from kernelmark.backends.numpy.matmuls import Array, Plan, workspace
from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.numerics import mxfp4
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.ops.gemm_epilogue import ACTIVATIONS, scale_place

_F32 = np.dtype(np.float32)


def plan(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan one launch per argument set; all share an f32 workspace."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    sizes = {"a": m * k, "b": k * n, "x": m * n}
    # Halve the limit for temporaries: the output is converted to its type through float64.
    room = free_bytes // (2 * len(sizes))
    space = {name: workspace((count,), _F32, room) for name, count in sizes.items()}
    return Plan(
        name="numpy.matmul in f32",
        launches=[[partial(_launch, problem, held, space)] for held in arrays],
        workspace_bytes=sum(one.nbytes for one in space.values()),
    )


def _launch(problem: Problem, held: dict[str, Array], space: dict[str, Array]) -> None:
    options, types = problem.options, problem.dtypes
    a, b = (_upcast(held[name], types[name], space[name]) for name in "ab")
    if options["scale"] == "mx":
        for operand, codes in ((a, held["a_scale"]), (b, held["b_scale"])):
            blocks = operand.reshape(len(operand), -1, mxfp4.GROUP)
            line, block = np.ogrid[: blocks.shape[0], : blocks.shape[1]]
            scales = decode(codes.ravel()[scale_place(problem, line, block)], "f8e8m0")
            np.multiply(blocks, scales[..., None], out=blocks, casting="same_kind")
    x = space["x"].reshape(problem.dims["m"], problem.dims["n"])
    np.matmul(a.T if options["ta"] == "t" else a, b.T if options["tb"] == "t" else b, out=x)
    if options["scale"] == "tensor":
        x *= held["a_scale"] * held["b_scale"]
    if options["bias"]:
        x += decode(held["bias"].view(storage(types["bias_type"])), types["bias_type"])
    y = ACTIVATIONS[str(options["act"])].apply(x)
    if "d_scale" in held:
        top = dtype(types["c"]).max_value
        y = np.clip(y * held["d_scale"], -top, top)
    out = held["d"].view(storage(types["c"]))
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
