"""Triton's autotuner files: times, a measured space, and problems that the user names."""

import json

import pytest

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.tune import simulate
from kernelmark.workloads import importers, logs
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises

COMMON = {"num_ctas": 1, "maxnreg": None, "pre_hook": None, "ir_override": None}


def config(block, warps, stages=3, **more):
    kwargs = {"BLOCK_M": block, "EVEN_K": True}
    return COMMON | {"kwargs": kwargs, "num_warps": warps, "num_stages": stages} | more


FILE = {
    "key": [512, 1024, "torch.float16", "torch.float16"],
    "configs_timings": [
        [config(16, 4), [0.02, 0.019, 0.021]],
        [config(32, 4), [0.01, 0.009, 0.012]],
        [config(64, 8), [float("inf")] * 3],
        [config(64, 4), 0.015],
    ],
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "_matmul_kernel.autotune.json"
    file.write_text(json.dumps(FILE))
    return file


def test_every_config_is_a_case_of_one_problem(path):
    found = importers.read(path, Overrides()).results
    assert {one.case.problem.key for one in found} == {
        "triton_matmul_kernel key=512 key_2=1024 key_3=f16 key_4=f16"
    }
    times = {(one.case.config["BLOCK_M"], one.case.config["num_warps"]): one for one in found}
    assert times[32, 4].measurement.median_s == pytest.approx(1e-5)
    assert times[32, 4].measurement.also == pytest.approx({"q20_s": 9e-6, "q80_s": 1.2e-5})
    assert times[64, 4].measurement.median_s == pytest.approx(1.5e-5)
    assert times[64, 8].status is Status.RUNTIME_ERROR


@pytest.mark.parametrize(
    "change", [{"key": None}, {"key": []}, {"configs_timings": [[config(16, 4), [10**400]]]}]
)
def test_an_unknown_problem_and_a_time_of_too_many_digits_are_refused(path, change):
    path.write_text(json.dumps(FILE | change))
    with pytest.raises(UsageError):
        importers.read(path, Overrides())


@pytest.mark.parametrize("name", ["ir_override", "num_consumer_groups"])
def test_configs_that_differ_in_any_setting_stay_different(path, name):
    timed = [[config(16, 4, **{name: value}), 1.0] for value in ("a", "b")]
    path.write_text(json.dumps(FILE | {"configs_timings": timed}))
    assert len(importers.read(path, Overrides()).results) == 2
    assert simulate.read(path).points.names == (name,)


def test_a_measured_space(path):
    space = simulate.read(path)
    assert set(space.points.names) == {"BLOCK_M", "num_warps"}, "what varies"
    assert space.best_s == pytest.approx(1e-5)
    assert len(space.points) == 4
    assert [space.seconds(i) for i in range(4)].count(None) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"key": [1], "configs_timings": [[1, 2]]},
        {"key": [1], "configs_timings": [[config(16, 4), "x"]]},
        {"key": [1], "configs_timings": [[config(16, 4), []]]},
        {"key": 1, "configs_timings": 1},
        {"key": [1], "configs_timings": [[{"kwargs": 3}, 1.0]]},
    ],
)
def test_what_is_none_is_refused(tmp_path, broken):
    file = tmp_path / "k.autotune.json"
    file.write_text(json.dumps(broken))
    for read in (lambda: importers.read(file, Overrides()), lambda: simulate.read(file)):
        with pytest.raises(UsageError):
            read()


@pytest.mark.parametrize("time_ms", [1e-321, 1e10, 0, -1.0])
def test_a_time_that_cannot_be_is_a_failure_in_a_space(tmp_path, time_ms):
    file = tmp_path / "_matmul_kernel.autotune.json"
    timed = [[config(16, 4), [time_ms]], [config(32, 4), [0.01]]]
    file.write_text(json.dumps(FILE | {"configs_timings": timed}))
    space = simulate.read(file)
    assert space.best_s == pytest.approx(1e-5)
    assert [space.seconds(i) for i in range(2)].count(None) == 1


KEY = [512, 1024, 2048, "torch.bfloat16", "torch.bfloat16", "torch.float32"]


@pytest.fixture
def file(tmp_path):
    def write(key):
        path = tmp_path / "_mm.autotune.json"
        path.write_text(json.dumps({"key": key, "configs_timings": []}))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("key", "names", "problem"),
    [
        (KEY, "gemm m,n,k,a,b,c tb=t", "gemm m=512 n=1024 k=2048 a=bf16 b=bf16 c=f32 tb=t"),
        (KEY[:5], "gemm n,m,k", "gemm m=1024 n=512 k=2048 dtype=bf16"),
        ([512, 1024, KEY[3]], "gemm m,n,dtype k=64", "gemm m=512 n=1024 k=64 dtype=bf16"),
        ([7, *KEY[:4]], "gemm _,m,n,k ta=t", "gemm m=512 n=1024 k=2048 dtype=bf16 ta=t"),
    ],
)
def test_named_values_are_a_problem(file, key, names, problem):
    reading = logs.read([file(key)], options=LogOptions(key=names))
    (call,) = reading.workload.calls
    assert call.problem == ops.parse(problem)
    assert reading.inputs[0].formats == ("triton-autotune",)


@pytest.mark.parametrize(
    ("key", "names", "value"),
    [
        (KEY, "", 6),
        (KEY, "gemm m,n", 2),  # a size has no name
        (KEY, "gemm m,n,k", "bf16, f32"),  # two dtypes without names
        (KEY[:3], "gemm m,n,k,a", 4),
        (KEY, "gemm m,n,k,a,b,c tb", "'tb'"),
        (KEY, "nothing m,n,k,a,b,c", "nothing"),
        (["torch.bfloat16"], "gemm m", ""),
        ([], "gemm m,n,k", "key"),
        ([[1], 2, 3], "gemm m,n,k", "[1]"),
    ],
)
def test_what_has_no_names_is_refused(file, key, names, value):
    with raises(UsageError, value):
        logs.read([file(key)], options=LogOptions(key=names))


def test_two_times_of_one_config_are_refused(path):
    twice = {**FILE, "configs_timings": [*FILE["configs_timings"], [config(16, 4), 0.5]]}
    path.write_text(json.dumps(twice))
    with pytest.raises(UsageError):
        importers.read(path, Overrides())
