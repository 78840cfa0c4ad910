"""MIOpen's find-db as a workload: convolutions by its keys."""

from __future__ import annotations

import pytest

TIMES = "ConvDirectNaiveConvFwd:0.05,0,miopenConvolutionFwdAlgoDirect"
KEY = "16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F"
LINE = f"{KEY}={TIMES}\n"


def test_a_convolution_by_its_key(read, told):
    reading = read(LINE)
    (call,) = reading.workload.calls
    assert (call.count, call.lost, told(reading)) == (1, (), [])
    assert call.problem.dims == {
        "n": 8, "c": 16, "h": 32, "w": 30, "k": 64, "r": 3, "s": 5, "pad_h": 1, "pad_w": 2,
        "stride_h": 1, "stride_w": 2, "dilation_h": 1, "dilation_w": 1, "groups": 1,
    }  # fmt: skip
    assert (call.problem.dtypes["x"], call.problem.options["layout"]) == ("f16", "nchw")
    assert reading.inputs[0].formats == ("miopen-find-db",)
    assert len(reading.inputs[0].notes) == 1, "no counts"


def test_layouts_groups_types_and_a_bias(read):
    text = LINE.replace("NCHW", "NHWC-NHWC-NHWC").replace("-F=", "-F_g4=")
    (call,) = read(text.replace("FP16", "BF16").replace("-0-NHWC", "-1-NHWC")).workload.calls
    assert (call.problem.options["layout"], call.problem.dims["groups"]) == ("nhwc", 4)
    assert (call.problem.dtypes["x"], call.lost) == ("bf16", ("bias",))
    (call,) = read(LINE.replace("FP16", "INT8INT8INT32")).workload.calls
    assert (call.problem.dtypes["x"], call.problem.dtypes["y"]) == ("i8", "i32")


@pytest.mark.parametrize(
    "change",
    [
        ("-F=", "-B="),
        ("-F=", "-W="),
        ("-F=", "-F_ciFP8="),
        ("-32-15-8", "-32-16-8"),
        ("NCHW", "NHWC-NCHW-NCHW"),
        ("NCHW", "NCHWc"),
        ("FP16", "INT8"),
        ("FP16", "FP8"),
        ("-3x5-", "-3x5x1-"),
        ("-8-1x2", "-1x2"),
        (KEY, "16-4-8-8-3x3x3-64-4-8-8-8-1x1x1-1x1x1-1x1x1-0-NCDHW-FP32-F"),
    ],
)
def test_what_no_op_computes_is_skipped(read, told, change):
    reading = read(LINE + LINE.replace(*change))
    assert reading.workload.total == 1
    assert [line for line, _ in told(reading)] == [2]
