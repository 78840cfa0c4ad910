"""Contract tests of ops."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.core.dtype import DTYPES
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem, parse_key, parse_value
from kernelmark.numerics.floats import decode, encode
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.project import project
from kernelmark.ops.base import Op, Parameter

Example = Mapping[str, Parameter]
Arrays = Mapping[str, NDArray[np.float64]]

# Limit of an example's output, all positions of which are computed twice.
_SMALL = 200_000


class OpContract(ABC):
    """Base class of an op's tests: subclass as `TestSomething`, set `op`, define `dense`.
    `examples` are small problems to use instead of the op's own."""

    op: Op
    examples: Sequence[Example] = ()
    refused: Sequence[Example] = ()  # every one must raise ProblemError

    @abstractmethod
    def dense(self, problem: Problem, arrays: Arrays) -> NDArray[np.float64]:
        """Return the whole output in float64, by the simplest code, independent of the op's."""

    def count_flops(self, problem: Problem) -> int | None:
        """Return the operations counted one by one, or None to trust the op's formula."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "example" in metafunc.fixturenames:
            examples = self.examples or [_given(key) for key in self.op.examples]
            metafunc.parametrize("example", examples, ids=map(_label, examples))
        if "refused_example" in metafunc.fixturenames:
            metafunc.parametrize("refused_example", self.refused, ids=map(_label, self.refused))

    @pytest.fixture(autouse=True)
    def _known(self) -> None:
        """Register the op, so that `ops.parse` finds it before its package is installed."""
        if self.op.name not in ops.registry:
            ops.registry.add(self.op.name, self.op)

    def test_says_what_it_is(self) -> None:
        assert self.op.name
        assert self.op.summary
        assert "\n" not in self.op.summary
        assert all(self.op.parameters.values())
        assert self.op.examples, "every backend is tested with them"
        for key in self.op.examples:
            assert key.split()[0] == self.op.name
            ops.parse(key)

    def test_key_parses_back(self, example: Example) -> None:
        problem = self.op.problem(**example)
        assert problem.op == self.op.name
        assert ops.parse(problem.key) == problem
        assert ops.parse(problem.key).key == problem.key

    def test_order_of_arguments_does_not_matter(self, example: Example) -> None:
        names = list(example)
        random.Random(1).shuffle(names)
        shuffled = self.op.problem(**{name: example[name] for name in names})
        assert shuffled.key == self.op.problem(**example).key

    def test_every_name_of_the_key_is_a_documented_parameter(self, example: Example) -> None:
        problem = self.op.problem(**example)
        names = [*problem.dims, *problem.dtypes, *problem.options]
        assert names == [name for name in self.op.parameters if name in names]

    def test_the_tensor_help_is_true(self, example: Example) -> None:
        problem = self.op.problem(**example)
        lines = [line for line in self.op.tensor_help if _holds(line.when, problem)]
        if not self.op.tensor_help:
            return
        specs = {spec.name: spec for spec in self.op.tensors(problem)}
        assert sorted(line.name for line in lines) == sorted(specs)
        for line in lines:
            sizes = line.shape.replace("·", "*").split("×")
            shape = tuple(eval(size, {}, dict(problem.dims)) for size in sizes)
            dtype = problem.dtypes.get(line.dtype, line.dtype)
            spec = specs[line.name]
            assert (shape, dtype, line.role) == (spec.shape, spec.dtype, spec.role)

    def test_costs(self, example: Example) -> None:
        problem = self.op.problem(**example)
        assert isinstance(self.op.flops(problem), int)
        assert self.op.flops(problem) >= 0
        counted = self.count_flops(problem)
        assert counted is None or counted == self.op.flops(problem)
        assert 0 <= self.op.least_flops(problem) <= self.op.flops(problem)
        assert 0 <= self.op.least_bytes(problem) <= self.op.bytes(problem)
        each_once = sum(spec.count * DTYPES[spec.dtype].bits for spec in self.op.tensors(problem))
        over = self.op.bytes(problem) - each_once / 8
        assert over < len(self.op.tensors(problem))
        if type(self.op).bytes is Op.bytes:  # an op that looks up rows of a table reads less
            assert -over < len(self.op.tensors(problem))

    def test_tensors(self, example: Example) -> None:
        specs = self.op.tensors(self.op.problem(**example))
        assert len({spec.name for spec in specs}) == len(specs)
        assert [spec.role for spec in specs] == ["in"] * (len(specs) - 1) + ["out"]
        for spec in specs:
            assert spec.count > 0
            assert spec.dtype in DTYPES
            assert spec.low < spec.high

    def test_reference_is_the_dense_answer(self, example: Example) -> None:
        problem = self.op.problem(**example)
        where = np.arange(self.op.output(problem).count)
        assert len(where) < _SMALL, "examples must be small"
        expected = self.dense(problem, arrays_of(self.op, problem))
        assert expected.shape == self.op.output(problem).shape
        reference = self.op.reference(problem, inputs_of(self.op, problem), where)
        assert reference.value.shape == reference.magnitude.shape == where.shape
        np.testing.assert_allclose(reference.value, expected.ravel(), rtol=1e-9, atol=1e-12)
        assert np.isfinite(reference.magnitude).all()
        assert (reference.magnitude >= 0).all()

    def test_reference_at_some_positions_is_that_at_all(self, example: Example) -> None:
        problem = self.op.problem(**example)
        inputs = inputs_of(self.op, problem)
        count = self.op.output(problem).count
        everywhere = self.op.reference(problem, inputs, np.arange(count))
        where = np.random.default_rng(1).integers(0, count, 37)  # unordered, with repeats
        some = self.op.reference(problem, inputs, where)
        np.testing.assert_allclose(some.value, everywhere.value[where], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(some.magnitude, everywhere.magnitude[where], rtol=1e-6)

    def test_positions(self, example: Example) -> None:
        problem = self.op.problem(**example)
        count = self.op.output(problem).count
        where = self.op.positions(problem, 5)
        assert where.dtype == np.int64
        assert len(where) > 0
        assert (np.diff(where) > 0).all(), "unique and sorted"
        assert where[0] >= 0
        assert where[-1] < count
        assert np.array_equal(where, self.op.positions(problem, 5)), "a seed decides"

    def test_tolerance_admits_the_rounded_answer_and_no_other(self, example: Example) -> None:
        problem = self.op.problem(**example)
        tolerance = self.op.tolerance(problem)
        assert tolerance.why
        parts = (tolerance.per_magnitude, tolerance.per_value, tolerance.absolute)
        assert all(np.isfinite(part) and part >= 0 for part in parts)
        where = self.op.positions(problem, 1)
        reference = self.op.reference(problem, inputs_of(self.op, problem), where)
        allowed = parts[0] * reference.magnitude + parts[1] * np.abs(reference.value) + parts[2]
        out = self.op.output(problem).dtype
        rounded = decode(encode(reference.value, out), out)
        assert (np.abs(rounded - reference.value) <= allowed).all()
        other = self.op.reference(problem, inputs_of(self.op, problem, seed=2), where)
        assert (np.abs(other.value - reference.value) > allowed).any(), "other inputs would pass"

    def test_contraction_is_the_reference(self, example: Example) -> None:
        """Compare also with float64 as the output's dtype, which has no rounding."""
        problem = self.op.problem(**example)
        contraction = self.op.contraction(problem)
        if contraction is None:
            return
        inputs, output = inputs_of(self.op, problem), self.op.output(problem)
        reference = self.op.reference(problem, inputs, np.arange(output.count))
        tensors: dict[str, tuple[NDArray[np.generic], str]] = {}
        for spec in self.op.tensors(problem)[:-1]:
            values = inputs.take(spec.name, np.arange(spec.count))
            tensors[spec.name] = encode(values, spec.dtype), spec.dtype
        tensors[output.name] = reference.value.view(np.uint64), "f64"
        assert contraction.rows * contraction.cols == output.count
        for seed in range(3):
            signs = np.random.default_rng(seed).choice([-1.0, 1.0], contraction.cols)
            projections = project(contraction, tensors, signs)
            scale = projections.magnitude.max() * contraction.cols**0.5
            np.testing.assert_allclose(
                projections.got, projections.expected, rtol=0, atol=1e-12 * scale
            )
        np.testing.assert_allclose(
            (projections.out_norm**2).sum(), (reference.value**2).sum(), rtol=1e-9
        )
        # The bound holds in each row, so also for the sum over rows.
        assert (projections.magnitude**2).sum() * (1 + 1e-9) >= (reference.magnitude**2).sum()

    def test_unknown_parameter_is_refused(self, example: Example) -> None:
        with pytest.raises(ProblemError, match="no_such_parameter"):
            self.op.problem(**example, no_such_parameter=1)

    def test_impossible_values_are_refused(self, example: Example) -> None:
        problem = self.op.problem(**example)
        whole: dict[str, Parameter] = {**problem.dims, **problem.dtypes, **problem.options}
        wrong: list[tuple[str, Parameter]] = []
        for name in problem.dims:
            wrong += [(name, -1), (name, 2**40), (name, "many"), (name, 1.5), (name, True)]
        wrong += [(name, "f31") for name in problem.dtypes]
        for name, value in wrong:
            with pytest.raises(ProblemError):
                self.op.problem(**(whole | {name: value}))

    def test_refused_examples(self, refused_example: Example) -> None:
        with pytest.raises(ProblemError) as caught:
            self.op.problem(**refused_example)
        assert "\n" not in caught.value.message


def inputs_of(op: Op, problem: Problem, seed: int = 1) -> Inputs:
    return Inputs(op.tensors(problem), seed, 0)


def arrays_of(op: Op, problem: Problem, seed: int = 1) -> dict[str, NDArray[np.float64]]:
    """Return every input as a whole float64 array, for small problems."""
    inputs = inputs_of(op, problem, seed)
    return {
        spec.name: inputs.take(spec.name, np.arange(spec.count)).reshape(spec.shape)
        for spec in op.tensors(problem)
        if spec.role == "in"
    }


def _given(key: str) -> Example:
    loose = parse_key(key)
    return {**loose.dims, **loose.dtypes, **loose.options}


def _label(example: Example) -> str:
    return " ".join(f"{name}={value}" for name, value in example.items())


def _holds(when: str, problem: Problem) -> bool:
    """Return whether the conditions of a `TensorHelp` hold for a problem."""
    values = {**problem.options, **problem.dtypes}
    for clause in filter(None, when.split(", ")):
        name, equal, choices = clause.partition("=" if "=" in clause else "≠")
        # A parameter that is only in the problem if it is not the default is none otherwise.
        value = values.get(name, "none")
        listed = value in [parse_value(word) for word in choices.split("|")]
        if listed != (equal == "="):
            return False
    return True
