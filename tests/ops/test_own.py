"""Ops made of plain functions: parameters, tensors, references, tolerances, and what is refused."""

import numpy as np
import pytest

from kernelmark.core.errors import ProblemError
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._own import CHECKED, Definition, OwnOp, given_spec


def softmax_inputs(rows, cols=8, dtype="f32", scale=1.0, causal=False):
    return {"x": ((rows, cols), dtype)}


def softmax(x, scale):
    e = np.exp(scale * (x - x.max(axis=-1, keepdims=True)))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture
def op():
    return OwnOp("softmax", Definition(inputs=softmax_inputs, reference=softmax))


def defined(**given):
    functions = {"inputs": softmax_inputs, "reference": softmax, **given}
    return OwnOp("softmax", Definition(**functions))


def test_parameters_are_those_of_inputs(op):
    assert list(op.parameters) == ["rows", "cols", "dtype", "scale", "causal"]
    problem = op.problem(rows=3, scale=2)
    assert problem.key == "softmax rows=3 cols=8 dtype=f32 scale=2.0 causal=no"
    assert op.problem(**problem.dims, **problem.dtypes, **problem.options) == problem


@pytest.mark.parametrize("given", [{}, {"rows": 3, "columns": 4}, {"rows": -1}, {"rows": 2**40}])
def test_a_problem_that_is_none_is_refused(op, given):
    with pytest.raises(ProblemError):
        op.problem(**given)


def test_the_output_follows_from_the_reference(op):
    x, out = op.tensors(op.problem(rows=3, dtype="bf16"))
    assert (x.name, x.shape, x.dtype, x.role) == ("x", (3, 8), "bf16", "in")
    assert (out.name, out.shape, out.dtype, out.role) == ("out", (3, 8), "bf16", "out")


def test_the_output_may_be_declared_and_then_no_reference_is_computed():
    def unknown(x):
        raise AssertionError

    op = defined(reference=unknown, output=lambda rows, dtype: ((rows,), "f64"))
    assert op.output(op.problem(rows=3)).shape == (3,)
    assert op.output(op.problem(rows=3)).dtype == "f64"


def test_the_reference_gets_float64_and_its_parameters(op):
    problem = op.problem(rows=3, scale=0.5)
    inputs = Inputs(op.tensors(problem), 1, 0)
    where = np.array([0, 9, 23])
    found = op.reference(problem, inputs, where)
    x = inputs.whole("x")
    assert x.dtype == np.float64
    assert np.array_equal(found.value, softmax(x, 0.5).ravel()[where])
    assert np.array_equal(found.magnitude, softmax(x, 0.5).max(axis=-1))


def test_integers_stay_integers():
    seen = []

    def take(table, rows):
        seen.append(rows.dtype)
        return table[rows]

    op = OwnOp(
        "take",
        Definition(
            inputs=lambda n=5: {"table": ((7, 2), "f32"), "rows": ((n,), "i32", 0, 6)},
            reference=take,
        ),
    )
    assert op.output(op.problem()).shape == (5, 2)
    assert seen == [np.dtype(np.int64)]


def test_values_that_are_given_are_those_that_are_used():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    op = OwnOp("own", Definition(inputs=lambda: {"x": values}, reference=lambda x: 2 * x))
    found = Inputs(op.tensors(op.problem()), 1, 4).whole("x").ravel()
    assert np.array_equal(found, np.roll(values.ravel(), -int(found[0])))
    spec = given_spec("i", np.arange(5, dtype=np.int32))  # integers do not move
    for number in range(4):
        assert np.array_equal(Inputs((spec,), 1, number).whole("i"), np.arange(5))


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"inputs": lambda rows: [rows]}, "problem"),
        ({"inputs": lambda rows: {"x": rows}}, "problem"),
        ({"inputs": lambda rows: {"x": ((rows,), "f31")}}, "problem"),
        ({"inputs": lambda rows: {"out": ((rows,), "f32")}}, "problem"),
        ({"inputs": lambda rows: {"x": np.zeros(rows, np.complex64)}}, "problem"),
        ({"inputs": lambda rows: 1 // 0}, "problem"),
        ({"output": lambda rows: rows}, "problem"),
        ({"output": lambda rows: ((rows, 9), "f32")}, "reference"),
        ({"flops": lambda rows: "many"}, "flops"),
        ({"flops": lambda rows: -1}, "flops"),
        ({"reference": lambda x: None, "output": lambda rows: ((rows,), "f32")}, "reference"),
    ],
)
def test_a_definition_that_is_wrong_is_told(changes, fails):
    op = defined(**changes)

    def answer(problem):
        return op.reference(problem, Inputs(op.tensors(problem), 1, 0), np.arange(3))

    if fails == "problem":
        with pytest.raises(ProblemError):
            op.problem(rows=3)
    else:
        asked = op.problem(rows=3)
        with pytest.raises(ProblemError):
            {"flops": op.flops, "reference": answer}[fails](asked)


def test_inputs_have_to_name_their_parameters():
    with pytest.raises(ProblemError):
        OwnOp("own", Definition(inputs=lambda **sizes: {}, reference=softmax))


@pytest.mark.parametrize(("dtype", "least", "most"), [("bf16", 0.01, 0.03), ("f32", 1e-6, 1e-4)])
def test_the_tolerance_follows_from_the_output_or_is_given(op, dtype, least, most):
    assert least < op.tolerance(op.problem(rows=3, dtype=dtype)).per_magnitude < most
    own = defined(rtol=0.5, atol=0.25)
    found = own.tolerance(own.problem(rows=3, dtype=dtype))
    assert (found.per_magnitude, found.per_value, found.absolute) == (0.0, 0.5, 0.25)


def test_small_outputs_are_checked_whole_and_large_ones_anywhere(op):
    assert np.array_equal(op.positions(op.problem(rows=3), 1), np.arange(24))
    large = op.problem(rows=100_000)
    one, other = (op.positions(large, seed) for seed in (1, 2))
    assert len(one) == CHECKED
    assert np.array_equal(one, np.unique(one))
    assert not np.array_equal(one, other)
    gaps = np.diff(one, prepend=-1, append=800_000)
    assert gaps.max() <= 2 * -(-800_000 // CHECKED)
    rare = op.problem(rows=(CHECKED + 8) // 8)  # most stretches are one element
    assert len(np.unique(op.positions(rare, 1))) == CHECKED
    assert op.positions(rare, 1)[-1] < rare.dims["rows"] * 8
