"""measure: one case in one process, from inputs to a checked measurement.

Each block has its own memory: inputs are generated, the kernel is bound to them, warmed up,
timed and checked. Blocks follow until the interval over them is narrow enough.
"""

from __future__ import annotations

import dataclasses
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Block, Check, KernelInfo, Measurement, StopReason
from kernelmark.core.timing import Cache, Duty, Timer, Timing
from kernelmark.devices.base import Device, own_queue
from kernelmark.measure.advice import (
    block_warnings,
    interval_warnings,
    reliability_warnings,
    sample_warnings,
    warmup_warnings,
)
from kernelmark.measure.audit import Audit
from kernelmark.measure.beside import Beside
from kernelmark.measure.bind import Binder, Bound, Prepare
from kernelmark.measure.check import CHECKED_SETS, Checker, Launchable, Pending, combine
from kernelmark.measure.loop import Pace, Sample, Sampler, choose_pace, samples_in
from kernelmark.measure.sets import (
    MAX_RECORDED_SETS,
    MAX_SETS,
    plan_sets,
)
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason
from kernelmark.measure.warmup import Warmup, touch, warm_up, warm_up_by_samples
from kernelmark.numerics.generate import source_bits, source_values
from kernelmark.ops.base import Op

OnPhase = Callable[[str], None]

# What a case's wall time goes into; `beside` is eager and hot launches on devices that have both.
PHASES = ("inputs", "compile", "record", "warmup", "timed", "beside", "check")
# Samples a block keeps at most, however short they are.
MAX_SAMPLES = 1000
# A block ends, too, when the host's clock is this many times ahead of the device's.
WALL_FACTOR = 5.0
# Share of a block's time that is launched before a further block is timed.
TOUCH_SHARE = 0.1
# Half-width of the 95 % spread of medians between processes whose own blocks agree
# (benchmarks/gpu/replication.py).
PROCESS_SHARE = 0.003
# The same at a power cap, recognised by a clock this far below the device's highest: how warm the
# chip is and what ran before decide the clock for seconds, longer than the blocks of a measurement.
# Over 60 cases × 12 processes on an H200 the 95 % intervals of capped cases covered the mean of the
# processes in as few as 9 of 12 without it. Both numbers were chosen on those runs, where they give
# 10 or more.
CAPPED_SHARE = 0.01
CAPPED_CLOCK = 0.9
# Share of a block that may be missing where its samples come in batches.
BATCH_SLACK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What measuring a case gave. `cost` is wall seconds by phase, and in total; `device` is what
    the device ran of that, by its own clock, for the timed, warm-up, eager and hot launches."""

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
        more = min(timing.allocations + device.more_blocks, timing.max_allocations)
        timing = dataclasses.replace(timing, allocations=more)
        self._timing = timing
        self._process = process
        self._on_phase = on_phase or (lambda phase: None)
        self._tensors = op.tensors(problem)
        self._plan = plan_sets(
            self._tensors,
            cache=timing.cache,
            cache_bytes=device.info.cache_bytes,
            free_bytes=device.free_bytes(),
            most=MAX_RECORDED_SETS if device.two_lengths else MAX_SETS,
            moved_bytes=op.bytes(problem),
        )
        self._checker = Checker(problem, op, device, timing.seed)
        self._cost = dict.fromkeys(PHASES, 0.0)
        self._binder = Binder(
            device=device,
            tensors=self._tensors,
            plan=self._plan,
            timing=timing,
            prepare=prepare,
            process=process,
            clock=self._told,
        )
        self._spread = PROCESS_SHARE if device.real_time else 0.0
        # Which block is audited is drawn: a kernel must not know.
        self._audited = secrets.randbelow(timing.allocations)
        self._blocks: list[Block] = []
        self._checks: list[Pending] = []
        self._kernel = KernelInfo()
        self._warmup: Warmup | None = None
        self._launch_s = 0.0
        self._gross_s = 0.0  # with strain or evictions around it
        self._pace = Pace(launches=1, two_lengths=False)
        self._method = Timer.AUTO
        self._warmup_s = 0.0
        self._timed_s = 0.0
        self._block_s = 0.0
        self._setup_s = 0.0
        self._device_s = 0.0
        self._fallbacks = 0
        self._also: dict[str, float] = {}
        self._touching: Callable[[], float] | None = None

    def run(self) -> Outcome:
        begun = time.perf_counter()
        stop = None
        try:
            self._fill_pools()
            while stop is None:
                stop = self._block(len(self._blocks))
        except BaseException:
            self._checker.cancel()
            raise
        finally:
            self._binder.close()
        with self._clock("check"):
            check = combine([pending() for pending in self._checks])
        self._cost["total"] = time.perf_counter() - begun
        self._cost["device"] = self._device_s + self._warmup_s + self._timed_s
        return Outcome(
            measurement=self._measurement(stop),
            check=check,
            kernel=self._kernel,
            cost=FrozenDict(self._cost),
        )

    def _measurement(self, stop: StopReason) -> Measurement:
        timing = self._timing
        spread = max(self._spread, CAPPED_SHARE) if self._capped() else self._spread
        interval = interval_of(self._blocks, timing, spread)
        assert self._warmup is not None
        warnings = [
            *self._plan.warnings,
            *warmup_warnings(self._warmup, timing),
            *sample_warnings(self._blocks, timing, self._fallbacks),
            *block_warnings(self._blocks, timing.threads or self._device.info.units, timing.duty),
            *interval_warnings(interval, timing.target_rel_ci),
            *reliability_warnings(self._blocks, interval, timing.allocations),
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
            modes=interval.modes,
        )

    def _capped(self) -> bool:
        """Whether the core clock was well below the device's highest."""
        highest_mhz = float(self._device.info.attributes.get("clock_khz", "0")) / 1e3
        clocks = [block.clock_mhz for block in self._blocks if block.clock_mhz is not None]
        return bool(clocks) and statistics.median(clocks) < CAPPED_CLOCK * highest_mhz

    def _fill_pools(self) -> None:
        """The generator's pools are made once a process: not part of a block's set-up."""
        self._on_phase("inputs")
        with self._clock("inputs"):
            for spec in self._tensors:
                if spec.role == "in" and spec.given is None:
                    source_bits(spec, self._timing.seed)
                    source_values(spec, self._timing.seed)

    def _block(self, number: int) -> StopReason | None:
        """Measure and check one block; why it was the last one, or None."""
        bound = self._binder.take(number)
        try:
            self._setup_s += bound.setup_s
            self._bound_block(number, bound)
            self._fallbacks += bound.sampler.fallbacks
            self._cost["record"] += bound.sampler.record_s
            stop = stop_reason(
                self._blocks,
                timing=self._timing,
                timed_s=self._timed_s,
                next_s=self._block_s,
                spread=self._spread,
            )
            if number == self._audited or (stop is not None and number < self._audited):
                self._audit(bound)
            return stop
        finally:
            self._binder.retire(bound)

    def _bound_block(self, number: int, bound: Bound) -> None:
        timing, device = self._timing, self._device
        arena, kernel, sampler = bound.arena, bound.kernel, bound.sampler
        setup_s = self._setup_s if device.real_time else 0.0
        self._block_s = block_seconds(timing, setup_s, enqueued=device.two_lengths)
        self._on_phase("warmup")
        self._warm(number, kernel, sampler)
        with self._clock("check"):
            fresh = self._checker.refresh(arena)
            if own_queue(kernel.launch) is not None:  # it does not see the device's stream
                device.synchronize()
        self._on_phase("timing")
        self._time(number, sampler)
        self._count_touching()
        self._on_phase("check")
        start = time.perf_counter()
        with self._clock("check"):
            reached = sampler.touched.intersection(fresh)
            # The last set as well: an index that is off by one shows there.
            chosen = [] if number else [max(reached)]
            chosen += self._checker.draw(reached.difference(chosen), CHECKED_SETS - len(chosen))
            self._checks.append(
                self._checker.verify(
                    kernel,
                    arena,
                    chosen,
                    projected=1 if number else 2,
                    sampled=0 if number else 1,
                )
            )
        self._setup_s = time.perf_counter() - start

    def _audit(self, bound: Bound) -> None:
        """Launches on rewritten inputs, after the block's own are checked."""
        audit = Audit(
            device=self._device,
            checker=self._checker,
            kernel=bound.kernel,
            arena=bound.arena,
            timer=self._timing.timer,
            evict=self._timing.cache is not Cache.HOT,
        )
        with self._clock("check"):
            timed_s = self._blocks[-1].median_s
            self._checks.append(audit.run(timed_s, partial(self._timed_again, bound.sampler)))

    def _timed_again(self, sampler: Sampler) -> float:
        """Seconds of a launch now, by samples as they were timed: after every set was launched, so
        that a kernel that skips repeated work skips it here too."""
        pace = dataclasses.replace(self._pace, rest=False)
        for _ in range(-(-self._plan.sets // pace.launches)):
            sampler.sample(pace)
        return statistics.median(sampler.sample(pace).launch_s for _ in range(3))

    def _warm(self, number: int, kernel: Launchable, sampler: Sampler) -> None:
        if number and sampler.takes_batches(self._pace):
            # What is recorded for this will be timed next: nothing is recorded for nothing, and
            # the device goes from one to the other without a rest.
            count = samples_in(TOUCH_SHARE * self._block_s, self._pace, self._launch_s)
            self._touching = sampler.touch(self._pace, count)
            self._binder.tidy()
            return
        self._binder.tidy()
        if number == 0:
            spent_s, wall_s = self._warm_first(kernel, sampler)
        else:
            seconds = min(TOUCH_SHARE * self._block_s, self._plan.sets * self._gross_s)
            spent_s, wall_s = touch(
                sampler, launch_s=self._gross_s, seconds=seconds, method=self._method
            )
        self._warmup_s += spent_s
        self._cost["warmup"] += wall_s

    def _count_touching(self) -> None:
        """What ran ahead of the samples counts as warm-up; they waited for it."""
        if self._touching is not None:
            spent_s, self._touching = self._touching(), None
            self._warmup_s += spent_s
            self._cost["warmup"] += spent_s
            # By the device's clock, and `timed` by the host's: they may differ a little.
            self._cost["timed"] = max(0.0, self._cost["timed"] - spent_s)

    def _warm_first(self, kernel: Launchable, sampler: Sampler) -> tuple[float, float]:
        """Warm up from nothing; also what is told beside the headline. Device and host seconds."""
        beside = Beside(self._device, kernel, self._plan.sets, self._timing)
        try:
            warmup = self._first_warm_up(kernel, sampler, beside)
            self._warmup, self._method = warmup, warmup.method
            self._launch_s = warmup.launch_s
            self._gross_s = sampler.gross_s(warmup.launch_s)
            with self._clock("beside"):
                self._kernel = beside.info()
                self._also |= beside.times(warmup.launch_s, warmup.method)
            self._device_s += beside.device_s
        finally:
            beside.close()
        return warmup.seconds, warmup.wall_s

    def _first_warm_up(self, kernel: Launchable, sampler: Sampler, beside: Beside) -> Warmup:
        timing = self._timing
        if not self._device.two_lengths or own_queue(kernel.launch) is not None:
            return warm_up(sampler, cap_s=timing.warmup_s, min_sample_s=timing.min_sample_s)

        guess: dict[str, Any] = {}

        def choose(launch_s: float, method: Timer) -> Pace:
            guess.update(launch_s=launch_s, method=method)
            return dataclasses.replace(self._choose(sampler, launch_s, method), rest=False)

        def meanwhile(pace: Pace) -> None:
            # One more than there must be: most measurements go on to it.
            most = min(timing.allocations + 1, timing.max_allocations)
            self._binder.make_ahead(range(1, most), pace)
            beside.prepare(**guess)

        return warm_up_by_samples(
            sampler, cap_s=timing.warmup_s, choose=choose, meanwhile=meanwhile
        )

    def _choose(self, sampler: Sampler, launch_s: float, method: Timer) -> Pace:
        pace = choose_pace(
            launch_s=launch_s,
            sets=self._plan.sets,
            evict=self._plan.evict and not self._binder.flush_in_stream,
            block_s=self._block_s,
            timing=self._timing,
            two_lengths=self._device.two_lengths,
            method=method,
        )
        return sampler.fit(pace)

    def _keep_pace(self, number: int, sampler: Sampler) -> Pace:
        """The pace that is recorded already, unless its samples are far too short or long."""
        fresh = self._choose(sampler, self._gross_s, self._method)
        pace = self._pace
        if number == 0:
            assert self._warmup is not None
            pace = self._warmup.pace or fresh
        close = fresh.launches / 2 <= pace.launches <= 2 * fresh.launches
        return dataclasses.replace(fresh, launches=pace.launches) if close else fresh

    def _time(self, number: int, sampler: Sampler) -> None:
        device = self._device
        self._pace = self._keep_pace(number, sampler)
        sampler.restart()
        if device.two_lengths:
            device.watch()
        else:
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
        self._gross_s = sampler.gross_s(self._launch_s)

    def _samples(self, sampler: Sampler) -> list[Sample]:
        """Samples for the block's seconds; the cap on all seconds goes before their number."""
        timing = self._timing
        longest = max(self._block_s, timing.max_s / timing.allocations)
        gaps = self._pace.evict or timing.duty is Duty.BURST
        by_wall = gaps and self._device.real_time
        patience_s = WALL_FACTOR * longest + 1.0
        samples: list[Sample] = []
        spent_s = timed_s = wall_s = 0.0
        batches = sampler.takes_batches(self._pace)
        took_s = 0.0
        while len(samples) < MAX_SAMPLES and timed_s < longest and wall_s < patience_s:
            count = 1
            if batches:
                wanted_s = max(
                    self._block_s - spent_s, (timing.min_samples - len(samples)) * took_s
                )
                count = samples_in(min(wanted_s, longest - timed_s), self._pace, self._launch_s)
            # The check of the block before has been sent by now, or will be soon.
            for sample in sampler.samples(self._pace, count, self._checker.settle):
                samples.append(sample)
                timed_s += sample.timed_s
                wall_s += sample.wall_s
                took_s = max(sample.timed_s, sample.wall_s) if by_wall else sample.timed_s
                spent_s += took_s
            # A batch for the last few is not worth the wait before it.
            left_s = max(took_s / 2, BATCH_SLACK * self._block_s if batches else 0.0)
            if len(samples) >= timing.min_samples and spent_s + left_s >= self._block_s:
                break
        return samples

    def _told(self, phase: str) -> AbstractContextManager[None]:
        self._on_phase(phase)
        return self._clock(phase)

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._cost[phase] += time.perf_counter() - start
