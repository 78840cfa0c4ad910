"""Series: steps with their runs, the screen of the newest point, held alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kernelmark.compare.history import hold, stories, story
from kernelmark.core.reason import Reason
from kernelmark.core.result import Mode, Status


@dataclass(frozen=True)
class Point:
    series: str
    run_id: str
    started: float
    status: Status
    fingerprint: str
    median_s: float | None
    low_s: float | None = None
    high_s: float | None = None
    modes: tuple[Mode, ...] = ()
    doubt: Reason | None = None
    metric: str = ""
    value: float | None = None
    unit: str = ""
    better: str = "lower"


def series(times, name="gemm m=1 | a | {} | t | x"):
    """Points of nights 0, 1, …; None is a failure."""
    return [
        Point(
            series=name,
            run_id=f"night{i}",
            started=float(i),
            status=Status.OK if t else Status.CRASHED,
            fingerprint="f",
            median_s=t,
        )
        for i, t in enumerate(times)
    ]


def noisy(count, seed=0, spread=0.003):
    return list(1e-3 * np.exp(np.random.default_rng(seed).normal(0, spread, count)))


def test_a_step_is_found_where_it_is():
    times = noisy(20) + [t * 1.06 for t in noisy(10, seed=1)]
    found = story(series(times))
    (step,) = found.steps
    assert (step.run_id, step.before_id, step.started) == ("night20", "night19", 20.0)
    assert step.ratio == pytest.approx(1.06, rel=0.01)
    assert found.screen.status.value == "same"


def test_a_point_whose_blocks_disagree_is_not_judged():
    """427.9 µs and 22.47 ms became 11.45 ms, between two modes that nobody saw."""
    points = series([*noisy(20), 11.45e-3])
    wide = replace(points[-1], low_s=4.279e-4, high_s=math.inf)
    assert story(points).screen.status.value == "slower"
    screen = story([*points[:-1], wide]).screen
    assert screen.status.value == "unsure"
    # Nor does it move the level of those after it.
    later = [
        replace(p, run_id=f"later{i}", started=30.0 + i) for i, p in enumerate(series(noisy(1)))
    ]
    found = story([*points[:-1], wide, *later])
    assert (found.steps, found.screen.status.value) == ((), "same")


def test_a_point_with_too_few_blocks_is_not_judged():
    points = series([*noisy(20), 1.5e-3])
    few = replace(points[-1], doubt=Reason("few blocks", "few-blocks", blocks=1, wanted=3))
    assert story(points).screen.status.value == "slower"
    screen = story([*points[:-1], few]).screen
    assert (screen.status.value, screen.reason.code) == ("unsure", "few-blocks")
    later = [
        replace(p, run_id=f"later{i}", started=30.0 + i) for i, p in enumerate(series(noisy(1)))
    ]
    found = story([*points[:-1], few, *later])
    assert (found.steps, found.screen.status.value) == ((), "same")


@pytest.mark.parametrize(
    ("better", "status"), [("lower", "slower"), ("higher", "faster"), ("", "unsure")]
)
def test_a_metric_is_slower_where_it_is_worse(better, status):
    points = [
        replace(p, metric="read", value=p.median_s and p.median_s * 1e15, median_s=None)
        for p in series([*noisy(20), 1.05e-3])
    ]
    found = story([replace(p, unit="B/s", better=better) for p in points])
    assert found.screen.status.value == status
    assert found.screen.ratio == pytest.approx(1.05, rel=0.01)


def test_the_newest_point_is_screened_before_a_step_can_be_seen():
    found = story(series([*noisy(20), 1.05e-3]))
    assert found.steps == ()
    assert found.screen.status.value == "slower"
    assert found.screen.flagged
    assert found.alarm
    assert found.screen.ratio == pytest.approx(1.05, rel=0.01)
    assert found.screen.low_s < 1e-3 < found.screen.high_s < 1.05e-3
    assert story(series([*noisy(20), 0.95e-3])).screen.status.value == "faster"
    assert story(series([*noisy(20), 1.015e-3])).screen.status.value == "same"


@pytest.mark.parametrize("before", [5, 6, 9])
@pytest.mark.parametrize("factor", [1.08, 1 / 1.08])
def test_a_change_that_lasts_stays_flagged_until_a_step_is_proven(before, factor):
    state = "slower" if factor > 1 else "faster"
    for seed in range(20):
        times = noisy(before + 9, seed)
        times[before:] = [t * factor for t in times[before:]]
        for nights in range(before + 1, before + 10):
            found = story(series(times[:nights]))
            if found.steps:
                assert [step.run_id for step in found.steps] == [f"night{before}"]
                continue
            assert found.screen.status.value == state
            assert found.screen.gone == nights - before - 1
            assert found.change == (f"night{before - 1}", f"night{before}")
        assert found.steps


def test_a_second_mode_is_no_change_that_lasts():
    modes = [1e-3 * (1.08 if i % 4 == 3 else 1.0) for i in range(24)]
    for nights in range(10, 25):
        assert story(series(modes[:nights])).screen.status.value == "same"


def test_a_drift_is_no_change_that_lasts():
    alarms = 0
    for seed in range(100):
        walk = np.cumsum(np.random.default_rng(seed).normal(0, 0.002, 30))
        alarms += story(series(list(1e-3 * np.exp(walk)))).screen.gone > 0
    assert alarms <= 2


def test_a_noisy_level_expects_more():
    assert story(series([*noisy(20, spread=0.03), 1.05e-3])).screen.status.value == "same"


def test_few_points_are_not_judged():
    found = story(series([1e-3, 1e-3, 1e-3, 2e-3]))
    assert found.screen.status.value == "new"
    assert not found.alarm


def test_the_screen_sees_through_a_step():
    found = story(series([1e-3] * 8 + [1.1e-3] * 3 + [1.3e-3]))
    assert len(found.steps) == 1
    assert found.screen.status.value == "slower"
    assert found.screen.ratio == pytest.approx(1.3 / 1.1)
    assert found.alarm
    assert story(series([1e-3] * 8 + [1.1e-3] * 4)).screen.status.value == "same"
    assert story(series([1e-3] * 8 + [1.1e-3] * 3)).screen.status.value == "same"
    assert story(series([1e-3] * 8 + [1.1e-3] * 3 + [9e-4])).screen.status.value == "faster"


@pytest.mark.parametrize("since", [3, 4])
def test_after_a_step_the_level_before_says_how_far_points_stray(since):
    def told(spread, last):
        made = []
        for seed in range(40):
            times = noisy(15 + since, seed, spread)
            times[15:] = [1.12 * t for t in times[15:]]
            times[-1] *= last
            found = story(series(times))
            if [step.run_id for step in found.steps] == ["night15"]:
                made.append(found.screen.status.value)
        return made

    for spread in (0.003, 0.01, 0.03):
        quiet = told(spread, 1.0)
        assert len(quiet) > 15
        assert sum(state != "same" for state in quiet) <= 1
    assert told(0.003, 1.1).count("slower") == 40
    assert told(0.03, 1.1).count("slower") < 20  # the noise of the level before is that large


def test_a_second_mode_of_the_level_before_is_no_news():
    modes = [1e-3 * (1.08 if i % 8 == 5 else 1.0) for i in range(24)]
    found = story(series([*modes, 1.3e-3, 1.3e-3, 1.3e-3, 1.3e-3 * 1.07]))
    assert found.steps
    assert found.screen.status.value == "same"


def test_a_series_of_many_runs_is_not_new():
    found = story(series([None] * 10 + [1e-3] * 3))
    assert found.screen.status.value == "unsure"
    assert "2" in found.screen.reason


def test_failures_are_states():
    assert story(series([1e-3, None])).screen.status.value == "broken"
    assert story(series([1e-3, None])).alarm
    assert story(series([None, None])).screen.status.value == "ignored"
    assert story(series([None])).screen.status.value == "ignored"
    assert story(series([1e-3, None, 1e-3])).screen.status.value == "fixed"


def test_several_devices_of_a_run_are_one_point():
    doubled = [p for p in series(noisy(8)) for _ in range(3)]
    assert len(story(doubled).points) == 8
    mixed = [*series([1e-3]), *series([None])]
    assert story(mixed).screen.status.value == "ignored"


def test_a_moved_sentinel_holds_alarms():
    def three(newest, other):
        return stories(
            [
                *series([*noisy(20), newest], "sentinel | a | {} | t | x"),
                *series([*noisy(20, 1), other], "sentinel | b | {} | t | x"),
                *series([*noisy(20, 2), 1.05e-3], "work | a | {} | t | x"),
            ]
        )

    names = {f"sentinel | {b} | {{}} | t | x": "sentinel" for b in "ab"}
    held, moved = hold(three(1.1e-3, 1.1e-3), names)
    assert moved == ["sentinel: slower"]
    assert not any(one.alarm for one in held)
    assert held[2].held.code == "canary-moved"
    free, moved = hold(three(1.1e-3, 1e-3), names)
    assert moved == []
    assert [one.alarm for one in free] == [True, False, True]
    assert hold([], {}) == ([], [])


MODES_US = (35.2, 36.8, 38.2)


def mixed_series(count, seed, factors=()):
    """Nights whose samples draw one of three modes; the median is on any of them. `factors` are
    those of the newest nights."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        factor = ([1.0] * (count - len(factors)) + list(factors))[i]
        shares = rng.multinomial(120, (0.5, 0.2, 0.3)) / 120
        values = [v * 1e-6 * factor * math.exp(rng.normal(0, 0.003)) for v in MODES_US]
        modes = tuple(Mode(value_s=v, share=s) for v, s in zip(values, shares, strict=True))
        (point,) = series([float(rng.choice(values[:2]))])
        made.append(replace(point, run_id=f"night{i}", started=float(i), modes=modes))
    return made


def one_mode(value_us, night):
    (point,) = series([value_us * 1e-6])
    return replace(point, run_id=f"night{night}", started=float(night))


def test_medians_that_jump_between_modes_raise_no_alarm():
    found = [story(mixed_series(20, seed)) for seed in range(50)]
    assert not any(one.screen.flagged or one.steps for one in found)


@pytest.mark.parametrize("factor", [1.04, 0.96])
def test_a_shift_of_all_modes_is_an_alarm(factor):
    found = [story(mixed_series(20, seed, [factor])) for seed in range(50)]
    wanted = "slower" if factor > 1 else "faster"
    assert sum(one.screen.status.value == wanted for one in found) >= 45


def test_a_shift_of_all_modes_becomes_a_step():
    found = story(mixed_series(30, 1, [1.05] * 10))
    (step,) = found.steps
    assert step.run_id == "night20"
    assert step.ratio == pytest.approx(1.05, rel=0.01)


@pytest.mark.parametrize("value_us", MODES_US)
def test_a_run_on_one_of_the_modes_is_no_news(value_us):
    found = story([*mixed_series(20, 2), one_mode(value_us, 20)])
    assert not found.screen.flagged


def test_a_run_beyond_all_modes_is():
    found = story([*mixed_series(20, 2), one_mode(41.0, 20)])
    assert found.screen.status.value == "slower"


def test_a_second_mode_beside_the_known_one_is_no_news():
    before = [replace(p, median_s=35.2e-6, modes=()) for p in mixed_series(20, 3)]
    newest = replace(mixed_series(1, 3)[0], run_id="night20", started=20.0)
    assert not story([*before, newest]).screen.flagged
    beyond = tuple(replace(mode, value_s=1.2 * mode.value_s) for mode in newest.modes)
    assert story([*before, replace(newest, modes=beyond)]).screen.status.value == "slower"


def test_a_failure_after_mixtures_is_broken():
    crashed = replace(series([None])[0], run_id="night20", started=20.0)
    assert story([*mixed_series(20, 2), crashed]).screen.status.value == "broken"


def test_a_change_is_against_so_many_runs_and_against_the_one_before():
    found = story(series([1.0, 1.02, 0.98, 1.01, 0.97, 0.95, 1.5]))
    assert found.screen.runs == 6
    assert found.screen.ratio == pytest.approx(1.5 / 0.99, rel=1e-3)
    assert found.since_before == pytest.approx(1.5 / 0.95)
    assert story(series([None, 1.0])).since_before is None
