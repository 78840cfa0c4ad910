"""Correctness checks inside a measurement.

After the warm-up every input is rewritten in place with unpredictable values, and every output is
poisoned, so that a cached answer is wrong. After timing, some argument sets are drawn at random. In
each of them every element must have been written, guard bytes and inputs must be intact, a random
projection of the whole output must agree with float64 where the op supports it, and sampled
positions must match float64 within the op's tolerance.
"""

from __future__ import annotations

import functools
import itertools
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, failed_checks
from kernelmark.core.result import Check, Fault
from kernelmark.core.tensor import Contraction, Tolerance
from kernelmark.core.units import join_commas, time_text
from kernelmark.devices.base import Deferred, Device, Tensor
from kernelmark.measure.sets import Arena, Launchable, fill_inputs
from kernelmark.numerics.floats import decode, storage
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.project import Projection
from kernelmark.ops._checks import FALSE_ALARM, POSITIONS
from kernelmark.ops.base import Op, Reference

# Check of a random projection of an output against the largest sum of a correct kernel's errors.
#
# The errors e_j of a row are fixed when the signs r_j are drawn. If each is within its tolerance
# τ_j, then |Σ r_j e_j| exceeds √(2·ln(2·rows/FALSE_ALARM)) · ‖τ‖ in one of the rows with a
# probability of at most FALSE_ALARM, however the errors depend on each other (Hoeffding), and never
# exceeds √cols · ‖τ‖ (Cauchy-Schwarz). With τ_j from the op's tolerance, ‖τ‖ ≤ per_magnitude ·
# magnitude + per_value · ‖expected‖ + absolute · √cols.
#
# The bound can be tightened, as it depends on ‖e‖, and `per_magnitude` is a bound that one sum in
# 10⁹ exceeds. In its model (ops/_checks.py) the root mean square of the errors is a fifteenth of it
# for roundings, which have the tail exp(-21·e/τ), and a sixth for the digits that a matrix unit
# truncates. Columns are independent sums, so over many of them ‖e‖ stays well below ‖τ‖/3. Without
# that factor of 1/3, a kernel could leave out a tenth of an 8-bit GEMM with 8192 terms.

Floats = NDArray[np.float64]

_F64 = dtype("f64")
# Sums of integers are exact below this magnitude.
_EXACT = 2.0**_F64.digits
# The root mean square of a row's errors stays below this fraction of the tolerance per magnitude,
# from this many columns and terms on.
_SPREAD, _MANY_COLS, _MANY_TERMS = 1 / 3, 64, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionCheck:
    """The worst `ratio` of an error to the error allowed, the number of rows compared, the number
    of `bad` rows (ratio above 1), and the index of the worst row in the contraction's shape."""

    ratio: float
    rows: int
    bad: int
    where: tuple[int, ...]


def check_projection(
    contraction: Contraction, projection: Projection, tolerance: Tolerance, kind: DType
) -> ProjectionCheck:
    """Compare both sides of a projection of an output of dtype `kind`."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        error = np.abs(projection.got - projection.expected)
        allowed = _allowed(contraction, projection, tolerance)
        allowed += _rounding(contraction, projection, exact=kind.kind == "int")
        ratio = np.where(error == 0.0, 0.0, error / allowed)
    # A non-finite error comes from a non-finite output.
    ratio = np.where(np.isfinite(error) & ~np.isnan(ratio), ratio, np.inf)
    worst = int(np.argmax(ratio))
    return ProjectionCheck(
        ratio=float(ratio[worst]),
        rows=contraction.rows,
        bad=int(np.count_nonzero(ratio > 1.0)),
        where=tuple(int(i) for i in np.unravel_index(worst, contraction.shape)),
    )


def _allowed(contraction: Contraction, projection: Projection, tolerance: Tolerance) -> Floats:
    """Return the largest sum of errors within the tolerance, for each row."""
    cols = math.sqrt(contraction.cols)
    exponent = math.log(2 * contraction.rows / FALSE_ALARM)
    # A tolerance holds at POSITIONS outputs except for one check in 1 / FALSE_ALARM, with tails
    # that fall exponentially or faster; here it has to hold for whole rows of outputs.
    more = max(1.0, exponent / math.log(2 * POSITIONS / FALSE_ALARM))
    # |expected| ≤ |out| + τ. A far too large output must not raise its own limit: no expected value
    # is larger than the sum of its absolute terms.
    share = min(tolerance.per_value, 0.5)
    value = np.minimum(projection.out_norm / (1 - share), projection.magnitude)
    many = contraction.cols >= _MANY_COLS and contraction.terms >= _MANY_TERMS
    spread = tolerance.per_magnitude * (_SPREAD if many else 1.0)
    norm = spread / (1 - share) * projection.magnitude
    norm += tolerance.per_value * value + tolerance.absolute / (1 - share) * cols
    return np.asarray(min(math.sqrt(2 * exponent), cols) * more * norm)


def _rounding(contraction: Contraction, projection: Projection, *, exact: bool) -> Floats:
    """Return the largest error of summing in float64, in any order: n · u · Σ|terms|, where the
    absolute terms of a row add up to at most √cols · magnitude, or √cols · ‖out‖."""
    cols = math.sqrt(contraction.cols)
    expected, got = cols * projection.magnitude, cols * projection.out_norm
    lengths = contraction.cols + contraction.terms + len(contraction.added) + 8
    bound = _F64.unit_roundoff * (lengths * expected + (contraction.cols + 8) * got)
    # An infinite output must not be allowed an infinite error; it is rejected in any case.
    bound = np.where(np.isfinite(bound), bound, 0.0)
    if exact:
        return np.where(np.maximum(expected, got) < 0.99 * _EXACT, 0.0, bound)
    return bound


SECOND_POISON = 0x55
# Formats whose poison is a NaN with a payload that arithmetic does not produce.
_NAN_POISONED = frozenset({"f64", "f32", "tf32", "f16", "bf16"})
# Limit of the still poisoned elements that a second launch verifies.
_MAX_SUSPECTS = 1 << 20

# Limit of the sets that are rewritten on a CPU, drawn at random: there may be thousands, and
# rewriting all of them takes longer than timing a block.
REWRITTEN_SETS = 16
# Sets of a block that are checked after timing.
CHECKED_SETS = 4
# Outputs with more rows are sampled, not projected: two values per row are copied to the host,
# which takes seconds for millions of rows.
_MAX_ROWS = 1 << 20
# Positions that are read as soon as a launch has ended.
_EARLY_POSITIONS = 64
# Limit of the findings that a check keeps; a wrong kernel is wrong in every set.
_MAX_FINDINGS = 3
# Random bits of a set's generator number.
_NUMBER_BITS = 62

PendingCheck = Callable[[], Check]  # waits for the reference


class _InTransit:
    """A check whose values are being copied from the device."""

    def __init__(self, receive: Deferred[PendingCheck]) -> None:
        self._receive: Deferred[PendingCheck] | None = receive
        self._pending: PendingCheck | None = None

    def receive(self) -> None:
        if self._receive is not None:
            # Dropped, so that the next block's check reuses its pinned memory.
            self._pending, self._receive = self._receive(), None

    def __call__(self) -> Check:
        self.receive()
        assert self._pending is not None
        return self._pending()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledErrors:
    """Errors at sampled positions: absolute, and relative to the error allowed there."""

    ratio: Floats
    error: Floats
    allowed: Floats
    expected: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyRead:
    """The bit patterns at some positions of a set's output directly after its launch."""

    index: int
    where: NDArray[np.int64]
    bits: NDArray[np.generic]


@functools.cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference")


class Checker:
    """Checks outputs of one problem on one device."""

    def __init__(self, problem: Problem, op: Op, device: Device, seed: int) -> None:
        self.problem = self._problem = problem
        self._op = op
        self._device = device
        self._seed = seed
        self._tensors = op.tensors(problem)
        self._output = op.output(problem)
        self._tolerance = op.tolerance(problem)
        contraction = op.contraction(problem)
        too_large = contraction is not None and contraction.rows > _MAX_ROWS
        self._contraction = None if too_large else contraction
        if self._contraction is not None:
            device.prepare_projection()
        self._futures: list[Future[Check]] = []
        self._in_transit: list[_InTransit] = []
        self._poison = poison_byte(self._output.type)
        # Not the timing's seed, which would let a kernel predict the draws.
        self._rng = np.random.default_rng(secrets.randbits(128))

    def _fill(self, arena: Arena, indices: Sequence[int]) -> None:
        """Write the inputs of these sets."""
        fill_inputs(self._device, arena, self._seed, indices)

    def _inputs(self, number: int) -> Inputs:
        """Return the inputs of a set with this number."""
        return Inputs(self._tensors, self._seed, number)

    def _count_changed(self, inputs: Sequence[tuple[Tensor, int]]) -> Deferred[list[int]]:
        """Count the elements of each input that differ from what was written."""
        return self._device.count_changed(inputs, self._seed)

    def refresh(self, arena: Arena, indices: Sequence[int] | None = None) -> list[int]:
        """Rewrite the inputs of these sets in place and poison their outputs. Without `indices`:
        all sets; on a CPU at most REWRITTEN_SETS, drawn at random. Return the sets rewritten."""
        chosen = list(range(len(arena.sets))) if indices is None else list(indices)
        if indices is None and len(chosen) > REWRITTEN_SETS and not self._device.enqueues:
            # Always include the first sets: a short timing launches no others.
            first, others = chosen[:CHECKED_SETS], chosen[CHECKED_SETS:]
            chosen = first + self.draw(others, REWRITTEN_SETS - CHECKED_SETS)
        self._number(arena, chosen)
        self._fill(arena, chosen)
        self._device.poison_all([self._output_of(arena, index) for index in chosen], self._poison)
        return chosen

    def refill(
        self,
        arena: Arena,
        indices: Sequence[int],
        *,
        is_new: bool,
        idle: Sequence[int],
        wake: Callable[[], None] | None,
    ) -> None:
        """Rewrite the inputs of these sets: with new values, and poison their outputs, or with the
        values they have, and leave their outputs as they are. Both access the same memory, which
        would otherwise decide what the next launch finds in a cache: inputs of new values come from
        another part of the generator's pool.

        A GPU poisons as many outputs of the `idle` sets in place of the others. On a CPU `wake` may
        launch another set, to wake threads: meanwhile the inputs hold other values, in case it does
        the work of these sets too.
        """
        device = self._device
        if is_new:
            self._number(arena, indices)
        if device.enqueues:
            self._fill(arena, indices)
            poisoned = indices if is_new else itertools.islice(itertools.cycle(idle), len(indices))
            device.poison_all([self._output_of(arena, i) for i in poisoned], self._poison)
            return
        outputs = [self._output_of(arena, index) for index in indices]
        contents = [device.read(o.buffer, o.offset, o.spec.nbytes).copy() for o in outputs]
        for content in contents if is_new else ():
            content.fill(self._poison)
        if wake is not None:
            self._fill(arena, indices)
            numbers = list(arena.numbers)
            self._number(arena, indices)
            self._fill(arena, indices)
            wake()
            arena.numbers[:] = numbers
        self._fill(arena, indices)
        for output, content in zip(outputs, contents, strict=True):
            device.write(output.buffer, output.offset, content)

    def draw(self, indices: Collection[int], count: int) -> list[int]:
        """Return up to `count` of these sets, in a random order."""
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
        early_reads: Sequence[EarlyRead] = (),
    ) -> PendingCheck:
        """Check the outputs that the launches since `refresh` left in the `launched` sets: the
        first `projected` of them as a whole, the first `sampled` at sampled positions. Where the op
        has no projection, `projected` sets are sampled too. `untouched` sets were not launched and
        must still hold the poison. A position of `early_reads` that changes afterwards, other than
        by `collect`, was written after the launch ended.

        On return everything is enqueued; calling the result waits for the check. A GPU continues
        with the next block: `receive_all` fetches the values, which are compared in the background.
        """
        device = self._device
        device.synchronize()
        count_late = self._collect(kernel, arena, launched, early_reads)
        inspected = [*launched, *untouched]
        # Comparing a large input takes longer on a CPU than launching it.
        compared = inspected if device.enqueues else inspected[:CHECKED_SETS]
        changed = self._count_changed(arena.inputs(compared))
        outputs = [self._output_of(arena, index) for index in inspected]
        inspection = device.inspect(outputs, self._poison)
        parts: list[Deferred[PendingCheck]] = []
        for at, index in enumerate(launched):
            if at < projected and self._contraction is not None:
                parts.append(self._projected(arena, index))
            if at < sampled or (at < projected and self._contraction is None):
                parts.append(self._sampled(arena, index))
        late_writes = count_late()

        def receive() -> PendingCheck:
            states = inspection()
            stray = [
                index
                for index, (poisoned, intact) in zip(
                    untouched, states[len(launched) :], strict=True
                )
                if poisoned < self._output.count or not intact
            ]
            received = [part() for part in parts]
            checks = [self._side_effects(sum(changed()), stray, late_writes)]
            for tensor, index, (poisoned, intact) in zip(outputs, launched, states, strict=False):
                unwritten = self._unwritten(kernel, tensor, index, poisoned)
                checks.append(self._written(index, unwritten, intact=intact))
            return lambda: combine([*checks, *(part() for part in received)])

        check = _InTransit(receive)
        self._in_transit.append(check)
        # `_unwritten` may have to launch again, on inputs that the next block must not rewrite.
        if not device.enqueues or self._output.dtype not in _NAN_POISONED:
            self.receive_all()
        return check

    def receive_all(self) -> None:
        """Wait until the values of all checks so far are on the host. A check in transit refers to
        this checker and would keep it and its pinned memory alive until a garbage collection."""
        for check in self._in_transit:
            check.receive()
        self._in_transit.clear()

    def _number(self, arena: Arena, indices: Sequence[int]) -> None:
        """Give these sets numbers, so values, that no kernel can predict."""
        number = secrets.randbits(_NUMBER_BITS)
        for at, index in enumerate(indices):
            arena.numbers[index] = number + at

    def _output_of(self, arena: Arena, index: int) -> Tensor:
        return arena.sets[index][self._output.name]

    def early_reader(self, arena: Arena, index: int) -> Callable[[], EarlyRead]:
        """Return a function that reads some positions of the set's output. To be called directly
        behind a launch: work that a kernel left to another stream or thread is not finished
        then."""
        where = self._rng.integers(0, self._output.count, _EARLY_POSITIONS)
        peek = self._device.peek(self._output_of(arena, index), where)
        return lambda: EarlyRead(index=index, where=where, bits=peek())

    def _collect(
        self,
        kernel: Launchable,
        arena: Arena,
        launched: Sequence[int],
        early_reads: Sequence[EarlyRead],
    ) -> Callable[[], int]:
        """Collect the outputs. Return a function that counts the positions changed since the early
        reads, except in outputs that `collect` itself writes."""

        def now(read: EarlyRead) -> NDArray[np.generic]:
            return self._device.take(self._output_of(arena, read.index), read.where)

        before = [now(read) for read in early_reads]
        for index in launched:
            kernel.collect(index)
        comparable = [
            read
            for read, bits in zip(early_reads, before, strict=True)
            if np.array_equal(bits, now(read))
        ]
        return lambda: sum(int(np.count_nonzero(now(r) != r.bits)) for r in comparable)

    def _side_effects(self, changed: int, stray: Sequence[int], late: int) -> Check:
        details, faults = [], []
        if late:
            details.append(
                Reason("the output was written after the launch had ended", "late-write")
            )
            faults.append(Fault.UNWRITTEN)
        if changed:
            details.append(
                Reason(
                    f"{changed} elements of the inputs were changed",
                    "inputs-changed",
                    count=changed,
                )
            )
            faults.append(Fault.INPUTS)
        if stray:
            details.append(
                Reason(
                    "a launch wrote to outputs that are not its own (set "
                    f"{join_commas(sorted(stray))})",
                    "stray-write",
                    sets=tuple(sorted(stray)),
                )
            )
            faults.append(Fault.STRAY)
        return _check(faults=faults, details=details)

    def _written(self, index: int, unwritten: int, *, intact: bool) -> Check:
        name, count = self._output.name, self._output.count
        details, faults = [], []
        if unwritten:
            details.append(
                Reason(
                    f"set {index}: {unwritten} of {count} elements of {name} not written",
                    "not-written",
                    set=index,
                    count=unwritten,
                    elements=count,
                    tensor=name,
                )
            )
            faults.append(Fault.UNWRITTEN)
        if not intact:
            details.append(
                Reason(
                    f"set {index}: memory next to {name} was overwritten",
                    "guards-overwritten",
                    set=index,
                    tensor=name,
                )
            )
            faults.append(Fault.GUARDS)
        return _check(unwritten=unwritten, guards_intact=intact, faults=faults, details=details)

    def _sampled(self, arena: Arena, index: int) -> Deferred[PendingCheck]:
        """Compare a set's output with float64 at positions drawn now."""
        where = self._op.positions(self._problem, int(self._rng.integers(1 << 32)))
        if self._contraction is None:
            more = self._op.scattered(self._problem, self._rng)
            where = np.union1d(where, more) if more.size else where
        got = decode(self._device.take(self._output_of(arena, index), where), self._output.dtype)
        inputs = self._inputs(arena.numbers[index])

        def check() -> Check:
            reference = self._op.reference(self._problem, inputs, where)
            return self._check_values(index, where, got, reference)

        # A reference on the device would disturb the next block, so it runs after the last one.
        pending = check if self._op.reference_on_device else self._in_background(check)
        return lambda: pending

    def cancel(self) -> None:
        """Cancel references that are no longer needed, and drop values in transit."""
        for future in self._futures:
            future.cancel()
        self._in_transit.clear()

    def _projected(self, arena: Arena, index: int) -> Deferred[PendingCheck]:
        contraction = self._contraction
        assert contraction is not None
        signs = 2.0 * self._rng.integers(0, 2, contraction.cols, np.int8) - 1.0
        try:
            projection = self._device.project(contraction, arena.sets[index], signs)
        except OutOfMemory:  # the argument sets may take nearly all memory
            return self._sampled(arena, index)
        return lambda: self._in_background(
            partial(self._check_projection, index, contraction, projection())
        )

    def _check_projection(
        self, index: int, contraction: Contraction, projection: Projection
    ) -> Check:
        result = check_projection(contraction, projection, self._tolerance, self._output.type)
        details, faults = [], []
        if result.bad:
            unit = f" {contraction.unit}s" if contraction.unit else ""
            # The ratio is infinite if the output is not finite, and if no error is allowed.
            finite = math.isfinite(result.ratio)
            far = f", up to {result.ratio:.3g} times as far from float64 as allowed"
            nonfinite = int(np.count_nonzero(~np.isfinite(projection.got)))
            details.append(
                Reason(
                    f"set {index}: a random projection of {self._output.name} is wrong in"
                    f" {result.bad} of {result.rows}{unit}{far if finite else ''}"
                    + (f", {nonfinite} of them NaN or infinite" if nonfinite else ""),
                    "projection-wrong",
                    set=index,
                    bad=result.bad,
                    rows=result.rows,
                    tensor=self._output.name,
                    ratio=result.ratio,
                    nonfinite=nonfinite,
                )
            )
            faults.append(Fault.PROJECTION)
        return _check(rows=result.rows, worst=result.ratio, faults=faults, details=details)

    def _in_background(self, check: PendingCheck) -> PendingCheck:
        """Compute a check in a background thread. On a CPU device this would disturb the next
        block, so there the check runs after the last block."""
        if not self._device.enqueues:
            return check
        self._futures.append(_background().submit(check))
        return self._futures[-1].result

    def _check_values(
        self, index: int, where: NDArray[np.int64], got: Floats, reference: Reference
    ) -> Check:
        errors = compare(got, reference, self._tolerance, self._output.type)
        bad = int(np.count_nonzero(~(errors.ratio <= 1.0)))
        details = []
        if bad:
            worst = int(np.argmax(errors.ratio))
            position = np.unravel_index(int(where[worst]), self._output.shape)
            details.append(
                Reason(
                    f"set {index}: {bad} of {len(errors.ratio)} checked positions are"
                    f" wrong; worst is {self._output.name}["
                    f"{join_commas(int(i) for i in position)}] = {float(got[worst]):.6g},"
                    f" expected {float(errors.expected[worst]):.6g} ± "
                    f"{float(errors.allowed[worst]):.2g}",
                    "values-wrong",
                    set=index,
                    bad=bad,
                    positions=len(errors.ratio),
                    tensor=self._output.name,
                    index=tuple(int(i) for i in position),
                    got=float(got[worst]),
                    expected=float(errors.expected[worst]),
                    allowed=float(errors.allowed[worst]),
                )
            )
        return _check(
            positions=len(where),
            worst=float(errors.ratio.max(initial=0.0)),
            max_abs=float(errors.error.max(initial=0.0)),
            faults=[Fault.VALUES] if bad else [],
            details=details,
        )

    def _unwritten(self, kernel: Launchable, tensor: Tensor, index: int, poisoned: int) -> int:
        """Return how many of the `poisoned` elements were never written. If the poison may be a
        correct value, poison the output with another byte and launch the kernel again. An element
        that then holds the first byte was written; any other was not written by the timed launches,
        even if this launch wrote it."""
        device, byte = self._device, self._poison
        if not poisoned or self._output.dtype in _NAN_POISONED:
            return poisoned
        suspects = self._positions_of(tensor, byte)
        device.poison(tensor, SECOND_POISON)
        kernel.launch(device.stream, index)
        device.synchronize()
        kernel.collect(index)
        second = device.take(tensor, suspects)
        return int(np.count_nonzero(second != _pattern(self._output.type, byte)))

    def _positions_of(self, tensor: Tensor, byte: int) -> NDArray[np.int64]:
        """Return the flat positions of elements all of whose bytes are `byte`."""
        spec = tensor.spec
        raw = self._device.read(tensor.buffer, tensor.offset, spec.nbytes)
        if spec.type.bits >= 8:
            matches = raw.view(storage(spec.dtype)) == _pattern(spec.type, byte)
            return np.flatnonzero(matches)[:_MAX_SUSPECTS]
        both = np.flatnonzero(raw == byte)[:_MAX_SUSPECTS]
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
    """Return a check of some properties; the others count as passed."""
    return Check(
        positions=positions,
        worst=worst,
        max_abs=max_abs,
        unwritten=unwritten,
        guards_intact=guards_intact,
        rows=rows,
        fresh_ratio=fresh_ratio,
        faults=tuple(faults),
        detail=failed_checks(details),
    )


def check_gain(gain: float, timed_s: float, *, is_refused: bool) -> Check:
    """Return the check of what launches gain from unchanged inputs, a fraction of `timed_s`."""
    if not is_refused:
        return _check(fresh_ratio=1.0 + gain)
    fresh_s = timed_s * (1.0 + gain)
    detail = Reason(
        f"a launch on new inputs takes {time_text(fresh_s)} where one on unchanged inputs takes"
        f" {time_text(timed_s)}: timed launches skip work",
        "less-work",
        fresh_s=fresh_s,
        timed_s=timed_s,
    )
    return _check(fresh_ratio=1.0 + gain, faults=[Fault.LESS_WORK], details=[detail])


def check_audit_time(fresh_s: float, timed_s: float, *, is_slow: bool) -> Check:
    """Return the check of an audit's time, from the seconds of an audited and a timed launch."""
    if not is_slow:
        return _check()
    detail = Reason(
        f"a launch takes {time_text(fresh_s)} when its inputs were rewritten"
        f" before, and {time_text(timed_s)} when timed: timed launches skip work",
        "less-work",
        fresh_s=fresh_s,
        timed_s=timed_s,
    )
    return _check(faults=[Fault.LESS_WORK], details=[detail])


def combine(checks: Sequence[Check]) -> Check:
    """Combine checks: worst values, sums, and the details of up to three failures, of different
    kinds if possible, as one kind tends to occur in every set."""
    failed = [check.detail for check in checks if check.detail]
    findings = [
        finding for detail in failed for finding in detail.fields.get("findings", (detail,))
    ]
    codes = [Reason.of(finding).code for finding in findings]
    first = {codes.index(code) for code in codes}
    findings = [findings[at] for at in sorted(range(len(findings)), key=lambda at: at not in first)]
    more = sum(detail.fields.get("more", 0) for detail in failed) + len(findings[_MAX_FINDINGS:])

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
        detail=failed_checks(findings[:_MAX_FINDINGS], more),
    )


def poison_byte(kind: DType) -> int:
    """Return a byte whose repetition is a NaN, or a rare value for integers."""
    return 0x80 if kind.kind == "int" or kind.name.endswith("fnuz") else 0xFF


def compare(got: Floats, reference: Reference, tolerance: Tolerance, kind: DType) -> SampledErrors:
    """Return the errors of values against the reference.

    A value beyond the format's range may become infinity, NaN or the largest value. Any other NaN
    is an infinite error.
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
    return SampledErrors(ratio=ratio, error=error, allowed=allowed, expected=expected)


def _overflowed(got: Floats, expected: Floats, allowed: Floats, kind: DType) -> NDArray[np.bool_]:
    beyond = np.abs(expected) + allowed > kind.max_value
    same_sign = np.signbit(got) == np.signbit(expected)
    largest = same_sign & (np.abs(got) >= kind.max_value)
    accepted = largest if kind.has_inf else largest | np.isnan(got)
    return np.asarray(beyond & accepted, np.bool_)


def _pattern(kind: DType, byte: int) -> int:
    """Return the bit pattern of an element all of whose bytes are `byte`."""
    if kind.bits < 8:
        return byte & 15
    return int.from_bytes(bytes([byte]) * (kind.bits // 8), "little")
