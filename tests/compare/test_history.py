"""Series: steps with their runs, the screen of the newest point, held alarms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kernelmark.compare.history import hold, marked, stories, story
from kernelmark.core.reason import Reason
from kernelmark.core.result import Mode, Status
from kernelmark.core.verdict import Mark, MarkKind
from kernelmark_dev.results import make_point


def series(times, name="gemm m=1 | a | {} | t | x"):
    """Points of nights 0, 1, …; None is a failure."""
    return [
        make_point(t, series=name, run_id=f"night{i}", started=float(i))
        for i, t in enumerate(times)
    ]


def mark(kind, state, run, *, level=None, before=""):
    return Mark(
        series="",
        kind=MarkKind(kind),
        state=state,
        run_id=f"night{run}",
        started=float(run),
        before_id=before,
        level=level,
    )


def state_of(times, *marks):
    return story(series(times), marks=marks).screen.status.value


def noisy(count, seed=0, spread=0.003):
    return list(1e-3 * np.exp(np.random.default_rng(seed).normal(0, spread, count)))


def test_a_step_is_found_where_it_is():
    times = noisy(20) + [t * 1.06 for t in noisy(10, seed=1)]
    found = story(series(times))
    (step,) = found.steps
    assert (step.run_id, step.before_id, step.started) == ("night20", "night19", 20.0)
    assert step.ratio == pytest.approx(1.06, rel=0.01)
    assert found.screen.status.value == "slower"


@pytest.mark.parametrize(
    ("doubtful", "code"),
    [
        # 427.9 µs and 22.47 ms became 11.45 ms, between two modes that nobody saw.
        ({"low_s": 4.279e-4, "high_s": math.inf}, "text"),
        ({"doubt": Reason("few blocks", "few-blocks", blocks=1, wanted=3)}, "few-blocks"),
    ],
)
def test_a_point_that_is_unreliable_is_not_judged(doubtful, code):
    points = series([*noisy(20), 11.45e-3])
    newest = replace(points[-1], **doubtful)
    assert story(points).screen.status.value == "slower"
    screen = story([*points[:-1], newest]).screen
    assert screen.status.value == "unsure"
    assert code in ("text", screen.reason.code)
    # Nor does it move the level of those after it.
    later = [
        replace(p, run_id=f"later{i}", started=30.0 + i) for i, p in enumerate(series(noisy(1)))
    ]
    found = story([*points[:-1], newest, *later])
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


def test_few_points_are_judged_by_far():
    assert state_of([1e-3, 2e-3]) == "new"
    assert state_of([1e-3, 1e-3, 1.28e-3]) == "slower"
    assert state_of([1e-3, 1e-3, 1e-3, 5e-4]) == "faster"
    assert state_of([1e-3, 1e-3, 1e-3, 1.08e-3]) == "new"
    assert state_of([1e-3, 1.1e-3, 1.28e-3]) == "new"


def test_a_refuted_point_is_no_alarm_and_the_next_one_is():
    refuted = mark("refuted", "slower", 20)
    assert state_of([*noisy(20), 1.1e-3], refuted) == "unsure"
    assert state_of([*noisy(20), 1.1e-3, 1.1e-3], refuted) == "slower"


def test_a_small_slowdown_that_is_confirmed_stays_open():
    confirmed = mark("regressed", "slower", 20, level=1e-3, before="night19")
    assert state_of([*noisy(20), 1.015e-3, 1.013e-3], confirmed) == "slower"
    assert state_of([*noisy(20), 1.015e-3, 1.013e-3, 1.001e-3], confirmed) == "same"


def test_the_screen_sees_through_a_step():
    accepted = mark("accepted", "slower", 8)
    found = story(series([1e-3] * 8 + [1.1e-3] * 3 + [1.3e-3]), marks=[accepted])
    assert len(found.steps) == 1
    assert found.screen.status.value == "slower"
    assert found.screen.ratio == pytest.approx(1.3 / 1.1)
    assert found.alarm
    assert state_of([1e-3] * 8 + [1.1e-3] * 4, accepted) == "same"
    assert state_of([1e-3] * 8 + [1.1e-3] * 3, accepted) == "same"
    assert state_of([1e-3] * 8 + [1.1e-3] * 3 + [9e-4], accepted) == "faster"


@pytest.mark.parametrize("since", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_after_a_step_the_level_before_says_how_far_points_stray(since):
    def told(spread, last):
        made = []
        for seed in range(40):
            times = noisy(15 + since, seed, spread)
            times[15:] = [1.12 * t for t in times[15:]]
            times[-1] *= last
            found = story(series(times), marks=[mark("accepted", "slower", 15)])
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
    times = [*modes, 1.3e-3, 1.3e-3, 1.3e-3, 1.3e-3 * 1.07]
    found = story(series(times), marks=[mark("accepted", "slower", 24)])
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


def test_a_success_without_a_time_or_metric_is_broken():
    points = series([1e-3, 1e-3, None])
    screen = story([*points[:-1], replace(points[-1], status=Status.OK)]).screen
    assert (screen.status.value, screen.before, screen.since) == ("broken", "night1", "night2")


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


@pytest.mark.parametrize("failures", [1, 2, 3, 10])
def test_a_failure_is_open_until_the_kernel_works(failures):
    found = story(series([*noisy(38), *[None] * failures]))
    assert found.alarm
    assert found.screen.status.value == "broken"
    assert found.change == ("night37", "night38")
    assert story(series([*noisy(38), *[None] * failures, 1e-3])).screen.status.value == "fixed"


def test_a_kernel_that_works_again_may_be_slower():
    assert state_of([*noisy(20), None, 1.3e-3]) == "slower"


@pytest.mark.parametrize("nights", [1, 2, 3, 4, 10, 20, 39])
def test_a_slowdown_that_nobody_touched_is_open(nights):
    found = story(series([*noisy(20), *(1.17 * t for t in noisy(nights, 1))]))
    assert found.alarm
    assert found.screen.status.value == "slower"
    assert found.screen.ratio == pytest.approx(1.17, rel=0.02)
    assert found.change == ("night19", "night20")


def test_a_slowdown_is_closed_by_the_good_level_and_not_by_a_part_of_it():
    slow = [*noisy(20), *(1.17 * t for t in noisy(10, 1))]
    for good in range(1, 8):
        assert state_of([*slow, *noisy(good, 2)]) in ("faster", "same")
    for part in range(1, 8):
        found = story(series([*slow, *(1.08 * t for t in noisy(part, 2))]))
        assert found.screen.status.value == "slower"
        assert found.screen.ratio == pytest.approx(1.08, rel=0.02)


def test_a_good_night_in_noise_is_no_repair():
    noise = [1.0, 1.05, 0.97, 1.02, 0.98, 1.04]
    slow = [t * 1.1 for t in noise]
    assert state_of([*(1e-3 * t for t in noise * 4), *(1e-3 * t for t in slow * 2), 1.08e-3]) == (
        "slower"
    )


def test_the_best_level_counts_not_the_one_before():
    found = story(series([*noisy(10), *(t * 0.8 for t in noisy(10, 1)), *noisy(10, 2)]))
    assert found.screen.status.value == "slower"
    assert found.screen.ratio == pytest.approx(1.25, rel=0.02)
    assert found.change == ("night19", "night20")
    assert state_of([*noisy(10), *(t * 0.8 for t in noisy(10, 1))]) == "same", "it is proven"


def test_a_throughput_is_worse_where_it_is_lower():
    times = [*noisy(20), *(t / 1.17 for t in noisy(10, 1))]
    points = [
        replace(p, metric="read", value=p.median_s * 1e15, median_s=None, unit="B/s", better=better)
        for p, better in zip(series(times), ["higher"] * 30, strict=True)
    ]
    found = story(points)
    assert found.screen.status.value == "slower"
    assert found.screen.ratio == pytest.approx(1 / 1.17, rel=0.02)
    assert found.screen.low_s < found.screen.high_s
    unknown = story([replace(p, better="") for p in points])
    assert unknown.screen.status.value == "same"


def test_a_point_that_cannot_be_judged_ends_no_regression():
    doubt = Reason("few blocks", "few-blocks", blocks=1, wanted=3)
    for nights in (1, 10):
        points = series([*noisy(20), *(1.17 * t for t in noisy(nights, 1)), 1e-3])
        found = story([*points[:-1], replace(points[-1], doubt=doubt)])
        assert found.screen.status.value == "slower"
        assert found.change == ("night19", "night20")


@pytest.mark.parametrize("nights", [1, 2, 5, 12])
def test_an_accepted_slowdown_is_the_good_level(nights):
    times = [*noisy(20), *(1.17 * t for t in noisy(nights, 1))]
    accepted = mark("accepted", "slower", 20)
    found = story(series(times), marks=[accepted])
    assert not found.alarm
    assert found.accepted == accepted
    assert state_of([*times, 1.4e-3], accepted) == "slower"
    assert state_of([*times, *(1.4 * t for t in noisy(10, 2))], accepted) == "slower"
    assert state_of([*times, *noisy(10, 3)], accepted) != "slower"


def test_an_accepted_failure_is_silent_until_it_changes():
    points = series([*noisy(20), None, None])
    accepted = mark("accepted", "crashed", 20)
    found = story(points, marks=[accepted])
    assert (found.alarm, found.accepted) == (False, accepted)
    wrong = replace(points[-1], status=Status.WRONG)
    assert story([*points[:-1], wrong], marks=[accepted]).screen.status.value == "broken"
    assert state_of([*noisy(20), None, None, 1e-3], accepted) == "fixed"
    assert state_of([*noisy(20), None, None, 1e-3, None], accepted) == "broken"
    only = story(points[20:], marks=[accepted])
    assert not only.alarm


def test_a_confirmed_slowdown_is_open_without_a_step():
    """Two good nights are too few for a change point, however long it stays slow."""
    confirmed = mark("regressed", "slower", 2, level=1e-3, before="night1")
    for nights in (1, 2, 5, 30):
        times = [*noisy(2), *(1.28 * t for t in noisy(nights, 1))]
        found = story(series(times), marks=[confirmed])
        assert found.screen.status.value == "slower"
        assert found.change == ("night1", "night2")
        assert found.confirmed == confirmed
        for good in (1, 2, 5):
            assert state_of([*times, *noisy(good, 2)], confirmed) != "slower"
        # The good nights are outside the newest runs.
        found = story(series(times)[2:], marks=[confirmed])
        assert found.screen.status.value == "slower"
        assert found.change == ("night1", "night2")
        later = mark("accepted", "slower", 2)
        assert not story(series(times), marks=[confirmed, later]).alarm


def test_a_confirmed_failure_is_open_after_the_last_good_run_is_gone():
    confirmed = mark("regressed", "crashed", 20, before="night19")
    found = story(series([*noisy(20), None, None])[20:], marks=[confirmed])
    assert found.screen.status.value == "broken"
    assert found.change == ("night19", "night20")


def test_a_machine_that_stays_slower_suppresses_what_began_with_it():
    def slower_from(night, name, seed):
        slow = [1.2 * t for t in noisy(30 - night, seed + 10)]
        return series([*noisy(night, seed), *slow], f"{name} | {{}} | t | x")

    names = {"canary | a | {} | t | x": "canary"}
    found = stories(
        [
            *slower_from(20, "canary | a", 0),
            *slower_from(20, "work | a", 1),
            *slower_from(25, "work | b", 2),
        ]
    )
    held, moved = hold(found, names, marked(found, names))
    assert moved == []
    assert [one.alarm for one in held] == [False, False, True]


def test_a_confirmed_slowdown_is_open_where_no_point_can_be_judged():
    doubt = Reason("few blocks", "few-blocks", blocks=1, wanted=3)
    confirmed = mark("regressed", "slower", 2, level=1e-3, before="night1")

    def last(*times):
        points = [replace(p, doubt=doubt) for p in series([1e-3, 1e-3, *times])]
        return story(points, marks=[confirmed])

    assert last(1.28e-3).change == ("night1", "night2")
    assert last(1.28e-3).confirmed == confirmed
    assert last(1.28e-3, 1.28e-3).alarm
    assert last(1.28e-3, 1e-3).screen.status.value == "unsure"
