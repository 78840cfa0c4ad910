"""Audit: detects kernels that skip work when their inputs have not changed.

Such a kernel's output is correct after every timed launch. So one block of a measurement, drawn at
random, is audited after timing. Some sets are launched in replays, each once in a replay, by turns
after their inputs were rewritten with the same values and with new ones. The difference is what the
kernel gains by remembering (`EqualDuty`). At a moment drawn at random, sets are launched alone and
at once in another such replay: they must be correct and the others untouched.

A kernel might recognise an audit and do all of its work then. So audited launches must not take
much longer than the timed ones did either. On a CPU they may: threads sleep while inputs are
rewritten, caches and pages are given to others, and another process may run.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from kernelmark.core.result import Check
from kernelmark.core.timing import Timer
from kernelmark.devices.base import Device
from kernelmark.measure.check import (
    Checker,
    EarlyRead,
    PendingCheck,
    check_audit_time,
    check_gain,
    combine,
)
from kernelmark.measure.sets import Arena, Launchable
from kernelmark.stats.interval import NORMAL_MAD, mad
from kernelmark.stats.paired import Looks, signed_rank

# What a kernel gains by remembering: replays on new and on unchanged inputs, in turns.
#
# Every replay follows a refill of its inputs, with new values (N) or with the values they have (S):
# S N S N S … So both kinds run at the same duty, and differ only in what a kernel may have kept
# from its last launch. At a power cap this matters: refilling lets an H200 cool, and the launches
# of an honest GEMM drop from 152 to 133 µs.
#
# Each N is compared with the S before it and with the S after it. A drift of the device moves the
# two differences in opposite directions. The S after it runs on the same values, the S before it on
# others, which matters where the time depends on the data. A gain must show in both.

# A gain above this fraction of a launch is refused if it is also significant. Smaller ones do not
# change a ranking, and the rows of a suite are hardly ever measured better.
GAIN = 0.03
# What a CPU itself keeps of the last values: its branch predictor learns the order of branches. On
# a Xeon of 2.5 GHz np.argmax of 33 × 70 values takes 3.5 µs on the same and 4.7 µs on new values.
# Of seven such functions at five sizes, up to 57 ms, none gains more than 17 µs beyond the noise.
PREDICTOR_S = 2e-5
# There is no gain if the estimate plus _CLEAR_ERRORS standard errors stays below CLEAR.
CLEAR, _CLEAR_ERRORS = 0.05, 3.0
# From here on, pairs that scatter too much to be clear stop if they show no sign of a gain.
_ENOUGH_PAIRS = 8
LOOKS = Looks(rounds=(16, 32, 64, 128, 256), alpha=5e-4)
# The differences from launches on other values scatter by more than this, relative to those from
# launches on the same values, where the time depends on the data.
_DATA_FACTOR = 3.0
# The standard error of a median over that of a mean, with the deviation taken from the MAD.
_MEDIAN_ERROR = 1.2533 * NORMAL_MAD


class Finding(Enum):
    """What the pairs show."""

    OPEN = "open"  # more pairs are needed
    NO_GAIN = "no gain"
    DATA_DEPENDENT = "data-dependent"  # times follow the values, not whether they are new
    GAIN = "gain"


class EqualDuty:
    """Times of series S N S … N S.

    Gains are fractions of `timed_s`, the time of these launches when they were timed, or of that of
    an S if it is shorter. `most` pairs of N and S are enough. Gains up to `allowed` are not
    refused.
    """

    def __init__(self, timed_s: float, *, most: int = LOOKS.last, allowed: float = GAIN) -> None:
        self._timed_s = timed_s
        self._most = most
        self._allowed = allowed
        self._clear = allowed + CLEAR - GAIN
        self._same_s: list[float] = []
        self._before_s: list[float] = []
        self._after_s: list[float] = []

    def extend(self, same_s: Sequence[float], new_s: Sequence[float]) -> None:
        """Add a series that begins and ends with an S."""
        self._same_s += same_s
        self._before_s += [new - same for new, same in zip(new_s, same_s, strict=False)]
        self._after_s += [new - same for new, same in zip(new_s, same_s[1:], strict=True)]

    @property
    def pairs(self) -> int:
        return len(self._after_s)

    @property
    def _unit_s(self) -> float:
        return min(self._timed_s, statistics.median(self._same_s))

    @property
    def _before(self) -> list[float]:
        return [seconds / self._unit_s for seconds in self._before_s]

    @property
    def _after(self) -> list[float]:
        return [seconds / self._unit_s for seconds in self._after_s]

    @property
    def gain(self) -> float:
        """The median difference, as a fraction."""
        return statistics.median(self._before + self._after)

    @property
    def scatter(self) -> float:
        """The typical difference between launches on different values, as a fraction."""
        return mad(self._before)

    def finding(self) -> Finding:
        """Return what the pairs so far show."""
        count, before, after = self.pairs, self._before, self._after
        by_data = mad(before) > max(CLEAR, _DATA_FACTOR * mad(after))
        is_clear = self.gain + _CLEAR_ERRORS * _error(before + after, count) <= self._clear
        if is_clear and not by_data:
            return Finding.NO_GAIN
        estimates = [after] if by_data else [after, before]
        if count in LOOKS.rounds and self._are_significant(estimates, LOOKS.alpha_at(count)):
            return Finding.GAIN
        no_sign = all(statistics.median(e) + _error(e, count) <= self._allowed for e in estimates)
        if count < self._most and (count < _ENOUGH_PAIRS or not no_sign):
            return Finding.OPEN
        return Finding.DATA_DEPENDENT if by_data and no_sign else Finding.NO_GAIN

    def _are_significant(self, estimates: Sequence[Sequence[float]], alpha: float) -> bool:
        ranks = [signed_rank(gains, alpha) for gains in estimates]
        return all(rank.centre > self._allowed and rank.low > 0 for rank in ranks)


def _error(gains: Sequence[float], pairs: int) -> float:
    """Return the standard error of the median over `pairs`."""
    return _MEDIAN_ERROR * mad(gains) / math.sqrt(pairs)


# Bound here, before a kernel file is imported that may replace it in `time`.
_CPU_CLOCK = time.process_time
# A replay has launches for about this long, so that the resolution of events, half a microsecond,
# is a quarter of a percent; at most _MOST_LAUNCHES, as each takes a set of its own.
_REPLAY_S = 2e-4
_MOST_LAUNCHES = 16
# Sets that are rewritten but not in a replay: one to wake the threads of a CPU, others that must
# stay untouched.
_IDLE_SETS = 3
# Pairs of replays at least: more on a CPU, whose replays scatter more, but few of launches that
# take longer than _LONG_LAUNCH_S, which need no other launch first to wake threads either.
_LEAST_PAIRS, _HOST_LEAST_PAIRS, _LEAST_LONG_PAIRS = 3, 6, 2
_LONG_LAUNCH_S = 0.01
# Shorter launches scatter more, and are audited in more pairs if these look like a gain.
_SHORT_LAUNCH_S = 0.001
# Replays of at most this many launches are projected in all their sets, others in one.
_ALL_PROJECTED = 4
# Launches whose output is read as soon as they end. Several on a CPU, where a background thread may
# finish before the first read; but one that takes longer than _ONE_SINGLE_S.
_SINGLE_LAUNCHES, _HOST_SINGLE_LAUNCHES = 1, 4
_ONE_SINGLE_S = 0.1
# A kernel that does not recognise the audit takes as long in it as when timed. Over 120 such cases
# on an H200 the largest ratio of cold launches, minus the slack below, was 1.3.
FACTOR = 1.5
# Hot launches have their inputs in the cache; rewritten inputs may come from memory.
FACTOR_UNCACHED = 4.0
# Slack of every launch on a GPU, in seconds. Timed launches access memory in order, audited ones in
# random order: copies of 1 to 1,003 elements took 1.1 to 1.2 µs timed cold on an H200 and up to 2.4
# µs audited, a GEMM of 256³ took 2.8 µs and up to 5.9 µs.
LATENCY_S = 2e-6
# Upper bound of the fixed cost of a replay, in seconds: on a GPU a graph's start, clock stamps, a
# gate; a CPU's threads have to be woken.
REPLAY_S, HOST_REPLAY_S = 4e-5, 2e-5
# Further pairs for a kernel that seems slow: other work may have disturbed the first. After
# `_LEAST_RETIMED` of them it is compared with launches timed again.
MORE_ROUNDS, _LEAST_RETIMED = 6, 3

Retime = Callable[[], float]  # times a launch again as the block did; seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBlock:
    """A block that was timed: `evict` the cache before each launch, `timed_s` seconds each."""

    device: Device
    checker: Checker
    kernel: Launchable
    arena: Arena
    timer: Timer
    threads: int
    evict: bool
    timed_s: float


class Replays:
    """Replays of some sets, each after their inputs were rewritten. The set `alone` is launched
    alone before the replay that is checked."""

    def __init__(self, block: TimedBlock, alone: int) -> None:
        device, checker, arena = block.device, block.checker, block.arena
        self._device = device
        self._checker = checker
        self._kernel = block.kernel
        self._arena = arena
        self._evict = block.evict
        # The CPU time of a single thread excludes other processes, which scatter the wall clock.
        self._by_cpu_time = block.threads == 1 and not device.enqueues
        wakes = not device.enqueues and block.timed_s < _LONG_LAUNCH_S
        wanted = math.ceil(_REPLAY_S / block.timed_s) if device.real_time else 1
        fit = max(1, len(arena.sets) - (2 if wakes else 1))
        self.launches = min(wanted, _MOST_LAUNCHES, fit)
        # The set that is launched alone is in the replay: a kernel that computes in every nth
        # launch of a set cannot compute in both. Its graph, recorded once, always or never does.
        others = [index for index in range(len(arena.sets)) if index != alone]
        sets = checker.draw(others, self.launches - 1 + _IDLE_SETS)
        self._order = checker.draw([alone, *sets[: self.launches - 1]], self.launches)
        self._idle = sets[self.launches - 1 :]
        self._warm = self._idle[:1] if wakes else []
        # Recorded before any input is rewritten, so that nothing computed meanwhile can be correct.
        self._replay = device.record(block.kernel.launch, self._order, block.timer)
        self._elapsed_s: list[float] = []  # of replays on new values
        checker.refresh(arena, [*self._order, *self._idle])

    def close(self) -> None:
        self._replay.close()

    @property
    def launch_s(self) -> float:
        """Seconds of a launch in the fastest replay on new values."""
        return min(self._elapsed_s) / self.launches

    def are_slow(self, timed_s: float) -> bool:
        """Return whether launches on new values take clearly longer than `timed_s`."""
        # Cold launches on a CPU are audited with inputs in the cache, which is faster. Hot launches
        # may find their inputs in the last-level cache instead of the first.
        same_cache_state = self._evict or (self._device.enqueues and self._fits_cache())
        allowed_s = (FACTOR if same_cache_state else FACTOR_UNCACHED) * timed_s
        slack_s = HOST_REPLAY_S
        if self._device.enqueues:
            allowed_s, slack_s = allowed_s + LATENCY_S, REPLAY_S
        return min(self._elapsed_s) > self.launches * allowed_s + slack_s

    def on_same(self) -> float:
        """Return the seconds of a replay after the same inputs were written again."""
        return self._run(is_new=False)[1]

    def on_new(self) -> float:
        """Return the seconds of a replay after new inputs were written and outputs poisoned."""
        elapsed_s, seconds = self._run(is_new=True)
        self._elapsed_s.append(elapsed_s)
        return seconds

    def on_new_checked(self) -> PendingCheck:
        """Run a replay on new inputs, and check its outputs."""
        device, checker, arena, order = self._device, self._checker, self._arena, self._order
        checker.refresh(arena, self._idle)  # one of them may have been launched alone
        readers = [] if device.enqueues else [checker.early_reader(arena, i) for i in order]
        early_reads: list[EarlyRead] = []
        self._replay.at_end = lambda: early_reads.extend(read() for read in readers)
        self._replay.behind_gate = partial(checker.refresh, arena, order)
        self.on_new()
        self._replay.at_end = self._replay.behind_gate = None
        return checker.verify(
            self._kernel,
            arena,
            # In another order: a kernel may know which launch of a replay was the first.
            checker.draw(order, len(order)),
            projected=len(order) if len(order) <= _ALL_PROJECTED else 1,
            untouched=[index for index in self._idle if index not in self._warm],
            early_reads=early_reads,
        )

    def _run(self, *, is_new: bool) -> tuple[float, float]:
        """Return the seconds of a replay, and those of the clock that gains are judged by."""
        device, launch = self._device, self._kernel.launch

        def wake() -> None:
            for index in self._warm:
                launch(device.stream, index)

        self._checker.refill(
            self._arena,
            self._order,
            is_new=is_new,
            idle=self._idle,
            wake=wake if self._warm else None,
        )
        if self._evict and device.enqueues:
            device.evict_cache()
        if not device.real_time:
            # Not `replay.run`: a fake device's script counts only the replays of the measurement.
            for index in self._order:
                launch(device.stream, index)
            return 0.0, 0.0
        start = _CPU_CLOCK()
        elapsed_s = self._replay.run().elapsed_s
        return elapsed_s, _CPU_CLOCK() - start if self._by_cpu_time else elapsed_s

    def _fits_cache(self) -> bool:
        """Return whether rewritten inputs are certainly still in the cache when launched."""
        footprint = sum(tensor.spec.nbytes for tensor in self._arena.sets[0].values())
        return (self.launches + _IDLE_SETS) * footprint <= self._device.info.cache_bytes // 8


class Audit:
    """The audit of one block."""

    def __init__(self, block: TimedBlock) -> None:
        self._device = block.device
        self._timed_s = block.timed_s
        # Whether launches now take as long as those of the block. Otherwise the device has become
        # slower, or the kernel skips work until it notices the audit.
        self.repeatable = True
        # Seconds of a launch after its inputs were rewritten, if that is clearly longer than before
        # and not because of their values: the machine, or a kernel that notices the rewriting.
        self.slow_s: float | None = None
        # The typical difference between launches on different values, as a fraction, if the time
        # depends on them.
        self.data_scatter: float | None = None
        alone = _draw_single(block.device, block.checker, block.arena, block.timed_s)
        self._replays = Replays(block, alone[-1])
        self._launch_alone = partial(
            single_launches, block.device, block.checker, block.kernel, block.arena, alone
        )
        self._checks: list[PendingCheck] = []

    def run(self, retime: Retime) -> PendingCheck:
        """Audit the block. `retime` is called if audited launches seem slow, in case the device has
        become slower since."""
        replays, timed_s = self._replays, self._timed_s
        try:
            if not self._device.real_time:
                self._check_launches()
                return self._combined()
            duty = self._take_turns()
            finding = duty.finding()
            baseline_s = timed_s
            if finding is not Finding.GAIN:
                baseline_s = self._baseline(retime)
        finally:
            replays.close()
        is_gain = finding is Finding.GAIN
        if finding is Finding.DATA_DEPENDENT:
            self.data_scatter = duty.scatter
        is_slow = not is_gain and replays.are_slow(baseline_s)
        self.repeatable = is_gain or is_slow or not replays.are_slow(timed_s)
        if is_slow and not self._device.enqueues:
            self.slow_s, is_slow = replays.launch_s, False
        gain_check = check_gain(duty.gain, timed_s, is_refused=is_gain)
        time_check = check_audit_time(replays.launch_s, baseline_s, is_slow=is_slow)
        return self._combined(gain_check, time_check)

    def refuse(self) -> Check:
        """Return the failed check of a block whose time was not repeated."""
        return check_audit_time(self._replays.launch_s, self._timed_s, is_slow=True)

    def _combined(self, *more: Check) -> PendingCheck:
        return lambda: combine([*(check() for check in self._checks), *more])

    def _take_turns(self) -> EqualDuty:
        """Replay on the same and on new inputs until it is clear what the kernel gains."""
        is_long = self._timed_s > _LONG_LAUNCH_S
        pairs = _LEAST_PAIRS if self._device.enqueues else _HOST_LEAST_PAIRS
        if is_long:
            pairs = _LEAST_LONG_PAIRS
        most = LOOKS.last if self._timed_s < _SHORT_LAUNCH_S else LOOKS.rounds[0 if is_long else 2]
        allowed = GAIN
        if not self._device.enqueues:
            # No more than a launch: a CPU kernel whose time doubles on new values remembers them.
            allowed = max(GAIN, min(1.0, PREDICTOR_S / self._timed_s))
        duty = EqualDuty(self._replays.launches * self._timed_s, most=most, allowed=allowed)
        while duty.pairs == 0 or duty.finding() is Finding.OPEN:
            # The outputs of one replay are checked; which, no kernel can know.
            before = secrets.randbelow(pairs + 1)
            self._run_series(duty, before)
            self._check_launches()
            self._run_series(duty, pairs - before)
            pairs = max(LOOKS.rounds[0], 2 * duty.pairs) - duty.pairs
        return duty

    def _check_launches(self) -> None:
        """Check sets that are launched alone, and at once a replay. With launches in between, a
        kernel that counts could be in the same state again: one that computes in every fourth
        launch of a set was accepted in 1 of 20 tries on an H200 (two sets in a cold replay)."""
        self._checks += [self._launch_alone(), self._replays.on_new_checked()]

    def _run_series(self, duty: EqualDuty, pairs: int) -> None:
        """Run replays by turns, with nothing else in between: what is computed between two replays
        may slow the second."""
        if pairs:
            same_s, new_s = [self._replays.on_same()], []
            for _ in range(pairs):
                new_s.append(self._replays.on_new())
                same_s.append(self._replays.on_same())
            duty.extend(same_s, new_s)

    def _baseline(self, retime: Retime) -> float:
        """Return the time to compare audited launches with. Where they seem slow, repeat them, and
        time launches again as the block did."""
        retimed: list[float] = []
        baseline_s = self._timed_s
        while self._replays.are_slow(baseline_s) and len(retimed) < MORE_ROUNDS:
            self._replays.on_new()
            retimed.append(max(self._timed_s, retime()))
            if len(retimed) >= _LEAST_RETIMED:
                baseline_s = statistics.median(retimed)
        return baseline_s


def _draw_single(device: Device, checker: Checker, arena: Arena, timed_s: float) -> list[int]:
    """Draw the sets that are launched alone."""
    is_one = device.enqueues or timed_s > _ONE_SINGLE_S
    count = _SINGLE_LAUNCHES if is_one else _HOST_SINGLE_LAUNCHES
    return checker.draw(range(len(arena.sets)), count)


def single_launches(
    device: Device, checker: Checker, kernel: Launchable, arena: Arena, chosen: list[int]
) -> PendingCheck:
    """Launch sets one by one, and read each output as soon as its launch has ended."""
    early_reads = []
    for index in chosen:
        checker.refresh(arena, [index])
        read = checker.early_reader(arena, index)
        kernel.launch(device.stream, index)
        early_reads.append(read())
    return checker.verify(kernel, arena, chosen, early_reads=early_reads)
