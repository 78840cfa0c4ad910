"""batched_gemm_quant: batches of GEMMs whose operands are stored or computed in few bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Option, Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics import floats
from kernelmark.numerics.floats import decode, encode
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
    SPREAD,
    Element,
    Floats,
    Ints,
    axis,
    contract,
    grid,
    input_spec,
    largest,
    operand_spec,
    product_tolerance,
    rng_for,
    scale_spec,
    scaled,
    sides,
    summed_like,
)
from kernelmark.ops.base import Op, Parameter, Parameters, Reference, TensorHelp

_HELP = {
    "batch": "independent GEMMs",
    "m": "rows of D[i]",
    "n": "columns of D[i]",
    "k": "length of each sum",
    "group": "scheme a8w8_group: elements of a row of A that share a scale, a power of two",
    "a": "dtype of A; two elements of f4e2m1 share a byte",
    "b": "dtype of B, always stored n×k",
    "c": "dtype of bias and D: bf16 or f16",
    "scheme": "a8w8, a8w8_group, a16wfp4 or afp4wfp4: who scales what (docs/ab.md)",
    "a_order": "bmk: A is stored batch×m×k; mbk: m×batch×k",
    "c_order": "bmn: D is stored batch×m×n; mbn: m×batch×n",
    "bias": "yes: add a row of n elements of its own to every D[i]",
    "dtype": "shorthand: the 16-bit dtype, of D and of an A that is not stored in fewer bits",
}
_BATCHES = 4
_WIDE = ("bf16", "f16")
_FLOOR = np.float32(1e-10)  # avoids a division by zero for a group of zeros
_GROUPS = (32, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The dtypes of A and B in a scheme, and whether it allows a bias. An empty `a` is the 16-bit
    dtype."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    bias: bool


SCHEMES = {
    # integers, with a factor per row of A and per column of D
    "a8w8": Scheme(a=("i8",), b=("i8",), bias=True),
    # A is quantised by the kernel, with a scale per `group` of a row; B has a single scale
    "a8w8_group": Scheme(a=(), b=("f8e4m3", "f8e4m3fnuz", "i8"), bias=True),
    # A is quantised to MXFP4 by the kernel; B is MXFP4
    "a16wfp4": Scheme(a=(), b=("f4e2m1",), bias=False),
    "afp4wfp4": Scheme(a=("f4e2m1",), b=("f4e2m1",), bias=False),
}


_TENSORS = (
    TensorHelp("a", "batch×m×k", "a", "a_order=bmk"),
    TensorHelp("a", "m×batch×k", "a", "a_order=mbk"),
    TensorHelp("b", "batch×n×k", "b"),
    TensorHelp("a_scale", "batch×m", "f32", "scheme=a8w8, a_order=bmk"),
    TensorHelp("a_scale", "m×batch", "f32", "scheme=a8w8, a_order=mbk"),
    TensorHelp("a_scale", "batch×m×(k//32)", "f8e8m0", "scheme=afp4wfp4, a_order=bmk"),
    TensorHelp("a_scale", "m×batch×(k//32)", "f8e8m0", "scheme=afp4wfp4, a_order=mbk"),
    TensorHelp("b_scale", "batch×n", "f32", "scheme=a8w8"),
    TensorHelp("b_scale", "1", "f32", "scheme=a8w8_group"),
    TensorHelp("b_scale", "batch×n×(k//32)", "f8e8m0", "scheme=a16wfp4|afp4wfp4"),
    TensorHelp("bias", "batch×n", "c", "bias=yes"),
    TensorHelp("d", "batch×m×n", "c", "c_order=bmn", role="out"),
    TensorHelp("d", "m×batch×n", "c", "c_order=mbn", role="out"),
)


class BatchedGemmQuant(Op):
    """D[i] = A[i]·B[i]ᵀ + bias[i] with scales. If the scheme quantises A in the kernel, so does the
    reference, bit for bit: a kernel that skips it is wrong.

    A group of A in `a8w8_group` has the scale s = max|a| / largest of B's dtype, and its elements
    become a·(1/s) rounded to B's dtype, in f32 arithmetic.
    """

    name = "batched_gemm_quant"
    summary = "batched GEMMs of int8, fp8 or MXFP4 operands with their scales"
    parameters = _HELP
    costs_are_least = True
    examples = (
        "batched_gemm_quant batch=2 m=5 n=7 k=33 scheme=a8w8",
        "batched_gemm_quant batch=2 m=5 n=7 k=300 scheme=a8w8_group",
        "batched_gemm_quant batch=2 m=5 n=7 k=96 scheme=a16wfp4 a_order=mbk",
        "batched_gemm_quant batch=3 m=5 n=7 k=64 scheme=afp4wfp4",
    )
    tensor_help = _TENSORS

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        name = read.choice("scheme", tuple(SCHEMES))
        scheme = SCHEMES[name]
        dims = {dim: read.dim(dim) for dim in ("batch", "m", "n", "k")}
        if name == "a8w8_group":
            dims["group"] = _group(read)
        elif "group" in parameters:
            reason = f"group={parameters['group']} is not possible with scheme={name}"
            read.refuse(reason, "only a8w8_group has it")
        wide = read.dtype("dtype", "bf16", _WIDE)
        because = f"with scheme={name}"
        dtypes = {
            "a": read.dtype("a", (scheme.a or (wide,))[0], scheme.a or _WIDE, because),
            "b": read.dtype("b", scheme.b[0], scheme.b, because),
            "c": read.dtype("c", wide, _WIDE),
        }
        options: dict[str, Option] = {
            "scheme": name,
            "a_order": read.choice("a_order", ("bmk", "mbk")),
            "c_order": read.choice("c_order", ("bmn", "mbn")),
            "bias": read.flag("bias"),
        }
        if options["bias"] and not scheme.bias:
            read.refuse(f"bias=yes is not possible {because}", "leave bias out")
        if scheme.b == ("f4e2m1",) and dims["k"] % floats.GROUP:
            reason = f"k={dims['k']} is not a multiple of {floats.GROUP}"
            read.refuse(reason, f"a group of MXFP4 has {floats.GROUP} elements")
        problem = Problem(op=self.name, dims=dims, dtypes=dtypes, options=options)
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        return 2 * math.prod(problem.dims[name] for name in ("batch", "m", "n", "k"))

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        batch, m, n, k = (problem.dims[name] for name in ("batch", "m", "n", "k"))
        types, options = problem.dtypes, problem.options
        swapped = options["a_order"] == "mbk"
        lines = (m, batch) if swapped else (batch, m)
        specs = [
            operand_spec("a", (*lines, k), types["a"]),
            operand_spec("b", (batch, n, k), types["b"]),
        ]
        match options["scheme"]:
            case "a8w8":
                specs += [_factor("a_scale", lines), _factor("b_scale", (batch, n))]
            case "a8w8_group":
                specs.append(_factor("b_scale", (1,)))
            case "a16wfp4":
                specs.append(scale_spec("b_scale", (batch, n, k // floats.GROUP)))
            case _:
                specs.append(scale_spec("a_scale", (*lines, k // floats.GROUP)))
                specs.append(scale_spec("b_scale", (batch, n, k // floats.GROUP)))
        if options["bias"]:
            specs.append(input_spec("bias", (batch, n), types["c"]))
        shape = (m, batch, n) if options["c_order"] == "mbn" else (batch, m, n)
        return (*specs, TensorSpec(name="d", shape=shape, dtype=types["c"], role="out"))

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        batch, m, n, k = (problem.dims[name] for name in ("batch", "m", "n", "k"))
        line, column = np.divmod(where, n)
        if problem.options["c_order"] == "mbn":
            row, item = np.divmod(line, batch)
        else:
            item, row = np.divmod(line, m)
        read = _Operands(problem, inputs)
        value, magnitude = contract((item, row, column), k, read.left(), read.right())
        factor = read.factor(item, row, column)
        value, magnitude = value * factor, magnitude * factor
        if problem.options["bias"]:
            bias = inputs.take("bias", item * n + column)
            value, magnitude = value + bias, magnitude + np.abs(bias)
        return Reference(value=value, magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        scheme, out = str(problem.options["scheme"]), dtype(problem.dtypes["c"])
        # Three operations: scale each group's sum, multiply by B's factor, add the bias.
        tolerance = product_tolerance(
            terms=problem.dims["k"],
            inputs=_summed_like(problem),
            acc="f32",
            out=problem.dtypes["c"],
            epilogue=3,
        )
        why = f"scheme {scheme}: sums as of {_summed_like(problem)}; {tolerance.why}"
        if scheme in ("a16wfp4", "afp4wfp4"):
            tolerance = dataclasses.replace(
                tolerance, per_magnitude=tolerance.per_magnitude * SPREAD
            )
        if scheme == "a8w8_group":
            step = _rounding_step(problem)
            why += (
                "; a division that is not correctly rounded may move one element of A to the "
                f"neighbouring number of {problem.dtypes['b']}: {step:.2g}"
            )
            tolerance = dataclasses.replace(tolerance, absolute=tolerance.absolute + step)
        if problem.options["bias"]:
            again = out.unit_roundoff
            why += "; the GEMM may be rounded once more before the bias is added"
            tolerance = dataclasses.replace(
                tolerance,
                per_value=tolerance.per_value + again,
                absolute=tolerance.absolute + again * largest("bias", 1.0),
            )
        return dataclasses.replace(tolerance, why=why)

    def positions(self, problem: Problem, seed: int) -> Ints:
        batch, m, n, k = (problem.dims[name] for name in ("batch", "m", "n", "k"))
        rng = rng_for(seed)
        items = axis(batch, _BATCHES, rng)
        rows, columns = sides(m, n, k, len(items))
        picked = items, axis(m, rows, rng), axis(n, columns, rng)
        if problem.options["c_order"] == "mbn":
            return grid((m, batch, n), (picked[1], picked[0], picked[2]))
        return grid((batch, m, n), picked)


class _Operands:
    """A and B of one argument set as numbers, after the scheme's quantisation."""

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self._problem = problem
        self._inputs = inputs
        self._scheme = problem.options["scheme"]
        self._batch, self._m, self._n, self._k = (
            problem.dims[name] for name in ("batch", "m", "n", "k")
        )

    def _line(self, item: Ints | int, row: Ints) -> Ints:
        """Return the index of a row among all rows of A, in storage order."""
        if self._problem.options["a_order"] == "mbk":
            return row * self._batch + item
        return item * self._m + row

    def left(self) -> Element:
        def raw(item: int, rows: Ints, t: Ints) -> Floats:
            return self._inputs.take("a", self._line(item, rows) * self._k + t)

        def scale_index(item: int, rows: Ints, block: Ints) -> Ints:
            return self._line(item, rows) * (self._k // floats.GROUP) + block

        match self._scheme:
            case "a8w8":
                return raw
            case "afp4wfp4":
                return scaled(raw, self._inputs, "a_scale", scale_index)
            case "a16wfp4":
                return self._by_groups(raw, floats.GROUP, floats.rounded)
        group, to = self._problem.dims["group"], self._problem.dtypes["b"]
        return self._by_groups(raw, group, lambda x: group_rounded(x, group, to))

    def _by_groups(self, raw: Element, group: int, quantise: Callable[[Floats], Floats]) -> Element:
        """Return elements after `quantise`, which needs the whole groups that they are in."""

        def quantised(item: int, rows: Ints, t: Ints) -> Floats:
            first, last = int(t.min()), int(t.max())
            start = first // group * group
            end = min(-(-(last + 1) // group) * group, self._k)
            whole = np.arange(start, end, dtype=np.int64)[None, :]
            return quantise(raw(item, rows, whole))[:, t.ravel() - start]

        return quantised

    def right(self) -> Element:
        def raw(item: int, columns: Ints, t: Ints) -> Floats:
            return self._inputs.take("b", (item * self._n + columns) * self._k + t)

        def scale_index(item: int, columns: Ints, block: Ints) -> Ints:
            return (item * self._n + columns) * (self._k // floats.GROUP) + block

        if self._scheme not in ("a16wfp4", "afp4wfp4"):
            return raw
        return scaled(raw, self._inputs, "b_scale", scale_index)

    def factor(self, item: Ints, row: Ints, column: Ints) -> Floats:
        """Return the factor by which the sum is multiplied afterwards."""
        if self._scheme == "a8w8":
            of_row = self._inputs.take("a_scale", self._line(item, row))
            return of_row * self._inputs.take("b_scale", item * self._n + column)
        if self._scheme == "a8w8_group":
            return self._inputs.take("b_scale", np.zeros_like(item))
        return np.ones(len(item))


def group_rounded(values: Floats, group: int, to: str) -> Floats:
    """Return rows quantised to the dtype `to`, with a scale per group, as numbers: in f32, each
    operation correctly rounded."""
    missing = -values.shape[-1] % group
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]).astype(np.float32)
    parts = padded.reshape(*values.shape[:-1], -1, group)
    top = np.float32(dtype(to).max_value)
    scale = np.maximum(np.max(np.abs(parts), axis=-1, keepdims=True), _FLOOR) / top
    quotient = np.clip(parts * (np.float32(1) / scale), -top, top)
    small = decode(encode(quotient.astype(np.float64), to), to)
    whole = (small * scale.astype(np.float64)).reshape(*values.shape[:-1], -1)
    return np.asarray(whole[..., : values.shape[-1]], np.float64)


def _group(read: Parameters) -> int:
    group = read.dim("group", 128, least=_GROUPS[0])
    if group & (group - 1) or group > _GROUPS[1]:
        expected = f"a power of two from {_GROUPS[0]} to {_GROUPS[1]}"
        read.refuse(f"group={group} is not {expected}")
    return group


def _factor(name: str, shape: tuple[int, ...]) -> TensorSpec:
    # Small enough that sums of int8 products stay well inside f16.
    return TensorSpec(name=name, shape=shape, dtype="f32", low=0.002, high=0.01)


def _summed_like(problem: Problem) -> str:
    """Return the dtype whose sums are as exact as this scheme's on the least exact hardware."""
    if problem.dtypes["b"] == "i8":
        return "f32"  # sums of integer products are exact; the sums of groups are added in f32
    return summed_like(problem.dtypes["b"])


def _rounding_step(problem: Problem) -> float:
    """Return the change of an output if one element of A is rounded the other way."""
    small = dtype(problem.dtypes["b"])
    top = small.max_value
    binade = 2.0 ** math.floor(math.log2(top))
    step = (2 * small.unit_roundoff * binade if small.kind == "float" else 1.0) / top
    largest_b = top + 1 if small.kind == "int" else 1.0
    factor = largest("a", 1.0) * largest("b_scale", _factor("b_scale", (1,)).high)
    return float(step * largest_b * factor)


op = BatchedGemmQuant()
