"""Every reader of files that the registries know, as times and as calls: line ends, a byte order
mark, gzip and a missing last newline change nothing, and no row is lost without being named."""

import gzip
import json
from pathlib import Path

import pytest

from kernelmark.core.errors import KernelmarkError
from kernelmark.workloads import importers, logs
from kernelmark.workloads.calls import LogOptions
from kernelmark_dev import geko

BLAS = (
    "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,beta,a_type,b_type,c_type,d_type,"
    "compute_type,scaleA,scaleB,activation_type,bias_vector"
)
BLAS_ROW = "T,N,0,1,{m},32,128,1,0,f16_r,f16_r,f16_r,f16_r,f32_r,0,0,none,0"
CUTLASS = (
    "Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,"
    "split_k_slices,batch_count,op_class,accum,Bytes,Runtime,GB/s\n"
    "1,CUTLASS,gemm,k2,passed,success,universal,48,5,32,f16:row,f16:row,f16:row,f16:row,1,0,1,1,"
    "tensorop,f32,1,0.5,9.25\n"
    "2,CUTLASS,gemm,k1,passed,success,universal,64,5,32,f16:row,f16:row,void:row,f16:row,1,0,1,1,"
    "tensorop,f32,1,0.75,9.25\n"
)
AITER = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,tflops\n"
    "gfx950,256,5,48,64,False,torch.bfloat16,torch.bfloat16,False,False,asm,3,0,7.9,12.5\n"
    "gfx950,256,8,48,64,False,torch.bfloat16,torch.bfloat16,False,False,asm,3,0,9.9,12.5\n"
)
TUNABLE = (
    "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    "GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Hipblaslt_9,0.0125\n"
    "GemmTunableOp_BFloat16_TN,tn_512_8_1024_ld_1024_1024_512,Gemm_Hipblaslt_12,0.0325\n"
)
FIND_DB = "".join(
    f"16-32-30-3x5-{k}-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F=A:0.0525,0,miopenConvolutionFwdAlgoDirect\n"
    for k in (64, 128)
)
DRIVER = "".join(
    f"MIOpenDriver convfp16 -n 1 -c 256 -H 512 -W 512 -k {k} -y 3 -x 3 -p 1 -q 1 -F 1 -t 1\n"
    "MIOpen Forward Conv. Algorithm: 3, Solution: 139/ConvWino\n"
    f"stats: fwd-conv3x3u1, 1, 256, 512, 512, 3, 3, {k},  309, 135, 134, 121792, 106, 2.539060\n"
    for k in (32, 64)
)
MIOPEN = "".join(
    "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 8 -c 3 -H 32 -W 30 "
    f"-k {k} -y 3 -x 5 -p 1 -q 2 -u 1 -v 2 -l 1 -j 1 -m conv -g 1 -F 1 -t 1\n"
    for k in (32, 64)
)
INDUCTOR = "".join(
    f"AUTOTUNE mm({m}x1024, 1024x2048)\nstrides: [1024, 1], [1, 1024]\n"
    "dtypes: torch.bfloat16, torch.bfloat16\n"
    "  triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', BLOCK_K=64, num_warps=4\n"
    "  mm 0.0601 ms 85.2%\n"
    for m in (512, 256)
)
CUBLASLT = "".join(
    "[2026-01-31 10:20:30][cublasLt][812][Trace][cublasLtMatmul] A=0X10 Adesc=[type=R_16BF rows=64 "
    f"cols={n} ld=64] B=0X20 Bdesc=[type=R_16BF rows=64 cols=32 ld=64] C=0X30 Cdesc=[type=R_16BF "
    f"rows={n} cols=32 ld={n}] D=0X30 Ddesc=[type=R_16BF rows={n} cols=32 ld={n}] "
    "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T] algo=[algoId=21] "
    "workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=0 stream=0X0\n"
    for n in (128, 256)
)
COMMAND = (
    "{client} {letters} T --transB N -m {m} -n 32 -k 128 --alpha 1 --lda 128 --ldb 128 --beta 0 "
    "--ldc {m} --ldd {m} --a_type f16_r --b_type f16_r --c_type f16_r --d_type f16_r "
    "--compute_type f32_r\n"
)
AUTOTUNE = json.dumps(
    {
        "key": [512, 1024, 64, "torch.float16"],
        "configs_timings": [
            [{"kwargs": {"BLOCK_M": block}, "num_warps": 4}, [0.02, 0.019, 0.021]]
            for block in (16, 32)
        ],
    }
)
TRACE = json.dumps(
    {
        "schemaVersion": 1,
        "traceEvents": [
            {
                "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 1, "ts": 0,
                "dur": 9,
                "args": {"External id": 1, "Input Dims": [[5, 32], [32, 48]],
                         "Input type": ["float", "float"], "Concrete Inputs": ["", ""]},
            },
            {
                "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 3, "dur": 2,
                "args": {"grid": [4, 1, 1], "block": [64, 1, 1], "device": 0, "stream": 7},
            },
        ],
    },
    indent=1,
)  # fmt: skip
GOOGLE = json.dumps(
    {
        "context": {"library_build_type": "release"},
        "benchmarks": [
            {"name": f"BM_copy/{size}", "real_time": 12.5, "time_unit": "ns"} for size in (8, 16)
        ],
    }
)
NVBENCH = json.dumps(
    {
        "meta": {"version": {"nvbench": {"major": 0}}},
        "devices": [{"id": 0, "name": "GPU", "sm_version": 900}],
        "benchmarks": [
            {
                "name": "copy",
                "states": [
                    {
                        "device": 0,
                        "axis_values": [{"name": "N", "type": "int64", "value": size}],
                        "summaries": [
                            {
                                "tag": "nv/cold/time/gpu/mean",
                                "data": [{"name": "value", "type": "float64", "value": "1.5e-05"}],
                            }
                        ],
                    }
                    for size in ("8", "16")
                ],
            }
        ],
    }
)
NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","gpu__time_duration.sum"\n'
    + ",".join(['""'] * 11)
    + ',"ns"\n'
    + "".join(
        f'"{i}","42","app","h","{name}","1","7","(256, 1, 1)","(8, 1, 1)","0","9.0","4,256"\n'
        for i, name in enumerate(("add", "mul"))
    )
)
NSYS = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    '92.1,5800,4,1450.0,1350.0,100,3000,1300.0,"void add<float>"\n'
    "7.9,500,1,500.0,500.0,500,500,0.0,mul\n"
)
ROCPROF = (
    '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
    '"KERNEL_DISPATCH","Agent 7","add",1000,3000\n'
    '"KERNEL_DISPATCH","Agent 7","mul",4000,9500\n'
)
CK = "".join(
    f"Perf:     {ms} ms, 136.567 TFlops, 50.0122 GB/s, Gemm_A LoopScheduler: Default, KBatch 1\n"
    "Best Perf for datatype = f16 ALayout =  RowMajor BLayout =  RowMajor M = 8192 N = 4096 "
    f"K = {k} StrideA = 128 StrideB = 4096 KBatch = 2 : {ms} ms, 506.113 TFlops, 185 GB/s, A\n"
    for k, ms in ((128, 8.0511), (256, 12.5))
)
REFERENCE = (
    "M,N,K,dtype,A,B,mean_microseconds,ok\n128,64,32,fp16,T,N,13.5,True\n"
    "64,64,64,bf16,N,N,4.25,True\n"
)
BENCH = "".join(
    f"[0]:{BLAS},rotating_buffer,hipblaslt-Gflops,us\n    {BLAS_ROW.format(m=m)},512,1,{us}\n"
    f"    --Solution index: {m}7\n    --kernel name:    Cijk_kernel_{m}\n"
    for m, us in ((16, 7.25), (48, 9.75))
)
# Files with at least two results, the last of which is of the last line, by format.
TIMES = {
    "aiter-csv": ("bf16_tuned_gemm.csv", AITER),
    "ckprofiler": ("ck.log", CK),
    "cutlass": ("c.gemm.csv", CUTLASS),
    "geko": (
        "winners.csv",
        f"{geko.WINNERS}{geko.WINNERS.splitlines()[1].replace('T,N', 'N,N')}\n",
    ),
    "googlebench": ("out.json", GOOGLE),
    "hipblaslt-bench": ("out.txt", BENCH),
    "inductor": ("log.txt", INDUCTOR),
    "miopen": ("driver.log", DRIVER),
    "miopen-find-db": ("gfx942.ufdb.txt", FIND_DB),
    "ncu": ("ncu.csv", NCU),
    "nsys": ("nsys.csv", NSYS),
    "nvbench": ("out.json", NVBENCH),
    "reference-csv": ("golden_rocblas-gemm.csv", REFERENCE),
    "rocprof": ("1_kernel_trace.csv", ROCPROF),
    "torch-trace": ("trace.json", TRACE),
    "triton-autotune": ("_matmul.autotune.json", AUTOTUNE),
    "triton-perf-report": (
        "matmul.csv",
        "M,cuBLAS (ms)\n384.000000,0.004096\n512.000000,0.005120\n",
    ),
    "tritonbench": ("gemm.csv", "x_val;aten-latency\n(256, 512);0.0125\n(512, 512);0.0525\n"),
    "tunableop": ("tunableop_results0.csv", TUNABLE),
}
ROCBLAS_TABLE = "".join(
    f"transA,transB,M,N,K,a_type,compute_type,rocblas-Gflops,us\nT,N,{m},32,16,f16_r,f32_r,1,7.5\n"
    for m in (48, 64)
)
CALLS = {
    "aiter-csv": ("bf16_tuned_gemm.csv", AITER),
    "cublaslt": ("a.log", CUBLASLT),
    "cutlass": ("c.gemm.csv", CUTLASS),
    "geko": ("list.yaml", geko.LIST + "  - [16, 64, 4, 128]\n"),
    "hipblaslt": (
        "a.log",
        "".join(
            COMMAND.format(client="hipblaslt-bench", letters="--transA", m=m) for m in (48, 64)
        ),
    ),
    "inductor": ("log.txt", INDUCTOR),
    "miopen": ("a.log", MIOPEN),
    "miopen-find-db": ("gfx942.ufdb.txt", FIND_DB),
    "rocblas": ("a.csv", ROCBLAS_TABLE),
    "shapes": ("a.csv", "M,N,K,count\n64,64,32,12\n128,64,32,25\n"),
    "torch-trace": ("trace.json", TRACE),
    "triton-autotune": ("_matmul.autotune.json", AUTOTUNE),
    "tunableop": ("tunableop_results0.csv", TUNABLE),
}
READERS = [
    *(("times", name, *TIMES[name]) for name in TIMES),
    *(("calls", name, *CALLS[name]) for name in CALLS),
]
OPTIONS = LogOptions(dtype="f16", key="gemm m,n,k,a")


def as_times(path, form):
    """The results of a file, and whether something in it was doubted."""
    results = importers.read(path, importers.Overrides(), form).results
    rows = {
        (r.case.id, r.device, r.status, r.measurement and r.measurement.blocks) for r in results
    }
    return rows, any(note.code == "may-be-cut" for note in importers.notes(results))


def as_calls(path, form):
    """The calls of a log, and whether a line was skipped or doubted."""
    reading = logs.read([str(path)], form=form, options=OPTIONS)
    rows = {(c.problem.key, c.count, c.blas, c.lost) for c in reading.workload.calls}
    notes = [note for log in reading.inputs for note in log.notes if note.startswith("line ")]
    return rows, bool(len(reading.skipped) or notes)


@pytest.fixture(params=READERS, ids=lambda sample: f"{sample[0]}-{sample[1]}")
def sample(request, tmp_path):
    """A reader, how to read its sample with other bytes, and the text."""
    kind, form, name, text = request.param
    read = as_times if kind == "times" else as_calls

    def call(data, name=name):
        path = tmp_path / name
        path.write_bytes(data)
        return read(path, form)

    return call, name, text


def test_every_reader_has_a_sample():
    """Here, or in a contract test of its own."""
    own = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert not set(importers.registry.names()) - {*TIMES, *own}
    assert not set(logs.registry.names()) - {*CALLS, *own}


def test_the_form_of_a_file_changes_nothing(sample):
    read, name, text = sample
    whole = read(text.encode())
    assert whole[0]
    assert not whole[1]
    assert read(text.replace("\n", "\r\n").encode()) == whole
    assert read(b"\xef\xbb\xbf" + text.encode()) == whole
    assert read(gzip.compress(text.encode(), mtime=0), f"{name}.gz") == whole
    assert read(text.rstrip("\n").encode())[0] == whole[0]


def test_a_cut_in_the_last_line_is_named_and_loses_no_other_row(sample):
    read, name, text = sample
    whole, _ = read(text.encode())
    begin = text.rstrip("\n").rindex("\n") + 1 if "\n" in text.rstrip("\n") else 0
    for end in range(begin + 1, len(text)):
        try:
            rows, is_named = read(text[:end].encode())
        except KernelmarkError as error:
            refused = error.message
        else:
            refused = ""
        if refused:
            assert name in refused, text[begin:end]
            continue
        assert len(whole - rows) <= 1, text[begin:end]
        assert rows == whole or is_named, text[begin:end]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("reference-csv", "dtype", "batch"),  # was ignored
        ("ckprofiler", "Perf:     8.0511 ms", "Perf:     8051.1 us"),
        ("miopen", "stats: fwd", "stats: name, timeUs\nstats: fwd"),
    ],
)
def test_what_may_change_a_time_or_its_problem_is_refused(tmp_path, name, old, new):
    file, text = TIMES[name]
    (tmp_path / file).write_text(text.replace(old, new, 1))
    with pytest.raises(KernelmarkError):
        importers.read(tmp_path / file, importers.Overrides(), name)


def test_an_unknown_argument_of_a_blas_row_is_part_of_its_problem(tmp_path):
    path = tmp_path / "out.txt"
    text = BENCH.replace(",rotating", ",new_mode,rotating")
    path.write_text(text.replace(",512,1,", ",5,512,1,"))
    results = importers.read(path, importers.Overrides()).results
    assert {result.case.problem.dims["new_mode"] for result in results} == {5}


def test_an_unknown_column_of_calls_is_named(tmp_path):
    path = tmp_path / "bf16_tuned_gemm.csv"
    path.write_text(AITER.replace("tflops", "alpha"))
    assert any("alpha" in note for note in logs.read([str(path)]).inputs[0].notes)
    path.write_text(AITER)
    assert logs.read([str(path)]).inputs[0].notes == ()
