"""MIOpen: commands of its driver in a log, and its find-db as problems and as times."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

WORDS = (
    "-n 128 -c 3 -H 32 -W 30 -k 64 -y 3 -x 5 -p 1 -q 2 -u 1 -v 2 -l 1 -j 1 -m conv -g 1 -F 1 -t 1"
)
DIMS = {
    "n": 128, "c": 3, "h": 32, "w": 30, "k": 64, "r": 3, "s": 5, "pad_h": 1, "pad_w": 2,
    "stride_h": 1, "stride_w": 2, "dilation_h": 1, "dilation_w": 1, "groups": 1,
}  # fmt: skip
RUN = f"MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 {WORDS}"
FIND = RUN.replace("LogCmdConvolution", "LogCmdFindConvolution")


def test_a_convolution_by_the_driver_s_words(read, told):
    reading = read(f"{FIND}\n{RUN}\n{RUN.replace('(HIP)', '')}\nMIOpen(HIP): Info [x] y\n")
    (call,) = reading.workload.calls
    assert reading.inputs[0].formats == ("miopen",)
    assert call.count == 2, "the search is not a call"
    assert call.problem.dims == DIMS
    assert (call.problem.dtypes["x"], call.problem.options["layout"]) == ("f16", "nchw")
    assert [line for line, _ in told(reading)] == [4]


@pytest.mark.parametrize(
    ("old", "new", "dtype"),
    [
        ("convfp16", "convfp16", "f16"),
        ("convfp16", "convbfp16", "bf16"),
        ("convfp16", "convint8", "i8"),
        ("convfp16", "conv", "f32"),
        ("./bin/MIOpenDriver", "MIOpenDriver.exe", "f16"),  # that of Windows
    ],
)
def test_the_driver_names_the_dtype(read, old, new, dtype):
    (call,) = read(RUN.replace(old, new)).workload.calls
    assert call.problem.dtypes["x"] == dtype
    assert call.problem.dims == DIMS


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


TIMES = "ConvDirectNaiveConvFwd:0.05,0,miopenConvolutionFwdAlgoDirect"
KEY = "16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F"
LINE = f"{KEY}={TIMES}\n"


def test_a_convolution_by_its_key(read, told):
    reading = read(LINE)
    (call,) = reading.workload.calls
    assert (call.count, call.lost, told(reading)) == (1, (), [])
    assert call.problem.dims == DIMS | {"n": 8, "c": 16}
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


FORWARD = KEY
BACKWARD = "64-32-15-3x5-16-32-30-8-1x2-1x2-1x1-0-NCHW-FP16-B"
NEW = "SolverA:0.05,1024,miopenConvolutionFwdAlgoDirect;SolverB:0.07,0,miopenConvolutionFwdAlgoGEMM"
OLD = "miopenConvolutionFwdAlgoGEMM:gemm,0.25,0,<unused>,<unused>"


def results(tmp_path, text, name="gfx90a68.HIP.3_2_0.ufdb.txt"):
    path = tmp_path / name
    path.write_text(text)
    importer = importers.recognized(path)
    assert importer.name == "miopen-find-db"
    return importers.read(path, Overrides()).results


def test_every_solver_is_a_case(tmp_path):
    one, two = results(tmp_path, f"{FORWARD}={NEW}\n")
    assert (one.case.problem.op, one.case.backend, one.arch) == ("conv", "miopen", "gfx90a")
    assert [one.case.config["solver"], two.case.config["solver"]] == ["SolverA", "SolverB"]
    assert one.measurement.median_s == pytest.approx(5e-5)
    assert one.flops > 0


def test_a_backward_pass_is_named_by_the_sizes_of_the_forward_pass(tmp_path):
    (one, _) = results(tmp_path, f"{BACKWARD}={NEW}\n", "db.txt")
    assert one.case.problem.op == "miopen_conv_backward_data"
    assert [one.case.problem.dims[name] for name in "chwk"] == [16, 32, 30, 64]


def test_records_of_before_2(tmp_path):
    (one,) = results(tmp_path, f"{FORWARD}={OLD};{OLD.replace('0.25', '0.5')}\n")
    assert one.case.config == {"solver": "gemm"}
    assert one.measurement.median_s == pytest.approx(2.5e-4), "the first, as MIOpen reads it"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("gfx942130.HIP.fdb.txt", "gfx942"),
        ("gfx1030_36.HIP.fdb.txt", "gfx1030"),
        ("gfx90878.HIP.fdb.txt", "gfx908"),
        ("other.fdb.txt", ""),
    ],
)
def test_the_name_of_the_file_has_the_architecture(tmp_path, name, arch):
    assert results(tmp_path, f"{FORWARD}={NEW}\n", name)[0].arch == arch


@pytest.mark.parametrize(
    "broken",
    [
        FORWARD,
        f"{FORWARD}=",
        f"{FORWARD}=SolverA",
        f"{FORWARD}=SolverA:0.05",
        f"{FORWARD}=SolverA:x,0,y",
        f"{FORWARD}=:0.05,0,y",
        f"1{FORWARD[:20]}={NEW}",
        f"{FORWARD}={NEW}\nx",
    ],
)
def test_what_is_no_record_is_refused(tmp_path, broken):
    with pytest.raises(UsageError):
        results(tmp_path, broken + "\n")
