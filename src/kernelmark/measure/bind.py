"""Binder: allocates a block's memory, fills its inputs and prepares its kernel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Cache, Timing
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.measure.check import Launchable
from kernelmark.measure.loop import Pace, Sampler
from kernelmark.measure.sets import Arena, SetPlan, fill_inputs, make_arena

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
            arena=arena,
            kernel=kernel,
            sampler=sampler,
            setup_s=setup_s if wait else 0.0,
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
