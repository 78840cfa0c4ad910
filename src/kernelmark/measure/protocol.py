"""measure: one case in one process, from inputs to a checked measurement.

Each block has its own memory: inputs are generated, the kernel is bound to them, warmed up,
timed and checked. Blocks follow until the interval over them is narrow enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Block, Check, KernelInfo, Measurement, StopReason
from kernelmark.core.timing import Cache, Duty, Timer, Timing
from kernelmark.devices.base import ArgumentSet, Buffer, Device, own_queue
from kernelmark.measure.advice import (
    block_warnings,
    interval_warnings,
    sample_warnings,
    warmup_warnings,
)
from kernelmark.measure.beside import named, other_times
from kernelmark.measure.check import Checker, Launchable, choose_sets, combine
from kernelmark.measure.loop import Pace, Sample, Sampler, choose_pace
from kernelmark.measure.sets import Arena, fill_inputs, make_arena, plan_sets
from kernelmark.measure.stop import (
    ENQUEUED_FACTOR,
    SETUP_FACTOR,
    block_seconds,
    interval_of,
    stop_reason,
)
from kernelmark.measure.warmup import Warmup, touch, warm_up
from kernelmark.numerics.generate import pool_bits, pool_values
from kernelmark.ops.base import Op

Prepare = Callable[[Sequence[ArgumentSet]], Launchable]
OnPhase = Callable[[str], None]

# What a case's wall time goes into; `beside` is eager and hot launches on devices that have both.
PHASES = ("inputs", "compile", "warmup", "timed", "beside", "check")
# Samples a block keeps at most, however short they are.
MAX_SAMPLES = 1000
# A block ends, too, when the host's clock is this many times ahead of the device's.
WALL_FACTOR = 5.0
# Values are compared in this many sets of the first block, and in one of each further block.
REFERENCED_SETS = 3
# Share of a block's time that is launched before a further block is timed.
TOUCH_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What measuring a case gave. `cost` is wall seconds by phase, and in total."""

    measurement: Measurement
    check: Check
    kernel: KernelInfo
    cost: Mapping[str, float]


def measure(
    *,
    problem: Problem,
    op: Op,
    device: Device,
    timing: Timing,
    prepare: Prepare,
    process: int = 0,
    on_phase: OnPhase | None = None,
) -> Outcome:
    """Measure and check one problem by what `prepare` makes of its argument sets."""
    return _Measuring(problem, op, device, timing, prepare, process, on_phase).run()


class _Measuring:
    """The state of one measurement between its blocks."""

    def __init__(
        self,
        problem: Problem,
        op: Op,
        device: Device,
        timing: Timing,
        prepare: Prepare,
        process: int,
        on_phase: OnPhase | None,
    ) -> None:
        self._device = device
        self._timing = timing
        self._prepare = prepare
        self._process = process
        self._on_phase = on_phase or (lambda phase: None)
        self._tensors = op.tensors(problem)
        self._plan = plan_sets(
            self._tensors,
            cache=timing.cache,
            cache_bytes=device.info.cache_bytes,
            free_bytes=device.free_bytes(),
        )
        # A device that enqueues can evict between launches, inside what is timed.
        self._flush_in_stream = timing.cache is Cache.FLUSH and device.two_lengths
        self._checker = Checker(problem, op, device, timing.seed)
        self._cost = dict.fromkeys(PHASES, 0.0)
        self._previous: Buffer | None = None
        self._blocks: list[Block] = []
        self._checks: list[Check] = []
        self._kernel = KernelInfo()
        self._warmup: Warmup | None = None
        self._launch_s = 0.0
        self._pace = Pace(launches=1, two_lengths=False)
        self._method = Timer.AUTO
        self._warmup_s = 0.0
        self._timed_s = 0.0
        self._block_s = 0.0
        self._setup_s = 0.0
        self._fallbacks = 0
        self._also: dict[str, float] = {}

    def run(self) -> Outcome:
        begun = time.perf_counter()
        stop = None
        try:
            self._fill_pools()
            while stop is None:
                self._block(len(self._blocks))
                stop = stop_reason(
                    self._blocks,
                    timing=self._timing,
                    timed_s=self._timed_s,
                    next_s=self._block_s,
                )
        finally:
            self._free_previous()
        self._cost["total"] = time.perf_counter() - begun
        return Outcome(
            measurement=self._measurement(stop),
            check=combine(self._checks),
            kernel=self._kernel,
            cost=FrozenDict(self._cost),
        )

    def _measurement(self, stop: StopReason) -> Measurement:
        timing = self._timing
        interval = interval_of(self._blocks, timing)
        assert self._warmup is not None
        warnings = [
            *self._plan.warnings,
            *warmup_warnings(self._warmup, timing),
            *sample_warnings(self._blocks, timing, self._fallbacks),
            *block_warnings(self._blocks, timing.threads or self._device.info.units),
            *interval_warnings(interval, timing.target_rel_ci),
        ]
        return Measurement(
            blocks=tuple(self._blocks),
            low_s=interval.low_s,
            high_s=interval.high_s,
            method=str(self._method),
            launches=self._pace.launches,
            sets=self._plan.sets,
            footprint_bytes=self._plan.footprint_bytes,
            stop=stop,
            warmup_s=self._warmup_s,
            timed_s=self._timed_s,
            warnings=tuple(warnings),
            also=self._also,
        )

    def _fill_pools(self) -> None:
        """The generator's pools are made once a process: not part of a block's set-up."""
        self._on_phase("inputs")
        with self._clock("inputs"):
            for spec in self._tensors:
                if spec.role == "in":
                    pool_bits(spec.dtype, spec.low, spec.high, self._timing.seed)
                    pool_values(spec.dtype, spec.low, spec.high, self._timing.seed)

    def _block(self, number: int) -> None:
        rng = np.random.default_rng([self._timing.seed, self._process, number])
        start = time.perf_counter()
        self._on_phase("inputs")
        with self._clock("inputs"):
            arena = self._arena(number, rng)
        try:
            self._setup_s += time.perf_counter() - start
            self._on_phase("compile")
            start = time.perf_counter()
            with self._clock("compile"):
                kernel = self._prepare(arena.sets)
            if number:  # the first one compiles; the others show what binding costs
                self._setup_s += time.perf_counter() - start
            try:
                self._bound_block(number, arena, kernel, rng)
            finally:
                kernel.close()
        finally:
            self._previous = arena.buffer

    def _bound_block(
        self, number: int, arena: Arena, kernel: Launchable, rng: np.random.Generator
    ) -> None:
        timing, device = self._timing, self._device
        sampler = Sampler(
            device,
            kernel.launch,
            sets=self._plan.sets,
            timer=timing.timer,
            strain=timing.strain,
            flush=self._flush_in_stream,
        )
        try:
            chosen = choose_sets(self._plan.sets, rng)
            likely = [*chosen[: REFERENCED_SETS - 1], chosen[-1]]
            if number:
                likely = [int(rng.choice(chosen))]
            if own_queue(kernel.launch) is None:  # else the host is busy: it fills the queue
                self._checker.expect(arena, dict.fromkeys(likely))
            self._on_phase("warmup")
            self._warm(number, kernel, sampler)
            with self._clock("check"):
                self._checker.poison(arena, chosen)
                device.synchronize()
            self._on_phase("timing")
            self._time(number, sampler)
            self._on_phase("check")
            start = time.perf_counter()
            with self._clock("check"):
                seen = [index for index in chosen if index in sampler.touched]
                values = [index for index in likely if index in seen] or seen[:1]
                self._checks.append(self._checker.verify(kernel, arena, seen, values))
            self._setup_s = time.perf_counter() - start
            self._fallbacks += sampler.fallbacks
        finally:
            sampler.close()

    def _arena(self, number: int, rng: np.random.Generator) -> Arena:
        """Memory and inputs of a block. The last block's memory is kept until now where there is
        room for both, so that the system does not hand out the same pages again."""
        plan = self._plan
        if self._device.free_bytes() < 2 * plan.sets * plan.footprint_bytes:
            self._free_previous()
        buffer, sets = make_arena(self._device, self._tensors, plan.sets, rng)
        self._free_previous()
        first = (self._process * self._timing.max_allocations + number) * plan.sets
        arena = Arena(buffer=buffer, sets=sets, first=first)
        try:
            fill_inputs(self._device, arena, self._timing.seed)
            self._device.synchronize()
        except BaseException:
            self._device.free(buffer)
            raise
        return arena

    def _free_previous(self) -> None:
        if self._previous is not None:
            self._device.free(self._previous)
            self._previous = None

    def _warm(self, number: int, kernel: Launchable, sampler: Sampler) -> None:
        timing = self._timing
        if number == 0:
            self._kernel = kernel.info
            warmup = warm_up(sampler, cap_s=timing.warmup_s, min_sample_s=timing.min_sample_s)
            self._warmup, self._method = warmup, warmup.method
            self._launch_s = warmup.launch_s
            spent_s, wall_s = warmup.seconds, warmup.wall_s
            with self._clock("beside"):
                self._kernel = named(kernel.info, self._device.kernel_names(kernel.launch))
                self._also |= other_times(self._device, kernel, self._plan.sets, warmup, timing)
        elif self._device.two_lengths and not (self._pace.evict or self._pace.rest):
            # What is recorded for this will be timed next: nothing is recorded for nothing.
            sample = sampler.sample(self._pace)
            spent_s, wall_s = sample.timed_s, sample.run_wall_s
        else:
            seconds = min(TOUCH_SHARE * self._block_s, self._plan.sets * self._launch_s)
            spent_s, wall_s = touch(
                sampler, launch_s=self._launch_s, seconds=seconds, method=self._method
            )
        self._warmup_s += spent_s
        self._cost["warmup"] += wall_s

    def _time(self, number: int, sampler: Sampler) -> None:
        timing, device = self._timing, self._device
        factor = ENQUEUED_FACTOR if device.two_lengths else SETUP_FACTOR
        setup_s = self._setup_s if device.real_time else 0.0
        self._block_s = block_seconds(timing, setup_s, factor)
        if number == 0 or self._launch_s * self._pace.launches < timing.min_sample_s / 2:
            self._pace = choose_pace(
                launch_s=self._launch_s,
                sets=self._plan.sets,
                evict=self._plan.evict and not self._flush_in_stream,
                block_s=self._block_s,
                timing=timing,
                two_lengths=device.two_lengths,
                method=self._method,
            )
            self._pace = sampler.fit(self._pace)
        sampler.restart()
        if not device.two_lengths:
            device.telemetry()  # what counts from one reading to the next counts from here
        samples = self._samples(sampler)
        clocks = [s.clock_mhz for s in samples if s.clock_mhz is not None]
        self._timed_s += sum(s.timed_s for s in samples)
        self._cost["timed"] += sum(s.run_wall_s for s in samples)
        self._blocks.append(
            Block(
                process=self._process,
                allocation=number,
                samples_s=tuple(s.launch_s for s in samples),
                clocks_mhz=tuple(clocks) if len(clocks) == len(samples) else (),
                telemetry=device.telemetry(),
            )
        )
        self._launch_s = self._blocks[-1].median_s

    def _samples(self, sampler: Sampler) -> list[Sample]:
        """Samples for the block's seconds; the cap on all seconds goes before their number."""
        timing = self._timing
        longest = max(self._block_s, timing.max_s / timing.allocations)
        gaps = self._pace.evict or timing.duty is Duty.BURST
        by_wall = gaps and self._device.real_time
        patience_s = WALL_FACTOR * longest + 1.0
        samples: list[Sample] = []
        spent_s = timed_s = wall_s = 0.0
        while len(samples) < MAX_SAMPLES and timed_s < longest and wall_s < patience_s:
            sample = sampler.sample(self._pace)
            samples.append(sample)
            timed_s += sample.timed_s
            wall_s += sample.wall_s
            took_s = max(sample.timed_s, sample.wall_s) if by_wall else sample.timed_s
            spent_s += took_s
            if len(samples) >= timing.min_samples and spent_s + took_s / 2 >= self._block_s:
                break
        return samples

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._cost[phase] += time.perf_counter() - start
