"""PyTorch inductor's max-autotune: problems of its log, and times of its log and its file."""

import json
import math

import pytest

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

BF16 = "torch.bfloat16"
CHOICES = """  triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', BLOCK_K=64, num_warps=4
  mm 0.0601 ms 85.2%
SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and 0.5 seconds precompiling for 2 choices
"""


def block(name, sizes, strides, dtypes, before=""):
    head = f"{before}AUTOTUNE {name}({sizes})\n"
    head += f"{before}strides: {strides}\n" if strides else ""
    return head + (f"{before}dtypes: {dtypes}\n" if dtypes else "") + CHOICES


MM = block("mm", "512x1024, 1024x2048", "[1024, 1], [1, 1024]", f"{BF16}, {BF16}")


def test_a_product_is_one_call_however_often_it_is_tuned(read, told):
    stats = 'Autotune Choices Stats:\n{"num_choices": 2, "best_kernel": "mm"}\n'
    reading = read(stats + MM + MM)
    (call,) = reading.workload.calls
    assert (call.count, call.lost, told(reading)) == (1, (), [])
    assert call.problem.key.startswith("gemm m=512 n=2048 k=1024 a=bf16 b=bf16 c=bf16")
    assert (call.problem.options["ta"], call.problem.options["tb"]) == ("n", "t")
    assert reading.inputs[0].formats == ("inductor",)
    assert len(reading.inputs[0].notes) == 1, "no counts"


def test_a_launcher_may_write_before_each_line(read):
    text = block("mm", "64x32, 32x16", "[32, 1], [16, 1]", f"{BF16}, {BF16}", "[rank0]: ")
    (call,) = read(text + MM).workload.calls[:1]
    assert call.problem.dims["k"] in (32, 1024)
    assert read(text + MM).workload.total == 2


@pytest.mark.parametrize(
    ("strides", "bias", "beta"), [("[0, 1]", True, 0.0), ("[2048, 1]", False, 1.0)]
)
def test_a_bias_is_repeated_by_a_stride_of_0(read, strides, bias, beta):
    rest = "[1024, 1], [1, 1024]"
    types = ", ".join([BF16] * 3)
    text = block("addmm", "512x2048, 512x1024, 1024x2048", f"{strides}, {rest}", types)
    (call,) = read(text).workload.calls
    assert (call.problem.options["bias"], call.problem.options["beta"]) == (bias, beta)


def test_batches_and_other_types(read):
    steps = "[2048, 32, 1], [512, 16, 1]"
    half = "torch.float16, torch.float16"
    (call,) = read(block("bmm", "5x64x32, 5x32x16", steps, half)).workload.calls
    assert (call.problem.op, call.problem.dims["batch"]) == ("batched_gemm", 5)
    whole = "torch.int8, torch.int8"
    (call,) = read(block("int_mm", "64x32, 32x16", "[32, 1], [1, 32]", whole)).workload.calls
    assert (call.problem.dtypes["a"], call.problem.dtypes["c"]) == ("i8", "i32")


def test_a_scaled_product_loses_the_type_of_its_output(read):
    f8 = "torch.float8_e4m3fn"
    text = block(
        "scaled_mm", "64x32, 32x16, , ", "[32, 1], [1, 32], [], []",
        f"{f8}, {f8}, torch.float32, torch.float32",
    )  # fmt: skip
    (call,) = read(text).workload.calls
    assert call.problem.dtypes["a"] == "f8e4m3"
    assert set(call.lost) == {"scaleA", "scaleB", "d_type"}


def test_an_old_block_needs_a_dtype(read, told):
    old = block("addmm", "1x32, 1x256, 256x32", "", "")
    assert [line for line, _ in told(read(MM + old))] == [7]
    (call,) = read(old, dtype="f16").workload.calls
    assert call.problem.dtypes["a"] == "f16"
    assert set(call.lost) == {"layout", "beta"}


@pytest.mark.parametrize(
    "broken",
    [
        block("mm_plus_mm", "8x8, 8x8, 8x8, 8x8", "", ""),
        block(
            "convolution", "1x3x8x8, 4x3x3x3", "[192, 64, 8, 1], [27, 9, 3, 1]", f"{BF16}, {BF16}"
        ),
        block("mm", "512x1024, 1024x2048", "[1024, 1]", f"{BF16}, {BF16}"),
        block("mm", "512x1024, 1024x2048", "[1024, 1], [1, 1024]", BF16),
        block("mm", "512x1024, 1024x2048", "[1024, 1], [1, 1024]", "torch.x, torch.x"),
        block("mm", "512x1024, 1023x2048", "[1024, 1], [1, 1024]", f"{BF16}, {BF16}"),
        block("mm", f"{'9' * 5000}x1024, 1024x2048", "[1024, 1], [1, 1024]", f"{BF16}, {BF16}"),
        block("mm", "512x1024, 1024x2048", "[10 24, 1], [1, 1024]", f"{BF16}, {BF16}"),
        block("mm", "s0x1024, 1024x2048", "[1024, 1], [1, 1024]", f"{BF16}, {BF16}"),
    ],
)
def test_what_is_no_product_is_skipped(read, told, broken):
    reading = read(MM + broken)
    assert reading.workload.total == 1
    assert [line for line, _ in told(reading)] == [7]


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


TIMED_MM = LOG.partition("AUTOTUNE convolution")[0].partition("some line\n")[2]
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
        "".join(f"[default{i}]:{s}\n" for s in t.splitlines())
        for i, t in enumerate([TIMED_MM, ADDMM])
    ]
    found = read(tmp_path, "\n".join(mixed(*ranks)) + "\n")
    times = {
        (one.case.problem.dims["m"], round(1e7 * one.measurement.median_s))
        for one in found
        if one.measurement
    }
    assert times == {(512, 512), (512, 601), (64, 70), (64, 80)}


@pytest.mark.parametrize(
    "text",
    [
        LOG.partition(" 100.0%")[0] + " 100.0% ACC_T",  # cut behind a time, and before one
        LOG[: LOG.index(" 0.0601")],
        LOG.replace("BLOCK_K=64", f"BLOCK_K={'9' * 5000}"),
        *(
            LOG.replace("mm 0.0601 ms 85.2%", bad)
            for bad in ("mm 0,0601 ms 85.2%", "mm 60.1 us 85.2%", "mm 0.06")
        ),
        # Blocks of processes that are not named.
        *("\n".join(mixed(*pair)) + "\n" for pair in ((TIMED_MM, ADDMM), (ADDMM, TIMED_MM))),
    ],
)
def test_a_log_that_is_cut_or_mixed_is_refused(tmp_path, text):
    with pytest.raises(KernelmarkError):
        read(tmp_path, text)


def test_choices_below_a_block_that_was_cut_are_refused(tmp_path):
    path = tmp_path / "log.txt"
    block = "AUTOTUNE mm(512x1024, 1024x2048{}\n  mm 0.0601 ms 100.0%\n"
    path.write_text(block.format(")"))
    assert len(importers.read(path, importers.Overrides()).results) == 1
    for end in ("  mm 0.0601 ms 85.2\n", "  mm 0.0601 ms\n", "  triton_mm_1 0.07 ms 85.8% A=\n"):
        path.write_text(block.format(")") + end)
        with pytest.raises(KernelmarkError):
            importers.read(path, importers.Overrides())
    path.write_text(block.format("") + block.format(")"))
    with pytest.raises(KernelmarkError):
        importers.read(path, importers.Overrides())
