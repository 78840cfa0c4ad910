"""Dtypes of a GEMM that go together, distributions of inputs, and scales of MX operands.

MX operands are 4- and 8-bit floats with one e8m0 scale per 32 elements along k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kernelmark.core.dtype import dtype
from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.floats import GROUP
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import Floats, Ints

F8_OCP = ("f8e4m3", "f8e5m2")
F8_FNUZ = ("f8e4m3fnuz", "f8e5m2fnuz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The dtypes that go with one input dtype: of the other input, the output and the accumulator.

    The first of each is the default. No accumulator is narrower than its inputs, and matrix units
    sum products of 8-bit floats and bf16 in f32 only.
    """

    partners: tuple[str, ...]
    out: tuple[str, ...]
    acc: tuple[str, ...]


def _f8_rule(family: tuple[str, ...]) -> Rule:
    return Rule(partners=family, out=("bf16", "f16", "f32", *family), acc=("f32",))


PRODUCTS: dict[str, Rule] = {
    "f64": Rule(partners=("f64",), out=("f64",), acc=("f64",)),
    "f32": Rule(partners=("f32",), out=("f32",), acc=("f32",)),
    "f16": Rule(partners=("f16",), out=("f16", "f32"), acc=("f32", "f16")),
    "bf16": Rule(partners=("bf16",), out=("bf16", "f32"), acc=("f32",)),
    "i8": Rule(partners=("i8",), out=("i32",), acc=("i32",)),
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


def scaled(element: Element, inputs: Inputs, name: str, scale_index: ScaleIndex) -> Element:
    """Return elements times the scales `name`; `scale_index` locates a group's scale."""

    def found(item: int, lines: Ints, t: Ints) -> Floats:
        return element(item, lines, t) * inputs.take(name, scale_index(item, lines, t // GROUP))

    return found


def summed_like(dtype_name: str) -> str:
    """Return the dtype whose accumulation error is assumed: that of 8-bit floats for f4e2m1."""
    return "f8e4m3" if dtype_name == "f4e2m1" else dtype_name
