from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from typing import Any

import pytest

from kernelmark.core.result import UNRELIABLE, Block, Check, Fault, Measurement, StopReason
from kernelmark.core.timing import Strain
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.measure import loop
from kernelmark.measure.audit import TimedBlock
from kernelmark.measure.blocks import audit_warnings
from kernelmark.measure.check import PendingCheck, check_audit_time, combine
from kernelmark.measure.protocol import PHASES, Steps, _BlockLoop
from kernelmark.measure.sets import MAX_RECORDED_SETS, BoundBlock


def codes(found: Measurement) -> list[str]:
    return [warning.code for warning in found.warnings]


def test_the_fixed_cost_of_a_replay_cancels(bench: Any) -> None:
    outcome = bench(seconds=50e-6, script=Script(replay_s=1e-3))
    found = outcome.measurement
    assert found.median_s == pytest.approx(50e-6, rel=1e-9)
    assert found.low_s == pytest.approx(50e-6, rel=1e-9)
    assert found.high_s == pytest.approx(50e-6, rel=1e-9)
    assert (found.stop, len(found.blocks), found.warnings) == (StopReason.PRECISE, 3, ())
    assert outcome.check.passed
    assert outcome.check.positions > 0
    assert outcome.kernel.name == "twice"


def test_one_length_keeps_the_fixed_cost(bench: Any) -> None:
    device = FakeDevice(script=Script(replay_s=1e-4))
    device.enqueues = False
    found = bench(device=device, seconds=50e-6).measurement
    assert found.median_s == pytest.approx(50e-6 + 1e-4 / found.launches, rel=1e-9)


def test_cold_rotates_through_more_than_the_cache(bench: Any) -> None:
    found = bench(n=5000, seconds=20e-6).measurement
    assert found.footprint_bytes == 40_000
    assert found.sets * found.footprint_bytes >= 3 * bench.device.info.cache_bytes
    assert found.launches % found.sets == 0
    assert found.method == "loop"


def test_every_set_is_launched_equally_often(bench: Any) -> None:
    """Also when a pass over the sets is longer than a sample."""
    found = bench(n=5000, seconds=1e-3, max_s=3.0, warmup_s=0.0).measurement
    assert found.launches < found.sets
    for kernel in bench.kernels:
        counts = Counter(kernel.launched)
        assert set(counts) == set(range(found.sets))
        assert max(counts.values()) - min(counts.values()) <= 6  # two of them audited


def test_flush_evicts_before_each_launch(bench: Any) -> None:
    found = bench(cache="flush", script=Script(replay_s=1e-3)).measurement
    assert found.sets == 1
    # Each sample replays N and 2N launches, each after an eviction.
    assert bench.device.evictions >= 3 * found.launches * found.samples
    assert found.median_s == pytest.approx(50e-6, rel=1e-9)


def test_flush_of_a_host_loop_is_one_launch_a_sample(bench: Any) -> None:
    device = FakeDevice(script=Script(replay_s=0.0))
    device.enqueues = False
    found = bench(cache="flush", device=device).measurement
    assert (found.sets, found.launches) == (1, 1)
    assert device.evictions == found.samples
    assert found.median_s == pytest.approx(50e-6, rel=1e-9)


class SlowlyEvicting(FakeDevice):
    def evict_cache(self) -> None:
        super().evict_cache()
        self.advance(2e-4)


def test_the_time_of_evictions_is_taken_off(bench: Any) -> None:
    found = bench(cache="flush", device=SlowlyEvicting()).measurement
    assert found.median_s == pytest.approx(50e-6, rel=1e-6)


def test_tiny_problems_evict_between_passes(bench: Any) -> None:
    found = bench(n=4, script=Script(cache_bytes=2**20), max_s=0.1).measurement
    assert found.sets == MAX_RECORDED_SETS
    assert 2 * found.launches <= found.sets
    # Two for each sample, in the warm-up too.
    assert bench.device.evictions >= 2 * found.samples
    assert found.median_s == pytest.approx(50e-6, rel=1e-6)


def test_little_memory_evicts_and_says_so(bench: Any) -> None:
    script = Script(memory_bytes=3 * 2**20, cache_bytes=2**22)
    outcome = bench(n=50_000, script=script)
    found = outcome.measurement
    assert found.sets * found.footprint_bytes < 3 * 2**22
    assert "cache-evicted" in codes(found)
    assert bench.device.evictions > 0
    assert outcome.check.passed


@pytest.mark.parametrize("fault", ["", "raises"])
def test_all_memory_is_given_back(bench: Any, fault: str) -> None:
    device = FakeDevice()
    before = device.free_bytes()
    if fault:
        with pytest.raises(RuntimeError, match="launch failed"):
            bench(device=device, fault=fault)
    else:
        bench(device=device)
    assert device.free_bytes() == before
    assert all(kernel.closed for kernel in bench.kernels)


def test_a_failing_prepare_gives_memory_back(bench: Any) -> None:
    device = FakeDevice()
    before = device.free_bytes()
    with pytest.raises(ZeroDivisionError):
        bench(device=device, seconds=[])  # a script without a duration fails in prepare
    assert device.free_bytes() == before


def test_a_block_that_cannot_be_made_ahead_gives_memory_back(bench: Any) -> None:
    device = FakeDevice()
    before = device.free_bytes()

    def seconds(index: int) -> float:
        if len(bench.kernels) == 4:
            raise RuntimeError("while the fourth block is there")
        return 50e-6

    with pytest.raises(RuntimeError, match="fourth block"):
        bench(device=device, seconds=seconds)
    assert device.free_bytes() == before
    assert len(bench.kernels) == 4  # three that there must be, and one that may be needed
    assert all(kernel.closed for kernel in bench.kernels)


def test_blocks_that_differ_widen_the_interval(bench: Any) -> None:
    found = bench(seconds=[50e-6, 55e-6, 45e-6, 60e-6]).measurement
    assert found.stop is StopReason.BLOCKS
    assert len(found.blocks) == 10
    assert found.low_s < 50e-6 < 55e-6 < found.high_s
    assert "interval-above-target" in codes(found)
    inside = {tuple(round(s * 1e9) for s in b.samples_s) for b in found.blocks}
    assert all(len(set(samples)) == 1 for samples in inside)


def test_more_blocks_until_precise(bench: Any) -> None:
    levels = [50e-6, 50.9e-6, 50e-6, 50.1e-6, 50e-6, 50.1e-6, 50e-6, 50.1e-6]
    found = bench(seconds=levels, target_rel_ci=0.01).measurement
    assert found.stop is StopReason.PRECISE
    assert 3 < len(found.blocks) < 10
    assert found.rel_half_width <= 0.01


def test_a_given_number_of_blocks_is_fixed(bench: Any) -> None:
    found = bench(seconds=[1e-4, 2e-4], allocations=4, max_allocations=4).measurement
    assert (found.stop, len(found.blocks)) == (StopReason.FIXED, 4)


def test_the_time_cap_goes_before_the_number_of_samples(bench: Any) -> None:
    found = bench(seconds=1.0, max_s=2.0).measurement
    assert found.stop is StopReason.TIME
    assert found.timed_s < 7
    assert "few-samples" in codes(found)


def test_two_modes_in_two_blocks_are_no_headline(bench: Any) -> None:
    """427.9 µs and 22.47 ms became 11.45 ms, a time that no launch took, and ranked best."""
    found = bench(seconds=[427.9e-6, 22.47e-3], max_allocations=3).measurement
    assert "blocks-disagree" in codes(found)
    assert not found.reliable


def test_fewer_blocks_than_promised_are_unreliable(bench: Any) -> None:
    found = bench(seconds=1.0, max_s=2.0, allocations=4).measurement
    (told,) = [w for w in found.warnings if w.code == "few-blocks"]
    assert told.fields == {"blocks": len(found.blocks), "wanted": 4}
    assert not found.reliable
    assert bench(seconds=[50e-6, 55e-6, 45e-6]).measurement.reliable


def test_one_sample_has_no_interval(bench: Any) -> None:
    found = bench(seconds=100.0, max_s=0.1).measurement
    assert found.samples == 1
    assert (found.low_s, found.high_s) == (0.0, float("inf"))
    assert "interval-one-sample" in codes(found)


def test_one_block_says_what_its_interval_is(bench: Any) -> None:
    script = Script(jitter=0.01)
    found = bench(allocations=1, max_allocations=1, script=script).measurement
    assert len(found.blocks) == 1
    assert found.low_s < found.median_s < found.high_s
    assert "interval-one-block" in codes(found)


def test_timed_seconds_stay_near_the_cap(bench: Any) -> None:
    found = bench(seconds=[50e-6, 70e-6], max_s=0.3).measurement
    assert found.timed_s <= 0.3 * 1.3


def test_burst_rests_after_each_sample(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(loop.time, "sleep", rests.append)
    found = bench(duty="burst", max_s=0.05).measurement
    assert len(rests) == found.samples
    assert all(0 < rest <= loop.MAX_IDLE_S for rest in rests)


class StrainedDevice(FakeDevice):
    def strain(self, kind: Strain) -> None:
        self.advance(3e-4)


def test_strain_is_subtracted(bench: Any) -> None:
    found = bench(device=StrainedDevice(), strain="compute").measurement
    assert found.median_s == pytest.approx(50e-6, rel=1e-6)


class Around(FakeDevice):
    """Strain or an eviction takes many times as long as the kernel."""

    def strain(self, kind: Strain) -> None:
        self.advance(60e-6)

    def evict_cache(self) -> None:
        self.advance(250e-6)


@pytest.mark.parametrize("changes", [{"strain": "bandwidth"}, {"cache": "flush"}])
def test_samples_are_as_long_as_all_that_is_launched(bench: Any, changes: dict[str, Any]) -> None:
    """What is between launches takes the block's time as the kernel does."""
    found = bench(
        device=Around(), n=5000, seconds=3e-6, timer="graph", max_s=2.0, warmup_s=0.5, **changes
    ).measurement
    assert found.median_s == pytest.approx(3e-6, rel=1e-6)
    assert (found.stop, len(found.blocks), found.warnings) == (StopReason.PRECISE, 3, ())
    assert min(len(block.samples_s) for block in found.blocks) >= 7
    # As long as a block is of any other kernel, and no longer; the warm-up a fifth of its cap.
    assert 3 * 0.04 < found.timed_s < 3 * 0.0625
    assert 0.1 < found.warmup_s < 0.2


def test_phases_come_in_order(bench: Any) -> None:
    bench()
    block = ["warmup", "timing", "check"]
    # The second and the third block are made while the first is warmed up.
    assert bench.phases == ["inputs", "inputs", "compile", *block * 3]
    device = FakeDevice()
    device.enqueues = False
    bench(device=device)
    assert bench.phases == ["inputs", *["inputs", "compile", *block] * 3]


def test_blocks_are_made_ahead_only_where_there_is_memory(bench: Any) -> None:
    bench(n=50_000, script=Script(memory_bytes=3 * 2**20, cache_bytes=2**18))
    assert bench.phases.count("compile") == 3


def test_cost_is_wall_seconds_by_phase(bench: Any) -> None:
    cost = bench().cost
    assert set(cost) == {*PHASES, "total", "device"}
    parts = sum(cost[phase] for phase in PHASES)
    assert 0 < parts <= cost["total"]


def test_blocks_lie_elsewhere_and_hold_other_values(bench: Any) -> None:
    bench()
    first, second = bench.kernels[0], bench.kernels[1]
    places = [[s["x"].offset for s in kernel._sets] for kernel in (first, second)]
    assert places[0] != places[1]
    assert all(o % 256 == 0 for offsets in places for o in offsets)


def test_processes_number_their_blocks(bench: Any) -> None:
    found = bench(process=2).measurement
    assert [(b.process, b.allocation) for b in found.blocks] == [(2, 0), (2, 1), (2, 2)]


def test_what_the_device_says_is_kept_and_warned_of(bench: Any) -> None:
    script = Script(
        clock_mhz=(1500.0, 1200.0), throttle=(("power cap",),), load=(0.9,), replay_s=1e-6
    )
    found = bench(script=script).measurement
    assert found.blocks[0].telemetry.throttle == ("power cap",)
    assert len(found.blocks[0].clocks_mhz) == len(found.blocks[0].samples_s)
    fields = {warning.code: warning.fields for warning in found.warnings}
    blocks = len(found.blocks)
    assert fields["throttled"] == {
        "count": blocks,
        "blocks": blocks,
        "by": ("power cap",),
        "sustained": True,
    }
    assert (fields["other-load"]["load"], fields["other-load"]["cores"]) == (0.9, 1)
    moved = {"low_mhz": 1200.0, "high_mhz": 1500.0}
    assert fields["clock-moved"] == {**moved, "sustained": True}
    rested = bench(script=script, duty="burst").measurement
    (clock,) = [warning for warning in rested.warnings if warning.code == "clock-moved"]
    assert clock.fields == {**moved, "sustained": False}


def test_host_time_only_where_timing_is_not_the_host_s(bench: Any) -> None:
    assert "host_s" not in bench().measurement.also
    found = bench(timer="graph").measurement
    assert found.method == "graph"
    assert found.also["host_s"] > 0


def test_a_pair_that_takes_no_longer_is_told(bench: Any) -> None:
    script = Script(replay_s=1e-3)
    found = bench(seconds=0.0, script=script, max_s=0.02, warmup_s=0.01).measurement
    assert found.median_s > 0
    assert "fixed-cost" in codes(found)


def test_warm_up_waits_for_the_clock(bench: Any) -> None:
    falling = tuple(3.0 * 0.9**i + 1.0 for i in range(30)) + (1.0,) * 100_000
    found = bench(script=Script(slow=falling), warmup_s=1.0).measurement
    assert found.warmup_s > 0.2
    assert found.median_s == pytest.approx(50e-6, rel=1e-3)


def test_references_on_the_device_wait_for_the_last_block(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that computes on the device would otherwise run while a block is timed."""
    seen = []
    honest = bench.op.reference

    def reference(*given: Any) -> Any:
        closed = all(kernel.closed for kernel in bench.kernels)
        seen.append((closed, threading.current_thread() is threading.main_thread()))
        return honest(*given)

    monkeypatch.setattr(bench.op, "reference", reference)
    monkeypatch.setattr(bench.op, "reference_on_device", True)
    outcome = bench()
    assert outcome.check.passed
    assert outcome.check.positions > 0
    assert len(seen) >= len(outcome.measurement.blocks)
    assert set(seen) == {(True, True)}
    assert not bench(fault="off").check.passed


class ScriptedAudit:
    """An audit whose blocks are repeatable or not, as `script` says."""

    script: list[bool]
    fails = check_audit_time(2.0, 1.0, is_slow=True)

    def __init__(self, block: TimedBlock) -> None:
        self.repeatable, self.slow_s, self.data_scatter = self.script.pop(0), None, 0.2

    def run(self, retime: object) -> PendingCheck:
        return lambda: combine([])

    def refuse(self) -> Check:
        return self.fails


@pytest.mark.parametrize(
    ("script", "blocks", "faults"),
    [
        ([True], 1, ()),
        ([False, True], 2, ()),  # the device became slower, once
        ([False, False, True], 3, ()),
        ([False, False, False], 3, (Fault.LESS_WORK,)),
    ],
)
def test_times_that_no_audit_can_repeat_are_refused(
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    script: list[bool],
    blocks: int,
    faults: tuple[Fault, ...],
) -> None:
    monkeypatch.setattr("kernelmark.measure.protocol.Audit", ScriptedAudit)
    monkeypatch.setattr(ScriptedAudit, "script", list(script), raising=False)
    outcome = bench(allocations=1, max_allocations=1)
    assert len(outcome.measurement.blocks) == blocks
    assert outcome.check.faults == faults
    assert "data-dependent" in [warning.code for warning in outcome.measurement.warnings]
    assert ScriptedAudit.script == []


@pytest.mark.parametrize("slow_again", [False, True])
def test_an_audited_block_that_was_slow_is_followed_by_another(
    bench: Any, monkeypatch: pytest.MonkeyPatch, slow_again: bool
) -> None:
    monkeypatch.setattr("kernelmark.measure.protocol.Audit", ScriptedAudit)
    monkeypatch.setattr(ScriptedAudit, "script", [True] * (3 if slow_again else 2), raising=False)
    monkeypatch.setattr("kernelmark.measure.protocol.secrets.randbelow", lambda below: 0)
    seconds = iter([4e-4, *4 * [1e-4], *([4e-4, 4e-4] if slow_again else [1e-4])])
    timed = _BlockLoop._measure_block

    def measure_block(self: _BlockLoop, number: int, block: BoundBlock) -> Steps[None]:
        yield from timed(self, number, block)
        last = self._blocks[-1]
        samples = (next(seconds),) * len(last.samples_s)
        self._blocks[-1] = dataclasses.replace(last, samples_s=samples)

    monkeypatch.setattr(_BlockLoop, "_measure_block", measure_block)
    outcome = bench(allocations=5, max_allocations=5)
    assert len(outcome.measurement.blocks) == (7 if slow_again else 6)
    codes = [warning.code for warning in outcome.measurement.warnings]
    assert ("audited-slower" in codes) == slow_again
    assert ScriptedAudit.script == []


def test_a_median_far_below_an_audited_block_is_unreliable() -> None:
    blocks = [Block(process=0, allocation=i, samples_s=(s,)) for i, s in enumerate((3.0, 1.0, 1.0))]
    (warning,) = audit_warnings(blocks, [3.0], factor=1.5)
    assert warning.code == "audited-slower"
    assert warning.fields == {"audited_s": 3.0, "median_s": 1.0}
    assert warning.code in UNRELIABLE
    assert audit_warnings(blocks, [3.0, 1.0], factor=1.5) == []
    assert audit_warnings(blocks, [], factor=1.5) == []
