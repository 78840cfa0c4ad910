"""The random projection: right outputs of every kind pass, wrong ones do not."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.measure.check import ProjectionCheck, check_projection
from kernelmark.numerics.floats import decode, encode
from kernelmark.numerics.project import project
from kernelmark.ops._checks import PRODUCTS
from kernelmark.testing.ops import inputs_of


class Whole:
    """A problem with all its inputs, the exact output, and any output checked against them."""

    def __init__(self, problem: Problem, seed: int = 1) -> None:
        self.problem, self.op = problem, ops.registry.get(problem.op)
        self.contraction = self.op.contraction(problem)
        self.output = self.op.output(problem)
        inputs = inputs_of(self.op, problem, seed)
        where = np.arange(self.output.count)
        self.exact = self.op.reference(problem, inputs, where).value
        self.tensors = {}
        for spec in self.op.tensors(problem)[:-1]:
            values = inputs.take(spec.name, np.arange(spec.count))
            self.tensors[spec.name] = encode(values, spec.dtype), spec.dtype

    @property
    def right(self) -> np.ndarray:
        return encode(self.exact, self.output.dtype)

    def check(self, bits: np.ndarray, seed: int = 0) -> ProjectionCheck:
        assert self.contraction is not None
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], self.contraction.cols)
        tensors = self.tensors | {self.output.name: (bits, self.output.dtype)}
        found = project(self.contraction, tensors, signs)
        tolerance = self.op.tolerance(self.problem)
        return check_projection(self.contraction, found, tolerance, self.output.type)


@st.composite
def products(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(PRODUCTS)) -> Problem:
    a = draw(st.sampled_from(kinds))
    rule = PRODUCTS[a]
    acc = draw(st.sampled_from(rule.acc))
    fitting = [name for name in rule.out if dtype(name).bits <= dtype(acc).bits]
    whole = a == "i8"
    factor = st.sampled_from([1, 2, -3] if whole else [1.0, 0.37, -2.5])
    name = draw(st.sampled_from(["gemm", "batched_gemm"]))
    size = st.integers(1, 24)
    return ops.registry.get(name).problem(
        **({"batch": draw(st.integers(1, 4))} if name == "batched_gemm" else {}),
        **{dim: draw(size) for dim in ("m", "n")},
        k=draw(st.integers(1, 80)),
        a=a,
        b=draw(st.sampled_from(rule.partners)),
        c=draw(st.sampled_from(fitting)),
        acc=acc,
        ta=draw(st.sampled_from("nt")),
        tb=draw(st.sampled_from("nt")),
        alpha=draw(factor),
        beta=draw(st.just(0) | factor),
        bias=draw(st.booleans()),
    )


@st.composite
def convolutions(draw: st.DrawFn) -> Problem:
    few = st.integers(1, 3)
    groups = draw(few)
    x = draw(st.sampled_from(["f64", "f32", "f16", "bf16", "i8"]))
    two = {f"{what}_{side}": draw(few) for what in ("stride", "dilation") for side in "hw"}
    pads = {f"pad_{side}": draw(st.integers(0, 3)) for side in "hw"}
    return ops.registry.get("conv").problem(
        n=draw(few),
        c=groups * draw(few),
        k=groups * draw(few),
        h=draw(st.integers(7, 10)),
        w=draw(st.integers(7, 10)),
        r=draw(few),
        s=draw(few),
        groups=groups,
        x=x,
        layout=draw(st.sampled_from(["nchw", "nhwc"])),
        **two,
        **pads,
    )


def is_float(problem: Problem) -> bool:
    return ops.registry.get(problem.op).output(problem).type.kind == "float"


problems = products() | convolutions()
some = settings(max_examples=80, deadline=None)


@given(problem=problems, seed=st.integers(0, 99))
@some
def test_the_rounded_answer_passes(problem: Problem, seed: int) -> None:
    whole = Whole(problem)
    assume(whole.contraction is not None)
    found = whole.check(whole.right, seed)
    assert found.ratio <= 1.0
    assert found.bad == 0
    assert found.rows * whole.contraction.cols == whole.output.count


@given(problem=problems.filter(is_float), seed=st.integers(0, 99), data=st.data())
@some
def test_not_a_number_anywhere_fails(problem: Problem, seed: int, data: st.DataObject) -> None:
    whole = Whole(problem)
    assume(whole.contraction is not None)
    bits, at = whole.right, data.draw(st.integers(0, whole.output.count - 1))
    bits[at] = encode(np.array([np.nan]), whole.output.dtype)[0]
    found = whole.check(bits, seed)
    assert found.bad == 1
    assert found.ratio == np.inf
    if whole.output.type.has_inf:
        bits[at] = encode(np.array([np.inf]), whole.output.dtype)[0]
        assert whole.check(bits, seed).bad == 1


@given(problem=products(("i8",)), seed=st.integers(0, 99), data=st.data())
@some
def test_one_wrong_integer_fails(problem: Problem, seed: int, data: st.DataObject) -> None:
    whole = Whole(problem)
    bits, at = whole.right, data.draw(st.integers(0, whole.output.count - 1))
    bits[at] += 1
    assert whole.check(bits, seed).bad == 1


KINDS = [
    {"dtype": "f64"},
    {"dtype": "f32"},
    {"dtype": "f16"},
    {"dtype": "f16", "acc": "f16"},
    {"dtype": "bf16"},
    {"dtype": "bf16", "c": "f32", "beta": 1.0, "bias": True},
    {"dtype": "i8"},
    {"a": "f8e4m3", "b": "f8e5m2"},
    {"dtype": "f8e5m2fnuz", "c": "f8e5m2fnuz"},
]
SHAPES = [
    {"m": 200, "n": 160, "k": 96},
    {"m": 160, "n": 200, "k": 96, "ta": "t", "tb": "t"},
    {"m": 1, "n": 4000, "k": 64, "tb": "t"},
    {"m": 4000, "n": 3, "k": 64},
]


@functools.cache
def large(kind: int, shape: int, seed: int = 1) -> Whole:
    return Whole(ops.registry.get("gemm").problem(**KINDS[kind], **SHAPES[shape]), seed)


def tampered(right: np.ndarray, other: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A right output with a part taken from another one."""
    where = np.random.default_rng(seed).random(right.size) < fraction
    return np.where(where, other, right)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_a_part_that_is_wrong_fails(kind: int, shape: int) -> None:
    whole = large(kind, shape)
    right = whole.right
    moved = np.roll(right.reshape(whole.output.shape), 1, axis=-1).ravel()
    # One in a hundred is less than what rounding to 3 digits may add up to.
    fractions = (0.1, 0.01) if whole.output.type.bits > 8 else (0.1,)
    for fraction in fractions:
        for other in (np.zeros_like(right), large(kind, shape, seed=2).right, moved):
            for seed in range(3):
                assert whole.check(tampered(right, other, fraction, seed), seed).bad > 0


def test_a_wrong_row_fails_and_is_found() -> None:
    whole = Whole(ops.registry.get("gemm").problem(m=300, n=200, k=64, dtype="bf16"))
    bits = whole.right.reshape(300, 200)
    bits[123] = np.roll(bits[123], 1)
    found = [whole.check(bits.ravel(), seed) for seed in range(20)]
    assert all(one.bad == 1 and one.where == (0, 123) for one in found)


def test_an_output_that_is_too_large_does_not_excuse_itself() -> None:
    whole = Whole(ops.registry.get("gemm").problem(m=64, n=64, k=64, dtype="f8e5m2", c="f8e5m2"))
    bits = encode(whole.exact * 500, "f8e5m2")
    assert all(whole.check(bits, seed).bad > 16 for seed in range(20))


def test_what_may_overflow_has_no_contraction() -> None:
    gemm = ops.registry.get("gemm")
    size = {"m": 64, "n": 64}
    assert gemm.contraction(gemm.problem(**size, k=512, dtype="f8e4m3", c="f8e4m3")) is not None
    for problem in (
        gemm.problem(**size, k=4096, dtype="f8e4m3", c="f8e4m3"),
        gemm.problem(**size, k=64, dtype="f8e4m3", c="f8e4m3", alpha=99.0),
        gemm.problem(**size, k=64, dtype="f16", alpha=2800.0),
        gemm.problem(**size, k=64, dtype="f64", alpha=1e200),
        gemm.problem(**size, k=64, dtype="f64", alpha=1e-200),
    ):
        assert gemm.contraction(problem) is None


def summed(a: np.ndarray, b: np.ndarray, how: str) -> np.ndarray:
    """A product whose sums are as inexact as hardware's: one term after the other."""
    kind = np.float16 if how == "f16" else np.float32
    total = np.zeros((a.shape[0], b.shape[1]), kind)
    if how != "cut":
        for t in range(a.shape[1]):
            total = (total + (np.outer(a[:, t], b[t])).astype(kind)).astype(kind)
        return total.astype(np.float64)
    # 14 digits of the largest term or sum, over groups of 32 products, as Hopper's FP8 units
    for t in range(0, a.shape[1], 32):
        terms = a[:, t : t + 32, None] * b[None, t : t + 32, :]
        largest = np.maximum(np.abs(terms).max(axis=1), np.abs(total))
        step = np.exp2(np.floor(np.log2(np.maximum(largest, 1e-30))) - 13)
        parts = np.trunc(terms / step[:, None, :]).sum(axis=1) + np.trunc(total / step)
        total = (parts * step).astype(np.float32)
    return total.astype(np.float64)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("f32", {"dtype": "f32"}),
        ("f16", {"dtype": "f16", "acc": "f16"}),
        ("cut", {"dtype": "f8e4m3", "c": "f32"}),
        ("cut", {"dtype": "f8e4m3"}),
    ],
)
@pytest.mark.parametrize("k", [8, 64, 1024])
def test_inexact_sums_pass(how: str, kind: dict[str, str], k: int) -> None:
    """With room to spare: the errors of a row add up to less than a third of what is allowed."""
    whole = Whole(ops.registry.get("gemm").problem(m=72, n=80, k=k, **kind))
    a = decode(*whole.tensors["a"]).reshape(72, k)
    b = decode(*whole.tensors["b"]).reshape(k, 80)
    bits = encode(summed(a, b, how).ravel(), whole.output.dtype)
    assert max(whole.check(bits, seed).ratio for seed in range(20)) < 1 / 3


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f8e4m3"])
def test_no_false_alarms(kind: str) -> None:
    """2000 projections of right outputs; few columns come closest to what is allowed."""
    worst = 0.0
    for k in range(1, 26):
        for m, n in ((40, 1), (17, 2), (1, 90), (33, 30), (70, 70)):
            whole = Whole(ops.registry.get("gemm").problem(m=m, n=n, k=k, dtype=kind))
            worst = max(worst, *(whole.check(whole.right, seed).ratio for seed in range(4)))
    assert 0.01 < worst <= 1.0
