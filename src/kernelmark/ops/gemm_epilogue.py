"""gemm_epilogue: one GEMM with scales, a bias and an activation, as BLAS libraries fuse them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Option, Problem
from kernelmark.core.tensor import Contraction, TensorSpec, Tolerance
from kernelmark.numerics.floats import GROUP
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
    F8_FNUZ,
    F8_OCP,
    PRODUCTS,
    SPREAD,
    DtypeRule,
    Element,
    Floats,
    Ints,
    accumulation,
    contract,
    input_spec,
    operand_spec,
    scale_spec,
    scaled,
    summed_like,
    trend,
    weight_bound,
)
from kernelmark.ops.base import Parameter, Parameters, Reference, TensorHelp
from kernelmark.ops.gemm import Matmul, elements, saturated

Array = NDArray[Any]

_HELP = {
    "m": "rows of D",
    "n": "columns of D",
    "k": "length of each sum",
    "a": "dtype of A; two elements of f4e2m1 share a byte",
    "b": "dtype of B (differs from A only among 8-bit floats of one family)",
    "c": "dtype of D; may be an 8-bit float with scale=tensor",
    "acc": "dtype that products are summed in",
    "bias_type": "dtype of the bias, if bias=yes",
    "ta": "n: A is stored m×k; t: k×m",
    "tb": "n: B is stored k×n; t: n×k",
    "act": "activation: none, relu, gelu (the tanh form) or silu",
    "bias": "yes: add a row of n elements to every row before the activation",
    "scale": "none; tensor: one f32 factor each for A, B and an 8-bit D; row: one for each row of "
    "A and column of B; block: one for every 128 elements of a row of A, and every 128×128 of B; "
    "mx: a power of two for every 32 elements of A and B along k",
    "scale_layout": "with scale=mx: linear (row by row, k/32 scales each; hipBLASLt) or "
    "swizzle_32_4_4 (tiles of 128×4; cuBLASLt)",
    "dtype": "shorthand: A and B; c follows from it",
}
_WIDE = ("f32", "f16", "bf16")
_DTYPES = {
    "none": (*_WIDE, *F8_OCP, *F8_FNUZ),
    "tensor": (*F8_OCP, *F8_FNUZ),
    "row": (*F8_OCP, *F8_FNUZ),
    "block": (*F8_OCP, *F8_FNUZ),
    "mx": (*F8_OCP, "f4e2m1"),
}
_F4 = DtypeRule(partners=("f4e2m1",), out=("bf16", "f16", "f32"), acc=("f32",))
# The elements along k that share a scale; their operands have k innermost.
_GROUPS = {"mx": GROUP, "block": 128}
_LAYOUTS = ("linear", "swizzle_32_4_4")
# The error allowed to a sigmoid or to (1 + tanh)/2, which are within [0, 1], for outputs of at most
# 16 bits: NVIDIA's tanh.approx.f32 has a relative error of 2^-11 (PTX ISA), and TensileLite can
# evaluate activations of f16 outputs in f16.
_APPROXIMATION = 2.0**-11


def gelu(x: Array) -> Array:
    """Return the tanh form of GELU, as the epilogues of cuBLASLt (pytorch#104061) and hipBLASLt
    (FloatGeluK0 and K1 in TensileLite's Activation.py) compute it. GELU by erf differs from it by
    up to 5e-4, which only a check of f32 outputs detects."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def silu(x: Array) -> Array:
    """Return x · sigmoid(x), also called Swish."""
    with np.errstate(over="ignore"):  # exp of a large number: silu is 0
        return np.asarray(x / (1 + np.exp(-x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """An activation function and its largest slope."""

    apply: Callable[[Array], Array]
    steepest: float
    smooth: bool = False  # contains an exp or tanh, which kernels approximate


ACTIVATIONS = {
    "none": Activation(apply=np.asarray, steepest=1.0),
    "relu": Activation(apply=lambda x: np.maximum(x, 0), steepest=1.0),
    "gelu": Activation(apply=gelu, steepest=1.13, smooth=True),  # at x = 1.42
    "silu": Activation(apply=silu, steepest=1.1, smooth=True),  # at x = 2.40
}


class GemmEpilogue(Matmul):
    """D = d_scale · act(a_scale · b_scale · op(A) · op(B) + bias).

    B or its scales are drawn so small that sums are about 1, where activations are curved. The
    output is checked at sampled positions only, not by a random projection, which does not commute
    with an activation and cannot include factors that are inputs.
    """

    name = "gemm_epilogue"
    summary = "GEMM with scales, bias and activation: D = act(scales·op(A)·op(B) + bias)"
    examples = (
        "gemm_epilogue m=33 n=47 k=65 dtype=f32 act=relu ta=t",
        "gemm_epilogue m=33 n=47 k=65 dtype=f32 act=gelu bias=yes",
        "gemm_epilogue m=64 n=48 k=128 dtype=f16 act=gelu tb=t",
        "gemm_epilogue m=64 n=48 k=128 dtype=bf16 act=silu bias=yes tb=t",
        "gemm_epilogue m=32 n=48 k=64 dtype=bf16 bias=yes",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 act=relu bias=yes tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 c=f8e4m3 tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3fnuz c=f16 act=gelu bias=yes tb=t scale=tensor",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3 bias=yes tb=t scale=row",
        "gemm_epilogue m=32 n=48 k=64 dtype=f8e4m3fnuz act=relu tb=t scale=row",
        "gemm_epilogue m=32 n=144 k=256 dtype=f8e4m3 scale=block",
        "gemm_epilogue m=32 n=144 k=256 dtype=f8e4m3fnuz scale=block",
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
            TensorHelp("a_scale", "m", "f32", "scale=row"),
            TensorHelp("b_scale", "n", "f32", "scale=row"),
            TensorHelp("a_scale", "m×(k//128)", "f32", "scale=block"),
            TensorHelp("b_scale", "(-(-n//128))×(k//128)", "f32", "scale=block"),
            TensorHelp("a_scale", f"m×(k//{GROUP})", "f8e8m0", linear),
            TensorHelp("b_scale", f"n×(k//{GROUP})", "f8e8m0", linear),
            TensorHelp("a_scale", "(-(-m//128)·128)×(-(-k//128)·4)", "f8e8m0", tiled),
            TensorHelp("b_scale", "(-(-n//128)·128)×(-(-k//128)·4)", "f8e8m0", tiled),
            TensorHelp("bias", "n", "bias_type", "bias=yes"),
            TensorHelp("d_scale", "1", "f32", f"scale=tensor, c={'|'.join((*F8_OCP, *F8_FNUZ))}"),
            TensorHelp("d", "m×n", "c", role="out"),
        )

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        scale, bias = read.choice("scale", tuple(_DTYPES)), read.flag("bias")
        mx, group = scale == "mx", _GROUPS.get(scale)
        dims = {name: read.dim(name) for name in ("m", "n", "k")}
        dtypes = _dtypes(read, scale)
        if bias:
            usual = usual_bias_type(dtypes)
            allowed = tuple(dict.fromkeys((usual, "f32")))
            dtypes["bias_type"] = read.dtype("bias_type", usual, allowed, f"with c={dtypes['c']}")
        elif "bias_type" in parameters:
            value = parameters["bias_type"]
            read.refuse(
                f"bias_type={value} is not possible without a bias",
                "add bias=yes, or leave bias_type out",
            )
        options: dict[str, Option] = {
            # The elements of a block are adjacent in memory: both operands have k innermost.
            "ta": read.choice("ta", ("n",), f"with scale={scale}")
            if group
            else read.choice("ta", ("n", "t")),
            "tb": read.choice("tb", ("t",), f"with scale={scale}")
            if group
            else read.choice("tb", ("n", "t")),
            "act": read.choice("act", tuple(ACTIVATIONS)),
            "bias": bias,
            "scale": scale,
        }
        if group and dims["k"] % group:
            read.refuse(
                f"k={dims['k']} is not a multiple of {group}",
                f"scale={scale} scales blocks of {group} elements",
            )
        if mx:
            options["scale_layout"] = read.choice("scale_layout", _LAYOUTS)
        elif "scale_layout" in parameters:
            value = parameters["scale_layout"]
            read.refuse(
                f"scale_layout={value} is not possible with scale={scale}",
                "use scale=mx, or leave scale_layout out",
            )
        problem = Problem(op=self.name, dims=dims, dtypes=dtypes, options=options)
        return self.checked_sizes(problem)

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
        types, options = problem.dtypes, problem.options
        # A sum of k products of numbers up to `top` is as large as one of k·top⁴ up to 1.
        top = 6.0 if types["a"] == "f4e2m1" else 1.0
        bound = weight_bound(math.ceil(k * top**4))
        b = (n, k) if options["tb"] == "t" else (k, n)
        specs = [operand_spec("a", (k, m) if options["ta"] == "t" else (m, k), types["a"])]
        if options["scale"] == "none":
            specs.append(TensorSpec(name="b", shape=b, dtype=types["b"], low=-bound, high=bound))
        else:
            specs.append(operand_spec("b", b, types["b"]))
        if options["scale"] in ("tensor", "row"):
            # Neither is near 1, so that ignoring one gives wrong values.
            lines = (m, n) if options["scale"] == "row" else (1, 1)
            specs += [_factor("a_scale", 4.0, lines[0]), _factor("b_scale", bound / 2, lines[1])]
        if options["scale"] == "block":
            shapes = ((m, k // 128), (-(-n // 128), k // 128))
            factors = _factor("a_scale", 4.0), _factor("b_scale", bound / 2)
            specs += [replace(x, shape=shape) for x, shape in zip(factors, shapes, strict=True)]
        if options["scale"] == "mx":
            specs.append(scale_spec("a_scale", scale_shape(problem, m)))
            specs.append(scale_spec("b_scale", scale_shape(problem, n), bound))
        if options["bias"]:
            specs.append(input_spec("bias", (n,), types["bias_type"]))
        if types["c"] in (*F8_OCP, *F8_FNUZ):
            specs.append(_factor("d_scale", 16.0))
        return (*specs, TensorSpec(name="d", shape=(m, n), dtype=types["c"], role="out"))

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        """Return values, and as their magnitudes the error allowed before the last rounding."""
        row, col = np.divmod(where, problem.dims["n"])
        left, right = elements(problem, inputs)
        if problem.options["scale"] in _GROUPS:
            left, right = _blocks(problem, left, inputs, "a"), _blocks(problem, right, inputs, "b")
        x, terms = contract((np.zeros_like(row), row, col), problem.dims["k"], left, right)
        first = np.zeros(1, np.int64)
        if (scale := problem.options["scale"]) in ("tensor", "row"):
            lines = (row, col) if scale == "row" else (first, first)
            factor = inputs.take("a_scale", lines[0]) * inputs.take("b_scale", lines[1])
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
        """Return the tolerance: the magnitude (see `_error`) and one rounding of D."""
        out, act = dtype(problem.dtypes["c"]), str(problem.options["act"])
        stored = f", rounded once to {_between(problem)}" if _is_stored_between(problem) else ""
        return Tolerance(
            per_magnitude=1 + out.unit_roundoff,
            per_value=out.unit_roundoff,
            absolute=out.smallest_step / 2,
            why=(
                f"{problem.dims['k']} products of {problem.dtypes['a']} summed in "
                f"{problem.dtypes['acc']}{stored}: this error times {ACTIVATIONS[act].steepest}, "
                f"the largest slope of act={act}; then one rounding to {out}: "
                f"{out.unit_roundoff:.2g} of the value"
            ),
        )

    def contraction(self, problem: Problem) -> Contraction | None:
        return None


def scale_shape(problem: Problem, lines: int) -> tuple[int, int]:
    """Return the shape of the block scales of an operand with `lines` rows (of A, or of Bᵀ)."""
    blocks = problem.dims["k"] // GROUP
    if problem.options["scale_layout"] == "linear":
        return lines, blocks
    return -(-lines // 128) * 128, -(-blocks // 4) * 4


def scale_place(problem: Problem, line: Ints, block: Ints) -> Ints:
    """Return the flat index of the scale of block `block` in row `line`.

    In swizzle_32_4_4, a tile of 128 rows and 4 blocks is stored as 32 groups of 4×4 scales: those
    of rows r, r + 32, r + 64 and r + 96. Tiles are stored along k first. cuBLASLt's mode
    VEC32_UE8M0 reads this layout only (its manual: "1D Block Scaling Factors Layout"); torch calls
    it SWIZZLE_32_4_4.
    """
    blocks = problem.dims["k"] // _GROUPS[str(problem.options["scale"])]
    if problem.options.get("scale_layout", "linear") == "linear":
        return line * blocks + block
    tile = line // 128 * -(-blocks // 4) + block // 4
    return tile * 512 + line % 32 * 16 + line // 32 % 4 * 4 + block % 4


def _blocks(problem: Problem, element: Element, inputs: Inputs, operand: str) -> Element:
    lines = 128 if (problem.options["scale"], operand) == ("block", "b") else 1
    return scaled(
        element,
        inputs,
        f"{operand}_scale",
        lambda _, line, block: scale_place(problem, line // lines, block),
        _GROUPS[str(problem.options["scale"])],
    )


def _factor(name: str, top: float, count: int = 1) -> TensorSpec:
    return TensorSpec(name=name, shape=(count,), dtype="f32", low=top / 2, high=top)


def _between(problem: Problem) -> DType:
    """Return the dtype that an unfused epilogue stores the sum in."""
    out = dtype(problem.dtypes["c"])
    return out if out.bits > 8 else dtype("bf16")


def _is_stored_between(problem: Problem) -> bool:
    """Return whether an unfused epilogue would read the sum back from memory."""
    return problem.options["act"] != "none" or bool(problem.options["bias"])


def _error(problem: Problem, x: Floats, terms: Floats) -> Array:
    """Return the largest error of act(x) before D is rounded, to first order.

    The sum x has the errors of `accumulation` and `trend`, and one rounding for each scale and for
    the bias. If an activation or a bias follows, the sum may be stored and rounded before it. The
    activation multiplies these errors by at most its largest slope, and adds that of its own
    approximation.
    """
    options, acc = problem.options, dtype(problem.dtypes["acc"])
    act = ACTIVATIONS[str(options["act"])]
    inputs, k = dtype(summed_like(problem.dtypes["a"])), problem.dims["k"]
    summed = accumulation(k, inputs, acc) * (SPREAD if options["scale"] in _GROUPS else 1)
    summed += (
        3 * (options["scale"] in ("tensor", "row", "block")) + bool(options["bias"])
    ) * acc.unit_roundoff
    error = summed * terms + trend(k, inputs, acc) * np.abs(x)
    if _is_stored_between(problem):
        # The sum without the bias may be larger than x, by at most |bias| ≤ 1.
        error += _between(problem).unit_roundoff * (np.abs(x) + bool(options["bias"]))
        error += _between(problem).smallest_step / 2
    error *= act.steepest
    if act.smooth:
        short = dtype(problem.dtypes["c"]).bits <= 16
        relative = _APPROXIMATION if short else 4 * acc.unit_roundoff * (1 + np.abs(x))
        error += relative * np.abs(x)
    return np.asarray(error)


def _dtypes(read: Parameters, scale: str) -> dict[str, str]:
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
    """Return the only dtype of a bias that cuBLASLt adds: that of D, or if inputs have at most 8
    bits, f16 if D is f16 and bf16 otherwise."""
    narrow, c = dtype(dtypes["a"]).bits <= 8, dtypes["c"]
    return c if not narrow or c == "f16" else "bf16"


op = GemmEpilogue()
