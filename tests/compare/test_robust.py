"""The robust rule: its four verdicts, its mirror image, and that a suite rarely cries wolf."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.compare.match import Pair
from kernelmark.compare.rules.ratio import rule as ratio
from kernelmark.compare.rules.robust import Robust, rule
from kernelmark.core.reason import Reason
from kernelmark.core.result import Block
from kernelmark.core.units import NOISY
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import measured_interval

CHANGED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)
MIRROR = {"slower": "faster", "faster": "slower", "same": "same", "unsure": "unsure"}


def one(make_result, base, head, which: Robust = rule, **changes):
    pair = Pair(base=make_result(*base, **changes), head=make_result(*head, **changes))
    (found,) = which.judge([pair])
    return found


def test_four_verdicts(make_result):
    calm = (100.0, 100.1, 99.9, 100.0)
    assert one(make_result, calm, calm).status is VerdictStatus.SAME
    slower = one(make_result, calm, [t * 1.05 for t in calm], device="cuda:0")
    assert slower.status is VerdictStatus.SLOWER
    assert slower.ratio == pytest.approx(1.05)
    assert slower.low < 1.05 < slower.high
    faster = one(make_result, calm, [t / 1.05 for t in calm], device="cuda:0")
    assert faster.status is VerdictStatus.FASTER
    wild = (90.0, 110.0, 100.0)
    unsure = one(make_result, wild, [t * 1.05 for t in wild])
    assert unsure.status is VerdictStatus.UNSURE
    assert unsure.detectable > 0.3


def test_a_sure_but_small_change_is_not_an_alarm(make_result):
    calm = (100.0, 100.01, 99.99, 100.0, 100.0)
    found = one(make_result, calm, [t * 1.005 for t in calm])
    assert found.status is VerdictStatus.SAME
    near = one(make_result, calm, [t * 1.0099 for t in calm], device="cuda:0")
    assert near.status is VerdictStatus.UNSURE
    assert near.reason.code == "perhaps-within"


def test_one_run_on_a_cpu_is_no_proof_of_a_small_change(make_result):
    calm = (100.0, 100.01, 99.99, 100.0, 100.0)
    slower = [t * 1.015 for t in calm]
    assert one(make_result, calm, slower, device="cuda:0").status is VerdictStatus.SLOWER
    found = one(make_result, calm, slower)
    assert found.status is VerdictStatus.UNSURE
    assert found.reason.code == "perhaps-run"
    assert 1.01 < found.low < found.high  # the interval is that of the blocks
    assert found.detectable > 0.015
    assert one(make_result, calm, [t * 1.06 for t in calm]).status is VerdictStatus.UNSURE
    assert one(make_result, calm, [t * 1.12 for t in calm]).status is VerdictStatus.SLOWER


def cpu_runs(make_result, rng, changes, *, common=0.0, scatter=0.01):
    """The verdicts on rows on a CPU, of which row i has changed by the factor `changes[i]`: blocks
    differ by 0.7 %, runs by `scatter`, and by `common` in all rows."""
    pairs = []
    for number, change in enumerate(changes):
        sides = []
        for factor in (1.0, change * math.exp(common)):
            level = 100 * factor * math.exp(scatter * rng.standard_normal())
            times = level * np.exp(0.007 * rng.standard_normal(3))
            sides.append(make_result(*times, problem=f"gemm m={number + 1} n=1 k=1"))
        pairs.append(Pair(base=sides[0], head=sides[1]))
    return rule.judge(pairs)


@pytest.mark.parametrize("common", [0.0, 0.01])
def test_equal_runs_on_a_cpu_rarely_alarm_and_one_slower_row_is_found(make_result, common):
    rng = np.random.default_rng(7)
    runs = [
        cpu_runs(
            make_result,
            rng,
            [1.08] + [1.0] * 23,
            common=common * rng.standard_normal(),
            scatter=0.007,
        )
        for _ in range(60)
    ]
    alarms = [row for found in runs for row in found[1:] if row.status in CHANGED]
    assert len(alarms) <= 0.005 * 60 * 23
    assert sum(found[0].status is VerdictStatus.SLOWER for found in runs) >= 0.9 * 60


def test_many_slower_rows_do_not_make_others_look_faster(make_result):
    rng = np.random.default_rng(8)
    runs = [cpu_runs(make_result, rng, [1.08] * 8 + [1.0] * 16) for _ in range(30)]
    assert not any(row.status in CHANGED for found in runs for row in found[8:])
    assert not any(row.status is VerdictStatus.FASTER for found in runs for row in found)


def test_noisy_runs_on_a_cpu_are_unsure(make_result):
    rng = np.random.default_rng(9)
    runs = [cpu_runs(make_result, rng, [1.0] * 24, scatter=0.03) for _ in range(60)]
    assert sum(row.status in CHANGED for found in runs for row in found) <= 0.005 * 60 * 24


def test_a_change_of_all_rows_is_the_machine_s_only_if_it_is_small(make_result):
    calm = (100.0, 100.1, 99.9)

    def judged(factor, rows=8, **changes):
        return rule.judge(
            [
                Pair(
                    base=make_result(*calm, problem=f"gemm m={m} n=1 k=1", **changes),
                    head=make_result(
                        *(t * factor for t in calm), problem=f"gemm m={m} n=1 k=1", **changes
                    ),
                )
                for m in range(1, rows + 1)
            ]
        )

    small, large = judged(1.03), judged(1.12)
    assert {row.status for row in small} == {VerdictStatus.UNSURE}
    assert [row.common for row in small] == [pytest.approx(1.03)] * 8
    assert {row.status for row in large} == {VerdictStatus.SLOWER}
    assert [row.common for row in large] == [pytest.approx(1.12)] * 8
    assert {row.common for row in judged(1.03, rows=3)} == {1.0}  # too few to share anything
    assert {row.common for row in judged(1.03, device="cuda:0")} == {None}
    assert {row.status for row in judged(1.03, device="cuda:0")} == {VerdictStatus.SLOWER}


def test_other_cases_have_nothing_in_common(make_result):
    """With --match problem a row may compare two backends."""
    pairs = [
        Pair(
            base=make_result(100.0, 100.1, 99.9, problem=f"gemm m={m} n=1 k=1"),
            head=make_result(103.0, 103.1, 102.9, problem=f"gemm m={m} n=1 k=1", backend="torch"),
        )
        for m in range(1, 9)
    ]
    assert {row.common for row in rule.judge(pairs)} == {1.0}


def test_samples_that_other_work_made_longer_do_not_count_on_a_cpu(make_result):
    calm = make_result(100.0, 100.0, 100.0)
    block = calm.measurement.blocks[0]

    def disturbed(device):
        samples = tuple(t * 1e-6 for t in [100.0] * 4 + [180.0] * 6)
        blocks = tuple(
            dataclasses.replace(block, allocation=n, samples_s=samples) for n in range(3)
        )
        head = dataclasses.replace(
            calm, measurement=dataclasses.replace(calm.measurement, blocks=blocks), device=device
        )
        (found,) = rule.judge([Pair(base=dataclasses.replace(calm, device=device), head=head)])
        return found.status

    assert disturbed("cuda:0") is VerdictStatus.SLOWER
    assert disturbed("cpu") is not VerdictStatus.SLOWER


def loaded(result, load: float):
    warnings = (Reason("other load", "other-load", load=load, cores=2, threads=True),)
    return dataclasses.replace(
        result, measurement=dataclasses.replace(result.measurement, warnings=warnings)
    )


def test_a_side_beside_other_work_is_not_called_slower(make_result):
    calm, longer = make_result(100.0, 100.1, 99.9), make_result(300.0, 301.0, 299.0)

    def judged(base, head):
        (found,) = rule.judge([Pair(base=base, head=head)])
        return found.status, found.reason.code

    assert judged(calm, longer) == (VerdictStatus.SLOWER, "changed")
    assert judged(calm, loaded(longer, 0.9)) == (VerdictStatus.UNSURE, "beside-load")
    assert judged(loaded(longer, 0.9), calm) == (VerdictStatus.UNSURE, "beside-load")
    # The load makes the faster side longer, so the change is at least this large.
    assert judged(loaded(calm, 0.9), longer) == (VerdictStatus.SLOWER, "changed")
    # Beside equal loads the comparison is as fair as without.
    assert judged(loaded(calm, 0.8), loaded(longer, 0.9)) == (VerdictStatus.SLOWER, "changed")


def test_processes_of_one_run_on_a_cpu_do_not_show_how_runs_differ(make_result):
    processes = [(100.0, 100.1), (99.9, 100.0), (100.1, 100.0), (100.0, 99.9)]
    longer = [[t * 1.015 for t in times] for times in processes]
    for device, code in (("cuda:0", "changed"), ("cpu", "perhaps-run")):
        base, head = (make_result(processes_us=p, device=device) for p in (processes, longer))
        (found,) = rule.judge([Pair(base=base, head=head)])
        assert found.reason.code == code


def test_the_detectable_effect_is_detected(make_result):
    base = (100.0, 100.6, 99.4, 100.2, 99.8)
    quiet = one(make_result, base, base)
    assert quiet.status is not VerdictStatus.SLOWER
    worse = one(make_result, base, [t * (1 + quiet.detectable) for t in base])
    assert worse.status is VerdictStatus.SLOWER


def test_one_block_or_a_bare_mean_is_never_judged(make_result):
    bare = one(make_result, (100.0,), (200.0,))
    assert bare.status is VerdictStatus.UNSURE
    assert bare.reason
    assert bare.ratio == pytest.approx(2.0)
    half = one(make_result, (100.0, 100.1, 99.9), (200.0,))
    assert half.status is VerdictStatus.UNSURE
    assert "head" in half.reason


def capped(make_result, cycles: float, clocks_mhz):
    """A result whose blocks take as many cycles each, at these clocks."""
    rng = np.random.default_rng(int(cycles) + len(clocks_mhz))
    times = [cycles / mhz * (1 + 0.002 * rng.standard_normal()) for mhz in clocks_mhz]
    result = make_result(*times, device="cuda:0")
    blocks = tuple(
        dataclasses.replace(block, clocks_mhz=(mhz,))
        for block, mhz in zip(result.measurement.blocks, clocks_mhz, strict=True)
    )
    measured = dataclasses.replace(result.measurement, blocks=blocks)
    return dataclasses.replace(result, measurement=measured)


def test_runs_at_a_power_cap_are_compared_at_one_clock(make_result):
    rng = np.random.default_rng(5)
    cool = 1550 + 60 * rng.standard_normal(20)
    warm = 1500 + 60 * rng.standard_normal(20)

    def judged(cycles: float, clocks_mhz):
        pair = Pair(
            base=capped(make_result, 150_000, cool), head=capped(make_result, cycles, clocks_mhz)
        )
        (found,) = rule.judge([pair])
        assert found.reason.code == "at-equal-clock"
        return found

    slower = judged(154_500, cool)
    assert slower.status is VerdictStatus.SLOWER
    assert slower.judged == pytest.approx(1.03, abs=0.003)
    warmer = judged(150_000, warm)
    assert warmer.status is VerdictStatus.UNSURE, "the GPU was warmer, or the kernel draws more"
    assert warmer.judged == pytest.approx(1.0, abs=0.003)
    assert warmer.reason.fields["apart"] == pytest.approx(warmer.ratio)
    assert warmer.ratio == pytest.approx(np.median(1 / warm) / np.median(1 / cool), abs=0.005)
    assert judged(150_000, rng.permutation(cool)).status is VerdictStatus.SAME


def test_processes_that_differ_are_the_unit(make_result):
    """Forty blocks of two processes are two independent times."""
    base = make_result(processes_us=[[100.0 + 0.01 * i for i in range(20)], [103.0] * 20])
    head = make_result(processes_us=[[103.0 + 0.01 * i for i in range(20)], [106.0] * 20])
    (found,) = rule.judge([Pair(base=base, head=head)])
    assert found.status is VerdictStatus.UNSURE


def test_chance_among_many_rows(make_result):
    """What alone would be an alarm is none as one of many rows that show nothing."""
    random = np.random.default_rng(5)

    def row(shift: float) -> Pair:
        base, head = (100 * np.exp(random.normal(0, 0.004, 3)) for _ in range(2))
        return Pair(base=make_result(*base), head=make_result(*(head * shift)))

    odd = Pair(base=make_result(100.0, 100.4, 99.6), head=make_result(101.8, 102.2, 101.5))
    alone = rule.judge([odd])[0]
    many = rule.judge([odd, *(row(1.0) for _ in range(300))])[0]
    assert many.status is VerdictStatus.UNSURE
    assert alone.ratio == many.ratio


def test_a_suite_where_nothing_changed_rarely_alarms(make_result):
    random = np.random.default_rng(11)
    alarms = rows = 0
    for _ in range(20):
        pairs = []
        for _ in range(40):
            spread = 0.005 * math.exp(random.normal(0, 0.5))
            base, head = (100 * np.exp(random.normal(0, spread, 3)) for _ in range(2))
            pairs.append(Pair(base=make_result(*base), head=make_result(*head)))
        found = rule.judge(pairs)
        rows += len(found)
        alarms += sum(one.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER) for one in found)
    assert rows == 800
    assert alarms <= 4


def test_a_suite_finds_five_percent_in_three_blocks(make_result):
    random = np.random.default_rng(12)
    pairs = []
    for i in range(40):
        base, head = (100 * np.exp(random.normal(0, 0.005, 3)) for _ in range(2))
        head *= 1.05 if i < 4 else 1.0
        base, head = (make_result(*times, device="cuda:0") for times in (base, head))
        pairs.append(Pair(base=base, head=head))
    found = rule.judge(pairs)
    assert [one.status.value for one in found[:4]] == ["slower"] * 4
    assert all(one.status.value in ("same", "unsure") for one in found[4:])


times = st.lists(st.floats(50, 200), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(times, times), min_size=1, max_size=8))
def test_swapping_base_and_head_mirrors_every_verdict(make_result, rows):
    sides = [(make_result(*a), make_result(*b)) for a, b in rows]
    there = rule.judge([Pair(base=a, head=b) for a, b in sides])
    back = rule.judge([Pair(base=b, head=a) for a, b in sides])
    for one_way, other in zip(there, back, strict=True):
        assert other.status.value == MIRROR[one_way.status.value]
        assert other.ratio == pytest.approx(1 / one_way.ratio)
        if one_way.low is not None:
            assert other.low == pytest.approx(1 / one_way.high)
            assert other.high == pytest.approx(1 / one_way.low)
        assert other.detectable == pytest.approx(one_way.detectable) or one_way.detectable is None


def test_figures_that_mean_nothing_are_capped(make_result):
    wild = one(make_result, (100.0, 1.0, 3000.0), (20.0, 900.0, 0.1))
    assert NOISY in wild.reason
    for text in (wild.reason, *dict(wild.facts).values()):
        assert not re.search(r"\d{5,}(\.\d)? ?%", text), text
    far = one(make_result, (1e-300, 1e300), (1e300, 1e-300))
    assert far.status is VerdictStatus.UNSURE


def test_a_large_change_that_is_sure_keeps_its_figure(make_result):
    large = one(make_result, (1.0, 1.001, 0.999), (30.0, 30.01, 29.99))
    assert large.reason.startswith("+2900.0 % (+28")


def suites(make_result, make_mixed, runs, factor=1.0):
    """Runs of a suite of 60 rows on a GPU, one of them multimodal; `factor` times as long."""
    rng = np.random.default_rng(11)
    steady = rng.uniform(50.0, 500.0, 59)
    made = []
    for _ in range(runs):
        rows = [make_mixed(rng, factor, device="cuda:0")]
        for t in steady:
            times = t * np.exp(rng.normal(0, 0.004, 4)) * factor
            rows.append(make_result(*times, device="cuda:0"))
        made.append(rows)
    return made


def test_identical_mixtures_rarely_alarm(make_result, make_mixed):
    runs = suites(make_result, make_mixed, 10)
    assert all(rows[0].measurement.modes for rows in runs)
    alarms = []
    for base, head in itertools.combinations(runs, 2):
        found = rule.judge([Pair(base=b, head=h) for b, h in zip(base, head, strict=True)])
        alarms.append(found[0].status in (VerdictStatus.SLOWER, VerdictStatus.FASTER))
    assert len(alarms) == 45
    assert sum(alarms) <= 0.01 * len(alarms)


def test_a_slowdown_of_all_modes_is_found(make_result, make_mixed):
    runs = suites(make_result, make_mixed, 40)
    slow = suites(make_result, make_mixed, 40, factor=1.03)
    found = [
        rule.judge([Pair(base=b, head=h) for b, h in zip(base, head, strict=True)])[0]
        for base, head in zip(runs, slow[::-1], strict=True)
    ]
    assert sum(one.status is VerdictStatus.SLOWER for one in found) >= 0.9 * len(found)
    assert np.median([one.judged for one in found]) == pytest.approx(1.03, abs=0.005)


def test_a_multimodal_row_is_judged_by_means_on_both_sides(make_mixed):
    rng = np.random.default_rng(5)
    mixed, steady = make_mixed(rng), make_mixed(rng, shares=(1.0, 0.0, 0.0))
    assert mixed.measurement.modes
    assert not steady.measurement.modes
    (found,) = rule.judge([Pair(base=steady, head=mixed)])
    mean = math.exp(np.mean([np.log(block.samples_s).mean() for block in mixed.measurement.blocks]))
    base = np.mean([np.log(block.samples_s).mean() for block in steady.measurement.blocks])
    assert found.judged == pytest.approx(mean / math.exp(base))
    names = [name for name, _ in found.facts]
    assert {"modes of base", "modes of head"} <= set(names)
    (plain,) = rule.judge([Pair(base=steady, head=steady)])
    assert "modes of base" not in [name for name, _ in plain.facts]


def several(make_result, *blocks_us, warnings=(), **changes):
    """A result with these samples in its blocks, and the modes that they have."""
    blocks = tuple(
        Block(process=0, allocation=number, samples_s=tuple(t * 1e-6 for t in times))
        for number, times in enumerate(blocks_us)
    )
    found = measured_interval(blocks)
    result = make_result(1.0, **changes)
    whole = dataclasses.replace(
        result.measurement,
        blocks=blocks,
        low_s=found.low_s,
        high_s=found.high_s,
        modes=found.modes,
        warnings=warnings,
    )
    return dataclasses.replace(result, measurement=whole)


FAST, SLOW = (69.9, 69.92, 69.94), (200.0, 201.0, 202.0)
STEADY = [(76.2, 76.21, 76.22)] * 9
# The median is 69.92 µs, the geometric mean over blocks 1.3 times that of STEADY.
SKEWED = [FAST] * 6 + [SLOW] * 3
# Modes in each block, in other shares and numbers of samples.
MIXED = [FAST * 6 + SLOW * 5, FAST * 3 + SLOW * 2, FAST * 2 + SLOW, FAST * 9 + SLOW * 8] * 2


@pytest.mark.parametrize("head", [SKEWED, MIXED])
@pytest.mark.parametrize("which", [rule, ratio])
def test_the_change_is_that_of_the_medians(make_result, head, which):
    base, head = (several(make_result, *blocks, device="cuda:0") for blocks in (STEADY, head))
    for one_way, other in ((base, head), (head, base)):
        (found,) = which.judge([Pair(base=one_way, head=other)])
        assert found.base_s == one_way.measurement.median_s
        assert found.head_s == other.measurement.median_s
        assert found.ratio == pytest.approx(found.head_s / found.base_s)
        assert found.status not in (VerdictStatus.SLOWER, VerdictStatus.FASTER) or (
            found.status is VerdictStatus.SLOWER
        ) == (found.ratio > 1)


def test_means_that_contradict_the_medians_are_no_change(make_result):
    base = several(make_result, *STEADY, device="cuda:0")
    head = several(make_result, *MIXED, device="cuda:0")
    assert head.measurement.modes
    (found,) = rule.judge([Pair(base=base, head=head)])
    assert found.p_value < 0.001
    assert found.judged > 1.3
    assert found.ratio == pytest.approx(69.92 / 76.21, rel=1e-3)
    assert found.low <= found.ratio < found.judged <= found.high
    assert found.status is VerdictStatus.UNSURE
    assert found.reason.code == "by-block-means"
    assert found.reason.fields["cause"].code == "medians-disagree"  # which has both ratios
    assert "medians" not in found.reason.fields


@pytest.mark.parametrize("which", [rule, ratio])
def test_a_reason_by_block_means_also_has_the_change_of_the_medians(make_result, which):
    base = several(make_result, *STEADY, device="cuda:0")
    slow = [FAST * 2 + SLOW * 5, FAST * 4 + SLOW * 5, FAST + SLOW * 2, FAST * 8 + SLOW * 9] * 2
    head = several(make_result, *slow, device="cuda:0")
    assert head.measurement.modes
    (found,) = which.judge([Pair(base=base, head=head)])
    assert found.reason.code == "by-block-means"
    assert found.reason.fields["medians"] == found.ratio
    assert found.judged != pytest.approx(found.ratio, rel=0.1)
    assert f"{100 * (found.ratio - 1):+.1f} %" in found.reason  # the number in the column change


@pytest.mark.parametrize("which", [rule, ratio])
def test_an_unreliable_side_is_not_called_changed(make_result, which):
    calm = [(100.0, 100.1), (99.9, 100.0), (100.1, 100.0), (100.0, 99.9)]
    longer = [[2 * t for t in times] for times in calm]
    doubts = (
        (Reason("few blocks", "few-blocks", blocks=4, wanted=8),),
        (Reason("blocks disagree", "blocks-disagree", low_s=1e-6, high_s=1e-5),),
    )
    for doubt, slower in itertools.product(doubts, (True, False)):
        sides = [several(make_result, *calm), several(make_result, *longer, warnings=doubt)]
        base, head = sides if slower else sides[::-1]
        (found,) = which.judge([Pair(base=base, head=head)])
        assert found.status is VerdictStatus.UNSURE
        assert found.reason.code == "sides-unreliable"
        assert found.reason.fields["sides"] == (("head",) if slower else ("base",))


@settings(max_examples=60, deadline=None)
@given(
    base=st.lists(st.floats(90.0, 400.0), min_size=2, max_size=9),
    head=st.lists(st.floats(90.0, 400.0), min_size=2, max_size=9),
)
def test_a_verdict_never_contradicts_the_medians(make_result, base, head):
    found = one(make_result, base, head, device="cuda:0")
    assert found.ratio == pytest.approx(np.median(head) / np.median(base))
    assert found.low <= found.ratio * (1 + 1e-12)
    assert found.ratio <= found.high * (1 + 1e-12)
    if found.status is VerdictStatus.SLOWER:
        assert found.ratio > 1.01
    if found.status is VerdictStatus.FASTER:
        assert found.ratio < 1 / 1.01


def test_a_change_that_the_clock_turned_round_is_unsure(make_result):
    rng = np.random.default_rng(5)
    warm, cool = (mhz + 60 * rng.standard_normal(20) for mhz in (1400, 1550))
    base, head = capped(make_result, 150_000, warm), capped(make_result, 154_500, cool)
    (found,) = rule.judge([Pair(base=base, head=head)])
    assert found.judged == pytest.approx(1.03, abs=0.005)
    assert found.ratio < 0.97
    assert found.status is VerdictStatus.UNSURE
    assert found.reason.code == "at-equal-clock"
    assert found.reason.fields["apart"] == pytest.approx(found.ratio)
