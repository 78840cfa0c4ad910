"""Drill: damaged files through every reader. Each is read or refused in one sentence, and nothing
that is read holds a time or a size that cannot be."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import itertools
import json
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from drilling import Facts, must
from kernelmark.api import micro
from kernelmark.api.reading import read_file
from kernelmark.compare.rulefile import load as load_rules
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.micro import MicroColumn, MicroResult
from kernelmark.core.plausible import MOST_SIZE, check_results, is_time
from kernelmark.core.problem import Problem
from kernelmark.core.result import ResultSet, Run, Status
from kernelmark.core.timing import Timing
from kernelmark.testing import logs
from kernelmark.testing.tuning import fake_plans
from kernelmark.tune import aiter_config, nearest_config, planfile, simulate, tensile
from kernelmark.tune.journal import Header, Journal, Trial
from kernelmark.tune.journal import read as read_journal
from kernelmark.workloads import importers, suites, workload
from kernelmark.workloads.importers.base import Given
from kernelmark.workloads.logs import reading

_BENCH = "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,beta,a_type,b_type,c_type,d_type,"
_BENCH += "compute_type,scaleA,scaleB,activation_type,bias_vector,bias_type,rotating_buffer,"
_BENCH += "hipblaslt-Gflops,hipblaslt-GB/s,us"
_ROW = "T,N,0,1,1024,512,256,1,0,f16_r,f16_r,f16_r,f16_r,f32_r,0,0,none,0,f16_r,512,66613,363,16.5"
_GOOGLE = {
    "context": {"date": "2026-03-01T10:00:00+02:00", "library_build_type": "release"},
    "benchmarks": [
        {
            "name": "BM_matmul/64/k:128/real_time",
            "run_name": "BM_matmul/64/k:128/real_time",
            "run_type": "iteration",
            "repetition_index": i,
            "real_time": 10.0 + i,
            "cpu_time": 20.0,
            "time_unit": "us",
        }
        for i in range(3)
    ],
}
_CUBLASLT = (
    "[2026-01-31 10:20:30][cublasLt][812][Trace][cublasLtTSTMatmul] A=0X7F10 Adesc=[type=R_16BF "
    "rows=64 cols=128 ld=64 batchCount=3 stridedBatchOffset=8192] B=0X7F20 Bdesc=[type=R_16BF "
    "rows=64 cols=32 ld=64 batchCount=3 stridedBatchOffset=2048] C=0X7F30 Cdesc=[type=R_16BF "
    "rows=128 cols=32 ld=128 batchCount=3 stridedBatchOffset=4096] D=0X7F30 Ddesc=[type=R_16BF "
    "rows=128 cols=32 ld=128 batchCount=3 stridedBatchOffset=4096] computeDesc=[computeType="
    "COMPUTE_32F scaleType=R_32F transa=OP_T epilogue=EPILOGUE_GELU_BIAS biasPointer=0x5] algo=["
    "algoId=21] workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=0 stream=0X0\n"
)
_FIND_DB = """16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F=SolverA:0.05,1024,miopenA;B:0.07,0,m
64-32-15-3x5-16-32-30-8-1x2-1x2-1x1-0-NHWC-NHWC-NHWC-FP16-B_g4=SolverC:0.5,0,miopenB
16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP32-F=miopenConvolutionFwdAlgoGEMM:gemm,0.25,0,x,y
"""
_INDUCTOR = """AUTOTUNE addmm(512x2048, 512x1024, 1024x2048)
strides: [0, 1], [1024, 1], [1, 1024]
dtypes: torch.bfloat16, torch.bfloat16, torch.bfloat16
  triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, num_warps=4
  bias_addmm 0.0601 ms 85.2%
  triton_mm_3 inf ms 0.0% BLOCK_K=128, num_warps=8
SingleProcess AUTOTUNE benchmarking takes 1.23 seconds and 0.5 seconds precompiling for 3 choices
"""
_NVBENCH = {
    "meta": {"argv": ["bench"], "version": {"nvbench": {"major": 0}}},
    "devices": [{"id": 0, "name": "GPU", "sm_version": 900, "number_of_sms": 132}],
    "benchmarks": [
        {
            "name": "Copy",
            "states": [
                {
                    "name": "Device=0 BlockSize=2^8",
                    "device": 0,
                    "axis_values": [{"name": "BlockSize", "type": "int64", "value": "256"}],
                    "summaries": [
                        {
                            "tag": "nv/cold/time/gpu/mean",
                            "data": [{"name": "value", "type": "float64", "value": "1.5e-05"}],
                        }
                    ],
                }
            ],
        }
    ],
}
_TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"name": "GPU", "computeMajor": 9, "computeMinor": 0}],
    "traceEvents": [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "ts": 10.0,
            "dur": 5.0,
            "pid": 1,
            "tid": 1,
            "args": {
                "External id": 1,
                "Input Dims": [[64, 128], [128, 256]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
                "Input Strides": [[128, 1], [256, 1]],
                "Concrete Inputs": ["", ""],
            },
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm_kernel",
            "ts": 12.0,
            "dur": 3.0,
            "pid": 0,
            "tid": 7,
            "args": {"External id": 1, "device": 0, "grid": [8, 1, 1], "block": [128, 1, 1]},
        },
    ],
}
# Files of results by a name that says the format.
RESULTS: dict[str, str] = {
    "rocblas-gemm.csv": "index,tag,name,M,N,K,dtype,A,B,mean_microseconds,arithmetic_intensity,"
    "tflops,ok\n0,one,blas,128,1280,2048,fp16,T,N,13.5,110.1,49.4,True\n"
    "1,two,blas,64,64,64,bf16,N,N,4.25,1.0,1.0,True\n",
    "attention.csv": "index,tag,name,B,M,N,K1,K2,dtype,mean_microseconds,arithmetic_intensity,"
    "tflops,ok\n0,llm,attention_2x128x64x32x128xf16,2,128,64,32,128,f16,31.0,512.0,8.6,True\n",
    "conv.csv": "index,tag,name,B,H,W,C,P,Q,F,S,input_dtype,output_dtype,mean_microseconds,"
    "arithmetic_intensity,tflops,ok\n0,net,conv_2d_nchw_fchw_1x7x6x4x3x3x8_f32xf32xf32_stride2,"
    "1,7,6,4,3,3,8,2,f32,f32,247.0,17.1,0.9,True\n",
    "log.txt": f"hipBLASLt version: 100\n[0]:{_BENCH}\n    {_ROW}\n    --Solution index: 56537\n"
    f"    --Solution name:  Cijk_one\n[1]:{_BENCH}\n    {_ROW.replace('T,N', 'N,T')}\n"
    "    --Solution index: 7\n",
    "gemm.csv": "x_val;aten-latency;aten-tflops;triton-latency\n(256, 512, 64, None);0.012;10;"
    "0.010 (±1.2%)\n(1024, 1024, 64, None);0.024;10;CUDA out of memory\n",
    "x_kernel_stats.csv": '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs",'
    '"MaxNs","StdDev"\n"__copy",70,172290,2461.3,8.38,601,10656,1241.3\n',
    "x_kernel_trace.csv": '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp",'
    '"Workgroup_Size_X","Grid_Size_X"\n"KERNEL_DISPATCH","Agent 7","add(float*)",1000,3000,64,1024'
    '\n"KERNEL_DISPATCH","Agent 7","add(float*)",5000,8000,64,1024\n',
    "google.json": json.dumps(_GOOGLE, indent=1),
    "nvbench.json": json.dumps(_NVBENCH, indent=1),
    "trace.json": json.dumps(_TRACE, indent=1),
    "inductor.log": _INDUCTOR,
    "gfx90a68.HIP.ufdb.txt": _FIND_DB,
    "mm.json": '[{"(512, 1024, 2048)": [{"type": "cublas", "time": 0.06}, {"type": "triton", '
    '"time": 0.05, "BLOCK_M": 64, "num_warps": 4}, null], "kernel_type": "mm"}]',
    "k.autotune.json": json.dumps(
        {
            "key": [512, 1024, "torch.float16"],
            "configs_timings": [
                [{"kwargs": {"BLOCK_M": 16}, "num_warps": 4, "num_stages": 3}, [0.02, 0.01, 0.03]],
                [{"kwargs": {"BLOCK_M": 32}, "num_warps": 8, "num_stages": 3}, 0.015],
            ],
        },
        indent=1,
    ),
}
LOGS: dict[str, str] = {
    "rocblas.log": "rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 48 -n 5 -k 32 --alpha"
    " 1 --a_type f16_r --lda 32 --b_type f16_r --ldb 32 --beta 0 --c_type f16_r --ldc 48 --d_type"
    " f16_r --ldd 48 --compute_type f32_r --algo 0 --solution_index 0 --flags 0\n",
    "tunable.csv": "Validator,PT_VERSION,2.6.0\n"
    "GemmTunableOp_Half_NN,nn_48_5_32_ld_48_32_48,Gemm_Rocblas_3,0.01\n",
    "aiter.csv": "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,us\n"
    "gfx950,256,5,48,32,False,torch.bfloat16,torch.bfloat16,False,False,asm,7.9\n",
    "cublaslt.log": _CUBLASLT,
    "inductor.log": _INDUCTOR,
    "gfx90a68.HIP.ufdb.txt": _FIND_DB,
    "shapes.csv": "m,n,k,count\n128,256,64,3\n64,64,64,1\n",
    "trace.json": json.dumps(_TRACE, indent=1),
    "miopen.log": "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 1 -c 3"
    " -H 32 -W 32 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -g 1 -m conv -F 1 -t 1\n",
}
_PLAN = fake_plans(1)[0]
_SETTINGS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4}
_SPACE = {
    "tune_params_keys": ["block", "mode"],
    "tune_params": {"block": [64, 32], "mode": ["a", "b"]},
    "objective": "time",
    "cache": {
        "32,a": {"block": 32, "mode": "a", "time": 2.0},
        "64,b": {"block": 64, "mode": "b", "time": 0.5},
    },
}
_LOGIC = """- {MinimumRequiredVersion: 4.33.0}
- gfx950
- gfx950
- [Device 0049]
- {DataType: 7, TransposeA: 1, TransposeB: 0, UseBias: 0}
- - {SolutionIndex: 0, SolutionNameMin: one, DepthU: 64}
- [2, 3, 0, 1]
- - [[64, 64, 1, 64], [0, 0.5]]
- null
- null
- DeviceEfficiency
- Equality
"""
_HEADER = Header(
    plan="p",
    space="s",
    problem=_PLAN.problem.key,
    backend="fake",
    version="1",
    kernelmark_version="0",
    arch="fake",
    model="a script",
    device="fake",
    batch=2,
    ahead=1,
    starts=({"a": 1},),
)
_TRIAL = Trial(config={"a": 1}, step="short", status=Status.OK, seconds=1e-5, at=1.7e9)
_MICRO = MicroResult(
    benchmark="cache",
    device="cuda:0",
    arch="sm_90",
    status=Status.OK,
    started=1.7e9,
    model="NVIDIA H200",
    columns=(MicroColumn(name="size_bytes", unit="B"), MicroColumn(name="bytes_per_s")),
    rows=({"size_bytes": 4096, "bytes_per_s": 3.2e13},),
)


def _journal(path: Path) -> None:
    journal = Journal(path)
    journal.begin(_HEADER)
    journal.record(_TRIAL)
    journal.close()


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


# What writes a whole file, and what reads it; a time that was read is returned.
OTHERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Iterable[float] | None]]] = {
    "suite.toml": (
        _text(
            'why = "x"\nsource = "y"\ndtype = "f32"\n[[problems]]\nop = "gemm"\n'
            'm = "[64:256:*2]"\nn = 1\nk = [64, 128]\n'
        ),
        lambda path: _none(suites.load(str(path))),
    ),
    "rules.toml": (_text('rule = "robust"\n'), lambda path: _none(load_rules(str(path)))),
    "timing.toml": (
        _text('preset = "quick"\nmax_s = 0.5\nwarmup_s = 0.1\nprocesses = 2\ncache = "hot"\n'),
        lambda path: (Timing.load(str(path)).max_s,),
    ),
    f"{_PLAN.name}.toml": (_text(planfile.text(_PLAN)), lambda path: _none(planfile.read(path))),
    "trials.jsonl": (
        _journal,
        lambda path: [one.seconds for one in read_journal(path)[1] if one.seconds is not None],
    ),
    "workload.csv": (
        lambda path: workload.write(
            path, workload.Workload(name="x", calls=(workload.Call(problem=_PLAN.problem),))
        ),
        lambda path: _none(workload.read(path)),
    ),
    "micro.json": (
        _text(micro.to_json([_MICRO])),
        lambda path: _none(micro.read(path)),
    ),
    "space.json": (_text(json.dumps(_SPACE)), lambda path: (simulate.read(path).best_s,)),
    "aiter.json": (
        _text(json.dumps({"M_LEQ_16": _SETTINGS, "any": _SETTINGS})),
        lambda path: _none(aiter_config.read(path)),
    ),
    "vllm.json": (
        _text(json.dumps({"1": _SETTINGS, "64": _SETTINGS})),
        lambda path: _none(nearest_config.parse(_decoded(path), path.name, "vllm")),
    ),
    "logic.yaml": (_text(_LOGIC), lambda path: _none(tensile.parse(_decoded(path), path.name))),
}


def _none(read: object) -> None:
    """What was read holds no time."""


def _decoded(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_EXTREMES = [
    *(b"-1", b"0", b"1e40", b"-9e9", b"1e999", b"-0.0", b"nan", b"inf", b"1e-320", b"0x10"),
    *(str(2**64).encode(), str(2**63).encode(), str(-(2**63)).encode(), b"9" * 5000, b"", b"1.5"),
]
_SIGNS = [b"\x00", b"\xff", b"\x1b[31m", b",", b'"', b"\n", b"{", b"[", b"]", b"\\", b"\r", b" "]


def mutated(data: bytes, source: random.Random) -> bytes:
    """`data` damaged in one to three places."""
    for _ in range(source.randint(1, 3)):
        data = _damage(data, source)
    return data


def _damage(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data) + 1)
    numbers = list(_NUMBER.finditer(data))
    kind = source.choice(("number", "number", "byte", "insert", "cut", "drop", "twice", "word"))
    if kind == "number" and numbers:
        one = source.choice(numbers)
        return data[: one.start()] + source.choice(_EXTREMES) + data[one.end() :]
    if kind == "byte" and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
    if kind == "insert":
        return data[:at] + source.choice(_SIGNS) + data[at:]
    if kind == "cut":
        return data[:at]
    lines = data.split(b"\n")
    place = source.randrange(len(lines))
    if kind == "drop":
        del lines[place]
    elif kind == "twice":
        lines.insert(place, lines[place])
    else:
        words = lines[place].split(b",")
        source.shuffle(words)
        lines[place] = b",".join(words)
    return b"\n".join(lines)


def _own(folder: Path) -> str:
    """A results file of our own, made from one of another tool."""
    path = folder / "rocblas-gemm.csv"
    path.write_text(RESULTS["rocblas-gemm.csv"])
    found = importers.read(path, Given())
    run = Run(id="drill", started=1.0, environment=Environment(), cases=len(found.results))
    return json.dumps(codec.to_document(ResultSet(run=run, results=found.results)), indent=1)


def seeds(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """(reader, file name, content) of files that are whole."""
    yield "own", "own.json", _own(folder).encode()
    yield from (("tool", name, text.encode()) for name, text in RESULTS.items())
    for form in ("mask32", "mask64", "mask128", "trace"):
        path = folder / form
        logs.write_log(path, calls=8, shapes=4, form=form)  # type: ignore[arg-type]
        yield "logs", f"{form}.log", path.read_bytes()
    yield from (("logs", name, text.encode()) for name, text in LOGS.items())
    # Text that gzip compressed: the damage is in what is packed.
    for reader, name, texts in (("tool", "trace.json", RESULTS), ("logs", "rocblas.log", LOGS)):
        yield reader, f"{name}.gz", gzip.compress(texts[name].encode(), mtime=0)
    for name, (write, _) in OTHERS.items():
        write(folder / name)
        yield "others", name, (folder / name).read_bytes()


def read_one(reader: str, path: Path) -> str:
    """How reading a file ended: `read`, `refused`, or what must not be."""
    try:
        if reader == "own":
            return _absurd(read_file(str(path)))
        if reader == "tool":
            importer = importers.recognized(path)
            # The reader itself: what it did not foresee must not hide behind the last resort.
            return "refused" if importer is None else _absurd(importer.read(path, Given()))
        if reader == "logs":
            calls = reading.read([str(path)]).workload.calls
            good = all(_possible(c.problem) and 0 < c.count < 16 * MOST_SIZE for c in calls)
            return "read" if good else "absurd value"
        times = OTHERS[path.name][1](path) or ()
        return "read" if all(map(is_time, times)) else "absurd value"
    except KernelmarkError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def _absurd(found: ResultSet) -> str:
    check_results(found)
    for result in found.results:
        blocks = result.measurement.blocks if result.measurement else ()
        times = [time_s for block in blocks for time_s in block.samples_s]
        if not all(map(is_time, times)) or not _possible(result.case.problem):
            return "absurd value"
    return "read"


def _possible(problem: Problem) -> bool:
    return all(0 <= size < MOST_SIZE for size in problem.dims.values())


def damaged_files(count: int) -> Facts:
    """Mutated files of every format: 100,000 for a `count` of 100, 4,000 for one of 20."""
    ended: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    jobs = min(4, len(os.sched_getaffinity(0)))
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        for some, unforeseen in pool.map(_damaged, range(count), itertools.repeat(10 * count)):
            ended += some
            bad += unforeseen
    must(not bad, f"{len(bad)} kinds: {'; '.join(list(bad)[:5])}")
    return {"files": sum(ended.values()), "formats": _formats(), **ended}


def _formats() -> int:
    with tempfile.TemporaryDirectory() as name:
        return len(list(seeds(Path(name))))


def _damaged(seed: int, count: int) -> tuple[Counter[str], Counter[str]]:
    """How many files ended how, and what must not be."""
    source = random.Random(seed)
    ended: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    # In memory where that is possible: writing the files would take most of the time.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name, contextlib.chdir(name):
        folder = Path(name)
        every = list(seeds(folder))
        for reader, file, content in every:
            (folder / file).write_bytes(content)
            how = read_one(reader, folder / file)
            if how != "read":
                bad[f"the whole {file} is {how}"] += 1
        for number in range(count):
            reader, file, content = every[number % len(every)]
            (folder / file).write_bytes(mutated(content, source))
            how = read_one(reader, folder / file)
            ended[how if how in ("read", "refused") else "unforeseen"] += 1
            if how not in ("read", "refused"):
                bad[f"{file}: {how} (seed {seed}, file {number})"] += 1
    return ended, bad
