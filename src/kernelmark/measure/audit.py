"""Audit: detects kernels that skip work when their inputs have not changed.

Such a kernel's output is correct after every timed launch. So one block of a measurement, drawn at
random, is audited after timing: inputs are rewritten, outputs poisoned, and some sets are launched
once each, in random order. The launched sets must be correct, the others untouched, and the
launches must not take clearly longer than the timed ones did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

from kernelmark.core.result import Check
from kernelmark.core.timing import Timer
from kernelmark.devices.base import Device
from kernelmark.measure.check import Checker, EarlyRead, PendingCheck, check_audit_time, combine
from kernelmark.measure.sets import Arena, Launchable

# Launches of the shorter of an audit's two replays; the longer one has twice as many. Enough that
# the slack below is an eighth of their time, but few on a CPU, where rewriting a large set takes
# longer than launching it.
_LEAST_LAUNCHES, _HOST_LEAST_LAUNCHES, _MOST_LAUNCHES = 2, 1, 16
_SLACK_SHARE = 8
# Longer replays of at most this many launches are projected in all their sets, others in one.
_ALL_PROJECTED = 4
# Launches whose output is read as soon as they end. Several on a CPU, where a background thread may
# finish before the first read.
_SINGLE_LAUNCHES, _HOST_SINGLE_LAUNCHES = 1, 4
_LONG_LAUNCH_S = 0.1  # one such launch is read
# A correct kernel takes as long on rewritten inputs as on timed ones. Over 120 such cases on an
# H200 the largest ratio of cold launches, minus the slack below, was 1.3.
FACTOR = 1.5
# Hot launches have their inputs in the cache; rewritten inputs may come from memory.
FACTOR_UNCACHED = 4.0
# Slack of a single replay, in seconds: events resolve half a microsecond and a graph's start varies
# by a few; a CPU's threads have to be woken.
SLACK_S = 4e-6
HOST_SLACK_S = 2e-5
# Slack of every launch on a GPU, in seconds. Timed launches access memory in order, audited ones in
# random order: copies of 1 to 1,003 elements took 1.1 to 1.2 µs timed cold on an H200 and up to 2.4
# µs audited, a GEMM of 256³ took 2.8 µs and up to 5.9 µs. A kernel that gains less than this by
# skipping its work is not detected by its time.
LATENCY_S = 2e-6
# Upper bound of the fixed cost of a GPU's replay: a graph's start, clock stamps, a gate.
REPLAY_S = 4e-5
# Further rounds for a kernel that seems slow: other work may have disturbed the first. After
# `_LEAST_RETIMED` of them it is compared with launches timed again.
MORE_ROUNDS, _LEAST_RETIMED = 6, 3

Retime = Callable[[], float]  # times a launch again as the block did; seconds


class Audit:
    """The audit of one block."""

    def __init__(
        self,
        *,
        device: Device,
        checker: Checker,
        kernel: Launchable,
        arena: Arena,
        timer: Timer,
        evict: bool,
    ) -> None:
        self._device = device
        self._checker = checker
        self._kernel = kernel
        self._arena = arena
        self._timer = timer
        self._evict = evict
        self._slack_s = SLACK_S if device.enqueues else HOST_SLACK_S
        self._launches = 1
        self._short_s: list[float] = []
        self._long_s: list[float] = []
        # Whether audited launches took as long as those of the block. Otherwise the device has
        # become slower, or the kernel skips work until it notices the audit.
        self.repeatable = True

    def run(self, timed_s: float, retime: Retime) -> PendingCheck:
        """Audit the block, whose launches took `timed_s` each. `retime` is called if audited
        launches seem slow, in case the device has become slower since."""
        if self._device.real_time:
            least = _LEAST_LAUNCHES if self._device.enqueues else _HOST_LEAST_LAUNCHES
            wanted = max(least, math.ceil(_SLACK_SHARE * self._slack_s / timed_s))
            fit = (len(self._arena.sets) - 1) // 2
            self._launches = max(1, min(wanted, _MOST_LAUNCHES, fit))
        pending = [self._single_launches(timed_s), *self._round()]
        if not self._device.real_time:
            return lambda: combine([part() for part in pending])
        retimed: list[float] = []
        baseline_s = timed_s
        while self._is_slow(baseline_s) and len(retimed) < MORE_ROUNDS:
            pending += self._round()
            retimed.append(max(timed_s, retime()))
            if len(retimed) >= _LEAST_RETIMED:
                baseline_s = statistics.median(retimed)
        self.repeatable = not self._is_slow(timed_s)
        is_slow = self._is_slow(baseline_s)
        time_check = check_audit_time(self._launch_s(), baseline_s, is_slow=is_slow)
        return lambda: combine([*(part() for part in pending), time_check])

    def refuse(self, timed_s: float) -> Check:
        """Return the failed check of a block whose time, `timed_s` a launch, was not repeated."""
        return check_audit_time(self._launch_s(), timed_s, is_slow=True)

    def _single_launches(self, timed_s: float) -> PendingCheck:
        """Launch some sets one by one, and read each output as soon as its launch has ended."""
        device, checker, arena = self._device, self._checker, self._arena
        is_one = device.enqueues or timed_s > _LONG_LAUNCH_S
        count = _SINGLE_LAUNCHES if is_one else _HOST_SINGLE_LAUNCHES
        chosen = checker.draw(range(len(arena.sets)), count)
        early_reads = []
        for index in chosen:
            checker.refresh(arena, [index])
            read = checker.early_reader(arena, index)
            self._kernel.launch(device.stream, index)
            early_reads.append(read())
        return checker.verify(self._kernel, arena, chosen, early_reads=early_reads)

    def _round(self) -> list[PendingCheck]:
        """Run one replay of `_launches` and one of twice as many, each over sets drawn for it."""
        checks = []
        for times in (1, 2):
            sets = self._checker.draw(range(len(self._arena.sets)), 2 * self._launches + 2)
            order, others = sets[: times * self._launches], sets[times * self._launches :]
            warm = [] if self._device.enqueues else others[:1]
            elapsed_s, early_reads = self._replay(order, warm, sets)
            (self._short_s if len(order) == self._launches else self._long_s).append(elapsed_s)
            checks.append(
                self._checker.verify(
                    self._kernel,
                    self._arena,
                    # In another order: a kernel may know which launch of a replay was the first.
                    self._checker.draw(order, len(order)),
                    projected=len(order) if times == 2 and len(order) <= _ALL_PROJECTED else 1,
                    untouched=others[len(warm) :],
                    early_reads=early_reads,
                )
            )
        return checks

    def _replay(
        self, order: Sequence[int], warm: Sequence[int], sets: Sequence[int]
    ) -> tuple[float, list[EarlyRead]]:
        """Return the device seconds of these launches, and on a CPU what their outputs were as soon
        as the clock was read.

        They are recorded before their inputs are rewritten, so that nothing computed during
        recording can be correct. On a CPU they follow a launch of each `warm` set, since threads
        sleep and code leaves the cache while inputs are rewritten. That launch could do the work of
        all sets, so the inputs are rewritten once more after it.
        """
        device, kernel, checker = self._device, self._kernel, self._checker
        replay = device.record(kernel.launch, order, self._timer)
        refresh = partial(checker.refresh, self._arena, sets)
        readers = [] if device.enqueues else [checker.early_reader(self._arena, i) for i in order]
        early_reads: list[EarlyRead] = []
        try:
            refresh()
            replay.behind_gate = refresh
            replay.at_end = lambda: early_reads.extend(read() for read in readers)
            for index in warm:
                kernel.launch(device.stream, index)
                checker.refresh(self._arena, order)
            if self._evict and device.enqueues:
                device.evict_cache()
            if device.real_time:
                return replay.run().elapsed_s, early_reads
            # Not `replay.run`: a fake device's script counts only the replays of the measurement.
            for index in order:
                kernel.launch(device.stream, index)
            return 0.0, early_reads
        finally:
            replay.close()

    def _launch_s(self) -> float:
        """Return the seconds of an audited launch, from the fastest replay of each length. If its
        time depends on the data, the two replays may differ by more than their launches."""
        if self._device.enqueues and self._long_s:
            long_s = min(self._long_s)
            return min(max(0.0, long_s - min(self._short_s)), long_s / 2) / self._launches
        lengths = [(s, self._launches) for s in self._short_s]
        lengths += [(s, 2 * self._launches) for s in self._long_s]
        return min(seconds / count for seconds, count in lengths)

    def _is_slow(self, timed_s: float) -> bool:
        """Return whether audited launches take clearly longer than `timed_s`: by the difference of
        the two replays, or by the shorter one as a whole, in case its first launch does the work
        of the others."""
        # Cold launches on a CPU are audited with inputs in the cache, which is faster. Hot launches
        # may find their inputs in the last-level cache instead of the first.
        same_cache_state = self._evict or (self._device.enqueues and self._fits_cache())
        allowed_s = (FACTOR if same_cache_state else FACTOR_UNCACHED) * timed_s
        if not self._device.enqueues:
            return self._launch_s() > allowed_s + self._slack_s / self._launches
        allowed_s += LATENCY_S
        if min(self._short_s) > self._launches * allowed_s + REPLAY_S:
            return True
        has_both = bool(self._long_s)  # with memory for one set there is one length
        return has_both and self._launch_s() > allowed_s + self._slack_s / self._launches

    def _fits_cache(self) -> bool:
        """Return whether rewritten inputs are certainly still in the cache when launched."""
        footprint = sum(tensor.spec.nbytes for tensor in self._arena.sets[0].values())
        return (2 * self._launches + 2) * footprint <= self._device.info.cache_bytes // 8
