"""Argument sets of a block: their number, layout and inputs, and the kernel prepared on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernelmark.core.errors import OutOfMemory
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Cache, Timing
from kernelmark.core.units import bytes_text
from kernelmark.devices.base import GUARD_BYTES, ArgumentSet, Buffer, Device, Stream, Tensor
from kernelmark.measure.loop import Pace, Sampler

# Total size of the sets in last-level caches: caches without LRU replacement would keep part of a
# smaller rotation.
CACHE_FACTOR = 3
# Limits of the number of sets. Small problems would need more, which takes too long to set up: they
# evict the cache between passes instead. With recorded launches, each set costs a recorded launch
# in every block.
MAX_SETS = 4096
MAX_RECORDED_SETS = 64
# Least number of sets to bind, if memory allows: the audit launches some sets once each, and checks
# that others stay untouched.
AUDITED_SETS = 3
# Fraction of the free memory for argument sets; the rest is for a kernel's workspace.
MEMORY_FRACTION = 0.8

ALIGNMENT = 256
_PADDING_STEPS = 16
_PAGE = 4096
_FIRST_PAGES = 256


class Launchable(Protocol):
    """A prepared kernel, bound to its argument sets."""

    @property
    def info(self) -> KernelInfo: ...

    def launch(self, stream: Stream, set_index: int) -> None: ...

    def collect(self, set_index: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPlan:
    """The number of argument sets in rotation, and whether the cache is evicted before each sample.

    `bound` sets are allocated; those beyond `sets` are for the audit only.
    """

    sets: int
    bound: int
    footprint_bytes: int
    evict: bool = False
    warnings: tuple[Reason, ...] = ()


@dataclass(slots=True, kw_only=True)
class Arena:
    """One allocation that holds all argument sets of a block. `numbers` has the counter of the
    input generator for each set; rewriting a set's inputs gives it another number."""

    buffer: Buffer
    sets: tuple[ArgumentSet, ...]
    numbers: list[int]

    def inputs(self, indices: Iterable[int]) -> list[tuple[Tensor, int]]:
        """Return the inputs of these sets, each with its set's number."""
        return [
            (tensor, self.numbers[index])
            for index in indices
            for tensor in self.sets[index].values()
            if tensor.spec.role == "in"
        ]


def plan_sets(
    tensors: Sequence[TensorSpec],
    *,
    cache: Cache,
    cache_bytes: int,
    free_bytes: int,
    most: int = MAX_SETS,
    moved_bytes: int = 0,
) -> SetPlan:
    """Plan as many sets as the cache state needs and the memory allows, at most `most`.
    `moved_bytes` is what a launch accesses if that is less than its tensors; more sets are then
    needed to exceed the cache."""
    total = sum(spec.nbytes for spec in tensors)
    footprint = min(moved_bytes or total, total)
    fit = (int(free_bytes * MEMORY_FRACTION) - _FIRST_PAGES * _PAGE) // _max_set_bytes(tensors)
    if fit < 1:
        raise OutOfMemory(
            Reason(
                f"{bytes_text(total)} needed for one argument set, {bytes_text(free_bytes)} free",
                "out-of-memory",
                needed=total,
                what="one argument set",
                free=free_bytes,
            ),
            hint="choose a smaller problem or a device with more memory",
        )
    if cache is not Cache.COLD:
        evict = cache is Cache.FLUSH
        bound = min(fit, AUDITED_SETS)
        return SetPlan(sets=1, bound=bound, footprint_bytes=footprint, evict=evict)
    wanted = max(2, -(-CACHE_FACTOR * cache_bytes // max(1, footprint)))
    if wanted <= min(fit, most):
        sets = min(_with_divisors(wanted), fit)
        bound = max(sets, min(fit, AUDITED_SETS))
        return SetPlan(sets=sets, bound=bound, footprint_bytes=footprint)
    if fit >= most:
        return SetPlan(sets=most, bound=most, footprint_bytes=footprint, evict=True)
    warning = Reason(
        f"memory holds {fit} of the {wanted} argument sets that keep the cache"
        " cold: the cache is evicted before each sample instead",
        "cache-evicted",
        sets=fit,
        wanted=wanted,
    )
    return SetPlan(sets=fit, bound=fit, footprint_bytes=footprint, evict=True, warnings=(warning,))


def make_arena(
    device: Device, tensors: Sequence[TensorSpec], count: int, rng: np.random.Generator
) -> tuple[Buffer, tuple[ArgumentSet, ...]]:
    """Allocate `count` sets, with guards around outputs and random padding between tensors, so that
    blocks differ in their memory layout."""
    total, offsets = _layout(tensors, count, rng)
    buffer = device.allocate(total)
    width = len(tensors)
    sets: list[ArgumentSet] = []
    for start in range(0, count * width, width):
        places = zip(tensors, offsets[start : start + width], strict=True)
        sets.append({s.name: Tensor(spec=s, buffer=buffer, offset=o) for s, o in places})
    return buffer, tuple(sets)


def fill_inputs(
    device: Device, arena: Arena, seed: int, indices: Iterable[int] | None = None
) -> None:
    """Generate every input of these sets, or of all sets if None."""
    chosen = range(len(arena.sets)) if indices is None else indices
    device.generate_all(arena.inputs(chosen), seed)


def _layout(
    tensors: Sequence[TensorSpec], count: int, rng: np.random.Generator
) -> tuple[int, list[int]]:
    """Return the bytes needed, and the offset of each tensor of each set in turn."""
    guards = np.array([GUARD_BYTES if spec.role == "out" else 0 for spec in tensors])
    spans = np.array([_aligned(spec.nbytes) for spec in tensors]) + 2 * guards
    padding = rng.integers(0, _PADDING_STEPS, (count, len(tensors))) * ALIGNMENT
    ends = int(rng.integers(0, _FIRST_PAGES)) * _PAGE + np.cumsum((spans + padding).ravel())
    starts = ends.reshape(padding.shape) - spans + guards
    return int(ends[-1]), [int(start) for start in starts.ravel()]


def _max_set_bytes(tensors: Sequence[TensorSpec]) -> int:
    slack = _PADDING_STEPS * ALIGNMENT + 2 * GUARD_BYTES
    return sum(_aligned(spec.nbytes) + slack for spec in tensors)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _with_divisors(wanted: int) -> int:
    """Round `wanted` up to a count with many divisors, so that samples of equal launches pass over
    whole rotations."""
    step = 1 if wanted <= 8 else 4 if wanted <= 64 else 32
    return min(-(-wanted // step) * step, MAX_SETS)


Prepare = Callable[[Sequence[ArgumentSet]], Launchable]
Clock = Callable[[str], AbstractContextManager[None]]  # adds host seconds to a phase's cost


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundBlock:
    """A block that can be launched. `setup_s` is the time that the device idled for its set-up."""

    arena: Arena
    kernel: Launchable
    sampler: Sampler
    setup_s: float

    def close(self) -> None:
        """Free everything but the memory."""
        try:
            self.sampler.close()
        finally:
            self.kernel.close()


class Binder:
    """Sets up the blocks of one measurement, each with its own memory."""

    def __init__(
        self,
        *,
        device: Device,
        tensors: Sequence[TensorSpec],
        plan: SetPlan,
        timing: Timing,
        prepare: Prepare,
        process: int,
        clock: Clock,
    ) -> None:
        self._device = device
        self._tensors = tensors
        self._plan = plan
        self._timing = timing
        self._prepare = prepare
        self._process = process
        self._clock = clock
        # A device that enqueues can evict between the launches of a replay.
        self.flush_in_stream = timing.cache is Cache.FLUSH and device.enqueues
        self._ahead: dict[int, BoundBlock] = {}
        self._retired: BoundBlock | None = None

    def take(self, number: int) -> BoundBlock:
        """Return block `number`; set it up now unless `prepare_ahead` did."""
        return self._ahead.pop(number, None) or self._bind(number, self._clock, wait=True)

    def prepare_ahead(self, numbers: Sequence[int], pace: Pace) -> None:
        """Set up blocks and record their first samples while the device is busy. Do nothing if
        memory is short."""
        if self._device.free_bytes() < 2 * len(numbers) * self._arena_bytes:
            return
        for number in numbers:
            self._ahead[number] = block = self._bind(number, _unclocked, wait=False)
            block.sampler.prepare(pace)
            block.sampler.record_s = 0.0  # the device was busy meanwhile

    def retire(self, block: BoundBlock) -> None:
        """Mark a block as done. Its memory is kept until the next block has been allocated, which
        would otherwise get the same pages, and freed while the device is busy."""
        self.free_retired()
        self._retired = block

    def free_retired(self) -> None:
        """Free the retired block, if there is one."""
        if self._retired is not None:
            block, self._retired = self._retired, None
            try:
                block.close()
            finally:
                self._device.free(block.arena.buffer)

    def close(self) -> None:
        """Free all blocks."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.free_retired)
            for block in self._ahead.values():
                stack.callback(self._device.free, block.arena.buffer)
                stack.callback(block.close)
            self._ahead.clear()
        # Break the reference cycle with the owner of this method, so that results, torch memory and
        # pinned memory are freed now and not at a garbage collection.
        self._clock = _unclocked

    @property
    def _arena_bytes(self) -> int:
        return self._plan.bound * self._plan.footprint_bytes

    def _bind(self, number: int, clock: Clock, *, wait: bool) -> BoundBlock:
        rng = np.random.default_rng([self._timing.seed, self._process, number])
        start = time.perf_counter()
        with clock("inputs"):
            arena = self._arena(number, rng, wait=wait)
        setup_s = time.perf_counter() - start
        with contextlib.ExitStack() as stack:
            stack.callback(self._device.free, arena.buffer)
            start = time.perf_counter()
            with clock("compile"):
                kernel = self._prepare(arena.sets)
            if number:  # the first block includes compilation; later blocks only binding
                setup_s += time.perf_counter() - start
            stack.callback(kernel.close)
            sampler = Sampler(
                self._device,
                kernel.launch,
                sets=self._plan.sets,
                timer=self._timing.timer,
                strain=self._timing.strain,
                flush=self.flush_in_stream,
            )
            stack.pop_all()
        return BoundBlock(
            arena=arena, kernel=kernel, sampler=sampler, setup_s=setup_s if wait else 0.0
        )

    def _arena(self, number: int, rng: np.random.Generator, *, wait: bool) -> Arena:
        plan, device = self._plan, self._device
        short = device.free_bytes() < 2 * self._arena_bytes
        if short or device.reuses_freed(self._arena_bytes):
            self.free_retired()
        buffer, sets = make_arena(device, self._tensors, plan.bound, rng)
        first = (self._process * self._timing.max_allocations + number) * plan.bound
        arena = Arena(buffer=buffer, sets=sets, numbers=list(range(first, first + plan.bound)))
        try:
            fill_inputs(device, arena, self._timing.seed)
            if wait:
                device.synchronize()
        except BaseException:
            device.free(buffer)
            raise
        return arena


def _unclocked(phase: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()
