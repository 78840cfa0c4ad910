"""Binder: a block's memory, inputs and kernel, made when its turn comes or ahead of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
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
Clock = Callable[[str], AbstractContextManager[None]]  # host seconds of a phase go to its cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A block that can be launched. `setup_s` is what making it kept the device waiting."""

    arena: Arena
    kernel: Launchable
    sampler: Sampler
    setup_s: float

    def close(self) -> None:
        """Give back everything but the memory."""
        try:
            self.sampler.close()
        finally:
            self.kernel.close()


class Binder:
    """Makes the blocks of one measurement, each on memory of its own."""

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
        # A device that enqueues can evict between launches, inside what is timed.
        self.flush_in_stream = timing.cache is Cache.FLUSH and device.two_lengths
        self._ahead: dict[int, Bound] = {}
        self._retired: Bound | None = None

    def take(self, number: int) -> Bound:
        """Block `number`, which is made now unless it was made ahead."""
        return self._ahead.pop(number, None) or self._bind(number, self._clock, wait=True)

    def make_ahead(self, numbers: Iterable[int], pace: Pace) -> None:
        """Make blocks while the device is busy, with a sample of `pace` recorded; none where the
        memory is short."""
        wanted = list(numbers)
        if self._device.free_bytes() < 2 * len(wanted) * self._arena_bytes:
            return
        for number in wanted:
            self._ahead[number] = made = self._bind(number, _unclocked, wait=False)
            made.sampler.prepare(pace)
            made.sampler.record_s = 0.0  # nothing waited for it

    def retire(self, bound: Bound) -> None:
        """The block is done: it is kept until the next is there, so that the system does not hand
        out the same pages again, and until somebody tidies while the device is busy."""
        self.tidy()
        self._retired = bound

    def tidy(self) -> None:
        """Give back what a retired block took."""
        if self._retired is not None:
            bound, self._retired = self._retired, None
            try:
                bound.close()
            finally:
                self._device.free(bound.arena.buffer)

    def close(self) -> None:
        """Give back all memory."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.tidy)
            for bound in self._ahead.values():
                stack.callback(self._device.free, bound.arena.buffer)
                stack.callback(bound.close)
            self._ahead.clear()

    @property
    def _arena_bytes(self) -> int:
        return self._plan.bound * self._plan.footprint_bytes

    def _bind(self, number: int, clock: Clock, *, wait: bool) -> Bound:
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
            if number:  # the first one compiles; the others show what binding costs
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
        return Bound(
            arena=arena,
            kernel=kernel,
            sampler=sampler,
            setup_s=setup_s if wait else 0.0,
        )

    def _arena(self, number: int, rng: np.random.Generator, *, wait: bool) -> Arena:
        plan, device = self._plan, self._device
        short = device.free_bytes() < 2 * self._arena_bytes
        if short or device.keeps(self._arena_bytes):
            self.tidy()
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
