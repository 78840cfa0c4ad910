"""tritonbench: its JSON has the results of its CSV."""

import json

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises

# As its code writes them: the failure stands in the first metric, whichever that is.
CSV = """\
(M, N, K);aten-tflops;aten-latency;triton-tma-tflops;triton-tma-latency
(256, 512, 64);10.0;0.012;12.0;0.010
(512, 512, 64);11.0;0.024;CUDA out of memory;
average;10.5;;12.0;
"""
METRICS = {
    "tritonbench_gemm_fwd[x_(256, 512, 64)-aten]_tflops": 10.0,
    "tritonbench_gemm_fwd[x_(256, 512, 64)-aten]_latency": "0.012",
    "tritonbench_gemm_fwd[x_(256, 512, 64)-triton]_tma-tflops": 12.0,
    "tritonbench_gemm_fwd[x_(256, 512, 64)-triton]_tma-latency": "0.010",
    "tritonbench_gemm_fwd[x_(512, 512, 64)-aten]_tflops": 11.0,
    "tritonbench_gemm_fwd[x_(512, 512, 64)-aten]_latency": "0.024",
    "tritonbench_gemm_fwd[x_(512, 512, 64)-triton]_tma-tflops": "CUDA out of memory",
    "tritonbench_gemm_fwd[x_(512, 512, 64)-triton]_tma-latency": None,
    "tritonbench_gemm_fwd[x_average-aten]_tflops": 10.5,
    "tritonbench_gemm_fwd[x_average-aten]_latency": None,
    "tritonbench_gemm_fwd[aten]-tflops-avg": 10.5,
}


@pytest.fixture
def read(tmp_path):
    def read(name, text):
        path = tmp_path / name
        path.write_text(text)
        return importers.read(path, Overrides()).results

    return read


def told(results):
    return [
        (
            *(dict(one.case.problem.dims), one.case.backend, one.status, one.error),
            one.measurement.median_s if one.measurement else None,
        )
        for one in results
    ]


def test_json_has_the_results_of_the_csv(read):
    found = read("out.json", json.dumps(METRICS))
    assert told(found) == told(read("gemm.csv", CSV))
    assert {one.case.problem.op for one in found} == {"tritonbench_gemm_fwd"}
    assert [(one.case.backend, one.status) for one in found] == [
        *(("aten", Status.OK), ("triton-tma", Status.OK), ("aten", Status.OK)),
        ("triton-tma", Status.RUNTIME_ERROR),
    ]
    assert found[0].measurement.median_s == pytest.approx(12e-6)


def test_json_of_a_nightly_run(read):
    other = {key.replace("gemm_fwd", "softmax_bwd"): value for key, value in METRICS.items()}
    document = {
        "name": "nightly",
        "env": {},
        "metrics": METRICS | other | {"tritonbench_x-pass": 1},
    }
    found = read("result.json", json.dumps(document))
    ops = [one.case.problem.op for one in found]
    assert ops == ["tritonbench_gemm_fwd"] * 4 + ["tritonbench_softmax_bwd"] * 4


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({key: value for key, value in METRICS.items() if "latency" not in key}),
        json.dumps({"metrics": [1], **METRICS}),
        json.dumps(METRICS)[:-30],
    ],
)
def test_json_without_latencies_or_cut_is_refused(read, text):
    with pytest.raises(KernelmarkError):
        read("out.json", text)


@pytest.mark.parametrize("time", ["0,012", "12.0us", "1.2.3"])
def test_a_number_that_cannot_be_read_is_no_failure(read, time):
    for name, text in (("gemm.csv", CSV), ("out.json", json.dumps(METRICS))):
        with raises(UsageError, repr(time), name, "aten-latency"):
            read(name, text.replace("0.012", time))


def test_two_tables_in_one_file_are_refused(read):
    with raises(UsageError, 1 + len(CSV.splitlines())):
        read("gemm.csv", CSV + CSV)


def test_two_inputs_that_are_printed_alike_stay_apart(tmp_path):
    path = tmp_path / "gemm.csv"
    path.write_text("x_val;aten-latency\n(8, 8);0.5\n(8, 8);0.7\n")
    found = importers.read(path, Overrides()).results
    assert [dict(one.case.config) for one in found] == [{}, {"instance": 2}]
