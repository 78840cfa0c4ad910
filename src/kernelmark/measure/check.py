"""Correctness inside a measurement: rewrite and poison before, look after.

After the warm-up every input is rewritten in place with values that no kernel can foresee, and
every output is poisoned: an answer from memory is then a wrong one. After timing, sets are drawn.
In each of them every element must have been written, guard bytes and inputs must be intact, a
random projection of the whole output must agree with float64 where the op has one, and sampled
positions must match float64 within the op's tolerance.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.contraction import Contraction
from kernelmark.core.dtype import DType
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Check, Fault, KernelInfo
from kernelmark.core.tensor import Tolerance
from kernelmark.devices.base import Device, Later, Stream, Tensor
from kernelmark.measure.project import check_projection
from kernelmark.measure.sets import Arena, fill_inputs
from kernelmark.numerics.floats import decode, storage
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.project import Projection
from kernelmark.ops.base import Op, Reference

SECOND_POISON = 0x55
# Formats whose poison is a NaN that no arithmetic gives.
_CERTAIN = frozenset({"f64", "f32", "tf32", "f16", "bf16"})
# Suspects that are looked at a second time; more of them say nothing more.
_SUSPECTS = 1 << 20

# Sets whose inputs are rewritten on a CPU, at most: there are up to thousands, it takes longer
# there than timing a block, and which ones are rewritten is drawn.
REWRITTEN_SETS = 16
# Sets of a block that are looked at after timing.
CHECKED_SETS = 4
# Rows of an output that are projected at most: both sides of each come to the host, where millions
# take seconds. Larger outputs are sampled.
_MOST_ROWS = 1 << 20
# Positions that are looked at as soon as a launch has ended.
_GLANCED = 64
# Findings of a check that are kept; a wrong kernel is wrong in every set.
_FINDINGS = 3
# Generator numbers are drawn from so many bits.
_NUMBER_BITS = 62

Floats = NDArray[np.float64]
Pending = Callable[[], Check]  # waits for the reference


class _Receiving:
    """A check whose figures are on their way from the device."""

    def __init__(self, receive: Later[Pending]) -> None:
        self._receive = receive
        self._pending: Pending | None = None

    def settle(self) -> None:
        if self._pending is None:
            self._pending = self._receive()

    def __call__(self) -> Check:
        self.settle()
        assert self._pending is not None
        return self._pending()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The bits at some positions of a set's output, as soon as its launch had ended."""

    index: int
    where: NDArray[np.int64]
    bits: NDArray[np.generic]


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
        contraction = op.contraction(problem)
        many = contraction is not None and contraction.rows > _MOST_ROWS
        self._contraction = None if many else contraction
        if self._contraction is not None:
            device.prepare_projection()
        self._futures: list[Future[Check]] = []
        self._receiving: list[_Receiving] = []
        self._byte = poison_byte(self._output.type)
        # Not the timing's seed: what is drawn here must not be foreseeable.
        self._rng = np.random.default_rng(secrets.randbits(128))

    def refresh(self, arena: Arena, indices: Sequence[int] | None = None) -> list[int]:
        """Rewrite the inputs of these sets in place and poison their outputs. Without `indices`:
        all sets; on a CPU at most REWRITTEN_SETS, drawn at random. Return the sets rewritten."""
        chosen = list(range(len(arena.sets))) if indices is None else list(indices)
        if indices is None and len(chosen) > REWRITTEN_SETS and not self._device.two_lengths:
            # The first ones too: a short timing does not come to the others.
            first, others = chosen[:CHECKED_SETS], chosen[CHECKED_SETS:]
            chosen = first + self.draw(others, REWRITTEN_SETS - CHECKED_SETS)
        number = secrets.randbits(_NUMBER_BITS)
        for at, index in enumerate(chosen):
            arena.numbers[index] = number + at
        fill_inputs(self._device, arena, self._seed, chosen)
        self._device.poison_all([self._out(arena, index) for index in chosen], self._byte)
        return chosen

    def draw(self, indices: Collection[int], count: int) -> list[int]:
        """`count` of these sets, or all if they are fewer, in a random order."""
        order = self._rng.permutation(sorted(indices))
        return [int(index) for index in order[:count]]

    def verify(
        self,
        kernel: Launchable,
        arena: Arena,
        launched: Sequence[int],
        *,
        projected: int = 0,
        sampled: int = 0,
        untouched: Sequence[int] = (),
        glances: Sequence[Glance] = (),
    ) -> Pending:
        """Check what the launches since `refresh` left in `launched` sets: `projected` of them
        whole, `sampled` of them at positions. Where the op has no projection, `projected` sets are
        sampled too. `untouched` sets were not launched and must hold the poison. A glanced position
        that changes later, other than by `collect`, was written after the launch ended.

        All that has to be looked at is enqueued on return, and what is returned gives the check.
        A GPU goes on to the next block meanwhile: its figures are received by `settle`, and
        compared in the background."""
        device = self._device
        device.synchronize()
        late = self._collect(kernel, arena, launched, glances)
        inspected = [*launched, *untouched]
        looked_into = inspected if device.two_lengths else inspected[:CHECKED_SETS]
        changed = device.count_changed(arena.inputs(looked_into), self._seed)
        tensors = [self._out(arena, index) for index in inspected]
        seen = device.inspect(tensors, self._byte)
        parts: list[Later[Pending]] = []
        for at, index in enumerate(launched):
            if at < projected and self._contraction is not None:
                parts.append(self._projected(arena, index))
            if at < sampled or (at < projected and self._contraction is None):
                parts.append(self._sampled(arena, index))
        late_writes = late()

        def receive() -> Pending:
            looks = seen()
            stray = [
                index
                for index, (poisoned, intact) in zip(untouched, looks[len(launched) :], strict=True)
                if poisoned < self._output.count or not intact
            ]
            received = [part() for part in parts]
            found = [self._side_effects(sum(changed()), stray, late_writes)]
            for tensor, index, (poisoned, intact) in zip(tensors, launched, looks, strict=False):
                unwritten = self._unwritten(kernel, tensor, index, poisoned)
                found.append(self._written(index, unwritten, intact=intact))
            return lambda: combine([*found, *(part() for part in received)])

        check = _Receiving(receive)
        self._receiving.append(check)
        # Elements that look unwritten may have to be launched again, while all is as it was.
        if not device.two_lengths or self._output.dtype not in _CERTAIN:
            self.settle()
        return check

    def settle(self) -> None:
        """Receive the figures of the checks so far, which the device has sent or sends soon."""
        for check in self._receiving:
            check.settle()
        self._receiving.clear()

    def _out(self, arena: Arena, index: int) -> Tensor:
        return arena.sets[index][self._output.name]

    def glance(self, arena: Arena, index: int, launch: Callable[[], None]) -> Glance:
        """Launch, and read some positions of the set's output at once behind it: work that goes on
        elsewhere has not been done by then."""
        where = self._rng.integers(0, self._output.count, _GLANCED)
        peek = self._device.peek(self._out(arena, index), where)
        launch()
        return Glance(index=index, where=where, bits=peek())

    def _collect(
        self,
        kernel: Launchable,
        arena: Arena,
        launched: Sequence[int],
        glances: Sequence[Glance],
    ) -> Callable[[], int]:
        """Collect the outputs; what is returned counts the glanced positions that differ by then,
        but for outputs that are written by collecting."""

        def now(glance: Glance) -> NDArray[np.generic]:
            return self._device.take(self._out(arena, glance.index), glance.where)

        before = [now(glance) for glance in glances]
        for index in launched:
            kernel.collect(index)
        judged = [
            g for g, bits in zip(glances, before, strict=True) if np.array_equal(bits, now(g))
        ]
        return lambda: sum(int(np.count_nonzero(now(g) != g.bits)) for g in judged)

    def _side_effects(self, changed: int, stray: Sequence[int], late: int) -> Check:
        details, faults = [], []
        if late:
            details.append(Reason("late-write"))
            faults.append(Fault.UNWRITTEN)
        if changed:
            details.append(Reason("inputs-changed", count=changed))
            faults.append(Fault.INPUTS)
        if stray:
            details.append(Reason("stray-write", sets=tuple(sorted(stray))))
            faults.append(Fault.STRAY)
        return _check(faults=faults, details=details)

    def _written(self, index: int, unwritten: int, *, intact: bool) -> Check:
        name, count = self._output.name, self._output.count
        details, faults = [], []
        if unwritten:
            details.append(
                Reason("not-written", set=index, count=unwritten, elements=count, tensor=name)
            )
            faults.append(Fault.UNWRITTEN)
        if not intact:
            details.append(Reason("guards-overwritten", set=index, tensor=name))
            faults.append(Fault.GUARDS)
        return _check(unwritten=unwritten, guards_intact=intact, faults=faults, details=details)

    def _sampled(self, arena: Arena, index: int) -> Later[Pending]:
        """The output of a set against float64 at positions that are drawn now."""
        where = self._op.positions(self._problem, int(self._rng.integers(1 << 32)))
        if self._contraction is None:
            more = self._op.scattered(self._problem, self._rng)
            where = np.union1d(where, more) if more.size else where
        got = decode(self._device.take(self._out(arena, index), where), self._output.dtype)
        inputs = Inputs(self._tensors, self._seed, arena.numbers[index])

        def compared() -> Check:
            reference = self._op.reference(self._problem, inputs, where)
            return self._compared(index, where, got, reference)

        # A reference on the device would disturb the next block: after the last one, then.
        pending = compared if self._op.reference_on_device else self._in_background(compared)
        return lambda: pending

    def cancel(self) -> None:
        """Drop references that nobody will ask for."""
        for future in self._futures:
            future.cancel()

    def _projected(self, arena: Arena, index: int) -> Later[Pending]:
        contraction = self._contraction
        assert contraction is not None
        signs = 2.0 * self._rng.integers(0, 2, contraction.cols, np.int8) - 1.0
        try:
            projection = self._device.project(contraction, arena.sets[index], signs)
        except OutOfMemory:  # the sets may take nearly all of it
            return self._sampled(arena, index)
        return lambda: self._in_background(partial(self._judged, index, contraction, projection()))

    def _judged(self, index: int, contraction: Contraction, projection: Projection) -> Check:
        found = check_projection(contraction, projection, self._tolerance, self._output.type)
        details, faults = [], []
        if found.bad:
            details.append(
                Reason(
                    "projection-wrong",
                    set=index,
                    bad=found.bad,
                    rows=found.rows,
                    tensor=self._output.name,
                    ratio=found.ratio,
                )
            )
            faults.append(Fault.PROJECTION)
        return _check(rows=found.rows, worst=found.ratio, faults=faults, details=details)

    def _in_background(self, check: Pending) -> Pending:
        """A check that is computed while the host waits for the device. Where the host itself is
        what is measured it would disturb the next block: there it comes after the last one."""
        if not self._device.two_lengths:
            return check
        self._futures.append(_background().submit(check))
        return self._futures[-1].result

    def _compared(
        self, index: int, where: NDArray[np.int64], got: Floats, reference: Reference
    ) -> Check:
        found = compare(got, reference, self._tolerance, self._output.type)
        bad = int(np.count_nonzero(~(found.ratio <= 1.0)))
        details = []
        if bad:
            worst = int(np.argmax(found.ratio))
            details = [self._worst(index, where[worst], got[worst], found, worst, bad)]
        return _check(
            positions=len(where),
            worst=float(found.ratio.max(initial=0.0)),
            max_abs=float(found.error.max(initial=0.0)),
            faults=[Fault.VALUES] if bad else [],
            details=details,
        )

    def _worst(
        self, index: int, flat: np.int64, got: np.float64, found: Compared, worst: int, bad: int
    ) -> Reason:
        return Reason(
            "values-wrong",
            set=index,
            bad=bad,
            positions=len(found.ratio),
            tensor=self._output.name,
            index=tuple(int(i) for i in np.unravel_index(int(flat), self._output.shape)),
            got=float(got),
            expected=float(found.expected[worst]),
            allowed=float(found.allowed[worst]),
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


def _check(
    *,
    positions: int = 0,
    worst: float = 0.0,
    max_abs: float = 0.0,
    unwritten: int = 0,
    guards_intact: bool = True,
    rows: int = 0,
    fresh_ratio: float | None = None,
    faults: Sequence[Fault] = (),
    details: Sequence[Reason] = (),
) -> Check:
    """A check of which only some things were looked at."""
    return Check(
        positions=positions,
        worst=worst,
        max_abs=max_abs,
        unwritten=unwritten,
        guards_intact=guards_intact,
        rows=rows,
        fresh_ratio=fresh_ratio,
        faults=tuple(faults),
        detail=Reason("check-failed", findings=tuple(details)) if details else NO_REASON,
    )


def less_work(fresh_s: float, timed_s: float, *, faked: bool) -> Check:
    """The check of an audit's time: seconds of an audited and of a timed launch."""
    ratio = fresh_s / timed_s
    if not faked:
        return _check(fresh_ratio=ratio)
    detail = Reason("less-work", fresh_s=fresh_s, timed_s=timed_s)
    return _check(fresh_ratio=ratio, faults=[Fault.LESS_WORK], details=[detail])


def combine(checks: Sequence[Check]) -> Check:
    """One check of many: worst values, sums, and the details of up to three failures."""
    failed = [check.detail for check in checks if check.detail]
    findings = [one for detail in failed for one in detail.fields.get("findings", (detail,))]
    more = sum(detail.fields.get("more", 0) for detail in failed) + len(findings[_FINDINGS:])
    shown = tuple(findings[:_FINDINGS])
    ratios = [check.fresh_ratio for check in checks if check.fresh_ratio is not None]
    return Check(
        positions=sum(check.positions for check in checks),
        worst=max((check.worst for check in checks), default=0.0),
        max_abs=max((check.max_abs for check in checks), default=0.0),
        unwritten=sum(check.unwritten for check in checks),
        guards_intact=all(check.guards_intact for check in checks),
        faults=tuple(dict.fromkeys(fault for check in checks for fault in check.faults)),
        rows=sum(check.rows for check in checks),
        fresh_ratio=max(ratios, default=None),
        detail=Reason("check-failed", findings=shown, more=more) if shown else NO_REASON,
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
