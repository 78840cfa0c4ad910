"""MIOpen's commands: convolutions by the driver's words."""

from __future__ import annotations

import pytest

WORDS = (
    "-n 128 -c 3 -H 32 -W 30 -k 64 -y 3 -x 5 -p 1 -q 2 -u 1 -v 2 -l 1 -j 1 -m conv -g 1 -F 1 -t 1"
)
RUN = f"MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 {WORDS}"
FIND = RUN.replace("LogCmdConvolution", "LogCmdFindConvolution")


def test_a_convolution_by_the_driver_s_words(read, told):
    reading = read(f"{FIND}\n{RUN}\n{RUN.replace('(HIP)', '')}\nMIOpen(HIP): Info [x] y\n")
    (call,) = reading.workload.calls
    assert reading.inputs[0].formats == ("miopen",)
    assert call.count == 2, "the search is not a call"
    assert call.problem.dims == {
        "n": 128,
        "c": 3,
        "h": 32,
        "w": 30,
        "k": 64,
        "r": 3,
        "s": 5,
        "pad_h": 1,
        "pad_w": 2,
        "stride_h": 1,
        "stride_w": 2,
        "dilation_h": 1,
        "dilation_w": 1,
        "groups": 1,
    }
    assert (call.problem.dtypes["x"], call.problem.options["layout"]) == ("f16", "nchw")
    assert [line for line, _ in told(reading)] == [4]


@pytest.mark.parametrize(
    ("change", "dtype"),
    [("convfp16", "f16"), ("convbfp16", "bf16"), ("convint8", "i8"), ("conv", "f32")],
)
def test_the_driver_names_the_dtype(read, change, dtype):
    (call,) = read(RUN.replace("convfp16", change)).workload.calls
    assert call.problem.dtypes["x"] == dtype


def test_layouts(read):
    every = "--in_layout NHWC --fil_layout NHWC --out_layout NHWC"
    (call,) = read(f"{RUN} {every}").workload.calls
    assert (call.problem.options["layout"], call.lost) == ("nhwc", ())
    (call,) = read(f"{RUN} --in_layout NHWC").workload.calls
    assert call.lost == ("layout",)


@pytest.mark.parametrize(
    "change",
    [
        ("-F 1", "-F 2"),
        ("-F 1", "-F 4"),
        ("-m conv", "-m trans"),
        ("-t 1", "-t 1 --spatial_dim 3"),
        ("-n 128 ", ""),
        ("-F 1 ", ""),
        ("-t 1", "-z same"),
        ("-t 1", "-Z 1"),
        ("-t 1", "--in_cast_type fp8"),
        ("-n 128", "-n x"),
        ("convfp16", "convfp8"),
        ("-t 1", "--in_layout CHWN"),
    ],
)
def test_what_is_no_forward_convolution_of_ours_is_skipped(read, told, change):
    reading = read(f"{RUN}\n{RUN.replace(*change)}\n")
    assert reading.workload.total == 1
    assert [line for line, _ in told(reading)] == [2]


@pytest.mark.parametrize("driver", ["bnormfp16", "CBAInfer", "CBAInferfp16"])
def test_calls_of_other_drivers_are_listed_as_skipped(read, told, driver):
    """A fused convolution is one of them: nobody may take the rest for the whole."""
    reading = read(f"{RUN}\n{RUN.replace('convfp16', driver)}\n")
    assert reading.workload.total == 1
    assert [line for line, _ in told(reading)] == [2]


def test_the_driver_of_windows(read):
    (call,) = read(RUN.replace("./bin/MIOpenDriver", "MIOpenDriver.exe")).workload.calls
    assert call.problem.dims["n"] == 128


def test_a_command_that_a_shell_would_continue(read, told):
    reading = read("./bin/MIOpenDriver conv -n 8 -c 64 \\\n  -H 56 -W 56 \\\n  -k 4\nnoise\n")
    (call,) = reading.workload.calls
    assert [call.problem.dims[name] for name in ("n", "h", "k")] == [8, 56, 4]
    assert [line for line, _ in told(reading)] == [4]


def test_a_typed_command_has_the_defaults_of_the_driver(read):
    (call,) = read("./bin/MIOpenDriver conv -n 128 -c 64 -H 56 -W 56 -p 1 -q 1").workload.calls
    assert [call.problem.dims[name] for name in ("k", "r", "s", "stride_h", "groups")] == [
        *(32, 3, 3, 1, 1)
    ]
