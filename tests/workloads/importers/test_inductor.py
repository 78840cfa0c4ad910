"""Times of inductor's max-autotune, of its log and of its file of products."""

from __future__ import annotations

import json
import math

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

LOG = """some line
AUTOTUNE mm(512x1024, 1024x2048)
strides: [1024, 1], [1, 1024]
dtypes: torch.bfloat16, torch.bfloat16
  triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', BLOCK_K=64, GROUP_M=, 1, num_warps=4
  mm 0.0601 ms 85.2%
  triton_mm_persistent_tma_3 inf ms 0.0% BLOCK_K=128
SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and 0.5 seconds precompiling for 3 choices
  other 1.5 ms 2.0% X=1
AUTOTUNE convolution(1x3x8x8, 4x3x3x3)
strides: [192, 64, 8, 1], [27, 9, 3, 1]
dtypes: torch.float16, torch.float16
  convolution 0.0100 ms 100.0%
"""
FILE = [
    {
        "(512, 1024, 2048)": [
            {"type": "cublas", "time": 0.06},
            {"type": "triton", "time": 0.05, "BLOCK_M": 64, "num_warps": 4},
            {"type": "triton", "time": math.inf, "BLOCK_M": 128, "num_warps": 4},
            None,
        ],
        "kernel_type": "mm",
    }
]


def read(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    importer = importers.recognized(path)
    assert importer is not None
    assert importer.name == "inductor"
    return importers.read(path, Overrides()).results


def test_every_choice_of_a_log(tmp_path):
    first, second, failed, other = read(tmp_path, LOG)
    assert first.case.problem.key.startswith("gemm m=512 n=2048 k=1024 a=bf16")
    assert first.case.config == {
        "choice": "triton_mm", "ACC_TYPE": "tl.float32", "BLOCK_K": 64, "GROUP_M": -1,
        "num_warps": 4,
    }  # fmt: skip
    assert first.measurement.median_s == pytest.approx(5.12e-5)
    assert (first.case.backend, second.case.backend) == ("triton", "inductor")
    assert second.case.config == {"choice": "mm"}
    assert (failed.status, failed.case.config["choice"]) == (
        Status.RUNTIME_ERROR,
        "triton_mm_persistent_tma",
    )
    assert other.case.problem.op == "inductor_convolution"


def test_every_choice_of_a_file(tmp_path):
    found = read(tmp_path, json.dumps(FILE, indent=4), "mm.json")
    assert {one.case.problem.key for one in found} == {"inductor_mm m=512 n=2048 k=1024"}
    assert [one.status for one in found] == [Status.OK, Status.OK, Status.RUNTIME_ERROR]
    assert found[1].case.config == {"choice": "triton", "BLOCK_M": 64, "num_warps": 4}
    assert found[1].measurement.median_s == pytest.approx(5e-5)


def test_a_log_that_was_cut_in_a_time_is_refused(tmp_path):
    with pytest.raises(UsageError):
        read(tmp_path, LOG.partition(" 100.0%")[0] + " 100.0% ACC_T")


def test_a_setting_of_5000_digits_is_refused(tmp_path):
    with pytest.raises(KernelmarkError):
        read(tmp_path, LOG.replace("BLOCK_K=64", f"BLOCK_K={'9' * 5000}"))


@pytest.mark.parametrize(
    "broken",
    [
        [{"(512, s0, 2048)": [], "kernel_type": "mm"}],
        [{f"({'9' * 5000}, 2, 3)": [], "kernel_type": "mm"}],
        [{"(1, 2, 3)": [1], "kernel_type": "mm"}],
        [{"(1, 2, 3)": [{"type": "triton"}], "kernel_type": "mm"}],
        [{"(1, 2, 3)": [{"type": "triton", "time": 1.0, "x": []}], "kernel_type": "mm"}],
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, broken):
    with pytest.raises(KernelmarkError):
        read(tmp_path, json.dumps(broken), "mm.json")


MM = LOG.partition("AUTOTUNE convolution")[0].partition("some line\n")[2]
ADDMM = """AUTOTUNE addmm(64x32, 64x16, 16x32)
strides: [0, 1], [16, 1], [32, 1]
dtypes: torch.float16, torch.float16, torch.float16
  triton_mm_1 0.0070 ms 100.0% BLOCK_K=64
  addmm 0.0080 ms 87.5%
SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and 0.5 seconds precompiling for 2 choices
"""


def mixed(first, second, header=3):
    """The lines of two blocks: both headers, and then choice by choice."""
    one, two = first.splitlines(), second.splitlines()
    pairs = zip(one[header:], two[header:], strict=False)
    return [*one[:header], *two[:header], *(line for pair in pairs for line in pair)]


def test_choices_of_ranks_stay_with_their_problem(tmp_path):
    ranks = [
        "".join(f"[default{i}]:{s}\n" for s in t.splitlines()) for i, t in enumerate([MM, ADDMM])
    ]
    found = read(tmp_path, "\n".join(mixed(*ranks)) + "\n")
    times = {
        (one.case.problem.dims["m"], round(1e7 * one.measurement.median_s))
        for one in found
        if one.measurement
    }
    assert times == {(512, 512), (512, 601), (64, 70), (64, 80)}


@pytest.mark.parametrize("pair", [(MM, ADDMM), (ADDMM, MM)])
def test_mixed_blocks_of_unnamed_processes_are_refused(tmp_path, pair):
    with pytest.raises(UsageError):
        read(tmp_path, "\n".join(mixed(*pair)) + "\n")


@pytest.mark.parametrize("bad", ["mm 0,0601 ms 85.2%", "mm 60.1 us 85.2%", "mm 0.06"])
def test_a_choice_that_cannot_be_read_is_refused(tmp_path, bad):
    with pytest.raises(UsageError):
        read(tmp_path, LOG.replace("mm 0.0601 ms 85.2%", bad))


def test_a_log_that_was_cut_before_a_time_is_refused(tmp_path):
    with pytest.raises(UsageError):
        read(tmp_path, LOG[: LOG.index(" 0.0601")])
