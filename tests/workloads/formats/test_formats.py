"""Each format by a small file of our own in its shape; what is read, and what is refused."""

import contextlib
import copy
import gzip
import json
import math
import re
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides, iso_time, legal_word, name_words, problem_of
from kernelmark_dev.raising import raises, tells

GEMM_CSV = """\
index,tag,name,M,N,K,dtype,A,B,mean_microseconds,arithmetic_intensity,tflops,ok
0,one,blas,128,1280,2048,fp16,T,N,13.5,110.1,49.4,True
1,two,blas,64,64,64,bf16,N,N,4.25,1.0,1.0,True
2,three,blas,32,32,32,fp16,N,T,0,1.0,1.0,False
3,four,blas,64,64,64,bf16,N,N,4.75,1.0,1.0,True
"""
ROW_MAJOR_CSV = """\
index,tag,name,vmfb_hash,M,N,K,dtype,tA,tB,mean_microseconds,arithmetic_intensity,tflops,ok
0,a,gemm_8_8_8_f16_f32_tA,0123abcd,8,16,32,f16,T,N,2490.0,0.9,0.1,True
"""
ATTENTION_CSV = """\
index,tag,name,B,M,N,K1,K2,dtype,mean_microseconds,arithmetic_intensity,tflops,ok
0,llm,attention_2x128x64x32x128xf16,2,128,64,32,128,f16,31.0,512.0,8.6,True
1,llm,attention_2x64x64x32x128xf16,2,64,64,32,128,f16,30.0,512.0,8.6,True
"""
CONV_CSV = """\
index,tag,name,B,H,W,C,P,Q,F,S,input_dtype,output_dtype,mean_microseconds,arithmetic_intensity,tflops,ok
0,net,conv_2d_nchw_fchw_1x7x6x4x3x3x8_f32xf32xf32_stride2,1,7,6,4,3,3,8,2,f32,f32,247.0,17.1,0.9,True
1,net,conv_2d_nhwc_hwcf_q_1x7x6x4x1x1x8_i8xi8xi32_stride1,1,7,6,4,1,1,8,1,i8,i32,24.0,17.1,0.9,True
"""
HIPBLASLT = """\
hipBLASLt version: 100
Is supported 2 / Total solutions: 2
[0]:transA,transB,grouped_gemm,batch_count,m,n,k,alpha,beta,a_type,b_type,c_type,d_type,\
compute_type,scaleA,scaleB,activation_type,bias_vector,bias_type,rotating_buffer,hipblaslt-Gflops,\
hipblaslt-GB/s,us
    T,N,0,1,1024,512,256,1,0,f16_r,f16_r,f16_r,f16_r,f32_r,0,0,none,0,f16_r,512,66613.8,363.5,16.5
    --Solution index: 56537
    --Solution name:  Cijk_one
    --kernel name:    Cijk_one_kernel
[1]:transA,transB,grouped_gemm,batch_count,m,n,k,alpha,beta,a_type,b_type,c_type,d_type,\
compute_type,scaleA,scaleB,activation_type,bias_vector,bias_type,rotating_buffer,hipblaslt-Gflops,\
hipblaslt-GB/s,us
    N,T,0,3,1024,512,256,1,0,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,0,0,gelu,0,f16_r,0,1.0,3.5,17.5
    --Solution index: 7
[2]:transA,transB,grouped_gemm,batch_count,m,n,k,alpha,beta,a_type,b_type,c_type,d_type,\
compute_type,scaleA,scaleB,activation_type,bias_vector,bias_type,rotating_buffer,hipblaslt-Gflops,\
hipblaslt-GB/s,us
    N,T,0,3,64,32,16,(1,0),0,f8_r,f8_r,bf16_r,bf16_r,f32_r,0,0,none,1,f16_r,0,1.0,3.5,18.5
    --Solution index: 8
Winner:
    N,N,0,1,1,1,1,1,0,f16_r,f16_r,f16_r,f16_r,f32_r,0,0,none,0,f16_r,512,66613.8,363.5,16.5
"""
TRITONBENCH = """\
x_val;aten-latency;aten-tflops;triton-latency;triton-speedup
(256, 512, 64, None);0.012;10;0.010 (±1.2%);1.2
(1024, 1024, 64, None);0.024;10;CUDA out of memory;
average;0.018;10;0.010;1.2
"""
STATS = """\
"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"
"__copy",70,172290,2461.3,8.38,601,10656,1241.3
"""
TRACE = """\
"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"
"KERNEL_DISPATCH","Agent 7","void add<float>(float*, int)",1000,3000,64,1024
"KERNEL_DISPATCH","Agent 7","void add<float>(float*, int)",5000,8000,64,1024
"KERNEL_DISPATCH","Agent 7","void add<float>(float*, int)",9000,9500,64,2048
"""
OLD_TRACE = """\
Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,lds,scr,DispatchNs,BeginNs,EndNs,CompleteNs
0,"add(float*, int) [clone .kd]",0,1,5,5,1024,64,0,0,900,1000,3000,3100
1,"add(float*, int) [clone .kd]",0,1,5,5,1024,64,0,0,4900,5000,8000,8100
"""
GOOGLE = {
    "context": {
        "date": "2026-03-01T10:00:00+02:00",
        "host_name": "box",
        "executable": "./iree-benchmark-module",
        "library_build_type": "release",
    },
    "benchmarks": [
        *(
            {
                "name": "BM_matmul/64/k:128/process_time/real_time",
                "run_name": "BM_matmul/64/k:128/process_time/real_time",
                "run_type": "iteration",
                "repetition_index": i,
                "real_time": time,
                "cpu_time": 2 * time,
                "time_unit": "us",
            }
            for i, time in enumerate((10.0, 12.0, 11.0))
        ),
        {
            "name": "BM_matmul/64/k:128/process_time/real_time_mean",
            "run_name": "BM_matmul/64/k:128/process_time/real_time",
            "run_type": "aggregate",
            "aggregate_name": "mean",
            "real_time": 99.0,
            "time_unit": "us",
        },
        {
            "name": "BM_only_mean_mean",
            "run_name": "BM_only_mean",
            "run_type": "aggregate",
            "aggregate_name": "mean",
            "real_time": 3.0,
            "time_unit": "ms",
        },
        {"name": "BM_bad", "error_occurred": True, "error_message": "no device"},
    ],
}


def summary(tag, **values):
    data = [{"name": n, "type": "string", "value": str(v)} for n, v in values.items()]
    return {"tag": tag, "data": data}


NVBENCH = {
    "meta": {"argv": ["bench"], "version": {"nvbench": {"major": 0}}},
    "devices": [{"id": 0, "name": "GPU", "sm_version": 900, "number_of_sms": 132}],
    "benchmarks": [
        {
            "name": "Copy Sweep",
            "states": [
                {
                    "name": "Device=0 BlockSize=2^8",
                    "device": 0,
                    "axis_values": [
                        {"name": "BlockSize", "type": "int64", "value": "256"},
                        {"name": "T", "type": "type", "value": "F32"},
                    ],
                    "summaries": [
                        summary("nv/cold/time/gpu/mean", value="1.5e-05"),
                        summary(
                            "nv/json/bin:nv/cold/sample_times", filename="r.json-bin/0.bin", size=3
                        ),
                    ],
                },
                {
                    "name": "Device=0 BlockSize=2^9",
                    "device": 0,
                    "axis_values": [{"name": "BlockSize", "type": "int64", "value": "512"}],
                    "summaries": [summary("nv/cold/time/gpu/mean", value="2e-05")],
                },
                {
                    "name": "Device=0 BlockSize=2^20",
                    "device": 0,
                    "axis_values": [{"name": "BlockSize", "type": "int64", "value": "1048576"}],
                    "summaries": None,
                    "is_skipped": True,
                    "skip_reason": "too large",
                },
            ],
        }
    ],
}


def with_summaries(value):
    """NVBENCH whose first state has these summaries."""
    changed = json.loads(json.dumps(NVBENCH))
    changed["benchmarks"][0]["states"][0]["summaries"] = value
    return changed


@pytest.fixture
def read(tmp_path):
    def call(name, content, **given):
        path = tmp_path / name
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return importers.read(path, Overrides(**given))

    return call


def times_us(result):
    return [round(s * 1e6, 6) for b in result.measurement.blocks for s in b.samples_s]


def test_blas_letters_are_flipped_and_repetitions_are_blocks(read):
    found = read("golden_rocblas-gemm.csv", GEMM_CSV, arch="gfx942", device="hip:0")
    first, second, third = found.results
    assert first.case.backend == "rocblas"
    assert first.case.problem == ops.parse("gemm m=128 n=1280 k=2048 dtype=f16 ta=n tb=t")
    assert first.flops == 2 * 128 * 1280 * 2048
    assert (first.device, first.arch) == ("hip:0", "gfx942")
    assert times_us(first) == [13.5]
    assert first.measurement.warnings[0]
    assert times_us(second) == [4.25, 4.75]
    assert third.status is Status.RUNTIME_ERROR
    assert third.measurement is None


def test_row_major_letters_are_kept(read):
    (found,) = read("golden_iree_gemm_tk.csv", ROW_MAJOR_CSV).results
    assert found.case.backend == "iree-tk"
    assert found.case.problem == ops.parse("gemm m=8 n=16 k=32 dtype=f16 ta=t tb=n")
    assert found.kernel.binary_hash == "0123abcd"


def test_attention_tables(read):
    good, other = read("golden_torch_attention.csv", ATTENTION_CSV).results
    key = "attention heads=2 seq=128 dim_qk=32 dim_v=64 dtype=f16"
    assert good.case.problem == ops.parse(key)
    assert other.status is Status.WRONG, "torch was measured with as many queries as keys"
    assert read("golden_ck_attention.csv", ATTENTION_CSV).results[1].status is Status.OK


def test_convolution_tables_give_the_input_size(read):
    one, other = read("golden_iree_conv.csv", CONV_CSV).results
    assert one.case.problem == ops.parse("conv n=1 c=4 h=16 w=14 k=8 r=3 s=3 stride=2 dtype=f32")
    assert other.case.problem == ops.parse("conv n=1 c=4 h=7 w=6 k=8 r=1 s=1 dtype=i8 layout=nhwc")


def test_hipblaslt_bench(read):
    plain, gelu, batched = read("log.txt", HIPBLASLT, arch="gfx942").results
    assert plain.case.problem == ops.parse("gemm m=512 n=1024 k=256 dtype=f16 ta=n tb=t")
    assert plain.case.config == {"solution_index": 56537, "rotating_buffer": 512}
    assert plain.case.timing.cache.value == "cold"
    assert plain.kernel.name == "Cijk_one_kernel"
    assert gelu.case.problem.op == "blas_matmul"
    assert gelu.case.problem.options["activation_type"] == "gelu"
    assert gelu.case.timing.cache.value == "hot"
    assert batched.case.problem.op == "blas_matmul", "alpha is complex"
    assert times_us(batched) == [18.5]
    real = HIPBLASLT.replace("(1,0)", "1")
    batched = read("log2.txt", real, arch="gfx942").results[2]
    assert batched.case.problem == ops.parse(
        "batched_gemm batch=3 m=32 n=64 k=16 dtype=f8e4m3fnuz c=bf16 ta=t tb=n bias=yes"
    )
    other = read("log3.txt", real, arch="gfx950").results[2]
    assert other.case.problem.dtypes["a"] == "f8e4m3"


def test_tritonbench(read):
    found = read("gemm.csv", TRITONBENCH).results
    assert [r.case.backend for r in found] == ["aten", "triton", "aten", "triton"]
    assert found[0].case.problem.key == "tritonbench_gemm x=256 x_2=512 x_3=64 x_4=None"
    assert times_us(found[1]) == [10.0]
    assert found[3].status is Status.RUNTIME_ERROR
    assert found[3].error == "CUDA out of memory"


def test_rocprof_statistics_are_means(read):
    (found,) = read("1_kernel_stats.csv", STATS).results
    assert found.case.problem.key == "kernel name=__copy"
    assert times_us(found) == [2.4613]
    assert found.measurement.also["max_s"] == pytest.approx(10.656e-6)
    assert found.case.timing.timer.value == "profiler"


def test_rocprof_traces_have_samples(read):
    one, other = read("1_kernel_trace.csv", TRACE).results
    assert (times_us(one), times_us(other)) == ([2.0, 3.0], [0.5])
    assert one.kernel.name == "void add<float>(float*, int)"
    assert one.case.problem.dims == {"workgroup_size_x": 64, "grid_size_x": 1024}
    (old,) = read("results.csv", OLD_TRACE).results
    assert times_us(old) == [2.0, 3.0]
    assert old.kernel.name == "add(float*, int) [clone .kd]"
    assert old.case.problem.dims == {"wgr": 64, "grd": 1024}


def test_google_benchmark(read):
    found = read("out.json", GOOGLE)
    assert found.run.started == iso_time("2026-03-01T08:00:00+00:00")
    assert found.run.environment.host == "box"
    repeated, mean, bad = found.results
    assert repeated.case.problem.key == "bm_matmul arg=64 k=128"
    assert repeated.case.backend == "iree"
    assert times_us(repeated) == [10.0, 12.0, 11.0]
    assert repeated.measurement.also["cpu_s"] == pytest.approx(22e-6)
    assert times_us(mean) == [3000.0]
    assert (bad.status, bad.error) == (Status.RUNTIME_ERROR, "no device")


def test_nvbench_with_and_without_samples(read, tmp_path):
    sampled, mean, skipped = read("r.json", NVBENCH).results
    assert times_us(sampled) == [15.0]
    assert sampled.case.problem.key == "copy_sweep blocksize=256 t=F32"
    assert (sampled.device, sampled.arch) == ("cuda:0", "sm_90")
    assert times_us(mean) == [20.0]
    assert (skipped.status, skipped.error) == (Status.SKIPPED, "too large")

    (tmp_path / "r.json-bin").mkdir()
    (tmp_path / "r.json-bin" / "0.bin").write_bytes(struct.pack("<3f", 1e-5, 2e-5, 3e-5))
    sampled = read("r.json", NVBENCH).results[0]
    assert times_us(sampled) == pytest.approx([10.0, 20.0, 30.0])
    (tmp_path / "r.json-bin" / "0.bin").write_bytes(b"short")
    with raises(UsageError, "0.bin", 5, 12):
        read("r.json", NVBENCH)


def test_what_the_user_says_wins(read):
    found = read("golden_x-gemm.csv", GEMM_CSV, backend="mine", label="old", started=86400.0)
    assert {r.case.backend for r in found.results} == {"mine"}
    assert (found.run.label, found.run.started) == ("old", 86400.0)
    assert found.run.id.startswith("19700102-000000-")
    one, same, other = (read("golden_x-gemm.csv", GEMM_CSV, started=s) for s in (1.0, 1.0, 2.0))
    assert one == same
    assert one.run.id != other.run.id


BARE_GOOGLE = {"context": {"library_build_type": "x"}}


@pytest.mark.parametrize(
    ("name", "content", "where", "values"),
    [
        ("a-gemm.csv", GEMM_CSV.replace("13.5", "fast"), "line 2", ["'fast'"]),
        ("a-gemm.csv", GEMM_CSV.replace("13.5", "nan"), "line 2", ["'nan'"]),
        ("a-gemm.csv", GEMM_CSV.replace("13.5", '"13,5"'), "line 2", ["'13,5'"]),
        ("a-gemm.csv", GEMM_CSV.replace("13.5", ""), "line 2", ["missing"]),
        ("a-gemm.csv", GEMM_CSV.replace("fp16", "f33"), "line 2", ["f33"]),
        ("a-gemm.csv", GEMM_CSV.replace("2048", "20.5"), "line 2: K", ["'20.5'"]),
        ("a-gemm.csv", GEMM_CSV[:-3], "line 5: ok", ["'Tr'"]),
        ("a-gemm.csv", GEMM_CSV.splitlines()[0], "", ["no results"]),
        ("a-gemm.csv", GEMM_CSV[: GEMM_CSV.index("4.75") + 1], "line 5", [10, 13]),
        ("a-gemm.csv", GEMM_CSV.replace("tag", "K"), "line 1", ["'K'", "twice"]),
        ("a.csv", "M,mean_microseconds\n1,2\n", "line 2", ["problem"]),
        ("a.csv", "batch,mean_microseconds\n1,2\n", "line 1", ["'batch'"]),
        ("log.txt", HIPBLASLT.replace(",1024,512,", ",x,512,"), "line 4: m", ["'x'"]),
        ("log.txt", HIPBLASLT.replace(",256,1,0,", ",2.5,1,0,"), "line 4: k", ["'2.5'"]),
        ("log.txt", HIPBLASLT.replace(",0,0,none,", ",0,none,"), "line 4", [22, 23]),
        ("log.txt", HIPBLASLT[: HIPBLASLT.index(",256,1,0,f16_r")], "line 4", [6, 23]),
        ("log.txt", HIPBLASLT[: HIPBLASLT.index(",0,1,1024")], "line 4", ["table"]),
        ("log.txt", HIPBLASLT.replace("bias_type", "alpha", 1), "line 3", ["'alpha'", "twice"]),
        ("r.json", with_summaries(3), "benchmarks 1, states 1, summaries", ["'3'"]),
        ("r.json", with_summaries([7]), "benchmarks 1, states 1, summaries 1", ["'7'"]),
        ("r.json", {"meta": {"nvbench": 1}, "benchmarks": 3}, "benchmarks", ["'3'"]),
        ("out.json", BARE_GOOGLE, "benchmarks", ["missing"]),
        ("out.json", json.dumps(GOOGLE)[:-20], "", []),
        ("x_kernel_trace.csv", TRACE[:-40], "line 4", []),
        ("x_kernel_trace.csv", TRACE.replace("5000,8000", "8000,5000"), "line 3", [3000]),
        ("x_kernel_trace.csv", TRACE.replace("1000,", "1.62068E+14,"), "line 2", ["1.62068E+14"]),
        ("x_kernel_stats.csv", STATS[:100], "line 2", [3, 8]),
        ("gemm.csv", TRITONBENCH.replace(";10;0.010 (", ";0.010 ("), "line 2", [4, 5]),
        ("gemm.csv", TRITONBENCH[: TRITONBENCH.index("24;10;CUDA") + 4], "line 3", [3, 5]),
        ("gemm.csv", TRITONBENCH.replace("0.012", "1e999"), "", [math.inf]),
        ("x.csv", "a,b\n1,2\n", "", []),
        ("x.csv", "", "", ["empty"]),
    ],
)
def test_refused_with_file_and_position(read, tmp_path, name, content, where, values):
    with raises(KernelmarkError, f"{tmp_path / name}{where and ': '}{where}", *values) as why:
        read(name, content)
    assert why.value.hint
    assert "kmark run" not in why.value.hint


def test_a_compressed_file_is_read_as_if_it_were_not(read):
    packed = gzip.compress(TRACE.encode(), mtime=0)
    found, plain = read("x_kernel_trace.csv.gz", packed), read("x_kernel_trace.csv", TRACE)
    assert [one.measurement for one in found.results] == [one.measurement for one in plain.results]
    with raises(UsageError, "x_kernel_trace.csv.gz"):
        read("x_kernel_trace.csv.gz", packed[:-20])


LAST_ROWS = [
    ("a-gemm.csv", "M,N,K,dtype,mean_microseconds\n8,8,8,f16,1.0\n16,8,8,f16,8", [False, True]),
    ("a-gemm.csv", GEMM_CSV.rstrip(), [False, True, False]),
    ("log.txt", HIPBLASLT[: HIPBLASLT.index("16.5\n") + 3], [True]),
    ("log.txt", HIPBLASLT[: HIPBLASLT.index("56537") + 2], [True]),
    ("gemm.csv", "x_val;aten-latency\n(256, 512);0.012\n(512, 512);0.5", [False, True]),
    ("1_kernel_trace.csv", TRACE.rstrip()[:-3], [False, True]),
    ("1_kernel_stats.csv", STATS.rstrip()[:-3], [True]),
]


@pytest.mark.parametrize(("name", "content", "doubted"), LAST_ROWS)
def test_a_last_line_without_an_end_is_read_and_told(read, name, content, doubted):
    def told(text):
        found = read(name, text).results
        return [bool(importers.notes([one])) for one in found]

    assert told(content) == doubted
    assert not any(told(content + "\n"))
    assert not any(told(content + "\r\n"))
    (note,) = importers.notes(read(name, content).results)
    assert note.code == "may-be-cut"


def test_a_row_without_a_time_says_which_it_was(read):
    text = GEMM_CSV.replace("4.25,1.0,1.0,True", "0,1.0,1.0,True").replace("4.75", "0")
    first, zero, failed = read("golden_rocblas-gemm.csv", text).results
    assert first.status is Status.OK
    assert (zero.status, zero.error.code) == (Status.RUNTIME_ERROR, "times-left-out")
    assert zero.error.fields == {"count": 2, "every": 2, "first": 0.0}
    assert failed.status is Status.RUNTIME_ERROR


def google_times(*times):
    entry = {"name": "BM_a", "run_type": "iteration", "time_unit": "us"}
    return {"context": {"num_cpus": 1}, "benchmarks": [{**entry, "real_time": t} for t in times]}


def gemm_times(*times):
    head, row = GEMM_CSV.splitlines()[:2]
    return "\n".join([head, *(row.replace("13.5", str(t)) for t in times), ""])


def hipblaslt_times(*times):
    whole = HIPBLASLT[HIPBLASLT.index("[0]") : HIPBLASLT.index("[1]")]
    return "".join(whole.replace("16.5\n", f"{t}\n") for t in times)


def nvbench_times(*times):
    document = with_summaries([])
    states = document["benchmarks"][0]["states"]
    states[:] = [
        {**states[0], "summaries": [summary("nv/cold/time/gpu/mean", value=t * 1e-6)]}
        for t in times
    ]
    return document


@pytest.mark.parametrize("bad", [0.0, -3.0])
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("out.json", google_times),
        ("a-gemm.csv", gemm_times),
        ("log.txt", hipblaslt_times),
        ("r.json", nvbench_times),
    ],
)
def test_a_time_that_is_none_is_left_out_and_told_alike_in_every_format(read, name, made, bad):
    (kept,) = read(name, made(5.0, bad, 6.0)).results
    assert kept.status is Status.OK
    assert times_us(kept) == [5.0, 6.0]
    told = next(one for one in kept.measurement.warnings if one.code == "times-left-out")
    assert (told.fields["count"], told.fields["every"]) == (1, 3)
    assert told.fields["first"] == pytest.approx(bad * 1e-6)
    (lost,) = read(name, made(bad)).results
    assert (lost.status, lost.measurement) == (Status.RUNTIME_ERROR, None)
    assert lost.error.fields == {**told.fields, "every": 1}
    (note,) = importers.notes([kept])
    assert tells(note, problem=kept.case.problem.key, backend=kept.case.backend)
    assert importers.notes(read(name, made(5.0, 6.0)).results) == []


def test_samples_that_are_none_are_counted_over_the_file(read, tmp_path):
    (tmp_path / "r.json-bin").mkdir()
    (tmp_path / "r.json-bin" / "0.bin").write_bytes(struct.pack("<3f", 0.0, 2e-5, -1.0))
    (note,) = importers.notes(read("r.json", NVBENCH).results)
    assert tells(note, count=2, problem="copy_sweep blocksize=256 t=F32", backend="nvbench")
    trace = TRACE.replace("5000,8000", "5000,5000").replace("9000,9500", "9000,9000")
    found = read("1_kernel_trace.csv", trace).results
    assert [r.status for r in found] == [Status.OK, Status.RUNTIME_ERROR]
    (told,) = importers.notes(found)
    assert "2" in told


def test_many_rows_that_lost_times_are_not_all_named(read):
    rows = "".join(f"({m}, 8);0.0\n" for m in range(1, 7))
    (told,) = importers.notes(read("gemm.csv", f"x_val;aten-latency\n{rows}").results)
    assert tells(told, count=6, more=3)
    assert re.findall(r"tritonbench_gemm x=(\d) x_2=8", told) == ["1", "2", "3"]


@pytest.mark.parametrize(("name", "form"), [("none.csv", None), ("a.csv", "nosuch")])
def test_no_such_file_and_no_such_format(tmp_path, name, form):
    (tmp_path / "a.csv").write_text("x")
    with raises(UsageError, form or str(tmp_path / name)):
        importers.read(tmp_path / name, Overrides(), form)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("nvbench", b'{"meta":{"argv":[]},"devices":[{"id":0,"sm_version":900}]'),
        ("nvbench", b'{"meta":{},"benchmarks":[{"states":[{"tag":"nv/cold/time/gpu/mean"'),
        ("googlebench", b'{"context":{"num_cpus":8},"benchmarks":['),
        ("googlebench", b'{"context":{},"benchmarks":[{"name":"a","run_type":"iteration"'),
    ],
)
def test_files_that_were_shortened_are_still_known(name, head):
    known = [
        one
        for one in importers.registry.names()
        if importers.registry.find(one).recognizes("x.json", head)
    ]
    assert known == [name]


texts = st.text(max_size=12)


@settings(max_examples=200)
@given(op=texts, values=st.dictionaries(texts, texts, max_size=4))
def test_any_name_and_value_makes_a_problem_that_reads_back(op, values):
    made = problem_of(op, values)
    assert parse_key(made.key) == made


@given(st.lists(texts, min_size=2, max_size=2, unique=True))
def test_different_words_stay_different(words):
    assert legal_word(words[0]) != legal_word(words[1])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("golden_iree_gemm_tk", ["iree", "gemm", "tk"]),
        ("tot-softmax", ["softmax"]),
        ("softmax_2026-11-01", ["softmax"]),
        ("softmax_20261101T0930Z_new", ["softmax"]),
        ("gemm_64", ["gemm", "64"]),
        ("layer_norm_2048_20", ["layer", "norm", "2048", "20"]),
    ],
)
def test_a_file_s_name_without_the_run_it_is_of(name, words):
    assert name_words(Path(f"{name}.csv")) == words


def places(node, path=()):
    """Every path inside a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, value in items:
        yield (*path, name)
        if isinstance(value, dict | list):
            yield from places(value, (*path, name))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2)


@pytest.mark.parametrize(("name", "whole"), [("out.json", GOOGLE), ("r.json", NVBENCH)])
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_value_in_any_place_is_read_or_refused(tmp_path, name, whole, data):
    document = json.loads(json.dumps(whole))
    path = data.draw(st.sampled_from(list(places(document))))
    node = document
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = data.draw(JSON)
    text = json.dumps(document).replace("Infinity", "1e999")
    (tmp_path / name).write_text(text)
    form = "googlebench" if whole is GOOGLE else "nvbench"
    with contextlib.suppress(UsageError, NothingToDo):
        importers.read(tmp_path / name, Overrides(), form)


def test_a_fit_of_the_complexity_is_no_failure(read):
    document = google_times(5.0)
    document["benchmarks"] += [
        {"name": f"BM_a_{fit}", "run_name": "BM_a", "run_type": "aggregate", "aggregate_name": fit}
        for fit in ("BigO", "RMS")
    ]
    assert [one.status for one in read("out.json", document).results] == [Status.OK]


def googled(*names):
    runs = [{"name": one, "run_name": one, "real_time": 1, "time_unit": "ns"} for one in names]
    return {"context": {"library_build_type": "release"}, "benchmarks": runs}


ADD = "BM_add<float*>/8"


@pytest.mark.parametrize(
    "names",
    [
        (ADD, "BM_add<float&>/8", "BM_add<float>/8"),
        ("BM_copy/8", "BM_Copy/8", "bm_copy/8"),
        ("BM_add/n:8", "BM_add/N:8"),
        ("BM_a<x>/8", "BM_a_x/8"),
        ("BM_a/type:float*", "BM_a/type:float&"),
        ("BM_a/8", "BM_a/8/manual_time", "BM_A/8", "BM_a/8/iterations:5"),
        ("BM_a/arg:8", "BM_a/8", "BM_a/08"),
        ("BM_a__b", "BM_a_b", "BM_a_b_", "bm_a_b"),
        ("BM_a/f32/8", "BM_a/8/f32"),
    ],
)
def test_google_benchmarks_of_different_names_stay_different(read, names):
    together = {one.case.problem.key for one in read("g.json", googled(*names)).results}
    alone = {read("g.json", googled(name)).results[0].case.problem.key for name in names}
    assert (len(together), together) == (len(names), alone)


def test_a_google_benchmark_is_the_same_series_whatever_is_beside_it(read):
    def keys(*names):
        return {one.case.problem.key for one in read("g.json", googled(*names)).results}

    assert keys(ADD) & keys(ADD, "BM_add<float&>/8")
    assert not keys(ADD) & keys("BM_add<float&>/8")
    assert keys("BM_add<float>/8") < keys("BM_add<float>/8", "BM_add_float/8")
    assert keys("BM_add_float/8") == {"bm_add_float arg=8"}


def test_aggregates_of_old_google_benchmarks_are_no_benchmarks(read):
    ends = ("", "", "_mean", "_median", "_stddev")
    old = [{"name": f"BM_a/8{end}", "real_time": 3 + i} for i, end in enumerate(ends)]
    other = {"name": "BM_b_mean", "real_time": 1}
    document = {"context": {"num_cpus": 8}, "benchmarks": [*old, other]}
    every, single = read("g.json", document).results
    assert times_us(every) == pytest.approx([0.003, 0.004])
    assert single.case.problem.op == "bm_b_mean"
    document["benchmarks"] = old[2:]
    assert [times_us(one) for one in read("g.json", document).results] == [pytest.approx([0.005])]


def test_two_google_benchmarks_of_one_name_are_refused(read):
    document = google_times(1.0, 2.0)
    for family, entry in enumerate(document["benchmarks"]):
        entry["family_index"] = family
    with pytest.raises(UsageError):
        read("g.json", document)


def test_benchmarks_of_nvbench_with_similar_names_are_not_pooled(read):
    (sweep,) = NVBENCH["benchmarks"]
    document = {**NVBENCH, "benchmarks": [sweep, {**sweep, "name": "copy_sweep"}]}
    mine, other = (
        {one.case.problem.key for one in results}
        for found in [read("r.json", document).results]
        for results in (found[:3], found[3:])
    )
    assert not mine & other
    assert other == {one.case.problem.key for one in read("r.json", NVBENCH).results}


def test_the_output_dtype_of_a_table_is_read(read):
    text = CONV_CSV.replace(",i8,i32,", ",f16,f32,")
    wide = read("a-conv.csv", text).results[1].case.problem
    assert (wide.dtypes["x"], wide.dtypes["y"]) == ("f16", "f32")
    other = read("a-conv.csv", CONV_CSV.replace(",i8,i32,", ",i8,f16,")).results[1].case.problem
    assert (other.op, other.dtypes["output_dtype"]) == ("conv_plus", "f16")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a-gemm.csv", GEMM_CSV), ("x_kernel_stats.csv", STATS), ("x_kernel_trace.csv", TRACE)],
)
def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(read, name, text):
    def cases(content):
        return [(one.case.id, one.measurement) for one in read(name, content).results]

    assert cases("\ufeff" + text.replace("\n", "\r\n")) == cases(text)


def test_axes_of_nvbench_that_differ_in_case_are_not_pooled(read):
    """A name occurs twice if it was selected twice on the command line."""
    (sweep,) = NVBENCH["benchmarks"]
    renamed = copy.deepcopy(sweep)
    for state in renamed["states"]:
        for axis in state["axis_values"]:
            axis["name"] = axis["name"].lower()
    assert len(read("r.json", {**NVBENCH, "benchmarks": [sweep, sweep]}).results) == 3
    with pytest.raises(UsageError):
        read("r.json", {**NVBENCH, "benchmarks": [sweep, renamed]})


def test_two_means_of_a_state_of_nvbench_are_refused(read):
    document = nvbench_times(5.0)
    summaries = document["benchmarks"][0]["states"][0]["summaries"]
    summaries.append(copy.deepcopy(summaries[0]))
    assert len(read("r.json", document).results) == 1, "the same twice"
    summaries[1]["data"][0]["value"] = 9e-6
    with pytest.raises(UsageError):
        read("r.json", document)


def test_a_device_of_nvbench_that_is_not_listed_keeps_its_number(read):
    document = nvbench_times(5.0)
    document["benchmarks"][0]["states"][0]["device"] = 3
    assert read("r.json", document).results[0].device == "cuda:3"
