"""GPU kernels of a PyTorch trace: which share of their time the ops that were read launched."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.formats.torch_trace import Kernels
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises_with

MM = ("aten::mm", [[5, 32], [32, 48]])
ROWS = [[32, 1], [1, 32]]


def event(name, ts, dur, dims=None, strides=None, tid=1, cat="cpu_op"):
    args = {"Input Dims": dims, "Input type": ["float"] * len(dims or ()), "Input Strides": strides}
    ran = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}
    return ran | {"args": args}


def trace(*events) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": list(events)}, indent=1)


def launch(correlation, ts, name="cudaLaunchKernel", tid=1, cat="cuda_runtime"):
    args = {"External id": 1, "correlation": correlation}
    return event(name, ts, 1, tid=tid, cat=cat) | {"args": args}


def kernel(correlation, dur, name="gemm_kernel", grid=(4, 1, 1), device=0, **args):
    more = {"correlation": correlation, "grid": list(grid), "block": [128, 1, 1], "device": device}
    return event(name, 500 + correlation, dur, cat="kernel") | {"args": more | args}


REPLAYED = trace(
    event(*MM[:1], 0, 10, MM[1], strides=ROWS),
    launch(1, 5),
    kernel(1, 100.0),
    event("vllm::moe_forward", 20, 10, [[5, 32]]),
    launch(2, 25, "cuLaunchKernelEx", cat="cuda_driver"),
    kernel(2, 300.0, "fused_moe_kernel"),
    launch(3, 40, "cudaGraphLaunch"),
    kernel(3, 500.0, "paged_attention", **{"graph node id": 7}),
    kernel(3, 90.0, "fused_moe_kernel", **{"graph node id": 8}),
    launch(4, 5, tid=2),
    kernel(4, 10.0, "gemm_kernel"),
)


def coverage(text, covered):
    kernels = Kernels()
    for one in json.loads(text)["traceEvents"]:
        kernels.take(one)
    return kernels.coverage(covered)


def test_time_is_covered_by_the_op_that_launched_it():
    found = coverage(REPLAYED, {("7", "1"): [(0.0, 10.0)]})
    assert found.total_s == pytest.approx(1e-3)
    assert found.total_s - sum(s for _, s in found.missed) == pytest.approx(1e-4)
    assert found.replayed_s == pytest.approx(5.9e-4)
    assert [name for name, _ in found.missed] == [
        "paged_attention",
        "fused_moe_kernel",
        "gemm_kernel",
    ]
    assert dict(found.missed)["fused_moe_kernel"] == pytest.approx(3.9e-4)


# CUDA 12 and newer name a graph with every kernel: 0 is none. ROCm names none.
@pytest.mark.parametrize(
    ("graph", "node", "replayed_s"), [(0, 0, 0), (5, 0, 5e-4), (5, 7, 5e-4), (None, None, 0)]
)
def test_a_kernel_of_graph_0_is_not_replayed(graph, node, replayed_s):
    named = {} if graph is None else {"graph id": graph, "graph node id": node}
    text = trace(launch(3, 40), kernel(3, 500.0, **named))
    assert coverage(text, {}).replayed_s == pytest.approx(replayed_s)


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_kernels_of_a_launched_graph_are_replayed(name):
    text = trace(kernel(3, 500.0), launch(3, 40, name), launch(4, 50), kernel(4, 100.0))
    assert coverage(text, {}).replayed_s == pytest.approx(5e-4)


def test_a_second_trace_in_the_file_is_reported(read, tmp_path):
    text = trace(event(*MM[:1], 0, 10, MM[1], strides=ROWS), kernel(1, 100.0))
    reading = read(f"{text}\n{text}", "t.json")
    assert (reading.workload.total, len(reading.skipped)) == (1, 1)
    path = tmp_path / "two.json"
    path.write_text(f"{text}\n{text}")
    with pytest.raises(UsageError):
        importers.read(path, Overrides())


def test_what_no_op_covers_is_told(read):
    reading = read(REPLAYED, "t.json")
    assert [call.count for call in reading.workload.calls] == [1]
    (note,) = reading.inputs[0].notes
    assert "90.0%" in note
    assert ": paged_attention 50.0%" in note
    whole = trace(event(*MM[:1], 0, 10, MM[1], strides=ROWS), launch(1, 5), kernel(1, 100.0))
    assert not read(whole, "t.json").inputs[0].notes
    without = trace(event(*MM[:1], 0, 10, MM[1], strides=ROWS))
    assert not read(without, "t.json").inputs[0].notes


def test_an_op_that_was_skipped_covers_nothing(read):
    text = trace(
        event(*MM[:1], 0, 10, MM[1], strides=ROWS),
        event("aten::convolution_backward", 20, 10, [[5, 32]]),
        launch(1, 25),
        kernel(1, 100.0),
    )
    (note,) = read(text, "t.json").inputs[0].notes
    assert note.startswith("100.0%")


def test_a_trace_of_replays_alone_is_no_workload_but_has_kernels(read):
    text = trace(launch(3, 40, "cudaGraphLaunch"), kernel(3, 500.0, "paged_attention"))
    with raises_with(UsageError) as error:
        read(text, "t.json")
    assert "kmark import" in (error.value.hint or "")


@pytest.mark.parametrize("packed", [True, False])
def test_events_that_begin_late_in_the_file(read, packed):
    noise = "".join(random.Random(1).choices("abcdefgh", k=300_000))
    call = event(*MM[:1], 0, 10, MM[1], strides=ROWS)
    text = json.dumps({"deviceProperties": [{"name": noise}], "traceEvents": [call]}).encode()
    reading = read(gzip.compress(text) if packed else text, "t.json.gz" if packed else "t.json")
    assert reading.workload.total == 1


def test_events_after_megabytes_of_something_else(read):
    """Nothing says that this is a trace but its end."""
    call = event(*MM[:1], 0, 10, MM[1], strides=ROWS)
    text = json.dumps({"metadata": "x" * 9_000_000, "traceEvents": [call]})
    assert read(text, "t.json", form="torch-trace").workload.total == 1


def test_kernels_are_history_by_their_name_and_launch_shape(tmp_path):
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(
        trace(
            kernel(1, 100.0),
            kernel(2, 120.0),
            kernel(3, 50.0, grid=(8, 1, 1)),
            kernel(4, 50.0, device=1),
            event("Memcpy HtoD", 1, 9, cat="gpu_memcpy"),
        )
    )
    found = importers.read(path, Overrides()).results
    times = {
        (one.device, one.case.problem.dims["grid_x"]): [
            round(1e6 * s) for b in one.measurement.blocks for s in b.samples_s
        ]
        for one in found
    }
    assert times == {("cuda:0", 4): [100, 120], ("cuda:0", 8): [50], ("cuda:1", 4): [50]}
    assert {one.case.problem.dims["block_x"] for one in found} == {128}


def test_kernels_of_a_packed_trace(tmp_path):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(trace(kernel(1, 100.0)).encode()))
    assert len(importers.read(path, Overrides()).results) == 1
    path.write_bytes(gzip.compress(trace(event("aten::mm", 0, 9)).encode()))
    with pytest.raises(NothingToDo):
        importers.read(path, Overrides(), "torch-trace")
