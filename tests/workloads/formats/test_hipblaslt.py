"""hipBLASLt: every kind of line that it logs, in every generation."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises

BENCH = (
    "hipblaslt-bench --api_method c -m 48 -n 5 -k 32 --lda 32 --ldb 32 --ldc 48 --ldd 48  "
    "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0  --alpha 1.000000 --beta 0.000000 "
    "--transA T --transB N --batch_count 1 --scaleA 0 --scaleB 0  --a_type bf16_r --b_type bf16_r "
    "--c_type bf16_r --d_type bf16_r --scale_type f32_r --bias_type f32_r   --compute_type f32_r "
    "--algo_method index --solution_index 17 --activation_type none"
)
PROFILE = (
    "- { function: matmul, M: 48, N: 5, K: 32, lda: 32, ldb: 32, ldc: 48, ldd: 48, stride_a: 0, "
    "stride_b: 0, stride_c: 0, stride_d: 0, alpha: 1.000000, beta: 0.000000, transA: T, transB: N, "
    "batch_count: 1, scaleA: 0, scaleB: 0, scaleAlpha_vector: false, gradient: false, "
    "use_e: false, bias_vector: false, bias_source: d, a_type: bf16_r, b_type: bf16_r, "
    "c_type: bf16_r, d_type: bf16_r, scale_type: f32_r, bias_type: f32_r, compute_type: c_f32_r, "
    "activation_type: none, flush: false, rotating: 0, cold_iters: 0, iters: 0, call_count: 4 }"
)
TRACE = (
    "[2026-02-03 04:05:06][HIPBLASLT][77][Trace][rocblaslt_matmul] A=0x7f01 "
    "Adesc=[type=R_16BF rows=32 cols=48 ld=32] B=0x7f02 Bdesc=[type=R_16BF rows=32 cols=5 ld=32] "
    "C=0x7f03 Cdesc=[type=R_16BF rows=48 cols=5 ld=48] D=0x7f04 Ddesc=[type=R_16BF rows=48 cols=5 "
    "ld=48] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transA=OP_T transB=OP_N "
    "epilogue=EPILOGUE_DEFAULT biasPointer=0x0] workSpace=0x7f05 workSpaceSizeInBytes=64 alpha=1 "
    "beta=0 stream=0x7f06"
)
# All three are this.
PROBLEM = "gemm m=5 n=48 k=32 a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=t alpha=1.0 beta=0.0 bias=no"

EXTENDED = PROFILE.replace(
    "call_count", "solution_index: 9, solution_Name: Cijk_x, kernel_name: Cijk_x_k, call_count"
)


def keys(reading):
    return [(call.problem.key, call.count) for call in reading.workload.calls]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (BENCH, 1),
        (BENCH.replace(" --activation_type none", ""), 1),
        (BENCH + " --any_stride --rotating 0 --cold_iters 0 --iters 0 ", 1),
        (BENCH.replace("--beta", "--alphai 0.000000 --beta").replace("f --", "f --betai 0 --"), 1),
        ("[rank3]: " + BENCH, 1),
        ("50%|#### | 3/6\r" + BENCH + "\r", 1),
        ("     12 " + BENCH, 12),
        (PROFILE, 4),
        (PROFILE.replace("- { ", "- {").replace(" }", "}"), 4),
        (PROFILE.replace("1.000000", "1.0"), 4),
        (PROFILE.replace(", call_count: 4", ""), 1),
        (PROFILE.replace("M:", "m:").replace("N:", "n:").replace("K:", "k:"), 4),
        (PROFILE.replace("scaleB: 0,", "scaleB: 0, scaleC: , scaleD: , swizzleA: ,  ,"), 4),
        (PROFILE.replace("scaleB: 0,", "scaleB: 0, scaleC: 0, scaleD: 0, swizzleA: false,"), 4),
        (PROFILE.replace("activation", "algo_method: index, solution_index: 3, activation"), 4),
        (PROFILE.replace("flush", "any_stride: true, aux_type: f32_r, flush"), 4),
        (EXTENDED, 4),
        (TRACE, 1),
        ("srun: 0: " + TRACE, 1),
        (TRACE.replace("alpha=1", "alpha=0"), 1),
    ],
)
def test_every_generation_is_the_same_call(read, line, count):
    assert keys(read(line + "\n")) == [(PROBLEM, count)]


SHORT = (
    "- { function: matmul, M: 48, N: 5, K: 32, lda: 32, ldb: 32, ldc: 48, ldd: 48, stride_a: 0, "
    "stride_b: 0, stride_c: 0, stride_d: 0, alpha: 1.0000, beta: 0.0000, transA: t, transB: n, "
    "batch_count: 1, a_type: bf16_r, b_type: bf16_r, c_type: bf16_r, d_type: bf16_r, "
    "scale_type: f32_r, bias_type: f32_r, compute_type: f32_r }"
)


@pytest.mark.parametrize(
    ("line", "bias", "lost"),
    [
        (SHORT, False, ()),
        (
            SHORT.replace(" beta: 0.0000,", "").replace("bias_type: f32", "bias_type: bf16"),
            True,
            (),
        ),
        (
            SHORT.replace(" beta: 0.0000,", " activation: GELU,"),
            True,
            ("activation_type", "bias_type"),
        ),
        (
            SHORT.replace("alpha: 1.0000, beta: 0.0000,", "scaleA: f32_r, scaleB: f32_r,")
            .replace("a_type: bf16_r, b_type: bf16_r", "a_type: f8_fnuz_r, b_type: f8_fnuz_r")
            .replace("bias_type: f32_r, ", ""),
            False,
            ("scaleA", "scaleB"),
        ),
    ],
)
def test_torch_writes_shorter_maps(read, line, bias, lost):
    (call,) = read(line).workload.calls
    assert call.problem.options["bias"] == bias
    assert call.lost == lost
    assert call.problem.dtypes["a"] == ("f8e4m3fnuz" if "fnuz" in line else "bf16")


def test_calls_that_were_never_made_are_none(read):
    never = PROFILE.replace("call_count: 4", "call_count: 0")
    reading = read(never + "\n" + PROFILE.replace("N: 5", "N: 6"))
    assert [call.problem.dims["m"] for call in reading.workload.calls] == [6]


def test_a_trace_line_cut_behind_its_factors_keeps_them(read):
    line = TRACE.replace("beta=0", "beta=1").partition(" stream")[0]
    assert read(line).workload.calls[0].problem.options["beta"] == 1


def test_kernels_are_not_part_of_a_call(read):
    lines = [
        BENCH,
        *(BENCH.replace(" --solution_index 17", new) for new in (" --solution_index 4", "")),
    ]
    assert keys(read("\n".join(lines))) == [(PROBLEM, 3)]
    two = EXTENDED + "\n" + EXTENDED.replace("Cijk_x", "Cijk_y").replace("index: 9", "index: 10")
    assert keys(read(two)) == [(PROBLEM, 8)]


def test_a_library_that_logs_twice_called_once(read):
    reading = read("\n".join([TRACE, BENCH, TRACE, BENCH, TRACE, BENCH, BENCH, PROFILE, EXTENDED]))
    assert keys(reading) == [(PROBLEM, 4)]
    assert reading.inputs[0].again == 4 + 3 + 4
    other = read("\n".join([BENCH, PROFILE.replace("N: 5", "N: 6")]))  # different calls all count
    assert sorted(count for _, count in keys(other)) == [1, 4]
    assert other.inputs[0].again == 0


def test_a_group_is_its_members(read):
    line = BENCH.replace(
        "c -m 48 -n 5 -k 32 --lda 32 --ldb 32 --ldc 48 --ldd 48  --stride_a 0 --stride_b 0 "
        "--stride_c 0 --stride_d 0",
        "cpp --grouped_gemm  -m 48 -n 5 -k 32 --lda 32 --ldb 32 --ldc 48 --ldd 48 "
        "-m 48 -n 9 -k 16 --lda 16 --ldb 16 --ldc 48 --ldd 48 "
        "-m 48 -n 5 -k 32 --lda 32 --ldb 32 --ldc 48 --ldd 48",
    )
    calls = read(line + "\n" + line).workload.calls
    assert [(call.count, call.problem.dims["m"], call.problem.dims["k"]) for call in calls] == [
        (4, 5, 32),
        (2, 9, 16),
    ]
    assert {call.lost for call in calls} == {("grouped_gemm",)}
    line = PROFILE.replace("M: 48, N: 5, K: 32", "grouped_gemm:  m: 48, n: 5, k: 32")
    line = line.replace("alpha", "m: 48, n: 9, k: 16, lda: 16, ldb: 16, ldc: 48, ldd: 48, alpha", 1)
    assert sorted(call.problem.dims["m"] for call in read(line).workload.calls) == [5, 9]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (BENCH[:62], ["ldb"]),
        (BENCH[:170], ["transA"]),
        (BENCH.replace("-m 48 ", ""), ["no m"]),
        (BENCH.replace("-m 48", "-m 48 -m 49"), ["m twice", "48", "49"]),
        (BENCH + " " + BENCH, ["hipblaslt-bench"]),
        (BENCH.replace("a_type bf16_r", "a_type f4_r"), ["a_type", "f4_r"]),
        (PROFILE[:200], ["closing brace"]),
        (PROFILE.replace("K: 32, ", ""), ["no k"]),
        (PROFILE.replace("call_count: 4", "call_count: four"), ["four"]),
        (TRACE[:150], ["descriptors"]),
        (TRACE.replace("R_16BF", "R_7F"), ["type", "R_7F"]),
    ],
)
def test_a_broken_line_is_told_with_its_number(read, told, line, values):
    reading = read("\n".join([BENCH, "", line, BENCH.replace("-n 5", "-n 6")]))
    ((number, why),) = told(reading)
    assert number == 3
    assert all(value in why for value in values)
    assert reading.workload.total == 2


@pytest.mark.parametrize("option", ["-b 4", "--compute_input_typeA f8_r", "--amaxScaleA"])
def test_an_unknown_option_is_lost(read, option):
    (call,) = read(f"{BENCH} {option} -v 1 --initialization hpl\n").workload.calls
    assert call.lost == (option.split()[0].strip("-"),)


def test_lines_of_the_library_that_are_no_calls_are_passed_over(read, told):
    info = "[2026-02-03 04:05:06][HIPBLASLT][77][Info][problem_override_from_file] Find solution"
    heuristic = TRACE.replace("rocblaslt_matmul]", "rocblaslt_matmul_algo_get_heuristic]")
    reading = read("\n".join([info, heuristic, TRACE, "# " + BENCH, "---"]))
    assert keys(reading) == [(PROBLEM, 1)]
    assert not told(reading)


def test_pointers_and_times_make_no_new_call(read):
    lines = [
        TRACE.replace("0x7f", f"0x{number:x}f").replace("04:05:06", f"04:05:{number:02}")
        for number in range(1, 30)
    ]
    assert keys(read("\n".join(lines))) == [(PROBLEM, 29)]


def test_trace_lines_of_batches_biases_and_activations(read):
    line = TRACE.replace("ld=32]", "ld=32 batch_count=3 batch_stride=1536]", 1)
    line = line.replace("cols=5 ld=32]", "cols=5 ld=32 batch_count=3 batch_stride=160]")
    line = line.replace("ld=48]", "ld=48 batch_count=3 batch_stride=240]")
    line = line.replace("EPILOGUE_DEFAULT biasPointer=0x0", "EPILOGUE_GELU_BIAS biasPointer=0x9")
    (call,) = read(line).workload.calls
    assert call.problem.op == "batched_gemm"
    assert call.problem.dims["batch"] == 3
    assert call.problem.options["bias"]
    assert call.blas["activation_type"] == "gelu"
    assert call.lost == ("activation_type",)


def test_tuning_files_have_a_header_above_each_row(read, told):
    text = """\
Git Version: 0123abcd
    transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,beta,ldb,ldc,ldd,a_type,b_type,c_type,d_type,compute_type,scaleA,scaleB,activation_type,bias_vector,us,solution_index,gcnArchName
    T,N,0,1,48,5,32,1,32,0,32,48,48,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,0,0,none,0,9.5,17,gfx942
    transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,beta,ldb,ldc,ldd,a_type,b_type,c_type,d_type,compute_type,scaleA,scaleB,activation_type,bias_vector,us,solution_index,gcnArchName
    T,N,0,1,48,5,32,(1,0),32,0,32,48,48,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,0,0,none,0,9.5,17,gfx942
    T,N,0,1,48
"""
    reading = read(text)
    assert keys(reading) == [(PROBLEM, 1)]
    (fifth, alpha), (sixth, cells) = told(reading)
    assert (fifth, sixth) == (5, 6)
    assert "(1,0)" in alpha
    assert "5 values for 25" in cells


def test_a_command_that_is_never_ended_is_read_as_far_as_it_goes(read, told):
    """And one that people write may name one precision."""
    written = "hipblaslt-bench -m 48 -n 5 -k 32 --transA T --precision bf16_r\n"
    reading = read(f"{written}hipblaslt-bench -m 4 \\")
    assert keys(reading) == [(PROBLEM, 1)]
    assert [line for line, _ in told(reading)] == [2]


API = (
    "[2026-02-03 04:05:06][HIPBLASLT][77][Api][rocblaslt_matmul] A=0x7f01 Adesc=0x55 B=0x7f02 "
    "Bdesc=0x56 C=0x7f03 Cdesc=0x57 D=0x7f04 Ddesc=0x58 computeDesc=0x59 algo=0x60 workSpace=0x0 "
    "workSpaceSizeInBytes=0 stream=0x7f06"
)


def test_api_lines_repeat_a_traced_call_by_its_pointers(read, told):
    reading = read("\n".join([API, TRACE, API, TRACE]))
    assert keys(reading) == [(PROBLEM, 2)]
    assert not told(reading)


def test_a_log_of_api_lines_alone_is_told_how_to_log(read):
    with raises(UsageError, "hipblaslt") as error:
        read(f"{API}\n{API}\n")
    assert "HIPBLASLT_LOG_MASK=32" in (error.value.hint or "")


@pytest.mark.parametrize("end", ["\\\n", " \\\n    ", " \\\r\n  "])
def test_commands_that_a_shell_would_continue(read, told, end):
    words = BENCH.split(" --")
    text = (
        f"{BENCH}\n{f'{end}--'.join(words) if end.startswith(' ') else f' {end}--'.join(words)}\n"
    )
    reading = read(text + "noise\n" + BENCH + "\n")
    assert keys(reading) == [(PROBLEM, 3)]
    assert [line for line, _ in told(reading)] == [len(words) + 2]


OLD = (
    "transA,transB,M,N,K,alpha,lda,stride_a,beta,ldb,stride_b,ldc,stride_c,ldd,stride_d,d_type,"
    "compute_type,activation_type,bias_vector,hipblaslt-Gflops,us\n"
    "T,N,48,5,32,1,32,0,0,32,0,48,0,48,0,f32_r,f32_r,none,0,1,2\n"
)


@pytest.mark.parametrize("prefix", ["", "[0]", "[0]:"])
def test_a_table_of_output_types_alone_does_not_say_the_inputs(read, prefix):
    """Version 600 printed no colon after the number of the solution."""
    client = "hipBLASLt version: 600\nIs supported 1 / Total solutions: 1\n" if prefix else ""
    text = f"{client}{prefix}{OLD}"
    with pytest.raises(UsageError):
        read(text)
    (call,) = read(text, dtype="f16").workload.calls
    assert call.problem.dtypes == {"a": "f16", "b": "f16", "c": "f32", "acc": "f32"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "--batch_count 1 --a_type bf16_r --b_type bf16_r --c_type bf16_r --d_type bf16_r "
            "-m 4096 -n 128 -k 64 -i 50 -v",
            "gemm m=128 n=4096 k=64 a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=n",
        ),
        (
            "--sizem 48 --sizen 5 --sizek 32 --batch 3 --precision f16_r --verify",
            "batched_gemm batch=3 m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=n tb=n",
        ),
        # As the client prints such commands: it lacks the end.
        ("-m 48 -n 5 -k 32 --lda 48 --ldb 32 --ldc 48 --ldd 48 --a_type bf16_r", None),
        ("-m 48 -n 5 -k 32", "gemm m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32 ta=n tb=n"),
    ],
)
def test_defaults_of_the_client_fill_in_what_people_leave_out(read, line, problem):
    if problem is None:
        with pytest.raises(UsageError):
            read(f"hipblaslt-bench {line}\n")
        return
    (call,) = read(f"hipblaslt-bench {line}\n").workload.calls
    assert call.problem.key.startswith(f"{problem} ")
    assert not call.lost
