"""Blocks of inductor's max-autotune: what was tuned, by sizes, strides and dtypes."""

from __future__ import annotations

import pytest

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
