"""The lenient first stage: what is suspected, and what a second value makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelmark.compare.alarms import level_s, screened_again, suspects
from kernelmark.compare.history import story
from kernelmark.core.reason import Reason
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stores import SeriesPoint
from kernelmark_dev.results import make_history, make_point

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001)


def points(newest: float | None, *, series="gemm | numpy", spread=1.0, **more) -> list[SeriesPoint]:
    past = [
        make_point(1e-5 * (1 + spread * (one - 1)), series=series, run_id=f"night-{i}")
        for i, one in enumerate(NOISE)
    ]
    last = make_point(newest and 1e-5 * newest, series=series, run_id="tonight")
    return [*past, replace(last, **more)]


@pytest.mark.parametrize(
    ("newest", "status"),
    [
        (1.005, None),
        (1.015, VerdictStatus.SLOWER),  # within what history expects, and worth a second look
        (1.5, VerdictStatus.SLOWER),
        (0.985, None),  # faster is told only where history flags it
        (0.5, VerdictStatus.FASTER),
        (None, VerdictStatus.BROKEN),
    ],
)
def test_what_is_suspected(newest, status):
    found = suspects(make_history(story(points(newest))), ["tonight"])
    assert [one.status for one in found] == ([] if status is None else [status])
    if newest and status:
        assert found[0].level_s == pytest.approx(1e-5, rel=0.01)
        assert found[0].before == "night-7"


def test_what_history_cannot_judge_is_suspected_where_paired_rounds_follow():
    doubt = Reason("few blocks", "few-blocks", blocks=1, wanted=3)
    item = story([replace(p, doubt=doubt) for p in points(1.28)])
    assert suspects(make_history(item), ["tonight"]) == []
    (found,) = suspects(make_history(item), ["tonight"], few=True)
    assert found.status is VerdictStatus.SLOWER
    assert (found.before, found.since) == ("night-7", "tonight")
    assert found.level_s == pytest.approx(1e-5, rel=0.01)


def test_only_tonight_counts():
    assert suspects(make_history(story(points(2.0))), ["another"]) == []


def test_the_largest_change_comes_first():
    found = [story(points(x, series=f"s{x} | b")) for x in (1.02, 1.5, 1.1)]
    series = [one.story.series for one in suspects(make_history(*found), ["tonight"])]
    assert series == ["s1.5 | b", "s1.1 | b", "s1.02 | b"]


def test_what_a_canary_explains_is_left_out_unless_paired_rounds_follow():
    held = replace(story(points(1.5)), held="moved")
    assert suspects(make_history(held), ["tonight"], suppressed=False) == []
    assert len(suspects(make_history(held), ["tonight"], suppressed=True)) == 1


def test_a_metric_is_suspected_only_where_it_is_flagged():
    made = [replace(p, metric="bandwidth", value=(p.median_s or 0) * 1e17) for p in points(1.015)]
    assert suspects(make_history(story(made)), ["tonight"]) == []


@pytest.mark.parametrize(
    ("again", "status"),
    [(1.0, VerdictStatus.SAME), (1.015, VerdictStatus.SAME), (1.05, VerdictStatus.SLOWER)],
)
def test_the_second_value_is_screened_strictly(again, status):
    one = story(points(1.05))
    assert screened_again(one, 1e-5 * again).status is status


def test_the_level_of_what_has_no_time_is_not_known():
    assert level_s(story(points(None))) is None
