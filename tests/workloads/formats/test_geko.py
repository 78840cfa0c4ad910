"""GEKO's lists of sizes, and its tables of reference and tuned kernels."""

import pytest

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark_dev import geko

LIST = geko.LIST
RAW = geko.RAW
WINNERS = geko.WINNERS


@pytest.fixture
def times(tmp_path):
    def call(text, name="raw_results.csv"):
        path = tmp_path / name
        path.write_text(text)
        return importers.read(path, importers.Overrides()).results

    return call


def test_sizes_are_m_n_batch_k_of_a_blas_call_and_count_once(read):
    reading = read(LIST, "list.yaml")
    assert reading.inputs[0].formats == ("geko",)
    calls = {call.problem.key.split(" a=")[0]: call for call in reading.workload.calls}
    assert set(calls) == {"gemm m=2304 n=512 k=7680", "batched_gemm batch=4 m=32 n=16 k=128"}
    call = calls["gemm m=2304 n=512 k=7680"]
    assert (call.count, call.blas["transA"], call.blas["a_type"]) == (1, "T", "bf16_r")
    assert call.problem.dtypes["c"] == "bf16"


def test_letters_may_be_written_as_in_tuningdriver_s_lists(read):
    text = LIST.replace("TRANSA:", "TransA:").replace("TRANSB:", "TransB:")
    assert text != LIST
    assert read(text, "list.yaml").workload.calls == read(LIST, "list.yaml").workload.calls
    with pytest.raises(UsageError):
        read(f"{LIST}\nTransA: 'N'\n", "list.yaml")


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("F8B8", "S", "S"), ("f8e5m2", "f8e4m3", "f32")),  # A and B are swapped in row-major terms
        (("F8N", "H", "S"), ("f8e4m3fnuz", "f8e4m3fnuz", "f16")),
        (("D", "D", "D"), ("f64", "f64", "f64")),
        (("X", "S", "S"), ("f32", "f32", "f32")),
    ],
)
def test_types_are_tensile_s_letters(read, types, expected):
    text = LIST
    for name, letter in zip(("DataType", "DestDataType", "ComputeDataType"), types, strict=True):
        text = "\n".join(
            f'{name}: "{letter}"' if line.startswith(f"{name}:") else line
            for line in text.splitlines()
        )
    call = read(text, "list.yaml").workload.calls[0]
    assert tuple(call.problem.dtypes[name] for name in "abc") == expected
    assert ("compute_type" in call.lost) == (types[0] == "X")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ARCH:", "SIZE_OPTION: 1\nARCH:"),
        ("ARCH:", "MX: True\nARCH:"),
        ("ARCH:", "TRANSA: 'N'\nARCH:"),
        ('DataType: "B"', 'DataType: "F4"'),
        ('DataType: "B"', 'DataType: "Q"'),
        ("TRANSA: 'T'", "TRANSA: 'C'"),
        ("Sizes:", "Sizes: [1, 2\nOther:"),
        ("Sizes:", "Sizes: 5\nOther:"),
    ],
)
def test_a_list_that_cannot_be_read_exactly_is_refused(read, old, new):
    assert old in LIST
    with pytest.raises(UsageError):
        read(LIST.replace(old, new), "list.yaml")


def test_a_size_that_is_none_is_skipped_with_its_line(read, told):
    bad = "  - [1, 2, 3]\n  - [1, -2, 1, 3]\n  - [1, 2.5, 1, 3]\n  - 5\n"
    lines = [line for line, _ in told(read(LIST + bad, "list.yaml"))]
    first = LIST.count("\n") + 1
    assert lines == [first, first + 1, first + 2, first + 3]


def test_both_libraries_of_a_row_are_configs_of_one_problem(times):
    reference, tuned = times(RAW)
    assert reference.case.problem == tuned.case.problem
    assert reference.case.problem.key.startswith("gemm m=109 n=16032 k=16384 a=bf16")
    assert [r.measurement.median_s for r in (reference, tuned)] == pytest.approx([1.426e-4, 1.2e-4])
    assert reference.case.config == {"library": "reference", "solution_index": 3711}
    assert tuned.case.config == {"library": "tuned", "solution_index": 0}
    assert (reference.kernel.name, tuned.kernel.name) == ("Cijk_old", "Cijk_new")


def test_a_tuned_kernel_that_was_wrong_stays_wrong(times):
    reference, tuned = times(RAW.replace(",True,True", ",True,False"))
    assert (reference.status, tuned.status) == (Status.OK, Status.WRONG)
    for flag, status in (("false", "wrong"), ("0", "wrong"), ("TRUE", "ok"), ("1", "ok")):
        assert times(RAW.replace(",True,True", f",True,{flag}"))[1].status.value == status
    with pytest.raises(UsageError):
        times(RAW.replace(",True,True", ",True,perhaps"))


def test_winners_have_one_time_and_their_solution(times, read):
    (winner,) = times(WINNERS, "winners.csv")
    assert winner.case.config == {"solution_index": 3711}
    assert winner.measurement.median_s == pytest.approx(1.426e-4)
    (call,) = read(WINNERS, "winners.csv").workload.calls
    assert call.problem == winner.case.problem


def test_rows_that_differ_in_an_argument_are_not_pooled(times):
    head, row = RAW.splitlines()
    head = head.replace(",bias_vector", ",bias_vector,bias_type,workspace", 1)
    begin, end = row.split(",none,0,")
    rows = [
        f"{begin},none,1,{arguments},{end}" for arguments in ("f16_r,0", "f32_r,0", "f32_r,128")
    ]
    assert len(times("\n".join([head, *rows, ""]))) == 6


def test_calls_of_the_summary_are_counted(read):
    head, row = WINNERS.splitlines()
    reading = read(f"{head},call_count,% of total\n{row},3,100.0\n", "summary.csv")
    assert [call.count for call in reading.workload.calls] == [3]
    assert not reading.inputs[0].notes


@pytest.mark.parametrize(
    ("old", "new"),
    [("3711,", "x,"), (",us_tuned", ",us_reference"), ("142.6", ""), (",True,True\n", ",True")],
)
def test_a_damaged_table_is_refused(times, old, new):
    assert old in RAW
    with pytest.raises((UsageError, NothingToDo)):
        times(RAW.replace(old, new, 1))


@pytest.mark.parametrize(
    ("key", "lost"),
    [("Bias: true", ("Bias=true",)), ("Bias: false", ()), ("Epilogue: [gelu]", ("Epilogue=set",))],
)
def test_a_key_that_is_not_known_is_said(read, key, lost):
    for call in read(f"{LIST}\n{key}\n", "list.yaml").workload.calls:
        assert call.lost == lost
