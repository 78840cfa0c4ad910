"""Legal combinations of dtypes in a GEMM, and the distributions of its inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelmark.core.dtype import dtype
from kernelmark.core.tensor import TensorSpec

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
