"""gemm and batched_gemm: defaults, costs, and what exactly is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.numerics.generate import Inputs
from kernelmark_dev.raising import raises

gemm = ops.registry.get("gemm")
batched = ops.registry.get("batched_gemm")
SMALL = {"m": 4, "n": 5, "k": 6}


@pytest.mark.parametrize(
    ("dtype", "c", "acc"),
    [("f64", "f64", "f64"), ("f32", "f32", "f32"), ("f16", "f16", "f32"), ("bf16", "bf16", "f32"),
     ("i8", "i32", "i32"), ("f8e4m3", "bf16", "f32"), ("f8e5m2", "bf16", "f32"),
     ("f8e4m3fnuz", "bf16", "f32"), ("f8e5m2fnuz", "bf16", "f32")],
)  # fmt: skip
def test_output_and_accumulator_follow_from_the_input(dtype, c, acc):
    problem = gemm.problem(**SMALL, dtype=dtype)
    assert dict(problem.dtypes) == {"a": dtype, "b": dtype, "c": c, "acc": acc}


def test_a_written_out_dtype_wins_over_the_shorthand():
    problem = gemm.problem(**SMALL, dtype="f8e4m3", b="f8e5m2", c="f32")
    assert dict(problem.dtypes) == {"a": "f8e4m3", "b": "f8e5m2", "c": "f32", "acc": "f32"}


def test_equal_values_of_other_types_are_still_refused():
    """True == 1 == 1.0: options that were read for one of them are not those of another."""
    assert gemm.problem(**SMALL, dtype="f32", alpha=1.0).options["alpha"] == 1.0
    for alpha in (True, [1.0]):
        with pytest.raises(ProblemError):
            gemm.problem(**SMALL, dtype="f32", alpha=alpha)


def test_key_has_every_default_in_one_order():
    problem = gemm.problem(bias="no", k=6, alpha=1, dtype="f32", n=5, m=np.int64(4))
    assert problem.key == (
        "gemm m=4 n=5 k=6 a=f32 b=f32 c=f32 acc=f32 ta=n tb=n alpha=1.0 beta=0.0 bias=no"
    )
    assert ops.parse("gemm m=4 n=5 k=6 dtype=f32 beta=-0.0") == problem


def test_costs_by_hand():
    problem = gemm.problem(**SMALL, dtype="bf16", c="f32", beta=1.0, bias=True)
    assert gemm.flops(problem) == 2 * 4 * 5 * 6
    assert gemm.bytes(problem) == 2 * (4 * 6 + 6 * 5) + 4 * (4 * 5 + 5 + 4 * 5)
    many = batched.problem(batch=3, **SMALL, dtype="i8", bias=True)
    assert batched.flops(many) == 3 * 2 * 4 * 5 * 6
    assert batched.bytes(many) == 3 * (4 * 6 + 6 * 5) + 4 * (5 + 3 * 4 * 5)
    huge = gemm.problem(m=2**19, n=2**20, k=2**19, dtype="bf16")  # no float creeps in
    assert gemm.flops(huge) == 2**59
    assert isinstance(gemm.bytes(huge), int)


def test_integers_use_all_of_i8_and_one_below_each_limit_is_fine():
    a = gemm.tensors(gemm.problem(**SMALL, dtype="i8"))[0]
    assert (a.low, a.high) == (-128, 127)
    gemm.problem(m=2**31 - 1, n=1, k=1, dtype="i8")
    gemm.problem(m=2**20, n=2**20 - 1, k=1, dtype="i8")


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"a": (4, 6), "b": (6, 5), "d": (4, 5)}),
        ({"ta": "t"}, {"a": (6, 4), "b": (6, 5), "d": (4, 5)}),
        ({"tb": "t"}, {"a": (4, 6), "b": (5, 6), "d": (4, 5)}),
        ({"beta": 2}, {"a": (4, 6), "b": (6, 5), "c": (4, 5), "d": (4, 5)}),
        ({"bias": True}, {"a": (4, 6), "b": (6, 5), "bias": (5,), "d": (4, 5)}),
    ],
)
def test_shapes_are_as_stored(options, shapes):
    found = gemm.tensors(gemm.problem(**SMALL, dtype="f32", **options))
    assert {spec.name: spec.shape for spec in found} == shapes
    stacked = batched.tensors(batched.problem(batch=7, **SMALL, dtype="f32", **options))
    assert {s.name: s.shape for s in stacked} == {
        name: shape if name == "bias" else (7, *shape) for name, shape in shapes.items()
    }


@pytest.mark.parametrize(
    ("given", "fields", "hint"),
    [
        ({"m": 4, "n": 5, "dtype": "f32"}, {"name": "k"}, "give k="),
        ({**SMALL}, {"name": "dtype"}, "f8e4m3"),
        ({**SMALL, "m": 0, "dtype": "f32"}, {"given": "m=0", "least": 1}, None),
        ({**SMALL, "m": -8, "dtype": "f32"}, {"given": "m=-8"}, None),
        ({**SMALL, "m": 2**40, "dtype": "f32"}, {"given": "m=1099511627776"}, "2^31"),
        ({**SMALL, "m": 10**5000, "dtype": "f32"}, {"given": "m"}, "2^31"),
        ({**SMALL, "m": 4.0, "dtype": "f32"}, {"name": "m", "given": "4.0"}, None),
        ({**SMALL, "dtype": "float"}, {"name": "float"}, "bf16"),
        ({**SMALL, "dtype": "i32"}, {"value": "i32"}, "f64, f32, f16"),
        ({**SMALL, "dtype": "f32", "trans_a": "t"}, {"name": "trans_a"}, "known: m, n"),
        ({**SMALL, "dtype": "f32", "self": 1}, {"name": "self"}, "known: m, n"),
        ({**SMALL, "dtype": "f32", "beto": 1.0}, {"name": "beto"}, "did you mean beta?"),
        ({**SMALL, "a": "f16", "b": "bf16"}, {"name": "b", "why": "with a=f16"}, "b may be f16"),
        ({**SMALL, "a": "f8e4m3", "b": "f8e5m2fnuz"}, {"why": "with a=f8e4m3"}, "f8e4m3, f8e5m2"),
        ({**SMALL, "dtype": "bf16", "acc": "f16"}, {"name": "acc", "value": "f16"}, "f32"),
        ({**SMALL, "dtype": "f16", "acc": "f16", "c": "f32"}, {"name": "c"}, "c may be f16"),
        ({**SMALL, "dtype": "i8", "alpha": 0.5}, {"name": "alpha", "given": 0.5}, "i32"),
        ({**SMALL, "dtype": "f32", "alpha": 0}, {"name": "alpha"}, "not be 0"),
        ({**SMALL, "dtype": "f16", "alpha": 1e6}, {"dtype": "f16"}, "smaller alpha"),
        ({**SMALL, "dtype": "f32", "ta": "yes"}, {"name": "ta"}, "n or t"),
        ({**SMALL, "dtype": "f32", "bias": 1}, {"name": "bias"}, "bias=yes"),
        ({"m": 2**20, "n": 4, "k": 2**20, "dtype": "f32"}, {"tensor": "a"}, "2^40"),
    ],
)
def test_refusals_say_what_is_wrong_and_what_to_do(given, fields, hint):
    with raises(ProblemError, **fields) as caught:
        gemm.problem(**given)
    assert "\n" not in caught.value.message
    assert hint is None or hint in caught.value.hint


def test_an_8_bit_output_saturates():
    problem = gemm.problem(m=8, n=8, k=64, dtype="f8e4m3fnuz", c="f8e4m3fnuz", alpha=1000)
    inputs = Inputs(gemm.tensors(problem), 1, 0)
    found = gemm.reference(problem, inputs, np.arange(64))
    assert np.abs(found.value).max() == 240
    assert np.abs(found.magnitude).max() > 240


@given(
    st.fixed_dictionaries(
        {"m": st.integers(1, 9), "n": st.integers(1, 9), "k": st.integers(1, 9)},
        optional={
            "dtype": st.sampled_from(["f32", "f16", "bf16", "i8", "f8e4m3", "f8e5m2fnuz"]),
            "a": st.sampled_from(["f32", "f16", "f8e4m3"]),
            "b": st.sampled_from(["f16", "f8e5m2"]),
            "c": st.sampled_from(["f32", "bf16", "i32", "f8e4m3"]),
            "acc": st.sampled_from(["f32", "f16", "i32"]),
            "ta": st.sampled_from(["n", "t"]),
            "alpha": st.floats() | st.integers(),
            "beta": st.floats() | st.integers(),
            "bias": st.booleans() | st.just("yes"),
        },
    )
)
def test_any_combination_is_a_problem_that_parses_back_or_refused(given):
    try:
        problem = gemm.problem(**given)
    except ProblemError:
        return
    assert ops.parse(problem.key) == problem
    assert gemm.tolerance(problem).why
