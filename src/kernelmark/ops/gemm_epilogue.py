"""gemm_epilogue: one GEMM with scales, a bias and an activation, as BLAS libraries fuse them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.contraction import Contraction
from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Option, Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.mxfp4 import GROUP
from kernelmark.ops._error import accumulation, trend
from kernelmark.ops._given import Given, checked_sizes
from kernelmark.ops._matmul import Matmul, elements, saturated
from kernelmark.ops._mx import SPREAD, Element, Ints, operand_spec, scale_spec, scaled, summed_like
from kernelmark.ops._sampled import contract
from kernelmark.ops._types import F8_FNUZ, F8_OCP, PRODUCTS, Rule, input_spec, weight_bound
from kernelmark.ops.base import Parameter, Reference, TensorHelp

Array = NDArray[Any]

_HELP = {
    "m": "rows of D",
    "n": "columns of D",
    "k": "length of each sum",
    "a": "dtype of A; two elements of f4e2m1 share a byte",
    "b": "dtype of B (differs from A only among 8-bit floats of one family)",
    "c": "dtype of D; an 8-bit float only with scale=tensor",
    "acc": "dtype that products are summed in",
    "bias_type": "dtype of the bias, with bias=yes",
    "ta": "n: A is stored m×k; t: k×m",
    "tb": "n: B is stored k×n; t: n×k",
    "act": "none, relu, gelu (the tanh form) or silu",
    "bias": "yes: add a row of n elements to every row before the activation",
    "scale": "none; tensor: f32 factors of A, B and an 8-bit D; mx: a power of two for 32 along k",
    "scale_layout": "with mx: linear, k/32 a row of A and of Bᵀ; or swizzle_32_4_4, cuBLASLt's",
    "dtype": "shorthand: A and B, and c that follows from it",
}
_WIDE = ("f32", "f16", "bf16")
_DTYPES = {
    "none": (*_WIDE, *F8_OCP, *F8_FNUZ),
    "tensor": (*F8_OCP, *F8_FNUZ),
    "mx": (*F8_OCP, "f4e2m1"),
}
_F4 = Rule(partners=("f4e2m1",), out=("bf16", "f16", "f32"), acc=("f32",))
_LAYOUTS = ("linear", "swizzle_32_4_4")
# Tanh and 1 + tanh to 11 digits each: NVIDIA's tanh.approx.f32 has a relative error of 2^-11 (PTX
# ISA), and TensileLite has activations of f16 outputs in f16.
_SHORT_TANH = 2.0**-11


def gelu(x: Array) -> Array:
    """GELU by tanh, which cuBLASLt's and hipBLASLt's epilogues compute (pytorch#104061;
    FloatGeluK0 and K1 in TensileLite's Activation.py). The one by erf differs by up to 5e-4."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def silu(x: Array) -> Array:
    """Return x · sigmoid(x), also called Swish."""
    with np.errstate(over="ignore"):  # exp of a large number: silu is 0
        return np.asarray(x / (1 + np.exp(-x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """A function and its Lipschitz constant; `smooth` ones are evaluated by approximations."""

    apply: Callable[[Array], Array]
    steepest: float
    smooth: bool = False


ACTIVATIONS = {
    "none": Activation(apply=np.asarray, steepest=1.0),
    "relu": Activation(apply=lambda x: np.maximum(x, 0), steepest=1.0),
    "gelu": Activation(apply=gelu, steepest=1.13, smooth=True),  # at x = 1.42
    "silu": Activation(apply=silu, steepest=1.1, smooth=True),  # at x = 2.40
}


class GemmEpilogue(Matmul):
    """D = d_scale · act(a_scale · b_scale · op(A) · op(B) + bias).

    B or its scales are drawn so small that sums are about 1, where activations are curved. The
    output is checked at positions alone: a projection does not commute with an activation, and
    has no place for factors that are themselves inputs.
    """

    name = "gemm_epilogue"
    summary = "matrix product with scales, bias and activation: D = act(scales·op(A)·op(B) + bias)"
    examples = (
        "gemm_epilogue m=33 n=47 k=65 dtype=f32 act=relu ta=t",
        "gemm_epilogue m=33 n=47 k=65 dtype=f32 act=gelu bias=yes",
        "gemm_epilogue m=64 n=48 k=128 dtype=f16 act=gelu tb=t",
        "gemm_epilogue m=64 n=48 k=128 dtype=bf16 act=silu bias=yes tb=t",
        "gemm_epilogue m=32 n=48 k=64 dtype=bf16 bias=yes",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 act=relu bias=yes tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 c=f8e4m3 tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3fnuz c=f16 act=gelu bias=yes tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 act=relu scale=mx",
        "gemm_epilogue m=32 n=48 k=96 dtype=f8e4m3 act=gelu bias=yes scale=mx "
        "scale_layout=swizzle_32_4_4",
        "gemm_epilogue m=32 n=48 k=128 dtype=f4e2m1 bias=yes scale=mx",
        "gemm_epilogue m=32 n=144 k=160 dtype=f4e2m1 scale=mx scale_layout=swizzle_32_4_4",
    )

    def __init__(self) -> None:
        super().__init__()
        self.parameters = _HELP
        linear, tiled = (f"scale=mx, scale_layout={layout}" for layout in _LAYOUTS)
        self.tensor_help = (
            *self.tensor_help[:4],
            *(TensorHelp(name, "1", "f32", "scale=tensor") for name in ("a_scale", "b_scale")),
            TensorHelp("a_scale", f"m×(k//{GROUP})", "f8e8m0", linear),
            TensorHelp("b_scale", f"n×(k//{GROUP})", "f8e8m0", linear),
            TensorHelp("a_scale", "(-(-m//128)·128)×(-(-k//128)·4)", "f8e8m0", tiled),
            TensorHelp("b_scale", "(-(-n//128)·128)×(-(-k//128)·4)", "f8e8m0", tiled),
            TensorHelp("bias", "n", "bias_type", "bias=yes"),
            TensorHelp("d_scale", "1", "f32", f"scale=tensor, c={'|'.join((*F8_OCP, *F8_FNUZ))}"),
            TensorHelp("d", "m×n", "c", role="out"),
        )

    def problem(self, /, **given: Parameter) -> Problem:
        read = Given(self.name, given, self.parameters)
        scale, bias = read.word("scale", tuple(_DTYPES)), read.flag("bias")
        mx = scale == "mx"
        dims = {name: read.dim(name) for name in ("m", "n", "k")}
        dtypes = _dtypes(read, scale)
        if bias:
            usual = usual_bias_type(dtypes)
            allowed = tuple(dict.fromkeys((usual, "f32")))
            dtypes["bias_type"] = read.dtype("bias_type", usual, allowed, f"with c={dtypes['c']}")
        elif "bias_type" in given:
            read.refuse("bias_type is given without a bias", "add bias=yes, or leave bias_type out")
        options: dict[str, Option] = {
            # The 32 elements of an MX block are adjacent in memory: both operands have k innermost.
            "ta": read.word("ta", ("n",), "with scale=mx") if mx else read.word("ta", ("n", "t")),
            "tb": read.word("tb", ("t",), "with scale=mx") if mx else read.word("tb", ("n", "t")),
            "act": read.word("act", tuple(ACTIVATIONS)),
            "bias": bias,
            "scale": scale,
        }
        if mx:
            options["scale_layout"] = read.word("scale_layout", _LAYOUTS)
            if dims["k"] % GROUP:
                read.refuse(
                    f"k={dims['k']} is not possible with scale=mx, which scales blocks of {GROUP}",
                    f"k must be a multiple of {GROUP}",
                )
        elif "scale_layout" in given:
            read.refuse(
                f"scale_layout is not possible with scale={scale}",
                "use scale=mx, or leave scale_layout out",
            )
        problem = Problem(op=self.name, dims=dims, dtypes=dtypes, options=options)
        return checked_sizes(problem, self.tensors(problem))

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
        types, options = problem.dtypes, problem.options
        top = 6.0 if types["a"] == "f4e2m1" else 1.0
        bound = weight_bound(math.ceil(k * top**4))
        b = (n, k) if options["tb"] == "t" else (k, n)
        specs = [operand_spec("a", (k, m) if options["ta"] == "t" else (m, k), types["a"])]
        if options["scale"] == "none":
            specs.append(TensorSpec(name="b", shape=b, dtype=types["b"], low=-bound, high=bound))
        else:
            specs.append(operand_spec("b", b, types["b"]))
        if options["scale"] == "tensor":
            # Neither is near 1, so that a kernel that ignores one is wrong.
            specs += [_factor("a_scale", 4.0), _factor("b_scale", bound / 2)]
        if options["scale"] == "mx":
            specs.append(scale_spec("a_scale", scale_shape(problem, m)))
            specs.append(scale_spec("b_scale", scale_shape(problem, n), bound))
        if options["bias"]:
            specs.append(input_spec("bias", (n,), types["bias_type"]))
        if types["c"] in (*F8_OCP, *F8_FNUZ):
            specs.append(_factor("d_scale", 16.0))
        return (*specs, TensorSpec(name="d", shape=(m, n), dtype=types["c"], role="out"))

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        """The magnitude is the largest error before the last rounding: see `_error`."""
        row, col = np.divmod(where, problem.dims["n"])
        left, right = elements(problem, inputs)
        if problem.options["scale"] == "mx":
            left, right = _blocks(problem, left, inputs, "a"), _blocks(problem, right, inputs, "b")
        x, terms = contract((np.zeros_like(row), row, col), problem.dims["k"], left, right)
        first = np.zeros(1, np.int64)
        if problem.options["scale"] == "tensor":
            factor = inputs.take("a_scale", first) * inputs.take("b_scale", first)
            x, terms = x * factor, terms * factor
        if problem.options["bias"]:
            bias = inputs.take("bias", col)
            x, terms = x + bias, terms + np.abs(bias)
        y, error = ACTIVATIONS[str(problem.options["act"])].apply(x), _error(problem, x, terms)
        if problem.dtypes["c"] in (*F8_OCP, *F8_FNUZ):
            d_scale = inputs.take("d_scale", first)
            y, error = y * d_scale, error * d_scale
        return Reference(value=saturated(y, problem.dtypes["c"]), magnitude=error)

    def tolerance(self, problem: Problem) -> Tolerance:
        """See `_error` for what the magnitude holds here."""
        out, act = dtype(problem.dtypes["c"]), str(problem.options["act"])
        return Tolerance(
            per_magnitude=1 + out.unit_roundoff,
            per_value=out.unit_roundoff,
            absolute=out.smallest_step / 2,
            why=(
                f"{problem.dims['k']} products of {problem.dtypes['a']} summed in f32, scaled and "
                f"rounded to {_between(problem)}, times {ACTIVATIONS[act].steepest}, the largest "
                f"slope of act={act}; then one rounding to {out}: {out.unit_roundoff:.2g} of the "
                f"value"
            ),
        )

    def contraction(self, problem: Problem) -> Contraction | None:
        return None


def scale_shape(problem: Problem, lines: int) -> tuple[int, int]:
    """Return the shape of the block scales of an operand with so many rows (of A, or of Bᵀ)."""
    blocks = problem.dims["k"] // GROUP
    if problem.options["scale_layout"] == "linear":
        return lines, blocks
    return -(-lines // 128) * 128, -(-blocks // 4) * 4


def scale_place(problem: Problem, line: Ints, block: Ints) -> Ints:
    """Return where the scale of a row's block lies.

    A tile of 128 rows and 4 blocks is stored as 32 rows of 4×4: the blocks of rows r, r + 32,
    r + 64 and r + 96. Tiles follow each other along k first. cuBLASLt reads no other layout (its
    manual: "1D Block Scaling Factors Layout"); torch calls it SWIZZLE_32_4_4.
    """
    blocks = problem.dims["k"] // GROUP
    if problem.options["scale_layout"] == "linear":
        return line * blocks + block
    tile = line // 128 * -(-blocks // 4) + block // 4
    return tile * 512 + line % 32 * 16 + line // 32 % 4 * 4 + block % 4


def _blocks(problem: Problem, element: Element, inputs: Inputs, operand: str) -> Element:
    return scaled(
        element,
        inputs,
        f"{operand}_scale",
        lambda _, line, block: scale_place(problem, line, block),
    )


def _factor(name: str, top: float) -> TensorSpec:
    return TensorSpec(name=name, shape=(1,), dtype="f32", low=top / 2, high=top)


def _between(problem: Problem) -> DType:
    """The dtype that a library without the fused epilogue stores the sum in."""
    out = dtype(problem.dtypes["c"])
    return out if out.bits > 8 else dtype("bf16")


def _error(problem: Problem, x: NDArray[np.float64], terms: NDArray[np.float64]) -> Array:
    """Return how far act(x) may be off before it is rounded, to first order.

    The sum is off by `accumulation` of its absolute terms, by `trend` and by a rounding for each
    scale and the bias. Where an activation or a bias follows, it may be stored and rounded before.
    The activation multiplies all of it by its largest slope at most, and is evaluated by
    approximations itself.
    """
    options, acc = problem.options, dtype(problem.dtypes["acc"])
    act = ACTIVATIONS[str(options["act"])]
    inputs, k = dtype(summed_like(problem.dtypes["a"])), problem.dims["k"]
    summed = accumulation(k, inputs, acc) * (SPREAD if options["scale"] == "mx" else 1)
    summed += (3 * (options["scale"] == "tensor") + bool(options["bias"])) * acc.unit_roundoff
    error = summed * terms + trend(k, inputs, acc) * np.abs(x)
    if options["act"] != "none" or options["bias"]:
        # Before a bias of at most 1 is added, the product may be larger than x.
        error += _between(problem).unit_roundoff * (np.abs(x) + bool(options["bias"]))
        error += _between(problem).smallest_step / 2
    error *= act.steepest
    if act.smooth:
        short = dtype(problem.dtypes["c"]).bits <= 16
        digits = _SHORT_TANH if short else 4 * acc.unit_roundoff * (1 + np.abs(x))
        error += digits * np.abs(x)
    return np.asarray(error)


def _dtypes(read: Given, scale: str) -> dict[str, str]:
    because, other = f"with scale={scale}", "" if scale == "mx" else "f4e2m1 with scale=mx"
    base = read.base_dtype(("a", "b"), _DTYPES[scale], because, other)
    a = read.dtype("a", base, _DTYPES[scale], because, other)
    rule = PRODUCTS.get(a, _F4)
    b = read.dtype("b", base, rule.partners, f"with a={a}")
    out = tuple(name for name in rule.out if scale == "tensor" or dtype(name).bits > 8)
    other = "an 8-bit float with scale=tensor" if len(out) < len(rule.out) else ""
    c = read.dtype("c", out[0], out, f"with {a} inputs and scale={scale}", other)
    return {"a": a, "b": b, "c": c, "acc": read.dtype("acc", "f32", ("f32",))}


def usual_bias_type(dtypes: Mapping[str, str]) -> str:
    """Return the only dtype that cuBLASLt adds: D's, but a 16-bit one to narrow inputs."""
    narrow, c = dtype(dtypes["a"]).bits <= 8, dtypes["c"]
    return c if not narrow or c == "f16" else "bf16"


op = GemmEpilogue()
