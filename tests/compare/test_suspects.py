"""The lenient first stage: what is suspected, and what a second value makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kernelmark.compare.alarms import level_s, screened_again, suspects
from kernelmark.compare.history import History, story
from kernelmark.compare.verdicts import Audit
from kernelmark.core.result import Mode, Status
from kernelmark.core.verdict import VerdictStatus


@dataclass(frozen=True)
class Point:
    series: str
    run_id: str
    median_s: float | None
    low_s: float | None = None
    high_s: float | None = None
    status: Status = Status.OK
    started: float = 0.0
    fingerprint: str = ""
    modes: tuple[Mode, ...] = ()
    doubt: None = None
    metric: str = ""
    value: float | None = None
    unit: str = ""
    better: str = "lower"


NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001)


def points(newest: float | None, *, series="gemm | numpy", spread=1.0, **more) -> list[Point]:
    past = [
        Point(series, f"night-{i}", 1e-5 * (1 + spread * (one - 1))) for i, one in enumerate(NOISE)
    ]
    status = Status.CRASHED if newest is None else Status.OK
    last = Point(series, "tonight", newest and 1e-5 * newest, status=status)
    return [*past, replace(last, **more)]


def history(*stories) -> History:
    return History(
        stories=stories,
        runs=(),
        changes={},
        moved=(),
        marked={},
        watched=True,
        audit=Audit(compared=0, alarms=0),
        baseline_name="",
        baseline={},
    )


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
    found = suspects(history(story(points(newest))), ["tonight"])
    assert [one.status for one in found] == ([] if status is None else [status])
    if newest and status:
        assert found[0].level_s == pytest.approx(1e-5, rel=0.01)
        assert found[0].before == "night-7"


def test_only_tonight_counts():
    assert suspects(history(story(points(2.0))), ["another"]) == []


def test_the_largest_change_comes_first():
    found = [story(points(x, series=f"s{x} | b")) for x in (1.02, 1.5, 1.1)]
    series = [one.story.series for one in suspects(history(*found), ["tonight"])]
    assert series == ["s1.5 | b", "s1.1 | b", "s1.02 | b"]


def test_what_a_canary_explains_is_left_out_unless_paired_rounds_follow():
    held = replace(story(points(1.5)), held="moved")
    assert suspects(history(held), ["tonight"], held=False) == []
    assert len(suspects(history(held), ["tonight"], held=True)) == 1


def test_a_metric_is_suspected_only_where_it_is_flagged():
    made = [replace(p, metric="bandwidth", value=(p.median_s or 0) * 1e17) for p in points(1.015)]
    assert suspects(history(story(made)), ["tonight"]) == []


@pytest.mark.parametrize(
    ("again", "status"),
    [(1.0, VerdictStatus.SAME), (1.015, VerdictStatus.SAME), (1.05, VerdictStatus.SLOWER)],
)
def test_the_second_value_is_screened_strictly(again, status):
    one = story(points(1.05))
    assert screened_again(one, 1e-5 * again).status is status


def test_the_level_of_what_has_no_time_is_not_known():
    assert level_s(story(points(None))) is None
