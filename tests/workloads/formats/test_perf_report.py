"""Tables of Triton's perf_report: what they plot is in their units."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark_dev.raising import raises

TIMES = "M,N,dtype,cuBLAS (ms),Triton (ms)\n384.000000,64.000000,fp16,0.004096,0.005120\n"


@pytest.fixture
def read(tmp_path):
    def call(text, name="matmul-performance.csv", form=None):
        path = tmp_path / name
        path.write_text(text)
        results = importers.read(path, importers.Overrides(), form).results
        return [
            (r.case.problem.key, r.case.backend, r.measurement and r.measurement.median_s)
            for r in results
        ]

    return call


def test_every_line_of_the_plot_is_a_backend(read):
    problem = "perf_report_matmul_performance m=384 n=64 dtype=fp16"
    assert read(TIMES) == [(problem, "cublas", 4.096e-6), (problem, "triton", 5.12e-6)]


@pytest.mark.parametrize(
    ("columns", "unit_s"),
    [
        ("Triton (us)", 1e-6),
        ("Triton (Latency (us))", 1e-6),
        ("Time_(ms) (Time (ms))", 1e-3),
        ("Time_(ms) (ms / GB/s),Bandwidth_(GB/s) (ms / GB/s)", 1e-3),
        ("Triton (execution time [s])", 1.0),
    ],
)
def test_units_are_in_the_label_or_in_the_name_of_the_line(read, columns, unit_s):
    cells = ",".join(["2.000000"] * (1 + columns.count(",")))
    ((_, _, time_s),) = read(f"size,{columns}\n512.000000,{cells}\n")
    assert time_s == pytest.approx(2 * unit_s)


RATES = ["TFLOPS", "GB/s", "Throughput (TFLOPS)", "speedup", "MB", "/s", "1 / s", "tokens per s"]


@pytest.mark.parametrize("column", [*(f"Triton ({label})" for label in RATES), "s (throughput)"])
def test_what_is_no_time_is_refused(read, column):
    with pytest.raises(UsageError):
        read(f"M,{column}\n8.000000,2.000000\n")


def test_lines_whose_names_are_equal_in_legal_letters_stay_apart(read):
    rows = read("M,Triton (ms),Triton+ (ms)\n8.000000,1.000000,2.000000\n")
    assert [(backend, time_s) for _, backend, time_s in rows] == [
        ("triton", 1e-3),
        ("triton_2", 2e-3),
    ]


def test_a_table_without_units_is_refused(read):
    with pytest.raises(UsageError):
        read("M,Triton\n8.000000,2.000000\n", form="triton-perf-report")


def test_rates_beside_times_are_refused(read):
    with pytest.raises(UsageError):
        read("M,cuBLAS (ms),Triton (TFLOPS)\n8.000000,2.000000,3.000000\n")


@pytest.mark.parametrize("form", [None, "perf-report"])
def test_a_report_without_units_is_told_from_an_unknown_file(read, form):
    with raises(UsageError, "ylabel"):
        read("M,cuBLAS,Triton\n8.000000,2.000000,3.000000\n", form=form)


def test_a_value_that_is_missing_is_skipped_and_inf_is_a_failure(read, tmp_path):
    read("M,cuBLAS (ms),Triton (ms)\n8.000000,,inf\n16.000000,1.000000,1.000000\n")
    path = tmp_path / "matmul-performance.csv"
    results = importers.read(path, importers.Overrides()).results
    failed = {(r.case.problem.dims["m"], r.case.backend): r.status for r in results}
    assert failed[8, "triton"] is Status.RUNTIME_ERROR
    assert failed[8, "cublas"] is Status.SKIPPED
    assert len(failed) == 4


@pytest.mark.parametrize(
    "text",
    [
        "M,Triton (ms)\n8.000000,2.0,3.0\n",
        "M,Triton (ms),Triton (ms)\n8.000000,2.0,3.0\n",
        "M,Triton (ms)\n8.000000,x\n",
    ],
)
def test_a_damaged_table_is_refused(read, text):
    with pytest.raises(UsageError):
        read(text)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_pandas_is_no_size(read, name):
    head, row = TIMES.splitlines()
    assert read(f"{name},{head}\n0,{row}\n") == read(TIMES)
    with pytest.raises(UsageError):
        read(f"{name},{head}\n7,{row}\n")
