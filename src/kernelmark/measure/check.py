"""Correctness inside a measurement: poison before, look after.

Outputs are poisoned after warm-up, so that a kernel that answers from memory is caught too. Then
every element of the checked sets must have been written, guard bytes must be intact, and sampled
positions must match float64 within the op's tolerance.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType
from kernelmark.core.problem import Problem
from kernelmark.core.result import Check, KernelInfo
from kernelmark.core.tensor import Tolerance
from kernelmark.devices.base import Device, Stream, Tensor
from kernelmark.measure.sets import Arena
from kernelmark.numerics.floats import decode, storage
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.base import Op, Reference

SECOND_POISON = 0x55
# Formats whose poison is a NaN that no arithmetic gives.
_CERTAIN = frozenset({"f64", "f32", "tf32", "f16", "bf16"})
# Suspects that are looked at a second time; more of them say nothing more.
_SUSPECTS = 1 << 20

Floats = NDArray[np.float64]
Expected = tuple[NDArray[np.int64], Reference]


class Launchable(Protocol):
    """A prepared kernel, bound to its argument sets."""

    @property
    def info(self) -> KernelInfo: ...

    def launch(self, stream: Stream, set_index: int) -> None: ...

    def collect(self, set_index: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Errors at sampled positions, in units of what is allowed there and absolute."""

    ratio: Floats
    error: Floats
    allowed: Floats
    expected: Floats


@functools.cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference")


class Checker:
    """Checks outputs of one problem on one device."""

    def __init__(self, problem: Problem, op: Op, device: Device, seed: int) -> None:
        self._problem = problem
        self._op = op
        self._device = device
        self._seed = seed
        self._tensors = op.tensors(problem)
        self._output = op.output(problem)
        self._tolerance = op.tolerance(problem)
        self._byte = poison_byte(self._output.type)
        self._expected: dict[int, Future[Expected]] = {}

    def poison(self, arena: Arena, chosen: Iterable[int]) -> None:
        """Spoil the outputs of these sets and set their guards."""
        for index in chosen:
            self._device.poison(arena.sets[index][self._output.name], self._byte)

    def expect(self, arena: Arena, referenced: Iterable[int]) -> None:
        """Compute the right answers of these sets meanwhile, where the host has nothing else to
        do while launches are timed; on a CPU it would disturb them."""
        if not self._device.two_lengths:
            return
        for index in referenced:
            number = arena.first + index
            self._expected[number] = _background().submit(self._answer, number)

    def _answer(self, number: int) -> Expected:
        where = self._op.positions(self._problem, self._seed + number)
        inputs = Inputs(self._tensors, self._seed, number)
        return where, self._op.reference(self._problem, inputs, where)

    def verify(
        self, kernel: Launchable, arena: Arena, chosen: Sequence[int], referenced: Sequence[int]
    ) -> Check:
        """What the launches since `poison` left in `chosen` sets; values in `referenced` ones."""
        self._device.synchronize()
        for index in chosen:
            kernel.collect(index)
        tensors = [arena.sets[index][self._output.name] for index in chosen]
        checks = []
        for index, tensor, (found, intact) in zip(
            chosen, tensors, self._device.inspect(tensors, self._byte), strict=True
        ):
            # Values first: looking twice for unwritten elements launches again.
            values = self._values(tensor, arena, index) if index in referenced else NOTHING
            unwritten = self._unwritten(kernel, tensor, index, found)
            checks.append(self._verdict(index, values, unwritten, intact=intact))
        return combine(checks)

    def _verdict(self, index: int, values: Check, unwritten: int, *, intact: bool) -> Check:
        name = self._output.name
        details = []
        if unwritten:
            count = self._output.count
            details.append(f"set {index}: {unwritten} of {count} elements of {name} not written")
        if not intact:
            details.append(f"set {index}: memory beside {name} was overwritten")
        if values.detail:
            details.append(values.detail)
        return Check(
            positions=values.positions,
            worst=values.worst,
            max_abs=values.max_abs,
            unwritten=unwritten,
            guards_intact=intact,
            detail="; ".join(details),
        )

    def _values(self, tensor: Tensor, arena: Arena, index: int) -> Check:
        number = arena.first + index
        ready = self._expected.pop(number, None)
        where, reference = self._answer(number) if ready is None else ready.result()
        got = decode(self._device.take(tensor, where), self._output.dtype)
        found = compare(got, reference, self._tolerance, self._output.type)
        bad = int(np.count_nonzero(~(found.ratio <= 1.0)))
        worst = int(np.argmax(found.ratio)) if len(where) else 0
        return Check(
            positions=len(where),
            worst=float(found.ratio.max(initial=0.0)),
            max_abs=float(found.error.max(initial=0.0)),
            unwritten=0,
            guards_intact=True,
            detail=self._worst_text(index, where[worst], got[worst], found, worst, bad)
            if bad
            else "",
        )

    def _worst_text(
        self, index: int, flat: np.int64, got: np.float64, found: Compared, worst: int, bad: int
    ) -> str:
        place = ", ".join(str(int(i)) for i in np.unravel_index(int(flat), self._output.shape))
        return (
            f"set {index}: {bad} of {len(found.ratio)} checked positions are wrong; worst is"
            f" {self._output.name}[{place}] = {got:.6g}, expected {found.expected[worst]:.6g}"
            f" ± {found.allowed[worst]:.2g}"
        )

    def _unwritten(self, kernel: Launchable, tensor: Tensor, index: int, found: int) -> int:
        """Elements never written, of `found` that look so. Where the poison may be a right answer,
        all is poisoned with another byte and the kernel is launched again: where the poison was
        the answer it comes again. Anything else, the other byte too, says that the timed launches
        did not write it, even if this one did."""
        device, byte = self._device, self._byte
        if not found or self._output.dtype in _CERTAIN:
            return found
        suspects = self._holding(tensor, byte)
        device.poison(tensor, SECOND_POISON)
        kernel.launch(device.stream, index)
        device.synchronize()
        kernel.collect(index)
        second = device.take(tensor, suspects)
        return int(np.count_nonzero(second != _pattern(self._output.type, byte)))

    def _holding(self, tensor: Tensor, byte: int) -> NDArray[np.int64]:
        """Flat positions of elements made of `byte` alone."""
        spec = tensor.spec
        raw = self._device.read(tensor.buffer, tensor.offset, spec.nbytes)
        if spec.type.bits >= 8:
            held = raw.view(storage(spec.dtype)) == _pattern(spec.type, byte)
            return np.flatnonzero(held)[:_SUSPECTS]
        both = np.flatnonzero(raw == byte)[:_SUSPECTS]
        return np.stack([2 * both, 2 * both + 1], axis=1).ravel()


NOTHING = Check(positions=0, worst=0.0, max_abs=0.0, unwritten=0, guards_intact=True)


def choose_sets(sets: int, rng: np.random.Generator, most: int = 4) -> list[int]:
    """The first, the last and random ones between, in order."""
    if sets <= most:
        return list(range(sets))
    between = 1 + rng.choice(sets - 2, most - 2, replace=False)
    return [0, *sorted(int(i) for i in between), sets - 1]


def combine(checks: Sequence[Check]) -> Check:
    """One check of many: worst values, sums, and the details of up to three failures."""
    details = [check.detail for check in checks if check.detail]
    more = f"; and {len(details) - 3} more" if len(details) > 3 else ""
    return Check(
        positions=sum(check.positions for check in checks),
        worst=max((check.worst for check in checks), default=0.0),
        max_abs=max((check.max_abs for check in checks), default=0.0),
        unwritten=sum(check.unwritten for check in checks),
        guards_intact=all(check.guards_intact for check in checks),
        detail="; ".join(details[:3]) + more,
    )


def poison_byte(kind: DType) -> int:
    """A byte that makes a NaN, or for integers a rare value."""
    return 0x80 if kind.kind == "int" or kind.name.endswith("fnuz") else 0xFF


def compare(got: Floats, reference: Reference, tolerance: Tolerance, kind: DType) -> Compared:
    """How far values are from the reference, in units of what is allowed.

    What is beyond the format's range may be infinity, NaN or the largest value; a NaN anywhere
    else is infinitely wrong.
    """
    expected = reference.value
    if kind.kind == "int":
        expected = np.clip(expected, -kind.max_value - 1, kind.max_value)
    with np.errstate(invalid="ignore", divide="ignore"):
        allowed = (
            tolerance.per_magnitude * reference.magnitude
            + tolerance.per_value * np.abs(expected)
            + tolerance.absolute
        )
        error = np.abs(got - expected)
        error = np.where(np.isnan(error), np.inf, error)
        error = np.where((got == expected) | (np.isnan(got) & np.isnan(expected)), 0.0, error)
        if kind.kind == "float":
            error = np.where(_overflowed(got, expected, allowed, kind), 0.0, error)
        ratio = np.where(error == 0.0, 0.0, error / allowed)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return Compared(ratio=ratio, error=error, allowed=allowed, expected=expected)


def _overflowed(got: Floats, expected: Floats, allowed: Floats, kind: DType) -> NDArray[np.bool_]:
    beyond = np.abs(expected) + allowed > kind.max_value
    same_sign = np.signbit(got) == np.signbit(expected)
    largest = same_sign & (np.abs(got) >= kind.max_value)
    accepted = largest if kind.has_inf else largest | np.isnan(got)
    return np.asarray(beyond & accepted, np.bool_)


def _pattern(kind: DType, byte: int) -> int:
    if kind.bits < 8:
        return byte & 15
    return int.from_bytes(bytes([byte]) * (kind.bits // 8), "little")
