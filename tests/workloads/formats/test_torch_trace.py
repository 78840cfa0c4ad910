"""Traces of the PyTorch profiler: each call once, by the operator that does the work; kernels."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.formats._aten import LEAVES, WRAPPERS
from kernelmark.workloads.formats.torch_trace import BROKEN, CUT_OFF, Kernels, readers
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises


def event(name, ts, dur, dims=None, types="float", strides=None, values=None, tid=1, **more):
    args = {"External id": 1}
    if dims is not None:
        args["Input Dims"] = dims
        args["Input type"] = [types if dim else "" for dim in dims]
        args["Concrete Inputs"] = values or [""] * len(dims)
    if strides is not None:
        args["Input Strides"] = strides
    ran = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}
    return ran | {"args": args} | more


def trace(*events):
    head = {"schemaVersion": 1, "deviceProperties": [{"name": "x"}], "record_shapes": 1}
    return json.dumps(head | {"traceEvents": list(events), "traceName": "t.json"}, indent=1)


MM = ("aten::mm", [[5, 32], [32, 48]])
ROWS = [[32, 1], [1, 32]]
ONE = event(MM[0], 0, 10, MM[1], strides=ROWS)  # a product


def products(count, step=10):
    return [ONE | {"ts": step * i, "dur": 9} for i in range(count)]


def keys(reading):
    return [(call.count, call.problem.key) for call in reading.workload.calls]


def test_a_product_is_counted_once_however_deep_it_is(read, told):
    text = trace(
        event("aten::linear", 0, 100, [[5, 32], [48, 32], []]),
        event("aten::t", 1, 2, [[48, 32]]),
        event("aten::matmul", 4, 90, MM[1], strides=ROWS),
        event(*MM[:1], 5, 80, MM[1], strides=ROWS),
        event("aten::mm", 200, 10, MM[1], strides=ROWS, tid=2),
        event("aten::mm", 201, 3, MM[1], strides=ROWS, cat="kernel"),
        event("aten::relu", 300, 10, [[5, 48]]),
    )
    reading = read(text, "t.json")
    gemm = "gemm m=5 n=48 k=32 a=f32 b=f32 c=f32 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=no"
    assert keys(reading) == [(2, gemm)]
    assert not told(reading)
    assert read(gzip.compress(text.encode()), "t.json.gz").workload.calls[0].count == 2


def test_what_wraps_counts_where_nothing_is_inside(read):
    dims = [[2, 5, 32], [48, 32], [48]]
    text = trace(
        event("aten::linear", 0, 100, dims, "c10::BFloat16"),
        event("aten::matmul", 10, 50, [[2, 5, 32], [32, 48]], "c10::BFloat16"),
        event("aten::linear", 200, 100, dims, "c10::BFloat16"),
        event("aten::_linear_of_others", 210, 50, dims),
    )
    (first, second) = read(text).workload.calls
    assert {first.problem.options["bias"], second.problem.options["bias"]} == {True, False}
    assert first.problem.dims == second.problem.dims == {"m": 10, "n": 48, "k": 32}


GEMM, BATCHED = "gemm m=5 n=48 k=32", "batched_gemm batch=3 m=5 n=48 k=32"
FULL = f"{GEMM} a=f32 b=f32 c=f32 acc=f32 ta=n tb="
A_BY_B, BATCH = [[5, 32], [32, 48]], [[3, 5, 32], [3, 32, 48]]


@pytest.mark.parametrize(
    ("name", "dims", "strides", "values", "problem", "lost"),
    [
        ("mm", A_BY_B, [[32, 1], [48, 1]], [], GEMM, ()),
        ("mm", A_BY_B, [[1, 5], [48, 1]], [], GEMM, ()),
        ("mm", A_BY_B, [[40, 1], [48, 1]], [], GEMM, ("ldb",)),
        ("mm", A_BY_B, [[0, 0], [48, 1]], [], GEMM, ("layout",)),
        ("mm", A_BY_B, None, [], GEMM, ("layout",)),
        ("mm", [[1, 32], [32, 1]], [[99, 1], [1, 77]], [], "gemm m=1 n=1 k=32", ()),
        ("bmm", BATCH, [[160, 32, 1], [1536, 1, 32]], [], BATCHED, ()),
        ("bmm", BATCH, [[0, 32, 1], [1536, 1, 32]], [], BATCHED, ("stride_b",)),
        (
            *("addmm", [[48], *A_BY_B], [[1], [32, 1], [1, 32]], ["1", "1"]),
            *(f"{FULL}t alpha=1.0 beta=0.0 bias=yes", ()),
        ),
        (
            *("addmm", [[5, 48], *A_BY_B], [[48, 1], [32, 1], [48, 1]], ["0.5", "2"]),
            *(f"{FULL}n alpha=2.0 beta=0.5 bias=no", ()),
        ),
        (
            *("baddbmm", [[3, 5, 48], *BATCH], [[240, 48, 1], [160, 32, 1], [1536, 48, 1]]),
            *(["1", "1"], BATCHED, ()),
        ),
        (
            *("_addmm_activation", [[48], *A_BY_B], [[1], [32, 1], [1, 32]], ["1", "1", "True"]),
            *(GEMM, ("activation_type",)),
        ),
    ],
)
def test_products(read, name, dims, strides, values, problem, lost):
    """`values` are those of the scalars, which follow the tensors."""
    scalars = [[]] * len(values)
    text = trace(
        event(
            *(f"aten::{name}", 0, 9, [*dims, *scalars]),
            strides=None if strides is None else [*strides, *scalars],
            values=[*[""] * len(dims), *values] if values else None,
        )
    )
    (call,) = read(text).workload.calls
    assert call.problem.key.startswith(problem)
    assert call.lost == lost


def test_scaled_products_say_their_output(read):
    dims = [[16, 32], [32, 48], [16, 1], [1, 48], [], [], [], []]
    ran = event("aten::_scaled_mm", 0, 9, dims, strides=[[32, 1], [1, 32]] + [[]] * 6)
    ran["args"]["Input type"] = ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2 + ["", "", "Scalar", ""]
    ran["args"]["Concrete Inputs"] = ["", "", "", "", "", "", "15", "False"]
    (call,) = read(trace(ran), arch="gfx942").workload.calls
    assert call.problem.key.startswith("gemm_epilogue m=16 n=48 k=32 a=f8e4m3 b=f8e4m3 c=bf16")
    assert call.problem.options["scale"] == "row"
    assert call.lost == ()
    assert call.blas["scaleA"] == "2"


FLASH = "aten::_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(
    ("name", "strides", "values", "layout", "causal"),
    [
        (FLASH, [4096, 1024, 32, 1], ["", "", "", "0.", "True", "False", ""], "bhsd", "yes"),
        (FLASH, [4096, 32, 128, 1], ["", "", "", "0.", "False", "False", ""], "bshd", "no"),
        (
            "aten::scaled_dot_product_attention",
            [4096, 1024, 32, 1],
            ["", "", "", "", "0.", "True", "", "False"],
            "bhsd",
            "yes",
        ),
        (
            "aten::_scaled_dot_product_efficient_attention",
            [4096, 1024, 32, 1],
            ["", "", "", "", "True", "0.", "False", "0.25"],
            "bhsd",
            "no",
        ),
    ],
)
def test_attention(read, name, strides, values, layout, causal):
    dims = [[2, 4, 32, 32]] * 3 + [[]] * (len(values) - 3)
    ran = event(name, 0, 9, dims, "c10::Half", [strides] * 3 + [[]] * (len(values) - 3), values)
    inner = event("aten::bmm", 2, 3, [[8, 32, 32], [8, 32, 32]], "c10::Half")
    (call,) = read(trace(ran, *([inner] if name == FLASH else []))).workload.calls
    scale = "0.25" if "0.25" in values else "auto"
    assert call.problem.key == (
        "attention batch=2 heads_q=4 heads_kv=4 seq_q=32 seq_kv=32 dim_qk=32 dim_v=32 q=f16 kv=f16 "
        f"o=f16 acc=f32 causal={causal} scale={scale} layout={layout}"
    )
    assert not call.lost


def test_attention_by_products_is_products(read):
    dims = [[2, 4, 16, 32]] * 3
    text = trace(
        event("aten::scaled_dot_product_attention", 0, 100, [*dims, [], [], [], [], []]),
        event("aten::_scaled_dot_product_attention_math", 1, 90, dims),
        event("aten::bmm", 5, 10, [[8, 16, 32], [8, 32, 16]]),
        event("aten::bmm", 50, 10, [[8, 16, 16], [8, 16, 32]]),
    )
    assert [call.problem.op for call in read(text).workload.calls] == ["batched_gemm"] * 2


@pytest.mark.parametrize(
    ("strides", "layout"), [([1568, 196, 14, 1], "nchw"), ([1568, 1, 112, 8], "nhwc")]
)
def test_convolutions_cover_what_computes_them(read, strides, layout):
    dims = [[2, 8, 14, 14], [16, 4, 3, 3], [16], [], [], [], [], [], []]
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"]
    text = trace(
        event("aten::conv2d", 0, 100, dims[:7]),
        event("aten::convolution", 1, 90, dims, strides=[strides, [36, 9, 3, 1]], values=values),
        event("aten::addmm_", 5, 10, [[8, 49], [8, 36], [36, 49], [], []]),
    )
    (call,) = read(text).workload.calls
    assert call.problem.key == (
        "conv n=2 c=8 h=14 w=14 k=16 r=3 s=3 stride_h=2 stride_w=2 pad_h=1 pad_w=1 dilation_h=1 "
        f"dilation_w=1 groups=2 x=f32 y=f32 acc=f32 layout={layout}"
    )
    assert call.lost == ("bias",)


def test_what_cannot_be_read_is_told_with_its_line(read, told):
    good = ONE
    text = trace(
        good,
        event("aten::mm", 20, 9, [[5, 32], [33, 48]]),
        event("aten::mm", 40, 9, MM[1], types="c10::complex<float>"),
        event("aten::convolution_backward", 60, 9, MM[1]),
        event("aten::bmm", 80, 9),
    )
    reading = read(text)
    assert reading.workload.total == 1
    lines = text.splitlines()
    for line, reason in told(reading):
        assert lines[line - 1].strip() == "{"
        assert reason.split()[0] in ("mm", "bmm", "convolution_backward")
    assert len(reading.skipped) == 4


def test_a_trace_without_shapes_says_how_to_record_them(read):
    with raises(UsageError):
        read(trace(event("aten::mm", 0, 9), event("aten::mm", 10, 9)))


def test_a_trace_that_ends_early_keeps_what_it_has(read, told):
    text = trace(*products(50))
    reading = read(text[: len(text) // 2])
    assert 20 <= reading.workload.total <= 26
    assert told(reading)[-1][1] == CUT_OFF


def test_a_broken_event_costs_one_event(read, told):
    text = trace(*products(9))
    at = text.index('"ts": 40')
    reading = read(text[:at] + '"ts": oops' + text[at + 8 :])
    assert reading.workload.total == 8
    assert [reason for _, reason in told(reading)] == [BROKEN]
    assert read(json.dumps(products(3))).workload.total == 3  # events alone are a trace too


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
sizes = st.lists(st.lists(st.integers(-2, 40), max_size=5), max_size=9)
recorded = st.fixed_dictionaries(
    {},
    optional={
        "Input Dims": sizes | anything,
        "Input type": st.lists(st.sampled_from(["float", "c10::Half", "int", ""]), max_size=9)
        | anything,
        "Input Strides": sizes | anything,
        "Concrete Inputs": st.lists(st.sampled_from(["", "1", "15", "True", "[1, 1]", "nan"]))
        | anything,
    },
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted([*LEAVES, *WRAPPERS])), recorded, anything), max_size=5
    ),
    st.integers(0, 4000),
    st.booleans(),
)
def test_no_trace_breaks_the_reader(ran, at, cut):
    events = [
        event(name, 10 * i, 9) | {"args": args, "dur": extra}
        for i, (name, args, extra) in enumerate(ran)
    ]
    text = trace(*events)
    text = text[: at % len(text)] if cut else text
    lines = []
    for line, found in readers[0].document([text.encode()], LogOptions()):
        lines.append(line)
        assert found if isinstance(found, str) else found.problem.key
    assert lines == sorted(lines)


def test_nothing_is_too_deep(read, told):
    text = trace(ONE)
    deep = text.replace('"traceEvents": [', '"traceEvents": [' + "[" * 100_000, 1)
    reading = read(deep)
    assert reading.workload.total == 1
    line = 1 + deep[: deep.index("[[[")].count("\n")
    assert told(reading) == [(line, BROKEN)]


def launch(correlation, ts, name="cudaLaunchKernel", tid=1, cat="cuda_runtime"):
    args = {"External id": 1, "correlation": correlation}
    return event(name, ts, 1, tid=tid, cat=cat) | {"args": args}


def kernel(correlation, dur, name="gemm_kernel", grid=(4, 1, 1), device=0, **args):
    more = {"correlation": correlation, "grid": list(grid), "block": [128, 1, 1], "device": device}
    return event(name, 500 + correlation, dur, cat="kernel") | {"args": more | args}


REPLAYED = trace(
    ONE,
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
    ("launcher", "graph", "node", "replayed_s"),
    [
        ("cudaLaunchKernel", 0, 0, 0),
        ("cudaLaunchKernel", 5, 0, 5e-4),
        ("cudaLaunchKernel", 5, 7, 5e-4),
        ("cudaLaunchKernel", None, None, 0),
        ("cudaGraphLaunch", None, None, 5e-4),
        ("hipGraphLaunch", None, None, 5e-4),
    ],
)
def test_kernels_of_a_graph_are_replayed(launcher, graph, node, replayed_s):
    named = {} if graph is None else {"graph id": graph, "graph node id": node}
    text = trace(kernel(3, 500.0, **named), launch(3, 40, launcher), launch(4, 50), kernel(4, 9.0))
    assert coverage(text, {}).replayed_s == pytest.approx(replayed_s)


def test_a_second_trace_in_the_file_is_reported(read, tmp_path):
    text = trace(ONE, kernel(1, 100.0))
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
    whole = trace(ONE, launch(1, 5), kernel(1, 100.0))
    assert not read(whole, "t.json").inputs[0].notes
    without = trace(ONE)
    assert not read(without, "t.json").inputs[0].notes


def test_an_op_that_was_skipped_covers_nothing(read):
    text = trace(
        ONE, event("aten::convolution_backward", 20, 10, [[5, 32]]), launch(1, 25), kernel(1, 100.0)
    )
    (note,) = read(text, "t.json").inputs[0].notes
    assert note.startswith("100.0%")


def test_a_trace_of_replays_alone_is_no_workload_but_has_kernels(read):
    text = trace(launch(3, 40, "cudaGraphLaunch"), kernel(3, 500.0, "paged_attention"))
    with raises(UsageError) as error:
        read(text, "t.json")
    assert "kmark import" in (error.value.hint or "")


@pytest.mark.parametrize("packed", [True, False])
def test_events_that_begin_late_in_the_file(read, packed):
    noise = "".join(random.Random(1).choices("abcdefgh", k=300_000))
    text = json.dumps({"deviceProperties": [{"name": noise}], "traceEvents": [ONE]}).encode()
    reading = read(gzip.compress(text) if packed else text, "t.json.gz" if packed else "t.json")
    assert reading.workload.total == 1
    # Nothing says that this is a trace but its end.
    text = json.dumps({"metadata": "x" * 9_000_000, "traceEvents": [ONE]})
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


def test_two_values_of_a_key_are_refused(tmp_path, read, told):
    path = tmp_path / "t.json"
    kernel = event("k", 0, 5, cat="kernel")
    text = trace(ONE, kernel).replace('"dur": 5', '"dur": 5, "dur": 9')
    path.write_text(text)
    with pytest.raises(UsageError):
        importers.read(path, Overrides())
    shapes = json.dumps(MM[1], indent=1)
    twice = trace(ONE).replace('"Input type"', f'"Input Dims": {shapes},\n"Input type"')
    assert not told(read(twice, "t.json")), "the same value"
    other = twice.replace("48", "64", 1)
    reading = read(
        other.replace('"traceEvents": [', f'"traceEvents": [{json.dumps(ONE)},'), "t.json"
    )
    assert len(told(reading)) == 1
