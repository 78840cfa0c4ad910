"""Triton's autotuner files as a workload: the user names the values of the key."""

from __future__ import annotations

import json

import pytest

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.workloads import logs
from kernelmark_dev.raising import raises_with

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
    reading = logs.read([file(key)], key=names)
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
    with raises_with(UsageError, value):
        logs.read([file(key)], key=names)
