from __future__ import annotations

import dataclasses
import shlex

import pytest

from kernelmark import backends, ops
from kernelmark.compare.history import story
from kernelmark.compare.rules.ratio import rule as ratio
from kernelmark.compare.verdicts import compare
from kernelmark.core.problem import Problem
from kernelmark.core.timing import Cache, Timing
from kernelmark.report import compare as compared
from kernelmark.report import history
from kernelmark.report.names import backend_text, config_text, distinguishing, rerun, short
from kernelmark.report.results import result_rows, results_table
from kernelmark.workloads import suites

USUAL, HOT = Timing().identity, Timing(cache=Cache.HOT, threads=1).identity


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


def column(table, name):
    place = [one.name for one in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_only_what_differs_among_rows_that_read_the_same():
    rows = [("a", "x"), ("a", "x"), ("a", "y")]
    assert distinguishing(rows, [USUAL, HOT, HOT]) == [
        "cache=cold threads=all",
        "cache=hot threads=1",
        "",
    ]
    assert distinguishing(rows[1:], [USUAL, HOT]) == ["", ""]
    assert distinguishing([("a",)] * 2, [USUAL, USUAL]) == ["", ""]


def test_results_and_comparisons_have_the_column_where_they_need_it(make_result, make_set):
    both = [make_result(), make_result(timing=Timing(threads=1))]
    made = results_table(result_rows(make_set(*both)))
    assert sorted(column(made, "timing")) == ["threads=1", "threads=all"]
    assert "timing" not in [c.name for c in results_table(result_rows(make_set(both[1]))).columns]
    found = compare(make_set(*both), make_set(*both), rule=ratio)
    assert column(compared.table(found.rows), "timing") == ["threads=all", "threads=1"]
    assert "timing" not in [c.name for c in compared.table(found.rows[:1]).columns]


def test_series_are_told_apart(make_result):
    class Point:
        run_id, started, median_s, status = "r", 0.0, 1.0, make_result().status
        low_s, high_s, modes, doubt, metric = None, None, (), None, ""

        def __init__(self, series):
            self.series = series

    stories = [story([Point(make_result(timing=Timing(threads=n)).series)]) for n in (0, 1)]
    assert list(history.timings(stories).values()) == ["threads=all", "threads=1"]
    assert list(history.timings(stories[:1]).values()) == [""]
