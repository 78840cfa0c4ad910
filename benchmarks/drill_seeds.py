"""Whole files of every format that is read, small and of our own making, to be damaged."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from drill_own import OWN
from kernelmark.tune import simulate
from kernelmark.workloads import importers
from kernelmark.workloads.logs import registry as log_formats
from kernelmark_dev import geko, logs

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
_NCU = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
_NCU += '"Grid Size","Device","CC",'
_NCU_ROW = '"{}","42","app","127.0.0.1","void add<float>(float *, int)","1","7","(256, 1, 1)",'
_NCU_ROW += '"(4096, 1, 1)","0","9.0",'
_EMPTY = '"",'
_NSYS = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
_NSYS += (
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
)
_DISPATCH = {
    "start_timestamp": 1000,
    "end_timestamp": 3000,
    "correlation_id": {"internal": 1, "external": 0},
    "dispatch_info": {
        "agent_id": {"handle": 77},
        "kernel_id": 3,
        "workgroup_size": {"x": 64, "y": 1, "z": 1},
        "grid_size": {"x": 1024, "y": 1, "z": 1},
    },
}
_ROCPROF = {
    "rocprofiler-sdk-tool": [
        {
            "metadata": {"pid": 9, "init_time": 1, "fini_time": 2},
            "agents": [{"id": {"handle": 77}, "node_id": 4, "name": "gfx942"}],
            "strings": {"correlation_id": {"external": [{"key": 5, "value": "range"}]}},
            "kernel_symbols": [{"kernel_id": 3, "formatted_kernel_name": "add(float*)"}],
            "callback_records": {"counter_collection": [{"dispatch_data": _DISPATCH}]},
            "buffer_records": {"kernel_dispatch": [_DISPATCH, _DISPATCH]},
        }
    ]
}
_AUTOTUNE = {
    "key": [512, 1024, "torch.float16"],
    "configs_timings": [
        [{"kwargs": {"BLOCK_M": 16}, "num_warps": 4, "num_stages": 3}, [0.02, 0.019, 0.021]],
        [{"kwargs": {"BLOCK_M": 32}, "num_warps": 8, "num_stages": 3}, [0.01, 0.009, 0.012]],
    ],
}
_TRITONBENCH = {
    "tritonbench_gemm_fwd[x_(256, 512, 64)-aten]_latency": "0.012",
    "tritonbench_gemm_fwd[x_(256, 512, 64)-triton]_tma-latency": "0.010",
    "tritonbench_gemm_fwd[x_(512, 512, 64)-aten]_latency": "CUDA out of memory",
    "tritonbench_gemm_fwd[x_average-aten]_latency": None,
    "tritonbench_gemm_fwd[aten]-latency-avg": 0.012,
}
_LOGIC = """- {MinimumRequiredVersion: 4.33.0}
- gfx950
- gfx950
- [Device 0049]
- {DataType: 7, TransposeA: 1, TransposeB: 0, UseBias: 0}
- - {SolutionIndex: 0, SolutionNameMin: Cijk_one, MacroTile0: 64}
  - {SolutionIndex: 1, SolutionNameMin: Cijk_two, MacroTile0: 128}
- [2, 3, 0, 1]
- - - [128, 256, 1, 64]
    - [0, 1000.0]
  - - [64, 64, 1, 64]
    - [1, 500.0]
- null
- null
- DeviceEfficiency
- Equality
"""
_SETTINGS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "num_warps": 4, "num_stages": 3}
_ROCPD = """
CREATE TABLE d (name TEXT, start INTEGER, end INTEGER, agent_abs_index INTEGER, grid_x INTEGER);
CREATE VIEW kernels AS SELECT * FROM d;
INSERT INTO d VALUES ('add(float*)', 1000, 3000, 4, 1024), ('add(float*)', 5000, 8000, 4, 1024);
"""
_EXPORT = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
 globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
 blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER);
INSERT INTO StringIds VALUES (1, 'void add<float>(float *, int)');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 9, 0);
INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 42);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1763236800000000001);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 0, 704643072, 1, 8, 1, 1, 256, 1, 1),
 (5000, 8000, 0, 704643072, 1, 8, 1, 1, 256, 1, 1);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (9000, 9500);
"""
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
_CUTLASS = """Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,\
alpha,beta,batch_count,op_class,accum,cta_m,Bytes,Flops,Flops/Byte,Runtime,GB/s
1,CUTLASS,gemm,k1,passed,success,universal,48,5,32,f16:column,f16:row,f32:column,f32:column,1,0,1,\
tensorop,f32,128,1,1,1,0.5,9
1,CUTLASS,gemm,k2,incorrect,success,universal,48,5,32,f16:row,f16:row,f32:row,f32:row,1,0,4,\
tensorop,f32,64,1,1,1,0.7,9
"""
_AITER = """gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,\
splitK,us,kernelName
gfx950,256,64,512,1024,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,3,7.9,_ZN5asmE
gfx942,304,80,256,5120,True,torch.bfloat16,torch.float32,False,True,triton,0,0,9.25,auto
"""
_MOE = """cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,\
use_g1u1,doweight_stage1,block_m,ksplit,us1,kernelName1,us2,kernelName2,us,_tag
80,4,2304,1536,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,\
1,0,32,0,17.8,k1,14.5,k2,32.3,
80,4,2304,1536,8,2,ActivationType.Gelu,torch.bfloat16,torch.int8,torch.int8,QuantType.per_Token,\
1,1,32,0,17.8,k1,14.5,k2,31.3,
"""
_CK = """Perf:     8.0511 ms, 136.567 TFlops, 50.0122 GB/s, Gemm_A LoopScheduler: Default, KBatch 1
Perf:     2.1725 ms, 506.113 TFlops, 185.344 GB/s, Gemm_A LoopScheduler: Default, KBatch 2
Best Perf for datatype = f16 ALayout =  RowMajor BLayout =  RowMajor M = 8192 N = 4096 K = 128 \
StrideA = 128 StrideB = 4096 StrideC = 4096 KBatch = 2 : 2.1725 ms, 506.113 TFlops, 185 GB/s, A
"""
_DRIVER = """MIOpenDriver convfp16 -n 1 -c 256 -H 512 -W 512 -k 64 -y 3 -x 3 -p 1 -q 1 -F 1 -t 1
MIOpen Forward Conv. Algorithm: 3, Solution: 139/ConvWinoFuryRxS<2-3>
stats: name, n, c, ho, wo, x, y, k, flopCnt, bytesRead, bytesWritten, GFLOPs, GB/s, timeMs
stats: fwd-conv3x3u1, 1, 256, 512, 512, 3, 3, 64,  309, 135, 134, 121792, 106, 2.539060
"""
_TUNABLE = """Validator,PT_VERSION,2.9.1
Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-
GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Hipblaslt_9,0.0125
GemmTunableOp_BFloat16_TN,tn_512_8_1024_ld_1024_1024_512,Default,0.0325
"""
# Text files by reader and by a name that a tool may give them.
TEXTS: dict[str, dict[str, str]] = {
    "calls cutlass": {"cutlass.csv": _CUTLASS},
    "times aiter_csv": {"bf16_tuned_gemm.csv": _AITER, "tuned_fmoe.csv": _MOE},
    "times ckprofiler": {"ck.log": _CK},
    "times cutlass": {"cutlass.csv": _CUTLASS},
    "times geko": {"raw_results.csv": geko.RAW, "winners.csv": geko.WINNERS},
    "calls geko": {"list.yaml": geko.LIST},
    "times miopen": {"driver.log": _DRIVER},
    "times triton_perf_report": {
        "matmul.csv": "M,N,cuBLAS (ms),Triton (Latency (us))\n"
        "384.000000,64.000000,0.004096,5.120000\n512.000000,64.000000,,inf\n"
    },
    "times tunableop": {"tunableop_results0.csv": _TUNABLE},
    "times googlebench": {"google.json": json.dumps(_GOOGLE, indent=1)},
    "times hipblaslt_bench": {
        "log.txt": f"hipBLASLt version: 100\n[0]:{_BENCH}\n    {_ROW}\n    --Solution index: 56\n"
        f"    --Solution name:  Cijk_one\n[1]:{_BENCH}\n    {_ROW.replace('T,N', 'N,T')}\n"
        "    --Solution index: 7\n"
    },
    "times nvbench": {"nvbench.json": json.dumps(_NVBENCH, indent=1)},
    "times reference_csv": {
        "rocblas-gemm.csv": "index,tag,name,M,N,K,dtype,A,B,mean_microseconds,arithmetic_intensity,"
        "tflops,ok\n0,one,blas,128,1280,2048,fp16,T,N,13.5,110.1,49.4,True\n"
        "1,two,blas,64,64,64,bf16,N,N,4.25,1.0,1.0,True\n",
        "attention.csv": "index,tag,name,B,M,N,K1,K2,dtype,mean_microseconds,arithmetic_intensity,"
        "tflops,ok\n0,llm,attention_2x128x64x32x128xf16,2,128,64,32,128,f16,31.0,512.0,8.6,True\n",
        "conv.csv": "index,tag,name,B,H,W,C,P,Q,F,S,input_dtype,output_dtype,mean_microseconds,"
        "arithmetic_intensity,tflops,ok\n0,net,conv_2d_nchw_fchw_1x7x6x4x3x3x8_f32xf32xf32_stride2,"
        "1,7,6,4,3,3,8,2,f32,f32,247.0,17.1,0.9,True\n",
    },
    "times rocprof": {
        "x_kernel_stats.csv": '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs",'
        '"MaxNs","StdDev"\n"__copy",70,172290,2461.3,8.38,601,10656,1241.3\n',
        "x_kernel_trace.csv": '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp",'
        '"Workgroup_Size_X","Grid_Size_X"\n"KERNEL_DISPATCH","Agent 7","add(float*)",1000,3000,64,8'
        '\n"KERNEL_DISPATCH","Agent 7","add(float*)",5000,8000,64,1024\n',
        "x_results.json": json.dumps(_ROCPROF, indent=1),
    },
    "times torch_trace": {"trace.json": json.dumps(_TRACE, indent=1)},
    "times tritonbench": {
        "gemm.csv": "x_val;aten-latency;aten-tflops;triton-latency\n(256, 512, 64, None);0.012;10;"
        "0.010 (±1.2%)\n(1024, 1024, 64, None);0.024;10;CUDA out of memory\n",
        "out.json": json.dumps(_TRITONBENCH, indent=4),
    },
    "times ncu": {
        "raw.csv": f'==PROF== Connected to process 42 (app)\n{_NCU}"gpu__time_duration.sum"\n'
        f'{11 * _EMPTY}"us"\n{_NCU_ROW.format(0)}"4.26"\n{_NCU_ROW.format(1)}"1,004.26"\n',
        "details.csv": f'{_NCU}"Section Name","Metric Name","Metric Unit","Metric Value","Rule"\n'
        f'{_NCU_ROW.format(0)}"Speed Of Light","Duration","ns","4,256"\n'
        f'{_NCU_ROW.format(0)}"Occupancy","","","","Rule"\n'
        f'{_NCU_ROW.format(1)}"Speed Of Light","Duration","us","4.30"\n',
        "summary.csv": f'{_NCU[5:]}"Invocations","Metric Name","Metric Unit","Minimum","Maximum",'
        f'"Average"\n{_NCU_ROW[5:]}"3","Duration","us","4.10","4.50","4.26"\n',
    },
    "times nsys": {
        "trace.csv": f"Processing [x.sqlite] with [cuda_gpu_trace.py]...\n{_NSYS}"
        "1000,2000,1,8,1,1,256,1,1,32,0.000,0.000,,,,,GPU (0),1,,7,add\n"
        "4000,50,2,,,,,,,,,,4.1,63.5,Pinned,Device,GPU (0),1,,7,[CUDA memcpy Host-to-Device]\n"
        '5000,3000,3,8,1,1,256,1,1,32,0.000,0.000,,,,,GPU (1),1,,7,"mul(int, int)"\n',
        "gb_sum.csv": "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),"
        "StdDev (ns),GridXYZ,BlockXYZ,Name\n"
        "100.0,6000,3,2000.0,2000.0,1000,3000,1000.0,   8    1    1, 256    1    1,add\n",
    },
    "times triton_autotune": {"_mm.autotune.json": json.dumps(_AUTOTUNE, indent=1)},
    "calls rocblas": {
        "rocblas.log": "rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 48 -n 5 -k 32"
        " --alpha 1 --a_type f16_r --lda 32 --b_type f16_r --ldb 32 --beta 0 --c_type f16_r"
        " --ldc 48 --d_type f16_r --ldd 48 --compute_type f32_r --algo 0 --solution_index 0"
        " --flags 0\n"
    },
    "calls tunableop": {
        "tunable.csv": "Validator,PT_VERSION,2.6.0\n"
        "GemmTunableOp_Half_NN,nn_48_5_32_ld_48_32_48,Gemm_Rocblas_3,0.01\n"
    },
    "calls aiter_csv": {
        "aiter.csv": "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,us\n"
        "gfx950,256,5,48,32,False,torch.bfloat16,torch.bfloat16,False,False,asm,7.9\n"
    },
    "calls shapes": {"shapes.csv": "m,n,k,count\n128,256,64,3\n64,64,64,1\n"},
    "calls torch_trace": {"trace.json": json.dumps(_TRACE, indent=1)},
    "times inductor": {
        "inductor.log": _INDUCTOR,
        "mm.json": '[{"(512, 1024, 2048)": [{"type": "cublas", "time": 0.06}, {"type": "triton", '
        '"time": 0.05, "BLOCK_M": 64, "num_warps": 4}, null], "kernel_type": "mm"}]',
    },
    "times miopen_find_db": {"gfx90a68.HIP.ufdb.txt": _FIND_DB},
    "calls cublaslt": {"cublaslt.log": _CUBLASLT},
    "calls inductor": {"inductor.log": _INDUCTOR},
    "calls miopen_find_db": {"gfx90a68.HIP.ufdb.txt": _FIND_DB},
    "calls miopen": {
        "miopen.log": "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 16"
        " -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -m conv -g 1 -F 1 -t 1\n"
    },
    "calls triton_autotune": {"_mm.autotune.json": json.dumps(_AUTOTUNE, indent=1)},
    "space triton-autotune": {"_mm.autotune.json": json.dumps(_AUTOTUNE, indent=1)},
    "space kernel-tuner": {
        "cache.json": json.dumps(
            {
                "tune_params_keys": ["block", "tile"],
                "tune_params": {"block": [32, 64], "tile": [1, 2]},
                "objective": "time",
                "cache": {
                    "32,1": {"block": 32, "tile": 1, "time": 1.5},
                    "64,2": {"block": 64, "tile": 2, "time": 2.5},
                },
            },
            indent=1,
        )
    },
    "space t4": {
        "t4.json": json.dumps(
            {
                "metadata": {"timeunit": "miliseconds"},
                "results": [
                    {
                        "configuration": {"block": block},
                        "invalidity": "correct",
                        "correctness": 1,
                        "objectives": ["time"],
                        "measurements": [{"name": "time", "value": 0.5 * block, "unit": "ms"}],
                    }
                    for block in (32, 64)
                ],
            },
            indent=1,
        )
    },
    "configs aiter": {"gemm.json": json.dumps({"M_LEQ_16": _SETTINGS, "any": _SETTINGS})},
    "configs sglang": {"n.json": json.dumps({"1": _SETTINGS, "64": _SETTINGS})},
    "configs vllm": {
        "n.json": json.dumps({"triton_version": "3.4.0", "1": _SETTINGS, "64": _SETTINGS})
    },
    "configs tensile": {"logic.yaml": _LOGIC},
}


def readers() -> list[str]:
    """Every reader that is registered, and those of kernelmark's own files."""
    return [
        *(f"own {name}" for name in OWN),
        *(f"times {name.replace('-', '_')}" for name in importers.registry.names()),
        *(f"calls {name.replace('-', '_')}" for name in log_formats.names()),
        *(f"space {name}" for name in simulate.FACTS),
        *(f"configs {name}" for name in ("aiter", "sglang", "vllm", "tensile")),
    ]


def seeds(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """(reader, file name, content) of files that are whole; `folder` is for what is made."""
    for reader, files in TEXTS.items():
        yield from ((reader, name, text.encode()) for name, text in files.items())
    for reader, name in (("times torch_trace", "trace.json"), ("calls rocblas", "rocblas.log")):
        yield reader, f"{name}.gz", gzip.compress(TEXTS[reader][name].encode(), mtime=0)
    for name, (file, write, _) in OWN.items():
        write(folder / file)
        yield f"own {name}", file, (folder / file).read_bytes()
    for form in ("mask32", "mask64", "mask128", "trace"):
        path = folder / form
        logs.write_log(path, calls=8, shapes=4, form=form)  # type: ignore[arg-type]
        yield "calls hipblaslt", f"{form}.log", path.read_bytes()
    yield "times rocprof", "results.db", _database(folder / "results.db", _ROCPD)
    yield "times nsys", "report.sqlite", _database(folder / "report.sqlite", _EXPORT)


def _database(path: Path, script: str) -> bytes:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    # Small pages: most of a file is then what it holds, and most damage hits it.
    connection.executescript(f"PRAGMA page_size = 512; {script}")
    connection.close()
    return path.read_bytes()
