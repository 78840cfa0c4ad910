"""Convert PyTorch operators to calls, from the shapes, types and strides in a profiler trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark import ops
from kernelmark.workloads import blas
from kernelmark.workloads.source import BadLine
from kernelmark.workloads.workload import Call

# Numbers of c10::ScalarType, in which `out_dtype` is recorded.
_SCALAR_TYPES = {5: "f16", 6: "f32", 7: "f64", 15: "bf16"}
_SCALAR_TYPES |= {23: "f8e5m2", 24: "f8e4m3", 25: "f8e5m2fnuz", 26: "f8e4m3fnuz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenInputs:
    """The recorded arguments of an operator, by position."""

    dims: Sequence[Any]
    types: Sequence[Any]
    strides: Sequence[Any]
    values: Sequence[Any]

    def shape(self, index: int, ranks: Iterable[int]) -> list[int]:
        shape = self.dims[index] if index < len(self.dims) else []
        if not isinstance(shape, list) or not all(type(size) is int for size in shape):
            raise BadLine("cannot be read: shapes")
        if len(shape) not in ranks:
            raise BadLine(f"the shape {tuple(shape)} is not supported")
        return shape

    def steps(self, index: int) -> list[int] | None:
        """Return the strides of an argument; None if they were not recorded."""
        steps = self.strides[index] if index < len(self.strides) else None
        whole = isinstance(steps, list) and all(type(step) is int for step in steps)
        return steps if whole and len(steps or ()) == len(self.dims[index]) else None

    def dtype(self, index: int) -> str:
        kind = self.types[index] if index < len(self.types) else ""
        return blas.dtype_named(str(kind))

    def given(self, index: int) -> bool:
        """Return whether an optional tensor was given."""
        return index < len(self.dims) and bool(self.dims[index])

    def word(self, index: int) -> str:
        return str(self.values[index]) if 0 <= index < len(self.values) else ""

    def number(self, index: int, default: float) -> float:
        try:
            value = float(self.word(index) or default)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadLine(f"expected a number, found {self.word(index)[:24]!r}")
        return value

    def sizes(self, index: int) -> list[int]:
        try:
            return [int(word) for word in self.word(index).strip("[]").split(",")]
        except ValueError:
            raise BadLine(f"expected sizes, found {self.word(index)[:24]!r}") from None


def _matrix(inputs: AtenInputs, index: int, *, weights: bool) -> dict[str, Any]:
    """Return the storage of an operand: letter, leading dimension and batch stride."""
    shape = inputs.shape(index, (2, 3))
    rows, columns = shape[-2:]
    steps = inputs.steps(index)
    if steps is None:
        letter = "t" if weights else "n"
        return {"letter": letter, "leading": rows if weights else columns, "known": False}
    by_rows = steps[-1] == 1 or (columns == 1 and steps[-2] != 1)
    layout = {"letter": "n" if by_rows else "t", "leading": steps[-2 if by_rows else -1]}
    # The leading dimension of a single row or column has no effect.
    if (rows if by_rows else columns) == 1:
        layout["leading"] = columns if by_rows else rows
    stored = steps[-1 if by_rows else -2] in (0, 1) or (columns if by_rows else rows) == 1
    strided = stored and steps[-1] + steps[-2] > 0
    if not strided:
        layout["leading"] = columns if by_rows else rows
    return layout | {"known": strided, "step": steps[0] if len(shape) == 3 else 0}


def _gemm(
    inputs: AtenInputs, first: int, second: int, *, weights: bool = False, **more: str
) -> Call:
    """Return the GEMM of two arguments. They are row-major, so the BLAS call has them swapped."""
    left, right = inputs.shape(first, (2, 3)), inputs.shape(second, (2, 3))
    if len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        raise BadLine(f"has shapes that do not fit: {tuple(left)}, {tuple(right)}")
    a, b = _matrix(inputs, first, weights=False), _matrix(inputs, second, weights=weights)
    kind = inputs.dtype(first)
    fields = {
        "transA": b["letter"],
        "transB": a["letter"],
        "m": str(right[-1]),
        "n": str(left[-2]),
        "k": str(left[-1]),
        "batch_count": str(left[0] if len(left) == 3 else 1),
        "lda": str(b["leading"]),
        "ldb": str(a["leading"]),
        "a_type": blas.token(inputs.dtype(second)),
        "b_type": blas.token(kind),
        "compute_type": {"f64": "f64_r", "i8": "i32_r"}.get(kind, "f32_r"),
    }
    out = {"i8": "i32"}.get(kind, kind)
    fields |= {"c_type": blas.token(out), "d_type": blas.token(out)}
    if "step" in a and "step" in b:
        fields |= {"stride_a": str(b["step"]), "stride_b": str(a["step"])}
    call = blas.call(fields | more)
    if a["known"] and b["known"]:
        return call
    return dataclasses.replace(call, lost=(*call.lost, "layout"))


def _mm(inputs: AtenInputs) -> Call:
    return _gemm(inputs, 0, 1)


def _addmm(inputs: AtenInputs, **more: str) -> Call:
    """Return the call of addmm. A row that is added with factor 1 is a bias, anything else C."""
    added = inputs.shape(0, (0, 1, 2, 3))
    beta, alpha = inputs.number(3, 1.0), inputs.number(4, 1.0)
    row = math.prod(added[:-1]) == 1
    fields = {"alpha": repr(alpha), "beta": repr(0.0 if row and beta == 1 else beta)}
    if row and beta == 1:
        fields["bias_vector"] = "1"
    return _gemm(inputs, 1, 2, weights=row, **fields, **more)


def _addmm_activation(inputs: AtenInputs) -> Call:
    return _addmm(inputs, activation_type="gelu" if inputs.word(5) == "True" else "relu")


def _scaled_mm(inputs: AtenInputs) -> Call:
    """Return the call of _scaled_mm. Arguments: a, b, their scales, bias, scale of the result,
    out_dtype, fast accumulation."""
    out = inputs.word(6)
    if not out.isdigit() or int(out) not in _SCALAR_TYPES:
        raise BadLine(f"unknown output type {out[:24]!r}")
    token = blas.token(_SCALAR_TYPES[int(out)])
    scales = {
        name: "2" if len(inputs.shape(index, (0, 1, 2))) == 2 else "1"
        for name, index in (("scaleB", 2), ("scaleA", 3))
    }
    bias = str(int(inputs.given(4)))
    types = {"c_type": token, "d_type": token, "bias_vector": bias}
    return _gemm(inputs, 0, 1, weights=True, **types, **scales)


def _linear(inputs: AtenInputs) -> Call:
    """Return the call of a linear without a recorded GEMM inside: x of any rank, w stored n×k."""
    shape, weights = inputs.shape(0, range(2, 9)), inputs.shape(1, (2,))
    flat = AtenInputs(
        dims=[[math.prod(shape[:-1]), shape[-1]], weights[::-1]],
        types=inputs.types,
        strides=[[shape[-1], 1], [1, weights[-1]]],
        values=(),
    )
    return _gemm(flat, 0, 1, bias_vector=str(int(inputs.given(2))))


def _matmul(inputs: AtenInputs) -> Call:
    """Return the call of a matmul without a recorded GEMM inside."""
    left, right = inputs.shape(0, range(2, 9)), inputs.shape(1, range(2, 9))
    if len(right) == 2:
        dims = [[math.prod(left[:-1]), left[-1]], right]
    elif left[:-2] == right[:-2]:
        batch = math.prod(left[:-2])
        dims = [[batch, *left[-2:]], [batch, *right[-2:]]]
    else:
        raise BadLine(f"is a broadcast matmul ({left} × {right}), which no op computes")
    return _gemm(AtenInputs(dims=dims, types=inputs.types, strides=(), values=()), 0, 1)


def _attention(
    *, mask: int, dropout: int, causal: int, scale: int, layout: str = "bhsd"
) -> Callable[[AtenInputs], Call]:
    """Return a reader of attention operators with these argument positions; -1: no such
    argument."""

    def read(inputs: AtenInputs) -> Call:
        q, k, v = (inputs.shape(index, (4,)) for index in range(3))
        seq, heads = (1, 2) if layout == "bshd" else (2, 1)
        steps = inputs.steps(0)
        swapped = steps is not None and q[1] > 1 and q[2] > 1 and steps[1] < steps[2]
        stored = {"bhsd": "bshd", "bshd": "bhsd"}[layout] if swapped else layout
        is_causal = inputs.word(causal) == "True"
        lost = []
        if mask >= 0 and inputs.given(mask):
            lost.append("mask")
        if inputs.number(dropout, 0.0) > 0:
            lost.append("dropout")
        if is_causal and q[seq] != k[seq]:
            lost.append("causal")  # PyTorch aligns the mask at the first query, our op at the last
        factor = inputs.word(scale)
        problem = ops.registry.get("attention").problem(
            batch=q[0],
            heads_q=q[heads],
            heads_kv=k[heads],
            seq_q=q[seq],
            seq_kv=k[seq],
            dim_qk=q[3],
            dim_v=v[3],
            dtype=inputs.dtype(0),
            causal=is_causal,
            scale=inputs.number(scale, 0.0) if factor else "auto",
            layout=stored,
        )
        return Call(problem=problem, lost=tuple(lost))

    return read


def _convolution(inputs: AtenInputs) -> Call:
    """Return the call of a convolution. Arguments: x, w, bias, stride, padding, dilation,
    transposed, output padding, groups."""
    x, w = inputs.shape(0, (3, 4)), inputs.shape(1, (3, 4))
    if inputs.word(6) == "True":
        raise BadLine("is a transposed convolution, which no op computes")
    steps = inputs.steps(0)
    by_channel = steps is not None and len(x) == 4 and x[1] > 1 and steps[1] == 1
    sizes: dict[str, int] = {}
    for name, index, default in (("stride", 3, 1), ("pad", 4, 0), ("dilation", 5, 1)):
        *rest, width = inputs.sizes(index)
        sizes |= {f"{name}_h": rest[0] if rest else default, f"{name}_w": width}
    if len(x) == 3:  # a 1D convolution is one of an image with one row
        x, w = [*x[:2], 1, x[2]], [*w[:2], 1, w[2]]
        sizes |= {"stride_h": 1, "pad_h": 0, "dilation_h": 1}
    problem = ops.registry.get("conv").problem(
        **dict(zip(("n", "c", "h", "w"), x, strict=True)),
        **dict(zip(("k", "r", "s"), (w[0], *w[2:]), strict=True)),
        **sizes,
        groups=int(inputs.number(8, 1)),
        dtype=inputs.dtype(0),
        layout="nhwc" if by_channel else "nchw",
    )
    return Call(problem=problem, lost=("bias",) if inputs.given(2) else ())


def _backward(inputs: AtenInputs) -> Call:
    raise BadLine("is a backward pass, which no op computes")


# Operators that are always counted; what they call is ignored.
LEAVES: Mapping[str, Callable[[AtenInputs], Call]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::_int_mm": _mm,
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::baddbmm": _addmm,
    "aten::baddbmm_": _addmm,
    "aten::_addmm_activation": _addmm_activation,
    "aten::_scaled_mm": _scaled_mm,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _backward,
    "aten::_scaled_dot_product_flash_attention": _attention(mask=-1, dropout=3, causal=4, scale=6),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(
        mask=5, dropout=3, causal=4, scale=6
    ),
    "aten::_scaled_dot_product_efficient_attention": _attention(
        mask=3, dropout=5, causal=6, scale=7
    ),
    "aten::_scaled_dot_product_cudnn_attention": _attention(mask=3, dropout=5, causal=6, scale=8),
    "aten::_flash_attention_forward": _attention(
        mask=-1, dropout=7, causal=8, scale=10, layout="bshd"
    ),
    "aten::_scaled_dot_product_flash_attention_backward": _backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward,
}
# Operators that are counted only if they call none of the above.
WRAPPERS: Mapping[str, Callable[[AtenInputs], Call]] = {
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::scaled_dot_product_attention": _attention(mask=3, dropout=4, causal=5, scale=6),
}
