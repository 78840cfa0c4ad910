"""The rule agreed for golden and top-of-tree, by a table computed by hand.

Not ignored: golden of 4 µs or more. Regression: tot > 1.005 × golden + 0.5 µs. Times of a side are
runs in µs; the first three in a row of which the largest is at most 5 % above the smallest count.
"""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.compare.match import Pair
from kernelmark.compare.rules.golden_tot import rule, stable_time
from kernelmark.core.result import Status


def thrice(time_us: float) -> tuple[float, float, float]:
    return (time_us, time_us, time_us)


# (runs of golden, runs of tot, verdict, golden's mean, threshold where it is asked for)
TABLE = [
    # under 4 µs
    (thrice(3.99), thrice(100.0), "ignored", 3.99, None),
    (thrice(3.9999), thrice(3.0), "ignored", 3.9999, None),
    (thrice(1.0), thrice(1.0), "ignored", 1.0, None),
    # 4 µs exactly is judged: 1.005 × 4 + 0.5 = 4.52
    (thrice(4.0), thrice(4.0), "same", 4.0, 4.52),
    (thrice(4.0), thrice(4.52), "same", 4.0, 4.52),
    (thrice(4.0), thrice(4.521), "slower", 4.0, 4.52),
    # on, below and above 1.005 × 10 + 0.5 = 10.55
    (thrice(10.0), thrice(10.54), "same", 10.0, 10.55),
    (thrice(10.0), thrice(10.55), "same", 10.0, 10.55),
    (thrice(10.0), thrice(10.551), "slower", 10.0, 10.55),
    # 1.005 × 100 + 0.5 = 101
    (thrice(100.0), thrice(101.0), "same", 100.0, 101.0),
    (thrice(100.0), thrice(101.01), "slower", 100.0, 101.0),
    # 1.005 × 1000 + 0.5 = 1005.5
    (thrice(1000.0), thrice(1005.5), "same", 1000.0, 1005.5),
    (thrice(1000.0), thrice(1005.6), "slower", 1000.0, 1005.5),
    # the other way: 1.005 × 994 + 0.5 = 999.47 < 1000; 1.005 × 995 + 0.5 = 1000.475 > 1000
    (thrice(1000.0), thrice(994.0), "faster", 1000.0, 1005.5),
    (thrice(1000.0), thrice(995.0), "same", 1000.0, 1005.5),
    (thrice(5.0), thrice(2.0), "faster", 5.0, 5.525),
    # means of three that agree: 10.2 → 10.751; 10.73… is below, 10.8 above
    ((10.0, 10.2, 10.4), (10.7, 10.7, 10.8), "same", 10.2, 10.751),
    ((10.0, 10.2, 10.4), (10.7, 10.8, 10.9), "slower", 10.2, 10.751),
    # 10.5 is exactly 5 % above 10: they agree, 10.25 → 10.80125
    ((10.0, 10.25, 10.5), thrice(10.8), "same", 10.25, 10.80125),
    ((10.0, 10.25, 10.5), thrice(10.81), "slower", 10.25, 10.80125),
    # 10.51 is more: unstable
    ((10.0, 10.25, 10.51), thrice(50.0), "unsure", 10.0 + 0.76 / 3, None),
    # repeated until three agree: 10, 10.1, 10.2 → 10.1 → 10.6505
    ((20.0, 10.0, 10.1, 10.2), thrice(10.7), "slower", 10.1, 10.6505),
    ((20.0, 10.0, 10.1, 10.2), thrice(10.65), "same", 10.1, 10.6505),
    # later runs do not count once three agree: 10 → 10.55
    ((10.0, 10.0, 10.0, 30.0), thrice(10.56), "slower", 10.0, 10.55),
    # tot unstable, both unstable
    (thrice(10.0), (10.0, 12.0, 10.0, 12.0), "unsure", 10.0, None),
    ((10.0, 12.0, 10.0, 12.0), (10.0, 12.0, 10.0, 12.0), "unsure", 11.0, None),
    # too short a time is ignored even where a side is unstable
    ((2.0, 3.0, 2.0, 3.0), thrice(9.0), "ignored", 2.5, None),
    (thrice(3.0), (9.0, 12.0, 9.0, 12.0), "ignored", 3.0, None),
    # fewer than three runs, on either side or on both
    ((10.0, 10.1), thrice(20.0), "unsure", 10.05, None),
    (thrice(10.0), (20.0, 20.1), "unsure", 10.0, None),
    ((10.0, 10.1), (20.0, 20.1), "unsure", 10.05, None),
    ((3.0, 3.1), thrice(20.0), "ignored", 3.05, None),
    # a single mean of another tool: the rule holds, stability is not known
    ((10.0,), (10.55,), "same", 10.0, 10.55),
    ((10.0,), (10.56,), "slower", 10.0, 10.55),
    ((3.0,), (10.56,), "ignored", 3.0, None),
]


@pytest.mark.parametrize(("golden", "tot", "verdict", "mean_us", "limit_us"), TABLE)
def test_table(make_result, golden, tot, verdict, mean_us, limit_us):
    (found,) = rule.judge([Pair(base=make_result(*golden), head=make_result(*tot))])
    assert found.status.value == verdict, found.reason
    assert found.base_s == pytest.approx(mean_us * 1e-6, rel=1e-12)
    if limit_us is not None:
        assert dict(found.facts)["threshold"].startswith("1.005 × golden + 0.5 µs = ")
        assert 1.005 * found.base_s + 0.5e-6 == pytest.approx(limit_us * 1e-6, rel=1e-12)


def test_the_table_has_a_row_of_every_kind():
    assert len(TABLE) >= 30
    assert {row[2] for row in TABLE} == {"ignored", "same", "slower", "faster", "unsure"}


def test_missing_and_failed_on_one_side(make_result):
    good = make_result(*thrice(10.0))
    failed = make_result(status=Status.CRASHED, error="killed by signal 11")
    wrong = make_result(*thrice(9.0), status=Status.WRONG)
    cases = {
        "gone": Pair(base=good, head=None),
        "new": Pair(base=None, head=good),
        "broken": Pair(base=good, head=failed),
        "fixed": Pair(base=failed, head=good),
        "ignored": Pair(base=failed, head=failed),
    }
    found = rule.judge([*cases.values(), Pair(base=good, head=wrong)])
    assert [one.status.value for one in found] == [*cases, "broken"]
    assert "killed by signal 11" in found[2].reason
    assert found[5].reason == "wrong"


def test_unstable_rows_say_which_side(make_result):
    shaky = make_result(10.0, 12.0, 10.0)
    (found,) = rule.judge([Pair(base=shaky, head=shaky)])
    assert "golden" in found.reason
    assert "tot" in found.reason


def test_rows_measured_fewer_than_three_times_are_unsure(make_result):
    once = make_result(10.0)
    measured = dataclasses.replace(
        once, measurement=dataclasses.replace(once.measurement, timed_s=0.1)
    )
    twice, good = make_result(10.0, 10.1), make_result(*thrice(20.0))
    shaky = make_result(10.0, 12.0, 10.0)
    pairs = [(measured, good), (good, twice), (twice, measured), (shaky, twice), (once, good)]
    found = rule.judge([Pair(base=base, head=head) for base, head in pairs])
    assert [one.reason for one in found[:4]] == [
        "unstable: fewer than 3 runs of golden",
        "unstable: fewer than 3 runs of tot",
        "unstable: fewer than 3 runs of golden and tot",
        "unstable: fewer than 3 runs of tot; no 3 runs of golden agree within 5 %",
    ]
    assert dict(found[0].facts)["golden"] == "10 µs, mean of 1 run, unstable"
    assert found[4].reason


@pytest.mark.parametrize(
    ("golden", "tot", "reason"),
    [
        (4.0, 4.52000001, "tot 4.52000001 µs is above 1.005 × golden + 0.5 µs = 4.52000000 µs"),
        (4.0, 4.52, "tot 4.520 µs is not above 4.520 µs"),
        (3.99999, 4.0, "golden 3.99999 µs is under 4 µs"),
        (3.9999999, 4.0, "golden 3.9999999 µs is under 4 µs"),
        (80100.0, 95000.0, "tot 95000 µs is above 1.005 × golden + 0.5 µs = 80501 µs"),
        (1000.0, 994.0, "golden 1000.0 µs is above 1.005 × tot + 0.5 µs = 999.5 µs"),
    ],
)
def test_reasons_and_facts_show_the_digits_that_decide(make_result, golden, tot, reason):
    pair = Pair(base=make_result(*thrice(golden)), head=make_result(*thrice(tot)))
    (found,) = rule.judge([pair])
    assert found.reason == reason
    facts = dict(found.facts)
    assert facts["golden"].startswith(f"{golden:.10g} µs, ")
    assert facts["tot"].startswith(f"{tot:.10g} µs, ")


def test_a_run_is_a_process_where_there_are_several(make_result):
    golden = make_result(processes_us=[(9.0, 11.0), (10.0, 10.0), (10.0, 10.0)])
    tot = make_result(processes_us=[(10.5, 10.6), (10.5, 10.6), (10.5, 10.6)])
    (found,) = rule.judge([Pair(base=golden, head=tot)])
    assert found.base_s == pytest.approx(10.0e-6)
    assert found.status.value == "same"


def test_settings_change_it(make_result):
    pair = Pair(base=make_result(*thrice(10.0)), head=make_result(*thrice(10.4)))
    assert rule.judge([pair])[0].status.value == "same"
    strict = rule.changed({"slack_us": 0.1})
    assert strict.judge([pair])[0].status.value == "slower"


def test_stable_time_of_too_few_runs():
    assert stable_time([5.0]).agreed is None
    assert stable_time([5.0, 5.2]).agreed is None
    assert stable_time([5.0, 6.0]).time_s == 5.5
    assert stable_time([5.0, 6.0]).agreed is False  # two are enough to contradict each other
