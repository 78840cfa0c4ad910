"""Contract tests of backends. A plugin's tests inherit them:

    from kernelmark.testing.backends import BackendContract

    class TestMine(BackendContract):
        backend = "mine"                             # its name in the registry
        examples = ("gemm m=8 n=8 k=8 dtype=f32",)   # instead of those of all ops

`supports` must accept an example or reject it with a reason, as `supports_examples` of the backend
declares. An accepted example must be computed: correct at the op's positions, every element
written, no write around the output, to inputs or to other argument sets, and the same bits on a
second launch. A config with an unknown name or value must be rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelmark import backends, devices, ops
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.problem import Problem, parse_value
from kernelmark.core.result import Config, Space
from kernelmark.devices.base import GUARD_BYTES, Device, Tensor
from kernelmark.gpu.architectures import absent, is_known
from kernelmark.numerics.floats import decode
from kernelmark.numerics.generate import Inputs

POISONS = (0xFF, 0x5C)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A kernel on a device with its argument sets, for one test."""

    problem: Problem
    device: Device
    kernel: Kernel
    sets: list[dict[str, Tensor]]
    seed: int = 7

    def outcome(self, set_index: int, poison: int) -> NDArray[np.uint8]:
        """Poison the output, launch once and return the output's bytes."""
        out = self.output(set_index)
        self.device.poison(out, poison)
        self.device.synchronize()
        self.kernel.launch(self.device.stream, set_index)
        self.device.synchronize()
        self.kernel.collect(set_index)
        self.device.synchronize()
        return self.bytes_of(out)

    def output(self, set_index: int) -> Tensor:
        return self.sets[set_index][ops.registry.get(self.problem.op).output(self.problem).name]

    def bytes_of(self, tensor: Tensor) -> NDArray[np.uint8]:
        return self.device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)

    def inputs(self) -> list[bytes]:
        """Return the bytes of every input of every set."""
        return [
            self.bytes_of(tensor).tobytes()
            for arguments in self.sets
            for tensor in arguments.values()
            if tensor.spec.role == "in"
        ]

    def worst(self, set_index: int, *, everywhere: bool = False) -> float:
        """Return the largest error relative to the tolerance, at positions or everywhere."""
        op = ops.registry.get(self.problem.op)
        count = op.output(self.problem).count
        where = np.arange(count) if everywhere else op.positions(self.problem, self.seed)
        inputs = Inputs(op.tensors(self.problem), self.seed, set_index)
        right = op.reference(self.problem, inputs, where)
        got = decode(self.device.take(self.output(set_index), where), op.output(self.problem).dtype)
        allowed = op.tolerance(self.problem)
        limit = (
            allowed.per_magnitude * right.magnitude
            + allowed.per_value * np.abs(right.value)
            + allowed.absolute
        )
        error = np.abs(got - right.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            # An exact op has a tolerance of 0: no error is 0, any error is infinite.
            ratio = np.where(error == 0, 0.0, error / limit)
        return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


@contextmanager
def bench(
    backend: Backend,
    problem: Problem,
    device: Device,
    *,
    config: Config | None = None,
    sets: int = 2,
    seed: int = 7,
) -> Iterator[Bench]:
    """Yield a prepared kernel with filled inputs and guarded outputs; free all at the end."""
    tensors_of_sets: list[dict[str, Tensor]] = []
    try:
        for index in range(sets):
            tensors_of_sets.append({})
            for spec in ops.registry.get(problem.op).tensors(problem):
                buffer = device.allocate(spec.nbytes + 2 * GUARD_BYTES)
                tensor = Tensor(spec=spec, buffer=buffer, offset=GUARD_BYTES)
                tensors_of_sets[-1][spec.name] = tensor
                if spec.role == "in":
                    device.generate(tensor, seed, index)
                else:
                    device.poison(tensor, POISONS[0])
        device.synchronize()
        kernel = backend.prepare(problem, config or {}, device, tensors_of_sets)
        try:
            yield Bench(
                problem=problem, device=device, kernel=kernel, sets=tensors_of_sets, seed=seed
            )
        finally:
            kernel.close()
    finally:
        for tensor in (tensor for arguments in tensors_of_sets for tensor in arguments.values()):
            device.free(tensor.buffer)


class BackendContract:
    """Base class of a backend's tests; a subclass sets `backend`."""

    backend: ClassVar[str]
    examples: ClassVar[Sequence[str]] = ()  # empty: those of all ops

    def all_examples(self) -> Sequence[str]:
        return self.examples or examples_of_all_ops()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        backend = backends.registry.get(self.backend)
        examples = self.all_examples()
        if "example" in metafunc.fixturenames:
            cases = []
            for kind in backend.device_kinds:
                reason = backend.available() or devices.registry.get(kind).available()
                # If nothing can run, one skipped test with the reason suffices.
                idle = reason or backend.missing_on(kind)
                cases += [(kind, key) for key in (examples[:1] if idle else examples)]
            metafunc.parametrize(("kind", "example"), cases)
        elif "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", backend.device_kinds)

    def the_backend(self) -> Backend:
        """Return the backend; skip the test with its reason if it cannot run."""
        backend = backends.registry.get(self.backend)
        reason = backend.available()
        if reason is not None:
            assert_sentence(reason)
            pytest.skip(reason)
        return backend

    @contextmanager
    def opened(self, kind: str) -> Iterator[Device]:
        """Yield the first device of a kind; skip the test with its reason if there is none."""
        family = devices.registry.get(kind)
        reason = family.available() or backends.registry.get(self.backend).missing_on(kind)
        if reason:
            pytest.skip(reason)
        device = family.open(0, threads=1)
        try:
            yield device
        finally:
            device.close()

    def test_says_what_it_is(self) -> None:
        backend = backends.registry.get(self.backend)
        assert backend.name == self.backend
        assert backend.summary
        assert "\n" not in backend.summary
        assert set(backend.device_kinds) <= set(devices.registry.names())
        reason = backend.available()
        if reason is not None:
            assert_sentence(reason)
            return
        assert backend.version()
        assert all(name and version for name, version in backend.libraries().items())

    def test_supports_or_says_why_not(self, kind: str) -> None:
        backend = self.the_backend()
        with self.opened(kind) as device:
            reasons = [backend.supports(ops.parse(key), device.info) for key in self.all_examples()]
        for reason in reasons:
            if reason is not None:
                assert_sentence(reason)
        assert None in reasons, f"{self.backend} supports no example at all on {kind}"

    def test_supports_what_it_declares(self) -> None:
        """Check for neither less than declared, nor more, which could later be lost unnoticed."""
        backend = backends.registry.get(self.backend)
        assert backend.supports_examples, f"{self.backend} has no supports_examples"
        for target, patterns in backend.supports_examples.items():
            info = absent(target) if is_known(target) else devices.registry.get(target).infos()[0]
            assert info.kind in backend.device_kinds
            keys = self.all_examples()
            reasons = {key: backend.supports(ops.parse(key), info) for key in keys}
            supported = {key for key, reason in reasons.items() if reason is None}
            declared = {key for key in keys if _declares(patterns, key)}
            refused = {key: reasons[key] for key in declared - supported}
            assert not refused, f"{self.backend} declares these for {target}, and refuses them"
            undeclared = sorted(supported - declared)
            assert not undeclared, f"{self.backend} supports these on {target}, not in {patterns}"

    def test_computes_what_it_supports(self, kind: str, example: str) -> None:
        backend, problem = self.the_backend(), ops.parse(example)
        with self.opened(kind) as device:
            if backend.supports(problem, device.info) is not None:
                return
            backend.compile(problem, {}, device.info)
            with bench(backend, problem, device) as bench_run:
                self.check(bench_run)

    def check(self, bench_run: Bench) -> None:
        """Check one kernel: name, outputs, inputs, guards and reproducibility."""
        before = bench_run.inputs()
        assert bench_run.kernel.info.name, "a kernel says its name"
        first = bench_run.outcome(0, POISONS[0])
        assert (
            bench_run.device.count_poison(bench_run.output(1), POISONS[0])
            == bench_run.output(1).spec.count
        ), "a launch on one argument set wrote to another"
        bench_run.outcome(1, POISONS[0])
        assert bench_run.inputs() == before, "a launch changed its inputs"
        for index in (0, 1):
            assert bench_run.worst(index) <= 1.0, (
                f"set {index} is wrong by {bench_run.worst(index)}"
            )
        second = bench_run.outcome(0, POISONS[1])
        # Different poison, same bits: each element was written, with the same value.
        assert np.array_equal(first, second), "a second launch gave other bits, or wrote less"
        for index in (0, 1):
            assert bench_run.device.guards_intact(bench_run.output(index)), (
                "bytes around the output changed"
            )

    def test_refuses_an_unknown_config(self, kind: str) -> None:
        """Check that `prepare` rejects a name that it does not read, instead of ignoring it."""
        backend = self.the_backend()
        with self.opened(kind) as device:
            problem = self.first_supported(backend, device)
            with pytest.raises((CaseError, UsageError)):
                backend.prepare(problem, {"no_such_choice": 1}, device, [])

    def test_refuses_an_unknown_value(self, kind: str) -> None:
        """Check that `prepare` rejects a value that it cannot use, instead of using another."""
        backend = self.the_backend()
        with self.opened(kind) as device:
            for problem, space in self.spaces(backend, device):
                for name in space.parameters:
                    config = {**space.default, name: "no_such_value"}
                    with pytest.raises((CaseError, UsageError)):
                        backend.prepare(problem, config, device, [])

    def test_space_holds_its_default(self, kind: str) -> None:
        backend = self.the_backend()
        with self.opened(kind) as device:
            spaces = self.spaces(backend, device)
        for _, space in spaces:
            assert space.size >= 1
            assert space.forbids(space.default) is None
            for name, value in space.default.items():
                assert value in space.parameters[name]

    def test_values_of_its_space_can_be_given(self, kind: str) -> None:
        """Check that `--config` parses to values of the space: yes is True, not "yes"."""
        backend = self.the_backend()
        with self.opened(kind) as device:
            spaces = self.spaces(backend, device)
        for _, space in spaces:
            for name, values in space.parameters.items():
                for value in values:
                    text = ("no", "yes")[value] if isinstance(value, bool) else str(value)
                    parsed = parse_value(text)
                    assert (type(parsed), parsed) == (type(value), value), (
                        f"--config {name}={text} gives {parsed!r}, not {value!r} of the space"
                    )

    def spaces(self, backend: Backend, device: Device) -> list[tuple[Problem, Space]]:
        """Return the spaces of the first supported example of each op, where there is one."""
        first: dict[str, Problem] = {}
        for problem in map(ops.parse, self.all_examples()):
            if problem.op not in first and backend.supports(problem, device.info) is None:
                first[problem.op] = problem
        spaces = [(problem, backend.space(problem, device.info)) for problem in first.values()]
        return [(problem, space) for problem, space in spaces if space is not None]

    def first_supported(self, backend: Backend, device: Device) -> Problem:
        problems = map(ops.parse, self.all_examples())
        return next(p for p in problems if backend.supports(p, device.info) is None)


def examples_of_all_ops() -> list[str]:
    return [key for name in ops.registry.names() for key in ops.registry.get(name).examples]


def _declares(patterns: Sequence[str], key: str) -> bool:
    matching = [pattern for pattern in patterns if fnmatchcase(key, pattern.removeprefix("!"))]
    return bool(matching) and not matching[-1].startswith("!")


def assert_sentence(text: str) -> None:
    """Assert that a reason is one line of at least three words, as it is shown unchanged."""
    assert text == text.strip()
    assert "\n" not in text
    assert len(text.split()) >= 3, f"{text!r} is not a sentence"
