from __future__ import annotations

import dataclasses

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.forecast import Forecast, Means, estimate_run_s
from kernelmark.testing.stores import measured

CPU = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x", cache_bytes=1 << 20)
CAP_S = Timing().warmup_s + Timing().max_s


def gemm(size: int, backend: str = "numpy", **timing: float) -> Case:
    problem = parse(f"gemm m={size} n={size} k={size} a=f32 b=f32 c=f32")
    return Case(problem=problem, backend=backend, timing=Timing(**timing))


def result(case: Case, timed_s: float = 1.0) -> Result:
    return dataclasses.replace(measured(case, (1e-6,)), cost={"timed": timed_s, "warmup": 0.0})


def learned(*seconds: float, case: Case | None = None) -> Forecast:
    """Return a forecast that has seen a first case of a second, and one of each of `seconds`."""
    case, forecast = case or gemm(64), Forecast(CPU)
    forecast.learn(result(case, timed_s=1.0), 2.0)
    for case_s in seconds:
        forecast.learn(result(case), case_s)
    return forecast


def test_without_observations_a_range_spans_the_limits_of_the_timing():
    case, forecast = gemm(64), Forecast(CPU)
    low_s, high_s = forecast.range_s([case])
    load_s = forecast.load_s(["numpy"])
    assert low_s < load_s + forecast.seconds(case) < high_s
    assert high_s - load_s == pytest.approx(CAP_S, rel=0.1)


def test_a_range_covers_cases_that_end_early_or_late_and_is_narrow_for_many():
    case = gemm(64)
    forecast = learned(0.9, 2.6, 0.9, 2.6, 0.9)
    load_s = forecast.load_s(["numpy"])
    low_s, high_s = forecast.range_s([case])
    assert low_s - load_s == pytest.approx(0.9, rel=0.1)
    assert high_s - load_s == pytest.approx(2.6, rel=0.1)
    many_low_s, many_high_s = forecast.range_s([case] * 100)
    assert many_high_s / many_low_s < 1.25
    steady = learned(*[0.9] * 5).range_s([case])
    assert high_s / low_s > steady[1] / steady[0]


@pytest.mark.parametrize(
    ("like", "alike"),
    [
        (gemm(65), True),  # the size differs little
        (gemm(4096), True),
        (gemm(64, "torch"), True),  # the timing decides, not torch
        (gemm(64, target_rel_ci=0.001), False),
    ],
)
def test_a_case_takes_what_like_cases_took(like, alike):
    forecast = learned(*[0.7] * 5)
    assert (forecast.seconds(like) == pytest.approx(0.7, rel=0.1)) is alike


def test_a_case_beyond_its_cap_is_expected_again_only_of_its_own_size():
    """A launch of a huge problem may take longer than the time cap of all launches."""
    forecast = learned(*[60.0] * 5, case=gemm(4096))
    assert forecast.seconds(gemm(4000)) == pytest.approx(60.0)
    assert forecast.seconds(gemm(64)) < 1.1 * CAP_S


def test_what_was_precise_in_time_takes_as_many_blocks_under_a_larger_cap():
    forecast = learned(*[0.6] * 5)
    longer = forecast.seconds(gemm(64, max_s=6.0))
    assert 0.6 < longer < 6.0 / 2


def test_loading_is_learned_from_the_first_case_of_a_backend():
    forecast, case = Forecast(CPU), gemm(64)
    around_blocks_s = 3 * 0.05
    forecast.learn(result(case, timed_s=1.0), 4.0 + 1.0 + around_blocks_s)
    assert forecast.load_s(["numpy"]) == pytest.approx(4.0)
    assert forecast.unloaded(["numpy", "torch"]) == ["torch"]
    assert forecast.seconds(case) < 2.0


def test_each_process_of_a_case_loads_its_backend():
    once, thrice, forecast = gemm(64), gemm(64, processes=3), Forecast(CPU)
    load_s = forecast.load_s(["numpy"])
    assert forecast.seconds(thrice) == pytest.approx(3 * forecast.seconds(once) + 2 * load_s)


def test_a_refused_case_is_no_observation():
    forecast, case = Forecast(CPU), gemm(64)
    before_s = forecast.seconds(case)
    refused = dataclasses.replace(result(case), status=Status.UNSUPPORTED, measurement=None)
    for _ in range(4):
        forecast.learn(refused, 1e-3)
    assert forecast.seconds(case) == before_s


@pytest.mark.parametrize(("values", "mean"), [((20.0, 2.0, 2.0), 2.0), ((1.0, 3.0), 2.0)])
def test_one_slow_start_does_not_outlast_those_that_follow(values, mean):
    """A first import from a cold disk takes ten times as long as any other."""
    means = Means()
    for value in values:
        means.learn("a", value)
    assert means.get("b", "a") == mean


def test_means_are_kept_beside_what_other_processes_learn(tmp_path):
    path = tmp_path / "cache" / "seconds.json"
    first, second = Means(path), Means(path)
    first.learn("a", 1.0)
    second.learn("b", 2.0)
    first.save()
    second.save()
    kept = Means(path)
    assert [kept.get("a"), kept.get("b"), kept.get("c", "b"), kept.get("c")] == [1, 2, 2, None]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": "x", "b": -1, "c": NaN, "d": null}', '{"a": [], "b": [1, "x"]}']
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
    assert estimate_run_s(cases, [CPU], kernels={"numpy": 2}, jobs=2) > plain
    assert estimate_run_s(cases, [CPU, CPU]) < plain
    means = Means.of_machine()
    means.learn("start/run", 60.0)
    means.save()
    assert estimate_run_s(cases, [CPU])[0] > 60.0
