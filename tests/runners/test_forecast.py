from __future__ import annotations

import dataclasses

import pytest
from kernelmark.measure.blocks import block_seconds

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Block, Case, Measurement, Result, Status, StopReason
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.forecast import Forecast, Means, budget_s, estimate_run_s

CPU = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x", cache_bytes=1 << 20)


def gemm(size: int, backend: str = "numpy", **timing: float) -> Case:
    problem = parse(f"gemm m={size} n={size} k={size} a=f32 b=f32 c=f32")
    return Case(problem=problem, backend=backend, timing=Timing(**timing))


def result(case: Case, median_s: float = 1e-6, timed_s: float = 0.0, blocks: int = 1) -> Result:
    block = Block(process=0, allocation=0, samples_s=(median_s,))
    measurement = Measurement(
        blocks=(block,) * blocks,
        low_s=median_s,
        high_s=median_s,
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=1,
        stop=StopReason.PRECISE,
        warmup_s=0.0,
        timed_s=median_s,
    )
    cost = {"timed": timed_s or budget_s(case), "warmup": 0.0}
    return Result(case=case, device="cpu", status=Status.OK, measurement=measurement, cost=cost)


def test_before_anything_is_known_a_case_is_its_launches_and_what_is_around_them():
    case, forecast = gemm(64), Forecast(CPU)
    assert budget_s(case) < forecast.seconds(case) < 2 * budget_s(case)
    assert forecast.total_s([case]) > forecast.seconds(case), "its backend has to be loaded"


def test_a_range_covers_cases_that_end_early_or_late_and_is_narrow_for_many():
    forecast, case = Forecast(CPU), gemm(64)
    at_first = forecast.range_s([case])
    assert at_first[0] < forecast.total_s([case]) < at_first[1]
    early, late = result(case, timed_s=0.8, blocks=3), result(case, timed_s=2.5, blocks=9)
    for one in (early, early, late, early, late, early):
        forecast.learn(one, one.cost["timed"] + 0.1)
    low_s, high_s = forecast.range_s([case])
    assert low_s < 1.2
    assert high_s > 2.0
    many_low_s, many_high_s = forecast.range_s([case] * 100)
    assert many_high_s / many_low_s < 1.25
    assert many_low_s / 100 > low_s
    for _ in range(6):
        forecast.learn(early, 0.9)
    steady = forecast.range_s([case])
    assert high_s / low_s > steady[1] / steady[0], "five in a row ended early"


def test_a_case_on_a_busy_machine_does_not_make_a_range_useless():
    forecast, case = Forecast(CPU), gemm(64)
    for seconds in (3.0, 3.0, 300.0, 3.0, 300.0):
        forecast.learn(result(case), seconds)
    low_s, high_s = forecast.range_s([case])
    assert high_s / low_s < 2.7


def test_what_is_around_launches_is_learnt_from_a_first_case_until_there_is_another():
    forecast, case = Forecast(CPU), gemm(64)
    cost = {"timed": 0.5, "warmup": 0.0, "inputs": 0.1, "compile": 0.1, "total": 0.8}
    first = dataclasses.replace(result(case), cost=cost)
    forecast.learn(first, 1.8)
    assert forecast.load_s(["numpy"]) == pytest.approx(1.2)


def test_cases_that_reach_their_cap_are_expected_to_reach_a_larger_one():
    forecast, short, long = Forecast(CPU), gemm(64, max_s=2.0), gemm(64, max_s=6.0)
    precise = result(short, timed_s=0.6, blocks=3)
    late = dataclasses.replace(precise.measurement, stop=StopReason.TIME)
    for at in range(5):
        forecast.learn(dataclasses.replace(precise, measurement=late) if at % 2 else precise, 0.7)
    before_s = 0.7
    assert before_s + 0.3 * budget_s(long) < forecast.seconds(long) < budget_s(long)


@pytest.mark.parametrize("best_only", [False, True])
def test_the_rate_of_small_problems_of_earlier_commands_is_not_that_of_large_ones(
    tmp_path, best_only
):
    first = Forecast(CPU, Means(tmp_path / "seconds.json"))
    first.learn(result(gemm(8), median_s=1e-5), 1.0)
    first.means.save()
    means = Means(tmp_path / "seconds.json")
    later = Forecast(CPU, means.best_rates() if best_only else means)
    new = Forecast(CPU)
    # 8x8x8 in 10 us is mostly latency: at that rate, 2048 would take 3 minutes a launch.
    assert later.seconds(gemm(2048)) < 2 * new.seconds(gemm(2048))
    first.learn(result(gemm(1024), median_s=1.0), 1.0)
    first.means.save()
    means = Means(tmp_path / "seconds.json")
    later = Forecast(CPU, means.best_rates() if best_only else means)
    assert later.seconds(gemm(2048)) > 8.0


def test_loading_is_learnt_from_the_first_case_of_a_backend_and_the_rest_from_others():
    forecast, case = Forecast(CPU), gemm(64)
    usual_s = forecast.seconds(case)
    forecast.learn(result(case), usual_s + 4.0)
    assert forecast.load_s(["numpy"]) == pytest.approx(4.0)
    assert forecast.seconds(case) <= usual_s, "loading is of no other case"
    assert forecast.total_s([case]) == forecast.seconds(case), "and not to come again"
    for _ in range(20):
        forecast.learn(result(case), budget_s(case) + 3.0)
    assert forecast.seconds(gemm(65)) == pytest.approx(budget_s(case) + 3.0, rel=0.1)


def test_the_share_of_its_seconds_that_a_timing_uses_is_learnt():
    forecast, case = Forecast(CPU), gemm(64)
    for _ in range(20):
        forecast.learn(result(case, timed_s=0.5), 0.5)
    assert forecast.seconds(case) == pytest.approx(0.5, rel=0.1)


def test_a_longer_timing_is_expected_to_use_as_many_of_its_blocks_as_others_did():
    """What is around launches is around each block, and noisy times take all blocks there are."""
    forecast, short, long = Forecast(CPU), gemm(64, max_s=1.0), gemm(64, max_s=6.0)
    most = short.timing.max_allocations
    for _ in range(6):
        forecast.learn(result(short, blocks=most), budget_s(short) + 10.0)
    assert forecast.seconds(long) == pytest.approx(budget_s(long) + 10.0, rel=0.05)
    fixed = gemm(64, max_s=1.0, allocations=2, max_allocations=2)
    around_s = forecast.seconds(fixed) - budget_s(fixed)
    assert around_s == pytest.approx(10.0 * 2 / most, rel=0.05)


def test_what_was_precise_in_time_takes_as_many_blocks_under_a_larger_cap():
    forecast, short = Forecast(CPU), gemm(64, max_s=2.0)
    for _ in range(6):
        forecast.learn(result(short, timed_s=0.6, blocks=3), 0.7)
    longer = gemm(64, max_s=3.0)
    assert forecast.seconds(longer) == pytest.approx(0.7, rel=0.1), "its blocks may be as short"
    longest = gemm(64, max_s=20.0)
    blocks_s = 3 * block_seconds(longest.timing, 0.0)
    assert blocks_s > 2.0
    assert forecast.seconds(longest) == pytest.approx(blocks_s + 0.1, rel=0.1)
    shorter = gemm(64, max_s=0.3)
    assert forecast.seconds(shorter) == pytest.approx(0.3 + 0.1, rel=0.1), "it has its cap"


def test_the_seconds_of_a_precise_case_hold_for_other_backends_and_no_other_target():
    forecast, short = Forecast(CPU), gemm(64, max_s=2.0)
    for _ in range(6):
        forecast.learn(result(short, timed_s=0.5), 0.6)
    other = gemm(64, "torch", max_s=2.0)
    assert forecast.seconds(other) == pytest.approx(0.6, rel=0.1), "the timing decides, not torch"
    hard = gemm(64, max_s=60.0, target_rel_ci=0.001)
    assert forecast.seconds(hard) > 10.0, "another target says nothing of it"


def test_a_kernel_file_is_expected_to_load_as_numpy_does():
    forecast = Forecast(CPU)
    assert forecast.load_s(["./mine.py"]) == forecast.load_s(["numpy"])
    forecast.learn(result(gemm(64)), forecast.seconds(gemm(64)) + 4.0)
    assert forecast.load_s(["./mine.py"]) == pytest.approx(4.0)


def test_one_slow_start_does_not_outlast_those_that_follow():
    """A first import from a cold disk takes ten times as long as any other."""
    means = Means()
    for value in (20.0, 2.0, 2.0):
        means.learn("a", value)
    assert means.get("a") == 2.0


def test_each_process_of_a_case_loads_its_backend():
    once, thrice, forecast = gemm(64), gemm(64, processes=3), Forecast(CPU)
    load_s = forecast.load_s(["numpy"])
    assert forecast.seconds(thrice) == pytest.approx(3 * forecast.seconds(once) + 2 * load_s)


def test_a_large_problem_is_expected_to_exceed_its_seconds():
    forecast, small, large = Forecast(CPU), gemm(512), gemm(1024)
    forecast.learn(result(small, 1.0), 3.0)
    assert forecast.seconds(large) >= large.timing.allocations * 1.0 * 2**3


def test_a_small_problem_says_nothing_of_a_huge_one_or_another_op():
    """16 ms for a launch on a busy machine, scaled up, would be hours."""
    forecast, huge = Forecast(CPU), gemm(4096)
    before_s = forecast.seconds(huge)
    forecast.learn(result(gemm(8), 16e-3), 1.0)
    assert forecast.seconds(huge) <= before_s


def test_a_backend_that_refuses_takes_no_time_once_it_has_refused_many():
    forecast, case = Forecast(CPU), gemm(64)
    refused = dataclasses.replace(result(case), status=Status.UNSUPPORTED, measurement=None)
    usual_s = forecast.seconds(case)
    for _ in range(4):
        forecast.learn(refused, 1e-3)
    assert forecast.seconds(case) == usual_s, "others may not be refused"
    for _ in range(10):
        forecast.learn(refused, 1e-3)
    assert forecast.seconds(case) == 0.0


def test_means_are_kept_beside_what_other_processes_learn(tmp_path):
    path = tmp_path / "cache" / "seconds.json"
    first, second = Means(path), Means(path)
    first.learn("a", 1.0)
    second.learn("b", 2.0)
    first.save()
    second.save()
    kept = Means(path)
    assert (kept.get("a"), kept.get("b"), kept.get("c", "b"), kept.get("c")) == (
        1.0,
        2.0,
        2.0,
        None,
    )
    kept.learn("a", 2.0)
    assert 1.0 < (kept.get("a") or 0.0) < 2.0


def test_what_an_earlier_version_kept_is_read(tmp_path):
    path = tmp_path / "seconds.json"
    path.write_text('{"a": 1.5, "b": [1.0, 3.0]}')
    assert (Means(path).get("a"), Means(path).get("b")) == (1.5, 2.0)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": "x", "b": -1, "c": NaN, "d": null}', '{"a": [], "b": [1, "x"]}'],
)
def test_a_damaged_file_is_no_experience(tmp_path, text):
    path = tmp_path / "seconds.json"
    path.write_text(text)
    assert [Means(path).get(name) for name in "abcd"] == [None] * 4


def test_a_run_is_expected_to_take_its_start_its_compiling_and_its_cases(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    cases = [gemm(64), gemm(128)]
    plain = estimate_run_s(cases, [CPU])
    assert plain[0] > Forecast(CPU).range_s(cases)[0]
    assert estimate_run_s(cases, [CPU], kernels=cases, jobs=2) > plain
    assert estimate_run_s(cases, [CPU, CPU]) < plain
    means = Means.of_machine()
    means.learn("start/run", 60.0)
    means.save()
    assert estimate_run_s(cases, [CPU])[0] > 60.0
