from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import CaseError
from kernelmark.core.timing import Strain, Timer, Timing
from kernelmark.devices.base import Reading, Stream
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.measure.loop import RECORDED_LIMIT, Order, Pace, Sampler, choose_pace
from kernelmark.measure.sets import _with_divisors

SECONDS = st.floats(1e-7, 10.0)


@given(SECONDS, st.integers(1, 4096), st.floats(0.01, 5.0), st.booleans())
def test_a_sample_lasts_long_enough_and_passes_are_even(
    launch_s: float, wanted_sets: int, block_s: float, two: bool
) -> None:
    sets = _with_divisors(wanted_sets)
    timing = Timing()
    pace = choose_pace(
        launch_s=launch_s,
        sets=sets,
        evict=False,
        block_s=block_s,
        timing=timing,
        two_lengths=two,
        method=Timer.LOOP,
    )
    whole = 3 if two else 1  # a sample of two lengths is N and 2N launches
    assert whole * pace.launches * launch_s >= timing.min_sample_s * (1 - 1e-9)
    assert pace.launches % sets == 0 or pace.launches < sets
    # A sample may exceed its share of the block only by rounding to even passes.
    share = max(timing.min_sample_s, block_s / timing.min_samples)
    assert pace.launches * launch_s <= 4 * max(share, launch_s) + sets * launch_s * (
        pace.launches > sets
    )


@given(SECONDS, st.integers(1, 4096), st.booleans(), st.sampled_from(sorted(RECORDED_LIMIT)))
def test_recorded_launches_are_limited(
    launch_s: float, sets: int, evict: bool, method: Timer
) -> None:
    pace = choose_pace(
        launch_s=launch_s,
        sets=sets,
        evict=evict,
        block_s=0.2,
        timing=Timing(),
        two_lengths=True,
        method=method,
    )
    length = pace.launches * (2 if pace.two_lengths else 1)
    assert 1 <= length <= RECORDED_LIMIT[method]
    if evict:
        assert length <= max(sets, 1)


@pytest.mark.parametrize("changes", [{"strain": "bandwidth"}, {"cache": "flush"}])
def test_what_is_between_launches_is_recorded_too(changes: dict[str, Any]) -> None:
    pace = choose_pace(
        launch_s=1e-6,
        sets=1,
        evict=False,
        block_s=0.2,
        timing=Timing(**changes),
        two_lengths=True,
        method=Timer.GATE,
    )
    assert 2 * 2 * pace.launches <= RECORDED_LIMIT[Timer.GATE]


def test_flush_is_one_launch() -> None:
    pace = choose_pace(
        launch_s=1e-6,
        sets=1,
        evict=True,
        block_s=0.2,
        timing=Timing(cache="flush"),  # type: ignore[arg-type]
        two_lengths=True,
        method=Timer.GRAPH,
    )
    assert pace == Pace(launches=1, two_lengths=False, evict=True)


def test_rotation_goes_on_from_sample_to_sample() -> None:
    device = FakeDevice(script=Script(replay_s=0.0))
    device.enqueues = False
    seen: list[int] = []

    def launch(stream: Stream, index: int) -> None:
        seen.append(index)
        device.advance(1e-3)

    sampler = Sampler(device, launch, sets=6, timer=Timer.AUTO, strain=Timing().strain)
    for _ in range(4):
        assert math.isclose(sampler.sample(Pace(launches=2, two_lengths=False)).launch_s, 1e-3)
    assert seen == [0, 1, 2, 3, 4, 5, 0, 1]
    assert sampler.launched == set(range(6))
    sampler.restart()
    assert sampler.launched == set()


def test_two_lengths_take_turns_and_cancel_a_drift() -> None:
    """Each replay is 1 % slower than the last: alternating order keeps the mean right."""
    device = FakeDevice(
        script=Script(replay_s=5e-3, slow=tuple(1.0 + 0.001 * i for i in range(40)))
    )
    sampler = Sampler(
        device,
        lambda stream, index: device.advance(1e-3),
        sets=1,
        timer=Timer.AUTO,
        strain=Timing().strain,
    )
    pace = Pace(launches=10, two_lengths=True)
    pairs = [sampler.sample(pace).launch_s for _ in range(20)]
    middles = [1e-3 * (1.0 + 0.001 * (2 * i + 0.5)) for i in range(20)]
    drift = [found / middle - 1 for found, middle in zip(pairs, middles, strict=True)]
    assert drift[0] > 1e-3 > -1e-3 > drift[1]
    assert abs(sum(drift) / len(drift)) < 1e-5


@pytest.mark.parametrize(("sets", "launches"), [(2, 1), (3, 1), (4, 2), (12, 4), (64, 16), (3, 3)])
def test_two_lengths_go_round_the_sets_whichever_comes_first(sets: int, launches: int) -> None:
    device = FakeDevice()
    seen: list[int] = []
    sampler = Sampler(
        device, lambda _, index: seen.append(index), sets=sets, timer=Timer.AUTO, strain=Strain.NONE
    )
    pace = Pace(launches=launches, two_lengths=True)
    lengths = [len(order) for _ in range(4) for order in sampler._pair(pace)]
    assert lengths == [launches, 2 * launches, 2 * launches, launches] * 2
    sampler.restart()
    sampler.enqueue_warmup(pace, 8)
    assert seen == [i % sets for i in range(24 * launches)]


@pytest.mark.parametrize("evict", [False, True])
def test_a_batch_is_what_its_samples_are_one_by_one(evict: bool) -> None:
    device = FakeDevice(script=Script(replay_s=5e-3))
    order: list[int] = []

    def launch(stream: Stream, index: int) -> None:
        order.append(index)
        device.advance(1e-3)

    sampler = Sampler(device, launch, sets=8, timer=Timer.AUTO, strain=Timing().strain)
    pace = Pace(launches=2, two_lengths=True, evict=evict)
    batch = sampler.samples(pace, 4)
    in_batch = order.copy()
    order.clear()
    sampler.restart()
    singles = [sampler.sample(pace) for _ in range(4)]
    assert order == in_batch
    assert [s.launch_s for s in batch] == pytest.approx([s.launch_s for s in singles])
    assert [s.timed_s for s in batch] == pytest.approx([s.timed_s for s in singles])
    assert device.evictions == (16 if evict else 0)


@pytest.mark.parametrize("lost", [3, 10])
def test_a_sample_lost_in_what_surrounds_it_is_taken_again(lost: int) -> None:
    sampler = Sampler(FakeDevice(), lambda *_: None, sets=1, timer=Timer.AUTO, strain=Strain.NONE)
    readings = itertools.count()

    def timed(order: Order) -> tuple[Reading, float, float]:
        launch_s = -1e-6 if next(readings) < 2 * lost else 1e-6
        return Reading(elapsed_s=len(order) * launch_s), 1e-6, 1e-6

    sampler._timed = timed  # type: ignore[method-assign]
    pace = Pace(launches=2, two_lengths=True, evict=False)
    if lost == 10:
        with pytest.raises(CaseError):
            sampler.sample(pace)
    else:
        assert sampler.sample(pace).launch_s == pytest.approx(1e-6)
    assert sampler.fallbacks == lost


class Queued:
    """A kernel with a queue of its own that takes sixteen launches at a time."""

    def launch(self, stream: Stream, set_index: int) -> None: ...

    def replay_s(self, order: object) -> float:
        return 0.0

    def even_launches(self, launches: int) -> int:
        return -(-launches // 16) * 16


@pytest.mark.parametrize(
    ("sets", "launches", "evict", "even"),
    [
        (64, 4, False, 16),
        (64, 4, True, 16),  # both lengths in whole batches, also after an eviction
        (64, 17, True, 32),
        (31, 4, True, 4),  # there, twice sixteen would meet a set twice, the second time hot
    ],
)
def test_both_lengths_are_whole_batches_of_a_queue(sets, launches, evict, even) -> None:
    sampler = Sampler(
        FakeDevice(), Queued().launch, sets=sets, timer=Timer.AUTO, strain=Strain.NONE
    )
    pace = Pace(launches=launches, two_lengths=True, evict=evict)
    assert sampler.fit(pace).launches == even
