"""A tiny op and a scripted kernel for it, so that the protocol is tested without any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelmark.core.problem import Problem
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.core.timing import Timing
from kernelmark.devices.base import GUARD_BYTES, ArgumentSet
from kernelmark.devices.cpu import array
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.measure.check import poison_byte
from kernelmark.measure.protocol import Outcome, finish, measure_blocks
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.base import Op, Parameter, Reference


class Twice(Op):
    """y = 2·x, elementwise."""

    name = "twice"
    summary = "for tests"
    parameters = {"n": "elements", "x": "dtype"}  # noqa: RUF012

    def problem(self, **given: Parameter) -> Problem:
        return Problem(op="twice", dims={"n": int(given["n"])}, dtypes={"x": str(given["x"])})

    def flops(self, problem: Problem) -> int:
        return problem.dims["n"]

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        shape, dtype = (problem.dims["n"],), problem.dtypes["x"]
        bounds = {"low": -70.0, "high": 70.0} if dtype == "i8" else {}
        return (
            TensorSpec(name="x", shape=shape, dtype=dtype, **bounds),
            TensorSpec(name="y", shape=shape, dtype=dtype, role="out"),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        value = 2 * inputs.take("x", where)
        return Reference(value=value, magnitude=np.abs(value))

    def tolerance(self, problem: Problem) -> Tolerance:
        rounding = self.tensors(problem)[1].type.unit_roundoff
        return Tolerance(per_magnitude=0.0, per_value=rounding, absolute=0.0, why="one rounding")

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        count = problem.dims["n"]
        return np.unique(np.random.default_rng(seed).integers(0, count, 16).clip(0, count - 1))


class TwiceKernel:
    """Computes y for a set, advances the clock by `seconds(set_index)`, then misbehaves as told."""

    def __init__(
        self,
        device: Any,
        sets: Sequence[ArgumentSet],
        seconds: Callable[[int], float],
        fault: str = "",
    ) -> None:
        self.info = KernelInfo(name="twice")
        self.launched: list[int] = []
        self.closed = False
        self._device = device
        self._sets = sets
        self._seconds = seconds
        self._fault = fault
        self._answers: dict[tuple[int, bytes], NDArray[Any]] = {}

    def launch(self, stream: int, set_index: int) -> None:
        self.launched.append(set_index)
        self._device.advance(self._seconds(set_index))
        arguments = self._sets[set_index]
        y = array(arguments["y"])
        # Computed once for each content, which keeps tests quick: inputs are rewritten.
        key = set_index, array(arguments["x"]).ravel()[:16].tobytes()
        if key not in self._answers:
            self._answers[key] = _doubled(arguments).view(y.dtype)
        first = next(known for known in self._answers if known[0] == set_index)
        if self._fault == "skips" and self.launched.count(set_index) > 1:
            return
        y[...] = self._answers[first if self._fault == "stale" else key]
        if self._fault:
            self._misbehave(arguments, y, set_index)

    def _misbehave(self, arguments: ArgumentSet, y: NDArray[Any], set_index: int) -> None:
        tensor = arguments["y"]
        memory = tensor.buffer.array  # type: ignore[attr-defined]
        end = tensor.offset + tensor.spec.nbytes
        if self._fault == "short":
            y.view(np.uint8)[-4:] = poison_byte(tensor.spec.type)
        elif self._fault == "overrun":
            memory[end + GUARD_BYTES - 1] = 0
        elif self._fault == "nan":
            y[...] = np.nan
        elif self._fault == "off":
            y[...] = y * np.asarray(1.01, y.dtype)
        elif self._fault == "last set" and set_index == len(self._sets) - 1:
            y[...] = 7
        elif self._fault == "zeroes inputs":
            array(arguments["x"])[...] = 0
        elif self._fault == "writes all":
            for others in self._sets:
                array(others["y"])[...] = _doubled(others).view(y.dtype)
        elif self._fault == "raises":
            raise RuntimeError("launch failed")

    def collect(self, set_index: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _doubled(arguments: ArgumentSet) -> NDArray[np.generic]:
    dtype = arguments["x"].spec.dtype
    bits = array(arguments["x"]).view(storage(dtype))
    return encode(2 * decode(bits, dtype), dtype)


class Bench:
    """Measures `twice` on a fake device and remembers the kernels, one a block."""

    def __init__(self) -> None:
        self.op = Twice()
        self.kernels: list[TwiceKernel] = []
        self.phases: list[str] = []
        self.device = FakeDevice()

    def __call__(
        self,
        *,
        n: int = 1000,
        dtype: str = "f32",
        seconds: Callable[[int], float] | float | Sequence[float] = 50e-6,
        fault: str = "",
        script: Script | None = None,
        device: FakeDevice | None = None,
        process: int = 0,
        cutoff_s: float | None = None,
        **timing: Any,
    ) -> Outcome:
        self.kernels.clear()
        self.phases.clear()
        self.device = device or FakeDevice(script=script)

        def prepare(sets: Sequence[ArgumentSet]) -> TwiceKernel:
            block = len(self.kernels)
            if callable(seconds):
                spend = seconds
            else:
                fixed = seconds if isinstance(seconds, float) else seconds[block % len(seconds)]
                spend = lambda index: fixed  # noqa: E731
            self.kernels.append(TwiceKernel(self.device, sets, spend, fault))
            return self.kernels[-1]

        steps = measure_blocks(
            problem=self.op.problem(n=n, x=dtype),
            op=self.op,
            device=self.device,
            timing=Timing(
                **{
                    "max_s": 0.2,
                    "warmup_s": 0.02,
                    "max_allocations": 10,
                    "target_rel_ci": 0.02,
                    **timing,
                }
            ),
            prepare=prepare,
            process=process,
            on_phase=self.phases.append,
            cutoff_s=cutoff_s,
        )
        return finish(steps)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def twice() -> Twice:
    return Twice()
