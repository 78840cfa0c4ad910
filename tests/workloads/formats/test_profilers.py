"""Times of profilers and tuners: CUTLASS, aiter, TunableOp, MIOpenDriver, ckProfiler."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark_dev.raising import raises, tells


@pytest.fixture
def times(tmp_path):
    """Results by problem, backend and config: `times(text, name="a.csv")`."""

    def call(text, name="a.csv"):
        path = tmp_path / name
        path.write_text(text)
        return importers.read(path, importers.Overrides()).results

    return call


def us(result):
    return [
        round(time_s * 1e6, 4) for block in result.measurement.blocks for time_s in block.samples_s
    ]


PLAIN = "1,1,tensorop,f32"
GEMM = (
    "Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,"
    "split_k_slices,batch_count,op_class,accum,cta_m,cta_n,Bytes,Flops,Flops/Byte,Runtime,GB/s\n"
)


def gemm(
    kernel="k1", a="f16:column", b="f16:row", c="f32:column", rest="1,1,tensorop,f32", ms="0.5"
):
    return (
        f"1,CUTLASS,gemm,{kernel},passed,success,universal,48,5,32,{a},{b},{c},{c},1,0,{rest},128,"
        f"64,1,1,1,{ms},9\n"
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (gemm(), "gemm m=5 n=48 k=32 a=f16 b=f16 c=f32 acc=f32 ta=t tb=n"),
        (gemm(c="f32:row"), "gemm m=48 n=5 k=32 a=f16 b=f16 c=f32 acc=f32 ta=t tb=n"),
        (
            gemm(a="f16:row", b="f16:column", c="f32:row"),
            "gemm m=48 n=5 k=32 a=f16 b=f16 c=f32 acc=f32 ta=n tb=t",
        ),
        (
            gemm(a="f16:row", b="f16:column", rest="1,7,tensorop,f32"),
            "batched_gemm batch=7 m=5 n=48 k=32 a=f16 b=f16 c=f32 acc=f32 ta=n tb=t",
        ),
    ],
)
def test_a_gemm_of_cutlass_as_call_and_as_time(times, read, row, problem):
    (result,) = times(f"notes\n\nCSV Results:\n\n{GEMM}{row}")
    assert result.case.problem.key.startswith(f"{problem} ")
    assert (us(result), result.case.backend) == ([500.0], "cutlass")
    assert dict(result.case.config) == {"kernel": "k1", "split_k_slices": 1}
    (call,) = read(GEMM + row + row.replace("k1", "k2"), "a.csv").workload.calls
    assert (call.problem, call.count) == (result.case.problem, 1)


def test_kernels_of_cutlass_are_not_pooled(times):
    rows = [gemm("k1"), gemm("k2", ms="0.7"), gemm("k1", rest="4,1,tensorop,f32", ms="0.9")]
    results = times(GEMM + "".join(rows))
    found = {tuple(result.case.config.values()): us(result) for result in results}
    assert found == {("k1", 1): [500.0], ("k1", 4): [900.0], ("k2", 1): [700.0]}
    assert times(GEMM + rows[0])[0].case in {result.case for result in results}


def test_tags_and_unknown_columns_of_cutlass_keep_rows_apart(times):
    head = GEMM.replace("Problem,", "clock,Problem,").replace("cta_m", "new,cta_m")
    rows = [
        f"{tag},{gemm(rest=f'1,1,tensorop,f32,{new}', ms=ms)}"
        for tag, new, ms in (("low", 1, 0.5), ("high", 1, 0.4), ("low", 2, 0.6))
    ]
    found = {
        (r.case.config["clock"], r.case.config["new"]): us(r) for r in times(head + "".join(rows))
    }
    assert found == {("low", 1): [500.0], ("high", 1): [400.0], ("low", 2): [600.0]}


def test_what_failed_in_cutlass_is_a_failure(times):
    text = GEMM + gemm("k1").replace("passed", "incorrect")
    text += gemm("k2").replace("success", "error_internal")
    assert [result.status for result in times(text)] == [Status.WRONG, Status.RUNTIME_ERROR]


CONV = (
    "Problem,Provider,OperationKind,Operation,Disposition,Status,conv_kind,n,h,w,c,k,r,s,p,q,pad_h,"
    "pad_w,stride_h,stride_w,dilation_h,dilation_w,Activation,Filter,Output,conv_mode,alpha,beta,"
    "op_class,accum,cta_m,Bytes,Flops,Flops/Byte,Runtime,GB/s\n"
    "1,CUTLASS,conv2d,k1,passed,success,fprop,8,224,224,128,64,3,3,224,224,1,1,1,1,1,1,f16:nhwc,"
    "f16:nhwc,f32:nhwc,cross,1,0,tensorop,f32,64,1,1,1,0.719,9\n"
)


def test_a_convolution_of_cutlass_has_its_dtypes_and_layout(times, read):
    (result,) = times(CONV)
    problem = result.case.problem
    assert (problem.dtypes["x"], problem.dtypes["y"]) == ("f16", "f32")
    assert (problem.options["layout"], problem.dims["k"], us(result)) == ("nhwc", 64, [719.0])
    assert read(CONV, "a.csv").workload.calls[0].problem == problem


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("fprop", "dgrad"),
        CONV.replace("cross", "conv"),
        GEMM + gemm(a="cf32:column"),
        GEMM + gemm(a="f16:interleaved"),
        GEMM + gemm().replace("universal", "planar_complex"),
        GEMM + gemm().replace(",gemm,", ",spgemm,"),
    ],
)
def test_what_no_op_computes_is_no_call_and_a_time_of_its_arguments(times, read, text):
    head, row = text.splitlines()
    (result,) = times(text)
    assert result.case.problem.op.startswith("cutlass_")
    plain = times(GEMM + gemm() if head in GEMM else CONV)[0].case.problem
    both = times(f"{head}\n{(GEMM + gemm() if head in GEMM else CONV).splitlines()[1]}\n{row}\n")
    assert [one.case.problem for one in both] == [plain, result.case.problem]
    with pytest.raises(UsageError):
        read(text, "a.csv")


def test_a_kernel_of_cutlass_without_a_time_is_a_failed_result(times):
    good, bad = times(GEMM + gemm() + gemm("k2", ms="nan"))
    assert (good.status, bad.status) == (Status.OK, Status.RUNTIME_ERROR)


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("224,224,1,1,1", "112,224,1,1,1"),
        GEMM + gemm() + GEMM + gemm(),
        GEMM + gemm().replace("0.5", "x"),
        GEMM + gemm(a="cf32:column").replace(",48,", ",4.5,"),
    ],
)
def test_a_damaged_table_of_cutlass_is_refused(times, text):
    with pytest.raises(UsageError):
        times(text)


BF16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,"
    "err_ratio,tflops,bw\n"
)
MOE = (
    "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
    "use_g1u1,doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us\n"
)


def test_times_of_aiter_s_tables_are_per_gpu_and_kernel(times):
    row = "{},256,64,512,1024,False,torch.bfloat16,torch.bfloat16,False,{},asm,5,3,{},k,0.0,1,1\n"
    text = BF16 + row.format("gfx950", False, 7.5) + row.format("gfx942", False, 9.5)
    text += row.format("gfx950", True, 8.5) + row.format("gfx950", False, "inf").replace("64", "65")
    results = times(text, "bf16_tuned_gemm.csv")
    assert [us(result) for result in results[:3]] == [[7.5], [9.5], [8.5]]
    assert [result.arch for result in results] == ["gfx950", "gfx942", "gfx950", "gfx950"]
    plain, other, shuffled, failed = results
    assert plain.case == other.case
    assert plain.case.problem.op == "gemm"
    assert shuffled.case.problem != plain.case.problem, "its weights are stored otherwise"
    assert dict(plain.case.config) == {"library": "asm", "solution_index": 5, "split_k": 3}
    assert failed.status is Status.RUNTIME_ERROR


@pytest.mark.parametrize(("units", "dtype"), [("304", "f8e4m3fnuz"), ("256", "f8e4m3")])
def test_fp8_of_a_table_without_an_architecture_is_that_of_its_units(times, units, dtype):
    head = "cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
    row = f"{units},16,1536,7168,3,0,9.5,a8w8_bpreshuffle_x,1,1,0.0\n"
    (result,) = times(head + row, "a8w8_bpreshuffle_tuned_gemm.csv")
    assert dtype in result.case.problem.key


@pytest.mark.parametrize(
    ("cells", "lost"),
    [
        ("Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0", ()),
        ("Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0", ("act_type",)),
        (
            "Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,1",
            ("q_type", "doweight_stage1", "q_dtype_a", "q_dtype_w"),
        ),
    ],
)
def test_tables_of_aiter_s_fused_moe(times, read, cells, lost):
    text = f"{MOE}80,4,2304,1536,8,2,ActivationType.{cells},32,0,17.8,k1,0.0%,14.5,k2,0.0%,32.3\n"
    (call,) = read(text, "tuned_fmoe.csv").workload.calls
    assert dict(call.problem.dims) == {"m": 4, "n": 1536, "k": 2304, "e": 8, "top_k": 2}
    assert tuple(name.partition("=")[0] for name in call.lost) == lost
    (result,) = times(text, "tuned_fmoe.csv")
    assert us(result) == [32.3]
    assert (result.case.problem.op == "moe") == (not lost)
    other = text.splitlines()[1].replace("k1", "k3").replace("32.3", "31.1")
    (first,) = times(f"{text}{other}\n", "tuned_fmoe.csv")
    assert (us(first), first.case) == ([32.3], result.case), "aiter keeps the first"
    (note,) = importers.notes([first])
    assert tells(note, count=1)
    tagged = "".join(
        f"{line},{tag}\n"
        for line, tag in zip(
            [*text.splitlines(), other], ("_tag", "", "flydsl_fallback"), strict=True
        )
    )
    assert len(times(tagged, "tuned_fmoe.csv")) == 2, "the fallback has a table of its own"


TUNABLE = (
    "Validator,PT_VERSION,2.9.1\nValidator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    "GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Hipblaslt_9,0.0125\n"
    "GemmTunableOp_BFloat16_TN,tn_512_8_1024_ld_1024_1024_512,Default,0.0325\n"
)


def test_times_of_tunableop(times):
    results = times(TUNABLE)
    assert [(us(r), r.case.backend, r.arch) for r in results] == [
        ([12.5], "hipblaslt", "gfx942"),
        ([32.5], "torch", "gfx942"),
    ]
    assert results[0].case.problem.key.startswith("gemm m=16 n=512 k=1024 a=bf16")
    with pytest.raises(UsageError):
        times(TUNABLE + "GemmTunableOp_BFloat16_TN,tn_512_8_1024\n")


def test_a_solution_of_tunableop_without_a_time_is_a_failed_result(times):
    """A solution that was not timed has an infinite time, as in a file of vLLM's repository."""
    failed = times(TUNABLE + "GemmTunableOp_Half_TN,tn_57344_32768_8192,Default,inf\n")[-1]
    assert (failed.status, failed.measurement) == (Status.RUNTIME_ERROR, None)


DRIVER = (
    "MIOpenDriver convfp16 -n 1 -c 256 -H 512 -W 512 -k 64 -y 3 -x 3 -p 1 -q 1 -F 1 -t 1\n"
    "PRNG seed: 12345678\n"
    "MIOpen Forward Conv. Algorithm: 3, Solution: 139/ConvWinoFuryRxS<2-3>\n"
    "GPU Kernel Time Forward Conv. Elapsed: 2.539060 ms (average)\n"
    "stats: name, n, c, ho, wo, x, y, k, flopCnt, bytesRead, bytesWritten, GFLOPs, GB/s, timeMs\n"
    "stats: fwd-conv3x3u1, 1, 256, 512, 512, 3, 3, 64,  309, 135, 134, 121792, 106, 2.539060\n"
)


def test_statistics_of_miopendriver(times):
    (result,) = times(DRIVER, "a.log")
    assert us(result) == [2539.06]
    assert result.case.problem.key.startswith("conv n=1 c=256 h=512 w=512 k=64 r=3 s=3")
    assert result.kernel.name == "ConvWinoFuryRxS<2-3>"
    backward = DRIVER.replace("-F 1", "-F 2").replace("fwd-conv", "bwdd-conv")
    assert times(backward, "a.log")[0].case.problem.op == "miopen_bwdd"
    for text in (
        DRIVER.partition("\n")[2] + "MIOpenDriver",
        DRIVER.replace("-k 64", "-k 32"),
        DRIVER + "Forward Convolution FAILED: 0.37 > 1.5e-06\n",
        DRIVER + "Forward Convolution Failed: 0.37 > 1.5e-06\n",
        backward.replace("-F 2", "-F 2 -m trans"),
        backward.replace("-F 2", "-F 2 -_ 3"),
    ):
        with pytest.raises(UsageError):
            times(text, "a.log")


CK = (
    "Perf:     8.0511 ms, 136.567 TFlops, 50.0122 GB/s, Gemm_A LoopScheduler: Default, KBatch 1\n"
    "Perf:     2.1725 ms, 506.113 TFlops, 185.344 GB/s, Gemm_A LoopScheduler: Default, KBatch 2\n"
    "Best Perf for datatype = f16 ALayout =  RowMajor BLayout =  RowMajor M = 8192 N = 4096 "
    "K = 128 StrideA = 128 StrideB = 4096 KBatch = 2 : 2.1725 ms, 506.113 TFlops, 185 GB/s, A\n"
)


def test_kernels_of_ckprofiler(times):
    results = times(CK, "ck.log")
    assert [us(result) for result in results] == [[8051.1], [2172.5]]
    assert {dict(result.case.problem.dims)["m"] for result in results} == {8192}
    assert len({result.case for result in results}) == 2
    conv = "Perf: 8 ms, 1 TFlops, 1 GB/s, Conv\nBest configuration parameters:\n"
    for text in (
        CK + CK.splitlines()[0],
        CK.replace("M = 8192", ""),
        CK.replace("8.0511", "8,1"),
        CK.replace("KBatch 1", "KBatch"),
        CK.replace("Best Perf", "Bes\nPerf") + CK.replace("2.1725", "4.5"),
        CK.replace("8.0511", "1.0511"),
        conv + CK,
        conv.replace("Best configuration parameters:", " ALayout =  RowMajor") + CK,
        "Error: Incorrect results!\n" + CK,
    ):
        with pytest.raises(UsageError):
            times(text, "ck.log")


def test_kernels_of_ckprofiler_with_one_name_and_runs_of_other_splits_are_not_pooled(times):
    short = CK.replace(", KBatch 1", "").replace(", KBatch 2", "")
    assert [us(result) for result in times(short, "ck.log")] == [[8051.1], [2172.5]]
    other = short.replace("KBatch = 2", "KBatch = 4")
    assert len(times(short + other, "ck.log")) == 4
    assert [len(us(result)) for result in times(short + short, "ck.log")] == [2, 2]


def test_of_two_rows_of_a_key_pytorch_reads_the_first(times):
    again = TUNABLE.splitlines()[-1].replace("0.0325", "0.0925")
    first, kept = times(f"{TUNABLE}{again}\n")
    assert (us(first), us(kept)) == ([12.5], [32.5])
    (note,) = importers.notes([first, kept])
    assert tells(note, count=1, problem=kept.case.problem.key)
    first, kept = times(f"{TUNABLE}{again.replace('Default', 'Gemm_Rocblas_7')}\n")
    assert (us(kept), kept.case.backend) == ([32.5], "torch"), "another solution is ignored too"
    assert len(importers.notes([first, kept])) == 1


def test_biases_of_several_types_stay_apart(times):
    row = "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_512_8_1024_ld_1024_1024"
    rows = "".join(
        f"{row}_512_rw_0_bias_{bias},Gemm_Hipblaslt_9,0.{time}\n"
        for bias, time in (("Float", 1), ("BFloat16", 2))
    )
    assert [us(one) for one in times(rows)] == [[100.0], [200.0]]


AITER_ROW = (
    "gfx950,256,64,512,1024,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,3,{},k,0,1,1"
)


def test_two_rows_of_a_key_are_refused_as_aiter_refuses_them(times):
    row, other = AITER_ROW.format(7.5), AITER_ROW.format(9.5)
    assert [us(one) for one in times(f"{BF16}{row}\n{row}\n", "bf16_tuned_gemm.csv")] == [[7.5]]
    for second in (other, row.replace(",asm,5,3,", ",hipblaslt,7,0,")):
        with raises(UsageError, "line 3"):
            times(f"{BF16}{row}\n{second}\n", "bf16_tuned_gemm.csv")


def test_a_column_that_is_not_known_keeps_rows_of_aiter_apart(times):
    text = (
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,gelu,libtype,solidx,splitK,us\n"
        "gfx942,304,16,64,64,False,torch.bfloat16,torch.bfloat16,False,False,{},asm,1,0,{}\n"
    )
    row = text.splitlines(keepends=True)[1]
    both = text.format("True", 99) + row.format("False", 12)
    assert sorted(us(result)[0] for result in times(both, "tuned_gemm.csv")) == [12, 99]


@pytest.mark.parametrize("time", ["0", "-1", "inf"])
def test_a_row_of_aiter_without_a_time_is_a_failure(times, time):
    row = AITER_ROW.replace(",64,512,", ",65,512,").format(time)
    text = f"{BF16}{AITER_ROW.format(7.5)}\n{row}\n"
    good, bad = times(text, "bf16_tuned_gemm.csv")
    assert (good.status, bad.status) == (Status.OK, Status.RUNTIME_ERROR)
    assert len(importers.notes([good, bad])) == (time != "inf")


@pytest.mark.parametrize(
    ("head", "row", "device"),
    [
        ("cu_num,", "304,", "gfx942 with 304 CUs"),
        ("cu_num,", "120,", "GPU with 120 CUs"),
        ("gfx,", "gfx950,", "gfx950"),
        ("", "", "unknown"),
    ],
)
def test_the_device_of_a_table_without_names_is_described(times, head, row, device):
    text = f"{head}M,N,K,q_dtype_w,us\n{row}16,1536,7168,torch.int8,9.5\n"
    (one,) = times(text, "a8w8_tuned_gemm.csv")
    assert one.device == device


@pytest.mark.parametrize(
    "text",
    [
        "cu_num,M,N,K,q_dtype_w,us,kernelName\n304,16,1536,7168,fp8,9.5,x\n",
        "gfx,M,N,K,q_dtype_w,us,kernelName\n"
        "gfx942,16,1536,7168,torch.float8_e4m3fnuz,9.5,a8w8_blockscale_x\n",
        "cu_num,M,N,K,us,kernelName\n80,16,1536,7168,9.5,a8w8_bpreshuffle_x\n",
    ],
)
def test_calls_and_times_of_an_aiter_table_are_of_the_same_problem(times, read, text):
    (time,), (call,) = times(text), read(text, "a.csv").workload.calls
    assert call.problem.dtypes["a"] == "f8e4m3fnuz"
    assert importers.exact_problem(call) == time.case.problem


def test_a_cutlass_table_without_its_last_newline_doubts_the_last_row_alone(times):
    results = times(GEMM + gemm("k2") + gemm("k1").rstrip())
    doubted = {r.case.config["kernel"] for r in results if importers.notes([r])}
    assert doubted == {"k1"}


def test_a_kernel_that_reads_no_c_is_a_gemm_without_beta(times):
    row = gemm().replace("f32:column,f32:column,1,0", "void:column,f32:column,1,1")
    assert "void" in row
    assert times(GEMM + row)[0].case.problem == times(GEMM + gemm())[0].case.problem


def test_the_output_of_a_convolution_may_be_given_in_part(times):
    text = CONV.replace(",p,q,", ",q,").replace("3,3,224,224,", "3,3,224,")
    assert times(text)[0].case.problem == times(CONV)[0].case.problem
    with raises(UsageError, "112"):
        times(text.replace("3,3,224,", "3,3,112,"))


def test_an_unknown_option_of_miopendriver_is_another_problem(times, read):
    plain, odd = times(DRIVER, "a.log"), times(DRIVER.replace("-t 1", "-t 1 -Q 3"), "a.log")
    assert plain[0].case.problem != odd[0].case.problem
    command = DRIVER.splitlines()[0].replace("-t 1", "-t 1 --new 3")
    assert read(f"{command}\n").workload.calls[0].lost == ("new=3",)
    assert not read(DRIVER.splitlines()[0] + "\n").workload.calls[0].lost


def test_the_first_record_of_a_key_of_miopen_counts(times):
    record = (
        "16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F=A:{},0,miopenConvolutionFwdAlgoGEMM\n"
    )
    (one,) = times(record.format(0.05) + record.format(0.09), "gfx942.ufdb.txt")
    assert us(one) == [50.0]
    assert len(importers.notes([one])) == 1


@pytest.mark.parametrize("end", ["_ld_1024_1024", "_ld_1024_1024_512x", "_B_x"])
def test_a_damaged_leading_dimension_of_tunableop_is_refused(times, end):
    with pytest.raises(UsageError):
        times(f"GemmTunableOp_Half_TN,tn_512_8_1024{end},Default,0.5\n")


def test_unknown_parameters_of_tunableop_are_another_problem(times):
    row = "GemmTunableOp_Half_TN,tn_512_8_1024_ld_1024_1024_512{},Default,0.5\n"
    plain, odd = times(row.format("") + row.format("_mode_3"))
    assert plain.case.problem != odd.case.problem


def test_a_command_of_miopendriver_that_was_cut_is_not_the_one_measured(times):
    with pytest.raises(UsageError):
        times(DRIVER.replace("-p 1 -q 1 -F 1 -t 1", "-p 1"), "a.log")
