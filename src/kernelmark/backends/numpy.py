"""NumPy: BLAS GEMMs for f64 and f32, NumPy's own loops for f16 and i8, on the CPU.

How NumPy accumulates was measured and is checked by tests: `matmul` of f16 multiplies and sums in
f32 and rounds once, so acc=f32 holds. `einsum` with `dtype=` converts through a small fixed buffer
and sums in that dtype, which gives f16 → f32 and i8 → i32 without converted copies of the inputs;
`matmul` would make such copies in every launch.

- gemm_epilogue: NumPy has no bf16, 8-bit or 4-bit floats. They are upcast to f32, which is exact
  and part of the measured time, multiplied by BLAS, and the epilogue is applied step by step.
- attention: softmax(scale·Q·Kᵀ)·V, slab by slab. Scores and softmax are in the accumulator's dtype;
  probabilities are rounded to the inputs' dtype for the second GEMM, as in fused kernels.
- conv: one GEMM per image, over columns gathered into a workspace. Padding costs nothing in a
  launch: the workspace is zeroed once and only taps inside the image are copied. A 1×1 filter with
  stride 1 and no padding needs no columns.
- grouped_gemm: one GEMM for each group that has rows.
- moe: expert by expert, two GEMMs over the rows of each. Gate, up and each expert's output are
  rounded to the inputs' dtype, as in kernels that store them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown, unknown_op, wrong_device, wrong_dtypes
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.units import bytes_text, join_or
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.devices.cpu import CpuDevice, array
from kernelmark.numerics import floats
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.ops.attention import scale
from kernelmark.ops.gemm_epilogue import ACTIVATIONS, scale_place
from kernelmark.ops.grouped_gemm import group_ends

Array = NDArray[Any]
Step = Callable[[], object]
Matmul = Callable[[Array, Array, Array], object]

NATIVE = ("f64", "f32", "f16", "i8", "i32")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
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


def matmul_dtypes(problem: Problem) -> tuple[str, str, str]:
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
    if "acc" not in problem.dtypes:
        return None  # nothing is summed in another type
    inputs, acc, out = matmul_dtypes(problem)
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


def plan_gemm(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> LaunchPlan:
    """Plan D = alpha·op(A)·op(B) + beta·C + bias, each step in place in D."""
    multiply = MATMULS[matmul_dtypes(problem)]
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
    return LaunchPlan(name=f"numpy.{called}", launches=launches, workspace_bytes=workspace_bytes)


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


def plan_gemm_epilogue(
    problem: Problem, arrays: list[dict[str, Array]], free_bytes: int
) -> LaunchPlan:
    """Plan one launch per argument set; all share an f32 workspace."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    sizes = {"a": m * k, "b": k * n, "x": m * n}
    # Halve the limit for temporaries: the output is converted to its type through float64.
    room = free_bytes // (2 * len(sizes))
    space = {name: workspace((count,), _F32, room) for name, count in sizes.items()}
    return LaunchPlan(
        name="numpy.matmul in f32",
        launches=[[partial(_launch_gemm_epilogue, problem, tensors, space)] for tensors in arrays],
        workspace_bytes=sum(item.nbytes for item in space.values()),
    )


def _launch_gemm_epilogue(
    problem: Problem, tensors: dict[str, Array], space: dict[str, Array]
) -> None:
    options, types = problem.options, problem.dtypes
    a, b = (_upcast(tensors[name], types[name], space[name]) for name in "ab")
    if options["scale"] == "block":
        for operand, factors in ((a, tensors["a_scale"]), (b, tensors["b_scale"])):
            rows = factors if operand is a else np.repeat(factors, 128, axis=0)[: len(operand)]
            blocks = operand.reshape(len(operand), -1, 128)
            np.multiply(blocks, rows[..., None], out=blocks)
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
    if options["scale"] == "row":
        x *= tensors["a_scale"][:, None] * tensors["b_scale"]
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


def plan_copy(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> LaunchPlan:
    """Plan one call per set, on one thread: NumPy has no parallel copy."""
    launches: list[list[Step]] = [
        [partial(np.copyto, tensors["y"], tensors["x"])] for tensors in arrays
    ]
    return LaunchPlan(name="numpy.copyto", launches=launches)


# Scores are processed in slabs of about this size: larger ones leave the caches between steps.
SLAB_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Scores, one number per row of scores, the rounded probabilities and the causal mask."""

    scores: Array
    rows: Array
    rounded: Array | None
    mask: Array | None

    @property
    def nbytes(self) -> int:
        parts = (self.scores, self.rows, self.rounded, self.mask)
        return sum(part.nbytes for part in parts if part is not None)


def plan_attention(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> LaunchPlan:
    """Plan all slabs of each argument set, in one shared workspace."""
    dims = problem.dims
    space = _workspace(problem, arrays[0]["q"].dtype, free_bytes)
    batches, heads = space.scores.shape[:2]
    launches: list[list[Step]] = []
    for tensors in arrays:
        views = [_by_head(tensors[name], problem) for name in ("q", "k", "v", "o")]
        steps: list[Step] = []
        for batch in range(0, dims["batch"], batches):
            for head in range(0, dims["heads_kv"], heads):
                part = slice(batch, batch + batches), slice(head, head + heads)
                steps += _slab_steps(problem, [view[part] for view in views], space)
        launches.append(steps)
    return LaunchPlan(name="numpy attention", launches=launches, workspace_bytes=space.nbytes)


def _workspace(problem: Problem, narrow: np.dtype[Any], free_bytes: int) -> _Scores:
    dims = problem.dims
    wide = np.dtype(np.float64 if problem.dtypes["acc"] == "f64" else np.float32)
    group = dims["heads_q"] // dims["heads_kv"]
    head_bytes = group * dims["seq_q"] * dims["seq_kv"] * wide.itemsize
    heads = min(dims["heads_kv"], max(1, SLAB_BYTES // head_bytes))
    fit = SLAB_BYTES // (head_bytes * heads) if heads == dims["heads_kv"] else 1
    shape = (min(dims["batch"], max(1, fit)), heads, group, dims["seq_q"], dims["seq_kv"])
    # The rounded copy and the mask are at most as large as the scores: check memory for all three.
    scores = workspace(shape, wide, free_bytes // 3)
    return _Scores(
        scores=scores,
        rows=np.zeros((*shape[:-1], 1), wide),
        rounded=None if narrow == wide else np.zeros(shape, narrow),
        mask=_causal_mask(problem, wide),
    )


def _causal_mask(problem: Problem, wide: np.dtype[Any]) -> Array | None:
    """Return 0 where a query attends to a key, -inf elsewhere; the last query attends to every
    key."""
    seq_q, seq_kv = problem.dims["seq_q"], problem.dims["seq_kv"]
    if not problem.options["causal"] or seq_q == 1:
        return None
    mask = np.zeros((seq_q, seq_kv), wide)
    mask[~np.tri(seq_q, seq_kv, seq_kv - seq_q, dtype=bool)] = -np.inf
    return mask


def _by_head(x: Array, problem: Problem) -> Array:
    """Return a view (batch, heads_kv, query heads per key head or 1, seq, dim) of any layout."""
    heads_first = x.transpose(0, 2, 1, 3) if problem.options["layout"] == "bshd" else x
    batch, heads, seq, dim = heads_first.shape
    each = heads // problem.dims["heads_kv"]
    by_batch, by_head, by_row, by_column = heads_first.strides
    return np.lib.stride_tricks.as_strided(
        heads_first,
        (batch, heads // each, each, seq, dim),
        (by_batch, by_head * each, by_head, by_row, by_column),
    )


def _slab_steps(problem: Problem, views: list[Array], space: _Scores) -> list[Step]:
    q, k, v, o = views
    inputs, acc, out = matmul_dtypes(problem)
    # The last slab may be smaller than the workspace.
    part = slice(q.shape[0]), slice(q.shape[1])
    scores, rows = space.scores[part], space.rows[part]
    steps: list[Step] = [
        partial(MATMULS[inputs, acc, acc], q, k.swapaxes(-1, -2), scores),
        partial(np.multiply, scores, scores.dtype.type(scale(problem)), scores),
    ]
    if space.mask is not None:
        steps.append(partial(np.add, scores, space.mask, scores))
    steps += [
        partial(np.max, scores, axis=-1, keepdims=True, out=rows),
        partial(np.subtract, scores, rows, scores),
        partial(np.exp, scores, scores),
        partial(np.sum, scores, axis=-1, keepdims=True, out=rows),
        partial(np.divide, scores, rows, scores),
    ]
    if space.rounded is None:
        probabilities = scores
    else:
        probabilities = space.rounded[part]
        steps.append(partial(np.copyto, probabilities, scores, casting="same_kind"))
    steps.append(partial(MATMULS[inputs, acc, out], probabilities, v, o))
    return steps


Slices = tuple[slice, slice]  # outputs that a filter tap contributes to, inputs that it reads


def plan_conv(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> LaunchPlan:
    """Plan images one after the other, with all groups of an image in one GEMM."""
    nchw = problem.options["layout"] == "nchw"
    image_steps = _nchw_steps if nchw else _nhwc_steps
    columns: Array | None = None
    launches: list[list[Step]] = []
    for tensors in arrays:
        x, weights, y = tensors.values()
        if columns is None and not _is_pointwise(problem):
            columns = _columns(problem, x, y[0], free_bytes)
        steps: list[Step] = []
        for image in range(problem.dims["n"]):
            steps += image_steps(problem, x[image], weights, y[image], columns)
        launches.append(steps)
    workspace_bytes = 0 if columns is None else columns.nbytes
    return LaunchPlan(
        name="numpy conv by columns", launches=launches, workspace_bytes=workspace_bytes
    )


def _is_pointwise(problem: Problem) -> bool:
    dims = problem.dims
    ones = ("r", "s", "stride_h", "stride_w")
    return all(dims[name] == 1 for name in ones) and dims["pad_h"] == dims["pad_w"] == 0


def _columns(problem: Problem, x: Array, y: Array, free_bytes: int) -> Array:
    dims, groups = problem.dims, problem.dims["groups"]
    each = dims["c"] // groups
    if problem.options["layout"] == "nchw":
        shape = (groups, each, dims["r"], dims["s"], *y.shape[1:])
    else:
        shape = (groups, *y.shape[:2], dims["r"], dims["s"], each)
    return workspace(shape, x.dtype, free_bytes)


def _nchw_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of filters (groups, k, taps) times columns (groups, taps, pixels)."""
    groups = problem.dims["groups"]
    source = x.reshape(groups, -1, *x.shape[1:])
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[1])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[2])):
                steps.append(partial(np.copyto, columns[:, :, r, s, p, q], source[:, :, h, w]))
        source = columns
    pixels = y.shape[1] * y.shape[2]
    filters = weights.reshape(groups, y.shape[0] // groups, -1)
    multiply = MATMULS[matmul_dtypes(problem)]
    matrix, out = source.reshape(groups, -1, pixels), y.reshape(groups, -1, pixels)
    return [*steps, partial(multiply, filters, matrix, out)]


def _nhwc_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of columns (groups, pixels, taps) times filters (groups, taps, k)."""
    groups = problem.dims["groups"]
    height, width, channels = x.shape
    # Groups are adjacent within a pixel: view them as the leading dimension.
    source = x.reshape(height, width, groups, channels // groups).transpose(2, 0, 1, 3)
    pixels = y.shape[0] * y.shape[1]
    matrix = x.reshape(height * width, groups, -1).swapaxes(0, 1)
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[0])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[1])):
                steps.append(partial(np.copyto, columns[:, p, q, r, s], source[:, h, w]))
        matrix = columns.reshape(groups, pixels, -1)
    filters = weights.reshape(groups, y.shape[2] // groups, -1).swapaxes(1, 2)
    out = y.reshape(pixels, groups, -1).swapaxes(0, 1)
    return [*steps, partial(MATMULS[matmul_dtypes(problem)], matrix, filters, out)]


def _taps(problem: Problem, axis: str, taps: str, outputs: int) -> list[Slices]:
    """Return, for each filter tap along an axis, the outputs whose input lies inside the image."""
    dims = problem.dims
    size, stride, pad = dims[axis], dims[f"stride_{axis}"], dims[f"pad_{axis}"]
    tap_slices: list[Slices] = []
    for tap in range(dims[taps]):
        shift = tap * dims[f"dilation_{axis}"] - pad
        first = max(0, -(shift // stride))
        last = min(outputs - 1, (size - 1 - shift) // stride)
        count = max(0, last - first + 1)
        start = first * stride + shift if count else 0
        stop = start + (count - 1) * stride + 1 if count else 0
        tap_slices.append((slice(first, first + count), slice(start, stop, stride)))
    return tap_slices


def plan_moe(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> LaunchPlan:
    """Plan one step per set: the rows of an expert are known only at launch."""
    m, n, k, top_k = (problem.dims[name] for name in ("m", "n", "k", "top_k"))
    kind, wide = arrays[0]["x"].dtype, np.dtype(np.float32)

    def room(width: int, dtype: np.dtype[np.generic] = kind, rows: int = m) -> Array:
        return workspace((rows, width), dtype, free_bytes // 6)

    # Rows of one expert, at most all tokens; `parts` has a row for each choice.
    space = {"x": room(k), "both": room(2 * n), "silu": room(n, wide), "hidden": room(n)}
    space |= {"out": room(k), "parts": room(k, wide, m * top_k)}
    return LaunchPlan(
        name="numpy moe by experts",
        launches=[[partial(_launch_moe, problem, tensors, space)] for tensors in arrays],
        workspace_bytes=sum(array.nbytes for array in space.values()),
    )


def _launch_moe(problem: Problem, tensors: dict[str, Array], space: dict[str, Array]) -> None:
    n, top_k = problem.dims["n"], problem.dims["top_k"]
    multiply = MATMULS[matmul_dtypes(problem)]
    ids, weights = tensors["ids"].ravel(), tensors["weights"].reshape(-1, 1)
    order = np.argsort(ids, kind="stable")
    ends = np.searchsorted(ids[order], np.arange(problem.dims["e"] + 1)).tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(ends)):
        rows, count = order[start:end], end - start
        if not count:
            continue
        x, gate_up, silu = space["x"][:count], space["both"][:count], space["silu"][:count]
        np.take(tensors["x"], rows // top_k, axis=0, out=x)
        multiply(x, tensors["w1"][expert].T, gate_up)
        gate, up = gate_up[:, :n], gate_up[:, n:]
        np.negative(gate, out=silu)
        with np.errstate(over="ignore"):  # exp of a large number: silu is 0
            np.exp(silu, out=silu)
        np.add(silu, np.float32(1), out=silu)
        np.divide(gate, silu, out=silu)
        np.multiply(silu, up, out=space["hidden"][:count], casting="same_kind")
        multiply(space["hidden"][:count], tensors["w2"][expert].T, space["out"][:count])
        space["parts"][rows] = space["out"][:count] * weights[rows]
    shape = (problem.dims["m"], top_k, problem.dims["k"])
    np.sum(space["parts"].reshape(shape), axis=1, out=tensors["out"], dtype=np.float32)


def plan_grouped_gemm(
    problem: Problem, arrays: list[dict[str, Array]], free_bytes: int
) -> LaunchPlan:
    """Plan a GEMM for each group that has rows."""
    multiply, ends = MATMULS[matmul_dtypes(problem)], group_ends(problem).tolist()
    groups = [(g, slice(a, b)) for g, (a, b) in enumerate(itertools.pairwise([0, *ends])) if b > a]
    launches: list[list[Step]] = [
        [partial(multiply, s["x"][rows], s["w"][g].T, s["out"][rows]) for g, rows in groups]
        for s in arrays
    ]
    return LaunchPlan(name="numpy GEMMs by groups", launches=launches)


PLANS = {
    "gemm": plan_gemm,
    "batched_gemm": plan_gemm,
    "attention": plan_attention,
    "conv": plan_conv,
    "copy": plan_copy,
    "moe": plan_moe,
    "grouped_gemm": plan_grouped_gemm,
    "gemm_epilogue": plan_gemm_epilogue,
}


class NumpyKernel(Kernel):
    """Prebuilt NumPy calls on prebuilt views."""

    def __init__(self, plan: LaunchPlan) -> None:
        resources = {"workspace_bytes": plan.workspace_bytes} if plan.workspace_bytes else {}
        self.info = KernelInfo(name=plan.name, resources=resources)
        self._launches = plan.launches

    def launch(self, stream: Stream, set_index: int) -> None:
        for step in self._launches[set_index]:
            step()

    def close(self) -> None:
        self._launches = []


class NumpyBackend(Backend):
    name = "numpy"
    summary = "NumPy with its BLAS: the plain baseline on the CPU"
    device_kinds = ("cpu",)
    supports_examples = FrozenDict(
        {
            "cpu": (
                *("gemm *", "batched_gemm *", "attention *", "conv *", "copy *", "moe *"),
                "grouped_gemm *",
                "!*w_order=tiled",
                *("!*bf16*", "!*=f8*", "!*f16 alpha=*", "!*acc=f16", "gemm_epilogue *"),
            )
        }
    )

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return np.__version__

    def libraries(self) -> dict[str, str]:
        build: Any = np.show_config(mode="dicts")
        blas = (build or {}).get("Build Dependencies", {}).get("blas", {})
        text = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
        return {"numpy": np.__version__, "numpy blas": text}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return (
            wrong_device(self.name, self.device_kinds, info)
            or unknown_op(self.name, PLANS, problem)
            or missing(problem)
        )

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        refuse_unknown(self.name, config)
        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        if isinstance(device, CpuDevice):
            set_threads(device.threads)
        names = [spec.name for spec in ops.registry.get(problem.op).tensors(problem)]
        arrays = [{name: array(arguments[name]) for name in names} for arguments in sets]
        return NumpyKernel(PLANS[problem.op](problem, arrays, device.free_bytes()))


# Library name -> functions that set the count; builds of OpenBLAS decorate their names.
_SET_THREADS = {
    "openblas": (
        "scipy_openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "openblas_set_num_threads",
    ),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
}


def set_threads(count: int) -> bool:
    """Make every loaded BLAS use `count` threads; return False if none was found.

    A worker's environment sets the count before NumPy is imported; measuring in a process that has
    already imported NumPy needs a call of the library. Two BLAS threads on one core wait for each
    other, which makes a small GEMM ten times as slow."""
    setters = _thread_setters(tuple(_loaded_blas()))
    for setter in setters:
        setter(count)
    return bool(setters)


# By the libraries that are loaded: SciPy's wheels bring a BLAS of their own, often later.
@functools.cache
def _thread_setters(paths: tuple[str, ...]) -> tuple[Callable[[int], object], ...]:
    setters: list[Callable[[int], object]] = []
    for path in paths:
        library = ctypes.CDLL(path)
        names = next(names for part, names in _SET_THREADS.items() if part in Path(path).name)
        for name in names:
            with contextlib.suppress(AttributeError):
                setters.append(getattr(library, name))
                break
    return tuple(setters)


def _loaded_blas() -> list[str]:
    """Return the libraries mapped into this process that look like a BLAS."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if any(part in Path(path).name for part in _SET_THREADS)]


backend = NumpyBackend()
