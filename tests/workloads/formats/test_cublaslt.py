"""cuBLASLt's trace lines: calls by the descriptions of their matrices."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.formats.cublaslt import readers
from kernelmark.workloads.source import BadLine

START = "[2026-01-31 10:20:30][cublasLt][812]"
PLAIN = {
    "A": "type=R_16BF rows=64 cols=128 ld=64",
    "B": "type=R_16BF rows=64 cols=32 ld=64",
    "C": "type=R_16BF rows=128 cols=32 ld=128",
    "D": "type=R_16BF rows=128 cols=32 ld=128",
    "compute": "computeType=COMPUTE_32F scaleType=R_32F transa=OP_T",
}


def line(function="cublasLtMatmul", end="beta=0 outOfPlace=0", c="0X7F30", at="7F", **changes):
    d = PLAIN | changes
    return (
        f"{START}[Trace][{function}] A=0X{at}10 Adesc=[{d['A']}] B=0X{at}20 Bdesc=[{d['B']}] C={c} "
        f"Cdesc=[{d['C']}] D=0X{at}30 Ddesc=[{d['D']}] computeDesc=[{d['compute']}] "
        "algo=[algoId=21 tile=MATMUL_TILE_32x32 stages=MATMUL_STAGES_64x1] workSpace=0X0 "
        f"workSpaceSizeInBytes=0 {end} stream=0X0"
    )


def batched(text, stride):
    return f"{text} batchCount=3 stridedBatchOffset={stride}"


def test_a_call_by_columns_is_a_problem_by_rows(read, told):
    other = f"{START}[Api][cublasLtMatmul] A=0X7F10 Adesc=0X55 B=0X7F20 Bdesc=0X56 stream=0X0\n"
    text = line() + "\n" + line("cublasLtTSTMatmul", at="99") + "\n" + other
    reading = read(text)
    (call,) = reading.workload.calls
    assert (call.count, call.lost, told(reading)) == (2, (), [])
    assert call.problem.key.startswith(
        "gemm m=32 n=128 k=64 a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=t"
    )
    assert (call.blas["lda"], call.blas["transA"]) == ("64", "T")
    assert reading.inputs[0].formats == ("cublaslt",)
    assert len(reading.inputs[0].notes) == 1, "alpha is not in the log"


def test_a_batch(read):
    strides = {"A": 8192, "B": 2048, "C": 4096, "D": 4096}
    text = line(**{name: batched(PLAIN[name], step) for name, step in strides.items()})
    (call,) = read(text).workload.calls
    assert (call.problem.op, call.problem.dims["batch"], call.lost) == ("batched_gemm", 3, ())
    assert [call.blas[f"stride_{name}"] for name in "abd"] == ["8192", "2048", "4096"]
    repeated = text.replace(" stridedBatchOffset=8192", "")
    (call,) = read(repeated).workload.calls
    assert (call.blas["stride_a"], call.lost) == ("0", ("stride_a",)), "one A for all"


def test_a_matrix_by_rows_is_its_transpose(read):
    by_rows = "type=R_16BF rows=128 cols=64 ld=64 order=ORDER_ROW"
    compute = "computeType=COMPUTE_32F scaleType=R_32F"
    (call,) = read(line(A=by_rows, compute=compute)).workload.calls
    (same,) = read(line()).workload.calls
    assert (call.problem, call.blas) == (same.problem, same.blas)


@pytest.mark.parametrize(
    ("compute", "fields", "lost"),
    [
        ("epilogue=EPILOGUE_BIAS biasPointer=0x5", {"bias_vector": "1"}, ()),
        ("epilogue=EPILOGUE_GELU_BIAS", {"activation_type": "gelu"}, ("activation_type",)),
        (
            "epilogue=EPILOGUE_DRELU_BGRAD",
            {"activation_type": "drelu"},
            ("gradient", "activation_type"),
        ),
        ("epilogue=EPILOGUE_BIAS biasDataType=0", {"bias_type": "f32_r"}, ("bias_type",)),
        ("aScalePointer=0x5 bScalePointer=0x6", {"scaleA": "1"}, ("scaleA", "scaleB")),
        ("aScalePointer=0x5 aScaleMode=OUTER_VEC_32F", {"scaleA": "2"}, ("scaleA",)),
        ("bScalePointer=0x5 bScaleMode=VEC32_UE8M0", {"scaleB": "3"}, ("scaleB",)),
        ("amaxDPointer=0x5", {}, ("amaxD",)),
        ("fastAccumulationFlag=1", {}, ("fast_accumulation",)),
        ("smCountTarget=108 pointerMode=MODE_DEVICE", {}, ()),
    ],
)
def test_what_a_call_does_beside_the_product(read, compute, fields, lost):
    (call,) = read(line(compute=f"{PLAIN['compute']} {compute}")).workload.calls
    assert {name: call.blas[name] for name in fields} == fields
    assert call.lost == lost


@pytest.mark.parametrize(
    ("name", "compute", "lost"),
    [
        ("COMPUTE_32F_PEDANTIC", "f32_r", ()),
        ("COMPUTE_32F_FAST_TF32", "xf32_r", ("compute_type",)),
        ("COMPUTE_32F_FAST_16BF", "f32_bf16_r", ("compute_type",)),
    ],
)
def test_compute_types(read, name, compute, lost):
    kinds = {key: PLAIN[key].replace("R_16BF", "R_32F") for key in "ABCD"}
    text = line(**kinds, compute=f"computeType={name} scaleType=R_32F transa=OP_T")
    (call,) = read(text).workload.calls
    assert (call.blas["compute_type"], call.lost) == (compute, lost)


def test_eight_bit_floats_are_of_one_family_on_every_gpu(read):
    kinds = {key: PLAIN[key].replace("R_16BF", "R_8F_E4M3") for key in "AB"}
    bias = f"{PLAIN['compute']} epilogue=EPILOGUE_BIAS biasPointer=0x5"
    (call,) = read(line(**kinds, compute=bias), arch="gfx942").workload.calls
    assert (call.problem.dtypes["a"], call.lost) == ("f8e4m3", ())
    wide = {key: PLAIN[key].replace("R_16BF", "R_32F") for key in "CD"}
    (call,) = read(line(**kinds, **wide, compute=bias)).workload.calls
    assert call.lost == ("bias_type",), "the library chooses it"


@pytest.mark.parametrize(
    ("end", "c", "beta", "lost"),
    [
        ("beta=1 outOfPlace=0", "0X7F30", 1.0, ()),
        ("beta=? outOfPlace=0", "0X7F30", 0.0, ("beta",)),
        ("beta=? outOfPlace=1", "0X0", 0.0, ()),
    ],
)
def test_a_beta_in_device_memory_is_reported(read, end, c, beta, lost):
    (call,) = read(line(end=end, c=c)).workload.calls
    assert (call.problem.options["beta"], call.lost) == (beta, lost)


@pytest.mark.parametrize(
    "changes",
    [
        {"A": PLAIN["A"].replace("R_16BF", "R_4F_E2M1")},
        {"A": PLAIN["A"].replace("R_16BF", "C_32F")},
        {"A": PLAIN["A"].replace("rows=64", "rows=63")},
        {"D": f"{PLAIN['D']} order=ORDER_ROW"},
        {"A": f"{PLAIN['A']} order=ORDER_COL32"},
        {"A": f"{PLAIN['A']} planeOffsetBytes=512"},
        {"A": f"{PLAIN['A']} batchMode=POINTER_ARRAY"},
        {"compute": f"{PLAIN['compute']} fillMode=MODE_LOWER"},
        {"compute": f"{PLAIN['compute']} transc=OP_T"},
        {"compute": f"{PLAIN['compute']} epilogue=EPILOGUE_NEW"},
        {"compute": f"{PLAIN['compute']} aScalePointer=0x5 aScaleMode=NEW"},
        {"compute": PLAIN["compute"].replace("COMPUTE_32F", "COMPUTE_32F_EMULATED_16BFX9")},
        {"compute": PLAIN["compute"].replace("OP_T", "OP_CONJG")},
        {"end": "beta=0"},
    ],
)
def test_what_is_no_product_of_ours_is_skipped(read, told, changes):
    reading = read(f"{line()}\n{line(**changes)}\n")
    assert reading.workload.total == 1
    assert [number for number, _ in told(reading)] == [2]


def test_pointers_alone_are_no_calls(read):
    with pytest.raises(UsageError) as error:
        read(f"{START}[Api][cublasLtMatmul] A=0X1000 Adesc=0X5 stream=0X0\n")
    assert "CUBLASLT_LOG_LEVEL=2" in str(error.value.hint)


@given(st.integers(0, 700), st.binary(max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_damaged_line_is_read_or_refused(place, inserted):
    text = line().encode()
    for damaged in (text[:place], text[:place] + inserted + text[place + len(inserted) :]):
        part = readers[0].part(damaged)
        if part is not None and part[0]:
            try:
                calls = list(readers[0].calls(part[0], part[1], LogOptions()))
            except (BadLine, UsageError):
                continue
            assert len(calls) == 1
