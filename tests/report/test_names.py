from __future__ import annotations

import dataclasses
import shlex

import pytest

from kernelmark import backends, ops
from kernelmark.core.problem import Problem
from kernelmark.core.timing import Timing
from kernelmark.report.names import backend_text, config_text, rerun, short
from kernelmark.workloads import suites


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gemm m=1 n=2 k=3 dtype=f32", "gemm m=1 n=2 k=3 dtype=f32"),
        ("gemm m=1 n=2 k=3 dtype=bf16 tb=t", "gemm m=1 n=2 k=3 dtype=bf16 tb=t"),
        ("gemm m=1 n=2 k=3 dtype=f16 c=f32", "gemm m=1 n=2 k=3 dtype=f16 c=f32"),
        (
            "conv n=1 c=2 h=8 w=8 k=4 r=3 s=3 stride_h=2 stride_w=2 dtype=f32",
            "conv n=1 c=2 h=8 w=8 k=4 r=3 s=3 stride=2 dtype=f32",
        ),
        (
            "batched_gemm_quant batch=2 m=8 n=8 k=32",
            "batched_gemm_quant batch=2 m=8 n=8 k=32 dtype=bf16 scheme=a8w8",
        ),
        (
            "batched_gemm_quant batch=2 m=8 n=8 k=32 scheme=a16wfp4",
            "batched_gemm_quant batch=2 m=8 n=8 k=32 dtype=bf16 scheme=a16wfp4",
        ),
    ],
)
def test_short_leaves_out_what_follows(text, expected):
    assert short(ops.parse(text)) == expected


@pytest.mark.parametrize("name", ["smoke", "demo", "deepseek", "conv-miopen"])
def test_short_reads_back_as_the_problem(name):
    for problem in suites.load(name).problems:
        assert ops.parse(short(problem)) == problem
        assert len(short(problem)) <= len(problem.key)


def test_the_sizes_of_an_own_op_are_written_also_if_they_are_its_defaults(tmp_path):
    file = tmp_path / "rows_of_mine.py"
    file.write_text(
        "def inputs(rows=8, cols=4, dtype='f32', causal=False):\n"
        "    return {'x': ((rows, cols), dtype)}\n"
        "def reference(x): return x\n"
        "def prepare(problem, config, sets): ...\n"
    )
    backends.find(str(file))
    problem = ops.parse("rows_of_mine cols=16")
    assert short(problem) == "rows_of_mine rows=8 cols=16 dtype=f32"
    assert ops.parse(short(problem)) == problem


def test_an_op_that_is_not_installed_keeps_its_key():
    stranger = Problem(op="stencil", dims={"n": 4}, dtypes={"x": "f32"}, options={})
    assert short(stranger) == stranger.key


def test_config_and_backend_text(make_result):
    result = make_result(config={"tile": 64, "fast": True})
    assert config_text(result.case.config) == "fast=yes tile=64"
    assert backend_text(result.case) == "numpy [fast=yes tile=64]"
    assert backend_text(make_result().case) == "numpy"


def test_rerun_names_everything_that_changes_the_number(make_result):
    timing = Timing(cache="hot", threads=1, duty="burst")  # type: ignore[arg-type]
    result = make_result(config={"tile": 64}, timing=timing, device="cuda:1")
    words = shlex.split(rerun(result))
    assert words[:4] == ["kmark", "run", "-p", "gemm m=512 n=512 k=512 dtype=f32"]
    for pair in (
        ["-b", "numpy"],
        ["-d", "cuda:1"],
        ["--config", "tile=64"],
        ["--cache", "hot"],
        ["--threads", "1"],
        ["--duty", "burst"],
    ):
        assert pair == words[words.index(pair[0]) :][:2]
    assert "--timer" not in words


def test_rerun_repeats_what_was_changed_of_a_preset(make_result):
    def again(timing):
        return shlex.split(rerun(make_result(timing=timing)))[6:]

    assert again(Timing()) == []
    assert again(Timing.preset("quick")) == ["--timing", "quick"]
    changed = Timing.preset("full", max_s=3.25, seed=7)
    assert again(changed) == ["--timing", "full", "--max-s", "3.25", "--seed", "7"]
    assert again(Timing(max_allocations=4)) == ["--max-blocks", "4"]


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"device": "unknown"}, False),
        ({"backend": "miopen", "device": "hip:0", "timed_s": 0.0}, False),
        ({"backend": "numpy", "timed_s": 0.0}, True),
        ({"backend": "miopen", "device": "hip:0"}, True),
    ],
)
def test_what_another_tool_measured_has_no_command(make_result, changes, command):
    timed_s = changes.pop("timed_s", 0.2)
    result = make_result(**changes)
    measured = dataclasses.replace(result.measurement, timed_s=timed_s)
    assert bool(rerun(dataclasses.replace(result, measurement=measured))) is command


def test_an_op_that_no_backend_takes_has_no_command(make_result):
    result = make_result(backend="iree", device="cpu")
    module = Problem(op="iree_module", dims={}, dtypes={}, options={"module": "small_conv"})
    case = dataclasses.replace(result.case, problem=module)
    assert rerun(dataclasses.replace(result, case=case)) == ""
