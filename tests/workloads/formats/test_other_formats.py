"""rocBLAS, TunableOp, aiter and plain lists, by small files of our own."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises

ROCBLAS = (
    "rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 48 -n 5 -k 32 --alpha 1 "
    "--a_type f16_r --lda 32 --b_type f16_r --ldb 32 --beta 0 --c_type f32_r --ldc 48 "
    "--d_type f32_r --ldd 48 --compute_type f32_r --algo 0 --solution_index 0 --flags 0"
)
ROCBLAS_PROFILE = (
    '- { rocblas_function: "rocblas_gemm_ex", a_type: "f16_r", b_type: "f16_r", c_type: "f32_r", '
    "d_type: \"f32_r\", compute_type: \"f32_r\", transA: 'T', transB: 'N', M: 48, N: 5, K: 32, "
    "alpha: 1, lda: 32, ldb: 32, beta: 0, ldc: 48, ldd: 48, algo: 0, solution_index: 0, flags: 0, "
    "call_count: 6 }"
)
ROCBLAS_TRACE = (
    "rocblas_gemm_ex,T,N,48,5,32,1,0x7f1,f16_r,32,0x7f2,f16_r,32,0,0x7f3,f32_r,48,0x7f4,f32_r,48,"
    "f32_r,0,0,none,atomics_allowed"
)
F16_TO_F32 = "gemm m=5 n=48 k=32 a=f16 b=f16 c=f32 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=no"


def keys(reading):
    return [(call.problem.key, call.count) for call in reading.workload.calls]


def dims(reading):
    return [dict(call.problem.dims) for call in reading.workload.calls]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (ROCBLAS, 1),
        ("./" + ROCBLAS, 1),
        (ROCBLAS_PROFILE, 6),
        (ROCBLAS_PROFILE.replace("call_count", "'call_count'"), 6),
        (ROCBLAS_TRACE, 1),
        (ROCBLAS_TRACE.replace("0x7f1", "0x9a1"), 1),
    ],
)
def test_rocblas_layers(read, line, count):
    reading = read(line)
    assert keys(reading) == [(F16_TO_F32, count)]
    assert reading.workload.calls[0].blas["function"] == "gemm_ex"


def test_math_mode_1_rounds_f32_inputs(read):
    f32 = ROCBLAS.replace("f16_r", "f32_r")
    for line, kept, lost in (
        (f"{f32} --math_mode 1", "xf32_r", ("compute_type",)),
        (f"{f32} --math_mode 0", "f32_r", ()),
        (f"{ROCBLAS} --math_mode 1", "f32_r", ()),  # only for inputs of f32
    ):
        (call,) = read(line).workload.calls
        assert (call.blas["compute_type"], call.lost) == (kept, lost)


def test_a_math_mode_that_a_trace_sets_is_told(read, told):
    """The calls below it do not repeat it."""
    reading = read(f"rocblas_set_math_mode,1\n{ROCBLAS_TRACE}\nrocblas_set_math_mode,0\n")
    assert keys(reading) == [(F16_TO_F32, 1)]
    assert [line for line, _ in told(reading)] == [1]


def test_rocblas_layers_at_once_are_one_call(read, told):
    vectors = "rocblas-bench -f axpy -r f32_r -n 10\nrocblas_saxpy,10,1,0x1,1,0x2,1"  # passed over
    reading = read("\n".join([vectors, ROCBLAS_TRACE, ROCBLAS, ROCBLAS_TRACE, ROCBLAS]))
    assert keys(reading) == [(F16_TO_F32, 2)]
    assert reading.inputs[0].again == 2
    assert not told(reading)


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        (
            "rocblas-bench -f gemm_strided_batched -r f32_r --transposeA T --transposeB N -m 48 "
            "-n 5 -k 32 --alpha 1 --lda 32 --stride_a 1536 --ldb 32 --stride_b 160 --beta 0 "
            "--ldc 48 --stride_c 240 --batch_count 3",
            3,
        ),
        (
            "rocblas_sgemm_strided_batched,T,N,48,5,32,1,0x1,32,1536,0x2,32,160,0,0x3,48,240,3,"
            "atomics_allowed",
            3,
        ),
        ("rocblas-bench -f gemm -r s --transposeA T --transposeB N -m 48 -n 5 -k 32", 1),
        ("rocblas_sgemm,T,N,48,5,32,1,0x1,32,0x2,32,0,0x3,48,atomics_allowed", 1),
        (
            "rocblas_gemm_strided_batched_ex,T,N,48,5,32,1,0x1,f32_r,32,1536,0x2,f32_r,32,160,0,"
            "0x3,f32_r,48,240,0x4,f32_r,48,240,3,f32_r,0,0,none",
            3,
        ),
    ],
)
def test_rocblas_functions_of_one_type_and_of_batches(read, line, batch):
    (call,) = read(line).workload.calls
    assert call.problem.dims.get("batch", 1) == batch
    assert call.problem.dtypes["a"] == "f32"
    assert not call.lost


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # sort LOG | uniq -c: the count is right-aligned.
        *(
            (f"  16320 {path}{ROCBLAS}\n      4 {path}{ROCBLAS}\n", 16324)
            for path in ("", "./", "/opt/rocm/bin/")
        ),
        # Other numbers are no count.
        *((before + ROCBLAS, 1) for before in ("3 ", "[3] ", "  3: ", "  3 4 ", "12:30:01 ")),
        # As its documentation writes commands; the client takes both.
        (ROCBLAS.replace("f16_r", "h").replace("f32_r", "s"), 1),
    ],
)
def test_commands_as_they_are_counted_and_written(read, told, text, count):
    reading = read(text)
    assert keys(reading) == [(F16_TO_F32, count)]
    assert not told(reading)


def test_rocblas_tuning_tables(read, told):
    header = "transA,transB,M,N,batch_count,K,alpha,beta,lda,ldb,ldc,input_type,output_type,"
    text = f"{header}compute_type,solution_index\nT,N,48,5,1,32,1,0,32,32,48,f16_r,f32_r,f32_r,7\n"
    assert keys(read(text)) == [(F16_TO_F32, 1)]
    assert read(text).inputs[0].formats == ("rocblas",)
    reading = read(text + "T,N,48,x,1,32,1,0,32,32,48,f16_r,f32_r,f32_r,7\n")
    ((line, why),) = told(reading)
    assert (line, "N=x" in why or "n=x" in why) == (3, True)
    twice = text.replace("solution_index", "M")
    with raises(UsageError, "'M'", "twice"):
        read(twice)


@pytest.mark.parametrize(
    ("row", "problem", "lost"),
    [
        ("GemmTunableOp_BFloat16_TN,tn_48_5_32", "gemm m=5 n=48 k=32 a=bf16", ()),
        ("GemmTunableOp_Half_NN,nn_48_5_32_ld_48_32_48,Gemm_Rocblas_3,0.01", "gemm m=5 n=48", ()),
        ("GemmTunableOp_float_NT,nt_48_5_32_ld_64_5_48,Default,0.1", "gemm m=5 n=48", ("lda",)),
        ("GemmTunableOp_tf32_TN,tn_48_5_32", "gemm m=5 n=48 k=32 a=f32", ("compute_type",)),
        (
            "GemmStridedBatchedTunableOp_Half_TN,tn_48_5_32_B_3_ld_32_32_48,Default",
            "batched_gemm batch=3 m=5 n=48 k=32 a=f16",
            (),
        ),
        ("GemmAndBiasTunableOp_BFloat16_TN,tn_48_5_32_ld_32_32_48", "gemm m=5 n=48 k=32", ()),
        (
            "ScaledGemmTunableOp_Float8_e4m3fnuz_Float8_e5m2fnuz_BFloat16_TN,"
            "tn_48_5_32_ld_32_32_48_rw_1_bias_Float,Gemm_Hipblaslt_TN_9,0.2",
            "gemm_epilogue m=5 n=48 k=32 a=f8e5m2fnuz b=f8e4m3fnuz c=bf16 acc=f32 bias_type=f32",
            (),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_TN,tn_48_5_32_ld_32_32_48_rw_0_bias_None",
            "gemm m=5 n=48 k=32 a=f8e4m3 b=f8e4m3 c=bf16",
            ("scaleA", "scaleB", "d_type"),
        ),
        (
            'GemmTunableOp_Half_TN,tn_48_5_32_ld_32_32_48,Default,0.1,"- { function: matmul, '
            'M: 1, transA: T }"',
            "gemm m=5 n=48 k=32 a=f16",
            (),
        ),
    ],
)
def test_tunableop_rows(read, told, row, problem, lost):
    text = "Validator,PT_VERSION,2.9.1\nValidator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    results = text + row + ("" if row.count(",") > 1 else ",Default") + "\n"
    reading = read(f"{row}\n", arch="gfx942")
    assert (
        read(results, arch="gfx942").workload.calls[0].problem == reading.workload.calls[0].problem
    )
    (call,) = reading.workload.calls
    assert call.problem.key.startswith(problem)
    assert call.lost == lost
    assert bool(call.problem.options["bias"]) == ("AndBias" in row or "bias_Fl" in row)
    assert not told(reading)


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("GemmTunableOp_Quarter_TN,tn_48_5_32", "Quarter"),
        ("GemmTunableOp_Half_TN,tn_48_5", "tn_48_5"),
        ("GemmTunableOp_Half_TN", "sizes"),
        ("GemmTunableOp_Half_TN,tn_48_0_32", "n=0"),
        ("GemmTunableOp_Half_TN,nn_48_5_32", "nn"),
    ],
)
def test_tunableop_rows_that_are_broken(read, told, row, value):
    reading = read(f"GemmTunableOp_Half_TN,tn_48_5_32\n{row}\n")
    ((line, why),) = told(reading)
    assert (line, value in why) == (2, True)


def test_a_result_of_tunableop_without_a_solution_is_cut_and_no_untuned_call(read, told):
    row = "GemmTunableOp_Half_TN,tn_48_{}_32,Default,0.5\n"
    text = f"Validator,PT_VERSION,2.9.1\n{row.format(5)}GemmTunableOp_Half_TN,tn_48_6_32\n"
    reading = read(text)
    assert reading.workload.total == 1
    assert [line for line, _ in told(reading)] == [3]


def test_aiter_bf16_tables(read):
    untuned = "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\n5,48,32,True,torch.bfloat16,"
    (call,) = read(untuned + "torch.float32,False,True\n").workload.calls
    assert call.problem.key == (
        "gemm m=5 n=48 k=32 a=bf16 b=bf16 c=f32 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=yes"
    )
    assert call.lost == ("bpreshuffle",)
    assert (call.blas["transA"], call.blas["m"], call.blas["n"]) == ("T", "48", "5")
    tuned = (
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,"
        "kernelName,err_ratio,tflops,bw\n"
        'gfx950,256,5,48,32,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,7.9,"f<a,b>",'
        "0.0,21.1,417.9\n\n"
        "gfx950,256,5,48,32,False,torch.bfloat16,torch.bfloat16,False,False,ck,6,1,8.9,g(int),"
        "0.0,21.1,417.9\n"
    )
    assert [(call.count, call.lost) for call in read(tuned).workload.calls] == [(1, ())]


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("M,N,K,q_dtype_w\n5,48,32,torch.int8\n", "x.csv", "batched_gemm_quant batch=1 m=5 n=48"),
        (
            "M,N,K,q_dtype_w\n5,48,32,torch.float8_e4m3fnuz\n",
            "x.csv",
            "gemm m=5 n=48 k=32 a=f8e4m3f",
        ),
        (
            "gfx,cu_num,B,M,N,K,kernelId\ngfx942,80,3,5,48,32,1\n",
            "a8w8_tuned_batched_gemm.csv",
            "batched_gemm_quant batch=3 m=5 n=48 k=32 a=i8",
        ),
        (
            "gfx,cu_num,B,M,N,K,kernelId\ngfx942,80,3,5,48,32,1\n",
            "bf16_tuned_batched_gemm.csv",
            "batched_gemm batch=3 m=5 n=48 k=32 a=bf16",
        ),
        (
            "gfx,cu_num,M,N,K,libtype,kernelId\ngfx942,80,5,48,32,ck,1\n",
            "a8w8_blockscale_tuned_gemm.csv",
            "gemm m=5 n=48 k=32 a=f8e4m3fnuz",
        ),
        (
            "gfx,cu_num,M,N,K,kernelId,kernelName\ngfx950,80,5,48,64,1,a4w4_asm\n",
            "x.csv",
            "batched_gemm_quant batch=1 m=5 n=48 k=64 a=f4e2m1",
        ),
    ],
)
def test_aiter_tables_of_few_bits(read, text, name, problem):
    (call,) = read(text, name).workload.calls
    assert call.problem.key.startswith(problem)


def test_aiter_rows_that_are_broken(read, told):
    head = "M,N,K,bias,dtype,outdtype,scaleAB\n"
    good = "5,48,32,False,torch.bfloat16,torch.bfloat16,False\n"
    bad = good.replace("False", "Perhaps", 1) + good.replace("bfloat16", "bfloat17", 1) + "5,48\n"
    reading = read(head + good + bad + good.replace("5", "x", 1))
    assert reading.workload.total == 1
    values = {3: "perhaps", 4: "bfloat17", 5: "2 values", 6: "'x'"}
    assert {line: values[line] in why for line, why in told(reading)} == dict.fromkeys(values, True)


@pytest.mark.parametrize(
    "text",
    [
        "5,48,32\n",
        "5 48 32\n",
        "5x48x32\n",
        "5;48;32\r\n",
        "# sizes\n\n5, 48, 32  # the first\n",
        "M,N,K\n5,48,32\n",
        "m n k\n5 48 32\n",
        "k;n;m\n32;48;5\n",
        "name,m,n,k,us\nfirst,5,48,32,1.5\n",
    ],
)
def test_lists_of_sizes(read, told, text):
    reading = read(text, "sizes.txt")
    assert [call.problem.key for call in reading.workload.calls] == [
        "gemm m=5 n=48 k=32 a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=no"
    ]
    assert not told(reading)


def test_lists_say_what_they_say(read):
    text = "batch,m,n,k,dtype,count,ta,tb\n3,5,48,32,fp16,7,t,n\n,5,48,32,,,,\n"
    calls = read(text, dtype="f32").workload.calls
    assert [(call.count, call.problem.key.split(" alpha")[0]) for call in calls] == [
        (7, "batched_gemm batch=3 m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=t tb=n"),
        (1, "gemm m=5 n=48 k=32 a=f32 b=f32 c=f32 acc=f32 ta=n tb=t"),
    ]
    listed = read("3,5,48,32\n", key="batch,m,n,k")
    assert dims(listed) == [{"batch": 3, "m": 5, "n": 48, "k": 32}]
    (call,) = read(
        "M,N,K,transA,transB,a_type,compute_type\n48,5,32,T,N,f16_r,f32_r\n"
    ).workload.calls
    assert dict(call.problem.dims) == {"m": 5, "n": 48, "k": 32}


@pytest.mark.parametrize(
    ("text", "total", "lines"),
    [
        ("5,48,32\n5,48\n5,48,32.5\n5,48,0\n6,48,32\n", 2, [2, 3, 4]),
        (f"{ROCBLAS}\n1 2 3\n4,5,6\n", 1, [2, 3]),  # numbers in a log are no list
    ],
)
def test_lists_with_broken_rows(read, told, text, total, lines):
    reading = read(text)
    assert reading.workload.total == total
    assert [line for line, _ in told(reading)] == lines


@pytest.mark.parametrize("text", ["5,48,32\n", "M,N,K\n5,48,32\n", "heads,seq,dim\n2,16,64\n"])
def test_a_list_that_names_no_dtype_is_told_to_be_bf16(read, text):
    assert len(read(text).inputs[0].notes) == 1
    assert not read(text, dtype="bf16").inputs[0].notes
    assert not read("M,N,K,dtype\n5,48,32,fp16\n").inputs[0].notes


def test_four_numbers_without_an_order_are_refused(read):
    text = "512, 16, 2, 256\n"  # Tensile's deep_bench_nn_batched.csv has M, N, batch, K
    for key in ("", "m,n,k", "m,n,k,l"):
        with pytest.raises(UsageError):
            read(text, key=key)
    (call,) = read(text, key="M,N,batch,K").workload.calls
    assert dict(call.problem.dims) == {"batch": 2, "m": 512, "n": 16, "k": 256}
    reading = read("5,48,32\n" + text)
    assert (reading.workload.total, [line.line for line in reading.skipped]) == (1, [2])


def test_matrices_behind_pointers_are_said(read):
    strided = ROCBLAS.replace("gemm_ex", "gemm_strided_batched_ex") + " --batch_count 3"
    (call,) = read(strided).workload.calls
    assert call.lost == ()
    pointers = strided.replace("_strided", "")
    traced = ROCBLAS_TRACE.replace("gemm_ex", "gemm_batched_ex").replace(
        "48,f32_r,0", "48,3,f32_r,0"
    )
    for line in (pointers, traced):
        (call,) = read(line).workload.calls
        assert call.lost == ("function",)
        assert call.problem.dims["batch"] == 3


def test_a_cut_row_of_results_without_validators_is_refused(read, told):
    whole = "GemmTunableOp_Half_TN,tn_1024_16_4096,Gemm_Hipblaslt_1,0.01\n"
    reading = read(whole + "GemmTunableOp_Half_TN,tn_1024_32_40\n", "r.csv")
    assert dims(reading) == [{"m": 16, "n": 1024, "k": 4096}]
    assert [line for line, _ in told(reading)] == [2]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        (ROCBLAS.replace("--flags 0", "--flags 4"), ("flags",)),
        (ROCBLAS.replace("--flags 0", "--flags 2"), ()),
        (ROCBLAS_TRACE.replace("none", "fp16_alt_impl"), ("flags",)),
        (ROCBLAS_PROFILE.replace("flags: 0", "flags: stochastic_rounding"), ("flags",)),
        (ROCBLAS + " --HMM --outofplace", ()),
    ],
)
def test_flags_that_change_results_are_said(read, line, lost):
    (call,) = read(line).workload.calls
    assert call.lost == lost


def test_two_names_of_one_field_with_two_values_are_refused(read):
    with pytest.raises(UsageError):
        read(ROCBLAS.replace("--flags 0", "--sizem 64"))
    assert len(read(ROCBLAS.replace("--flags 0", "--sizem 48")).workload.calls) == 1
