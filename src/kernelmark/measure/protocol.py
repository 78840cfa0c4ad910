"""Measurement of one case in one process, from inputs to a checked measurement.

Each block has its own memory: inputs are generated, the kernel is bound to them, warmed up, timed
and checked. Blocks follow until the interval over them is narrow enough.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar, cast

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Block, Check, KernelInfo, Measurement, StopReason
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.devices.base import Device, own_queue
from kernelmark.measure.audit import FACTOR as AUDIT_FACTOR
from kernelmark.measure.audit import LATENCY_S, REPLAY_S, Audit, TimedBlock
from kernelmark.measure.blocks import (
    audit_warnings,
    data_warnings,
    measurement_warnings,
    warmup_warnings,
)
from kernelmark.measure.check import CHECKED_SETS, Checker, PendingCheck, combine
from kernelmark.measure.loop import SHORTEST_S, Pace, Sample, Sampler, choose_pace, samples_in
from kernelmark.measure.sets import (
    MAX_RECORDED_SETS,
    MAX_SETS,
    Binder,
    BoundBlock,
    Launchable,
    Prepare,
    plan_sets,
)
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason
from kernelmark.measure.warmup import FIRST_LAUNCHES, Warmup, rewarm, warm_up, warm_up_by_samples
from kernelmark.numerics.generate import source_bits, source_values
from kernelmark.ops.base import Op

_ROUNDS = 3
_LAUNCHES = 50
_MOST_S = 0.002


class SecondaryTimes:
    """Measures `host_s`, an eager launch without a graph, and `hot_s`, with inputs in the cache.

    Neither is measured on a device that times its headline by a loop on the host.
    """

    def __init__(self, device: Device, kernel: Launchable, sets: int, timing: Timing) -> None:
        self._device = device
        self._kernel = kernel
        self._sets = sets
        self._timing = dataclasses.replace(timing, cache=Cache.HOT)
        self._wants_hot = timing.cache is Cache.COLD
        self._names: tuple[str, ...] | None = None
        self._sampler = Sampler(
            device, kernel.launch, sets=1, timer=timing.timer, strain=Strain.NONE
        )
        self._pace: Pace | None = None
        self.device_s = 0.0  # spent on these launches, by the device's clock

    def prepare(self, launch_s: float, method: Timer) -> None:
        """Record replays and look up names while the device is busy."""
        self._names = self._device.kernel_names(self._kernel.launch)
        if self._wants_hot and self._applies(method):
            self._pace = self._choose(launch_s, method)
            self._sampler.prepare(self._pace)

    def info(self) -> KernelInfo:
        """Return the kernel's info, with the device's names of the kernels a launch starts."""
        info = self._kernel.info
        if self._names is None:
            self._names = self._device.kernel_names(self._kernel.launch)
        names = "+".join(self._names)
        # A library's solution keeps its own name: files for the library are written with it.
        is_solution = bool(info.name) and "solution_index" in info.resources
        if not names or names == info.name or is_solution:
            return info
        return dataclasses.replace(info, name=f"{info.name}: {names}" if info.name else names)

    def times(self, launch_s: float, method: Timer) -> dict[str, float]:
        """Return seconds per launch by name."""
        if not self._applies(method):
            return {}
        times = {"host_s": self._eager_s(launch_s)}
        if self._wants_hot:
            pace = self._pace or self._choose(launch_s, method)
            samples = self._sampler.samples(pace, _ROUNDS)
            self.device_s += sum(s.timed_s for s in samples)
            times["hot_s"] = statistics.median(s.launch_s for s in samples)
        return times

    def close(self) -> None:
        self._sampler.close()

    def _applies(self, method: Timer) -> bool:
        return method not in (Timer.LOOP, Timer.CPU) or own_queue(self._kernel.launch) is not None

    def _choose(self, launch_s: float, method: Timer) -> Pace:
        pace = choose_pace(
            launch_s=launch_s,
            sets=1,
            evict=False,
            block_s=_MOST_S,
            timing=self._timing,
            two_lengths=self._device.enqueues,
            method=method,
        )
        return self._sampler.fit(pace)

    def _eager_s(self, launch_s: float) -> float:
        device, kernel = self._device, self._kernel
        launches = max(1, min(_LAUNCHES, int(_MOST_S / _ROUNDS / max(launch_s, SHORTEST_S))))
        rounds = []
        for _ in range(_ROUNDS):
            device.synchronize()
            start = time.perf_counter()
            for index in range(launches):
                kernel.launch(device.stream, index % self._sets)
            device.synchronize()
            rounds.append((time.perf_counter() - start) / launches)
        self.device_s += sum(min(launch_s, host_s) * launches for host_s in rounds)
        return statistics.median(rounds)


class Pause(Enum):
    """Where a measurement pauses, so that others can be measured by turns with it."""

    BETWEEN = auto()  # a block is done, its memory is freed, and another one follows
    READY = auto()  # a block is set up and warm
    TURN = auto()  # some of the block's samples are taken, and more follow
    TIMED = auto()  # all of them are taken, and their outputs are checked


OnPhase = Callable[[str], None]
_T = TypeVar("_T")
Steps = Generator[Pause, None, _T]  # pauses between steps; returns a value

# Phases of a case's wall time; `beside` is that of the secondary times (eager, hot).
PHASES = ("inputs", "compile", "record", "warmup", "timed", "beside", "check")
# Limit of the samples of a block, however short they are.
MAX_SAMPLES = 1000
# A block also ends after this many times its device seconds on the host's clock.
WALL_FACTOR = 5.0
# Warm-up before each further block, as a fraction of the block's time. At a power cap, a warm-up as
# long as the pause before the block did not improve the agreement of blocks of two large GEMMs on
# an H200 (eight processes with it, eight without).
REWARM_FRACTION = 0.1
# Half-width of the spread of medians between processes whose own blocks agree, as a fraction. Times
# drift over seconds, so the three or four blocks of a measurement are closer to each other than to
# those of another process: over 66 cases × 10 processes on an H200, intervals with 0.003 covered
# the mean of the processes in 97.6 %, but for two small attention kernels only in 7 and 8 of 10
# processes. With this value, chosen on those runs, it is 9 of 10 or more in every case.
PROCESS_SPREAD = 0.0065
# The same at a power cap, recognised by a clock below this fraction of the device's highest: the
# chip's temperature and the work before set the clock for seconds, longer than a measurement. Over
# 60 cases × 12 processes on an H200, the 95 % intervals of capped cases covered the mean of the
# processes in as few as 9 of 12 without it. Both numbers were chosen on those runs, where they give
# 10 or more.
CAPPED_SPREAD = 0.01
CAPPED_CLOCK = 0.9
# Limit of audited blocks while the machine may be the reason for their times. If none of them can
# be repeated, the kernel works honestly only once it is audited, and is refused.
MOST_AUDITS = 3
# A block may end this fraction early: another batch is not worth its fixed cost.
BATCH_SLACK = 0.1
# Candidates of a search that take longer than this are timed by replays of one length: the fixed
# cost of a replay, about 10 µs, is 0.2 % of it, and a sample of two lengths takes three launches.
ONE_LENGTH_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A measured and checked case. `cost` has wall seconds by phase and in `total`; its `device`
    is the device seconds of all timed, warm-up, re-timed, eager and hot launches."""

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
    """Measure and check one problem with the kernel that `prepare` binds to argument sets."""
    return finish(
        measure_blocks(
            problem=problem,
            op=op,
            device=device,
            timing=timing,
            prepare=prepare,
            process=process,
            on_phase=on_phase,
        )
    )


def measure_blocks(
    *,
    problem: Problem,
    op: Op,
    device: Device,
    timing: Timing,
    prepare: Prepare,
    process: int = 0,
    on_phase: OnPhase | None = None,
    turn_s: float = math.inf,
    between: bool = False,
    cutoff_s: float | None = None,
) -> Steps[Outcome]:
    """Measure as `measure` does, pausing around each block's samples, and among them after every
    `turn_s` device seconds; with `between`, also between blocks. Others may be measured
    meanwhile.

    With `cutoff_s` the case is a candidate of a search: it has no secondary times, and it ends with
    the first launch that is clearly slower than `cutoff_s`, whose output is checked all the same.
    """
    return _BlockLoop(
        problem,
        op,
        device,
        timing,
        prepare,
        process,
        on_phase,
        turn_s,
        between=between,
        cutoff_s=cutoff_s,
    ).run()


def finish(steps: Steps[_T]) -> _T:
    """Return the value of a generator after all of its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(_T, end.value)


class _BlockLoop:
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
        turn_s: float,
        *,
        between: bool,
        cutoff_s: float | None,
    ) -> None:
        self._device = device
        self._cutoff_s = cutoff_s
        self._is_cut = False
        self._turn_s = turn_s
        self._between = between
        self._paused_s = 0.0
        more = min(timing.allocations + device.more_blocks, timing.max_allocations)
        timing = dataclasses.replace(timing, allocations=more)
        self._timing = timing
        self._threads = timing.threads or device.info.units  # only of a CPU
        self._process = process
        self._on_phase = on_phase or (lambda phase: None)
        self._tensors = op.tensors(problem)
        self._plan = plan_sets(
            self._tensors,
            cache=timing.cache,
            cache_bytes=device.info.cache_bytes,
            free_bytes=device.free_bytes(),
            most=MAX_RECORDED_SETS if device.enqueues else MAX_SETS,
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
            clock=self._enter_phase,
        )
        self._spread = PROCESS_SPREAD if device.real_time else 0.0
        # Random, so that a kernel cannot predict which block is audited.
        self._next_audit = secrets.randbelow(timing.allocations)
        self._audited_s: list[float] = []  # of a launch, in blocks whose times were repeatable
        self._data_scatters: list[float] = []  # of audited blocks whose times depend on the data
        self._unrepeatable = 0  # audited blocks whose times were not
        self._blocks: list[Block] = []
        self._checks: list[PendingCheck] = []
        self._kernel = KernelInfo()
        self._warmup: Warmup | None = None
        self._launch_s = 0.0
        self._gross_s = 0.0  # device seconds per launch with background load or evictions
        self._pace = Pace(launches=1, two_lengths=False)
        self._method = Timer.AUTO
        self._warmup_s = 0.0
        self._timed_s = 0.0
        self._block_s = 0.0
        self._setup_s = 0.0
        self._device_s = 0.0
        self._fallbacks = 0
        self._also: dict[str, float] = {}
        self._enqueued_warmup: Callable[[], float] | None = None

    def run(self) -> Steps[Outcome]:
        begun = time.perf_counter()
        stop = None
        try:
            self._fill_pools()
            while stop is None:
                if self._between and self._blocks:
                    self._binder.free_retired()
                    yield from self._pause(Pause.BETWEEN)
                stop = yield from self._run_block(len(self._blocks))
        except BaseException:
            self._checker.cancel()
            raise
        finally:
            self._binder.close()
        measurement = self._measurement(stop)  # while the device still runs the last check
        with self._clock("check"):
            self._checker.receive_all()
            check = combine([pending() for pending in self._checks])
        self._cost["total"] = time.perf_counter() - begun - self._paused_s
        self._cost["device"] = self._device_s + self._warmup_s + self._timed_s
        return Outcome(
            measurement=measurement, check=check, kernel=self._kernel, cost=FrozenDict(self._cost)
        )

    def _measurement(self, stop: StopReason) -> Measurement:
        timing = self._timing
        spread = max(self._spread, CAPPED_SPREAD) if self._is_power_capped() else self._spread
        interval = interval_of(self._blocks, timing, spread)
        assert self._warmup is not None
        warnings = [
            *self._plan.warnings,
            *warmup_warnings(self._warmup, timing),
            *measurement_warnings(
                self._blocks,
                interval,
                timing,
                stop=stop,
                threads=self._threads,
                fallbacks=self._fallbacks,
            ),
            *audit_warnings(self._blocks, self._audited_s, AUDIT_FACTOR),
            *data_warnings(self._data_scatters),
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

    def _is_power_capped(self) -> bool:
        highest_mhz = float(self._device.info.attributes.get("clock_khz", "0")) / 1e3
        clocks = [block.clock_mhz for block in self._blocks if block.clock_mhz is not None]
        return bool(clocks) and statistics.median(clocks) < CAPPED_CLOCK * highest_mhz

    def _fill_pools(self) -> None:
        """Fill the generator's pools once per process, so that no block's set-up includes it."""
        self._on_phase("inputs")
        with self._clock("inputs"):
            for spec in self._tensors:
                if spec.role == "in" and spec.given is None:
                    source_bits(spec, self._timing.seed)
                    source_values(spec, self._timing.seed)

    def _pause(self, at: Pause) -> Steps[None]:
        paused = time.perf_counter()
        yield at
        self._paused_s += time.perf_counter() - paused

    def _run_block(self, number: int) -> Steps[StopReason | None]:
        """Measure and check one block. Return why it was the last one, or None."""
        block = self._binder.take(number)
        try:
            self._setup_s += block.setup_s
            yield from self._measure_block(number, block)
            self._fallbacks += block.sampler.fallbacks
            self._cost["record"] += block.sampler.record_s
            if self._is_cut:
                return StopReason.CUTOFF
            stop = stop_reason(
                self._blocks, timing=self._timing, timed_s=self._timed_s, next_s=self._block_s
            )
            if stop and not number and self._is_fresh(block.sampler):
                return stop
            if number == self._next_audit or (stop and number < self._next_audit):
                self._audit(number, block)
            if stop and self._is_doubtful():
                # Another block shows whether the device was slower or the kernel skips work.
                self._next_audit = number + 1
                return None
            return stop
        finally:
            self._binder.retire(block)

    def _is_doubtful(self) -> bool:
        """Return whether audits so far found only times that other blocks, launches of their own or
        launches on the same values do not have, and more of them are allowed."""
        if len(self._audited_s) + self._unrepeatable >= MOST_AUDITS:
            return False
        slow = audit_warnings(self._blocks, self._audited_s, AUDIT_FACTOR)
        return bool(slow or not self._audited_s)

    def _measure_block(self, number: int, block: BoundBlock) -> Steps[None]:
        timing, device = self._timing, self._device
        kernel, sampler = block.kernel, block.sampler
        setup_s = self._setup_s if device.real_time else 0.0
        self._block_s = block_seconds(timing, setup_s, enqueued=device.enqueues)
        self._on_phase("warmup")
        if number == 0 and self._cutoff_s is not None:
            rewritten = self._refresh(block)
            if self._ends_with_first_launch(block, self._cutoff_s):
                self._check(number, block, rewritten)
                return
        self._warm_up(number, kernel, sampler)
        if number == 0 and self._cutoff_s is not None:
            self._is_cut = self._launch_s > self._cutoff_s + LATENCY_S
        rewritten = self._refresh(block)
        yield from self._pause(Pause.READY)
        self._on_phase("timing")
        yield from self._time(number, sampler)
        self._book_enqueued_warmup()
        self._check(number, block, rewritten)
        yield from self._pause(Pause.TIMED)

    def _refresh(self, block: BoundBlock) -> list[int]:
        """Rewrite inputs and poison outputs before the launches that are checked."""
        with self._clock("check"):
            rewritten = self._checker.refresh(block.arena)
            if own_queue(block.kernel.launch) is not None:  # not ordered after the device's stream
                self._device.synchronize()
        return rewritten

    def _check(self, number: int, block: BoundBlock, rewritten: Sequence[int]) -> None:
        """Check outputs of the launches since `rewritten` sets were refreshed."""
        self._on_phase("check")
        start = time.perf_counter()
        with self._clock("check"):
            launched = block.sampler.launched.intersection(rewritten)
            # The first block also checks the last set, where an off-by-one index shows.
            chosen = [] if number else [max(launched)]
            chosen += self._checker.draw(launched.difference(chosen), CHECKED_SETS - len(chosen))
            # Elsewhere the audit checks that sets which are not launched stay untouched.
            is_fresh = self._is_cut or (not number and self._is_fresh(block.sampler))
            idle = set(rewritten).difference(block.sampler.launched) if is_fresh else set()
            self._checks.append(
                self._checker.verify(
                    block.kernel,
                    block.arena,
                    chosen,
                    projected=1 if number else 2,
                    sampled=0 if number else 1,
                    untouched=self._checker.draw(idle, CHECKED_SETS),
                )
            )
        self._setup_s = time.perf_counter() - start

    def _ends_with_first_launch(self, block: BoundBlock, cutoff_s: float) -> bool:
        """Time a candidate's first launch, and a short one again if it is slow. Return whether it
        is so slow that there are no others."""
        if self._device.enqueues:
            self._device.watch()
        launch_s = math.inf
        for _ in range(2):
            reading, wall_s, method = block.sampler.replay(1)
            launch_s = min(launch_s, reading.elapsed_s)
            self._timed_s += reading.spent_s
            self._cost["timed"] += wall_s
            self._is_cut = launch_s > cutoff_s + REPLAY_S
            if not self._is_cut or launch_s > ONE_LENGTH_S:
                break
        self._launch_s = self._gross_s = launch_s
        if not self._is_cut:
            self._device_s, self._timed_s = self._device_s + self._timed_s, 0.0
            return False
        self._method = method
        self._warmup = Warmup(
            seconds=0.0, wall_s=0.0, launch_s=launch_s, settled=False, method=method, trace_s=()
        )
        self._kernel = block.kernel.info
        clock = reading.clock_mhz
        self._blocks.append(
            Block(
                process=self._process,
                allocation=0,
                samples_s=(launch_s,),
                clocks_mhz=() if clock is None else (clock,),
                telemetry=self._device.telemetry(),
            )
        )
        return True

    def _is_fresh(self, sampler: Sampler) -> bool:
        """Return whether a search's candidate ran every timed launch of its only block on inputs
        that were rewritten since the set's last launch: what it remembers cannot help it, so there
        is nothing to audit."""
        if self._cutoff_s is None or self._timing.max_allocations > 1 or self._pace.two_lengths:
            return False
        return len(self._blocks[0].samples_s) * self._pace.launches <= sampler.sets

    def _audit(self, number: int, block: BoundBlock) -> None:
        """Check and time launches on rewritten inputs, after the block's own check. If these do not
        repeat the block's time, audit the next block too: a kernel that skips work until it is
        audited repeats none, and is refused."""
        with self._clock("check"):
            timed_s = self._blocks[-1].median_s
            if self._unrepeatable:  # the machine may have become slower since
                timed_s = max(timed_s, self._retime(block.sampler))
            timed = TimedBlock(
                device=self._device,
                checker=self._checker,
                kernel=block.kernel,
                arena=block.arena,
                timer=self._timing.timer,
                threads=self._threads,
                evict=self._timing.cache is not Cache.HOT,
                timed_s=timed_s,
            )
            audit = Audit(timed)
            self._checks.append(audit.run(partial(self._retime, block.sampler)))
        if audit.data_scatter is not None:
            self._data_scatters.append(audit.data_scatter)
        if audit.repeatable:
            self._audited_s.append(audit.slow_s or timed_s)
            return
        self._unrepeatable += 1
        self._next_audit = number + 1
        if self._unrepeatable == MOST_AUDITS:
            self._checks.append(audit.refuse)

    def _retime(self, sampler: Sampler) -> float:
        """Return the current seconds per launch, by samples like the timed ones. Every set is
        launched first, so that a kernel that skips repeated work skips it here too."""
        pace = dataclasses.replace(self._pace, idle=False)
        count = -(-self._plan.sets // pace.launches) + 3
        samples = [sampler.sample(pace) for _ in range(count)]
        self._device_s += sum(sample.timed_s for sample in samples)
        return statistics.median(sample.launch_s for sample in samples[-3:])

    def _warm_up(self, number: int, kernel: Launchable, sampler: Sampler) -> None:
        if number and sampler.takes_batches(self._pace):
            # Enqueued, so that the device goes on to the timed samples without idling. The replays
            # recorded here are also used for the timed samples.
            count = samples_in(REWARM_FRACTION * self._block_s, self._pace, self._launch_s)
            self._enqueued_warmup = sampler.enqueue_warmup(self._pace, count)
            self._binder.free_retired()
            return
        self._binder.free_retired()
        if number == 0:
            spent_s, wall_s = self._warm_up_first_block(kernel, sampler)
        else:
            seconds = min(REWARM_FRACTION * self._block_s, self._plan.sets * self._gross_s)
            spent_s, wall_s = rewarm(
                sampler, launch_s=self._gross_s, seconds=seconds, method=self._method
            )
        self._warmup_s += spent_s
        self._cost["warmup"] += wall_s

    def _book_enqueued_warmup(self) -> None:
        """Move the seconds that samples waited for an enqueued warm-up from `timed` to `warmup`."""
        if self._enqueued_warmup is not None:
            spent_s, self._enqueued_warmup = self._enqueued_warmup(), None
            self._warmup_s += spent_s
            self._cost["warmup"] += spent_s
            # Device seconds are subtracted from host seconds, which may differ a little.
            self._cost["timed"] = max(0.0, self._cost["timed"] - spent_s)

    def _warm_up_first_block(self, kernel: Launchable, sampler: Sampler) -> tuple[float, float]:
        """Warm up fully and take the secondary times. Return the warm-up's device and host
        seconds."""
        secondary = SecondaryTimes(self._device, kernel, self._plan.sets, self._timing)
        try:
            warmup = self._warm_up_fully(kernel, sampler, secondary)
            self._warmup, self._method = warmup, warmup.method
            self._launch_s = warmup.launch_s
            self._gross_s = sampler.gross_s(warmup.launch_s)
            with self._clock("beside"):
                self._kernel = secondary.info()
                if self._cutoff_s is None:
                    self._also |= secondary.times(warmup.launch_s, warmup.method)
            self._device_s += secondary.device_s
        finally:
            secondary.close()
        return warmup.seconds, warmup.wall_s

    def _warm_up_fully(
        self, kernel: Launchable, sampler: Sampler, secondary: SecondaryTimes
    ) -> Warmup:
        timing = self._timing
        if not self._device.enqueues or own_queue(kernel.launch) is not None:
            return warm_up(sampler, cap_s=timing.warmup_s, min_sample_s=timing.min_sample_s)

        guess: dict[str, Any] = {}

        def choose(launch_s: float, method: Timer) -> Pace:
            guess.update(launch_s=launch_s, method=method)
            return dataclasses.replace(self._choose_pace(sampler, launch_s, method), idle=False)

        def meanwhile(pace: Pace) -> None:
            # One block more than the minimum: most measurements need it.
            blocks = min(timing.allocations + 1, timing.max_allocations)
            self._binder.prepare_ahead(range(1, blocks), pace)
            if self._cutoff_s is None:
                secondary.prepare(**guess)

        return warm_up_by_samples(
            sampler,
            cap_s=timing.warmup_s,
            choose=choose,
            meanwhile=meanwhile,
            # A candidate's first launch may have been a warm-up by itself.
            launches=1 if self._launch_s > timing.warmup_s else FIRST_LAUNCHES,
        )

    def _choose_pace(self, sampler: Sampler, launch_s: float, method: Timer) -> Pace:
        is_long = self._cutoff_s is not None and launch_s > ONE_LENGTH_S
        pace = choose_pace(
            launch_s=launch_s,
            sets=self._plan.sets,
            evict=self._plan.evict and not self._binder.flush_in_stream,
            block_s=self._block_s,
            timing=self._timing,
            two_lengths=self._device.enqueues and not is_long,
            method=method,
        )
        return sampler.fit(pace)

    def _block_pace(self, number: int, sampler: Sampler) -> Pace:
        """Return the best pace now. The number of launches already recorded is kept unless it is
        off by more than a factor of 2."""
        best = self._choose_pace(sampler, self._gross_s, self._method)
        pace = self._pace
        if number == 0:
            assert self._warmup is not None
            pace = self._warmup.pace or best
        close = best.launches / 2 <= pace.launches <= 2 * best.launches
        return dataclasses.replace(best, launches=pace.launches) if close else best

    def _time(self, number: int, sampler: Sampler) -> Steps[None]:
        device = self._device
        self._pace = self._block_pace(number, sampler)
        sampler.restart()
        if device.enqueues:
            device.watch()
        else:
            device.telemetry()  # load and throttling are counted from one reading to the next
        samples = yield from self._samples(sampler)
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

    def _samples(self, sampler: Sampler) -> Steps[list[Sample]]:
        """Take samples for the block's seconds. The time cap takes precedence over min_samples."""
        timing = self._timing
        longest_s = max(self._block_s, timing.max_s / timing.allocations)
        gaps = self._pace.evict or timing.duty is Duty.BURST
        by_wall = gaps and self._device.real_time
        max_wall_s = WALL_FACTOR * longest_s + 1.0
        samples: list[Sample] = []
        # `spent_s` counts towards the block's seconds: device time, or host time where gaps between
        # replays take longer than the replays.
        spent_s = timed_s = wall_s = turn_s = 0.0
        batches = sampler.takes_batches(self._pace)
        sample_s = 0.0
        while len(samples) < MAX_SAMPLES and timed_s < longest_s and wall_s < max_wall_s:
            count = 1
            if batches:
                wanted_s = max(
                    self._block_s - spent_s, (timing.min_samples - len(samples)) * sample_s
                )
                most_s = min(longest_s - timed_s, self._turn_s)
                count = samples_in(min(wanted_s, most_s), self._pace, self._launch_s)
                count = 1 if self._is_cut else count
            # The values of the last block's check have arrived by now, or will soon.
            for sample in sampler.samples(self._pace, count, self._checker.receive_all):
                samples.append(sample)
                timed_s += sample.timed_s
                turn_s += sample.timed_s
                wall_s += sample.wall_s
                sample_s = max(sample.timed_s, sample.wall_s) if by_wall else sample.timed_s
                spent_s += sample_s
            slack_s = max(sample_s / 2, BATCH_SLACK * self._block_s if batches else 0.0)
            enough = len(samples) >= timing.min_samples and spent_s + slack_s >= self._block_s
            if enough or self._is_cut:
                break
            if turn_s + sample_s / 2 >= self._turn_s:
                # What a kernel left running must not be timed with the others' launches.
                self._device.synchronize()
                yield from self._pause(Pause.TURN)
                turn_s = 0.0
        return samples

    def _enter_phase(self, phase: str) -> AbstractContextManager[None]:
        self._on_phase(phase)
        return self._clock(phase)

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        """Add the host seconds of the `with` block to a phase's cost."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._cost[phase] += time.perf_counter() - start
