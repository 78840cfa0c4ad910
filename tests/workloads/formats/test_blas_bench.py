"""Output of rocblas-bench and hipblaslt-bench, in every form their argument models print."""

from pathlib import Path

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises

ROCBLAS = "transA,transB,M,N,K,alpha,lda,beta,ldb,ldc,ldd,batch_count"
PERF = ",cold_iters,hot_iters,rocblas-Gflops,us\n"
TYPES = "a_type,b_type,c_type,d_type,compute_type,"
F16 = "f16_r,f16_r,f16_r,f16_r,f32_r,"
LT = (
    "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,stride_a,beta,ldb,stride_b,ldc,"
    "stride_c,ldd,stride_d,a_type,b_type,c_type,d_type,compute_type,activation_type,bias_vector"
)
LT_ROW = "T,N,0,1,48,5,32,1,32,1536,0,32,160,48,240,48,240,f16_r,f16_r,f16_r,f16_r,f32_r,none,0"


@pytest.fixture
def results(tmp_path):
    def call(text):
        path = Path(tmp_path) / "out.txt"
        path.write_text(text)
        return importers.read(path, Overrides()).results

    return call


def times(found):
    return {result.case.problem.key: result.measurement.median_s for result in found}


def test_every_row_below_a_header_is_read(results):
    row = "N,T,{0},5,32,1,{0},0,5,{0},{0},1, 2, 10, 100, {1}\n"
    first, second = row.format(48, 7.5), row.format(64, 9.5)
    head = f"{ROCBLAS}{PERF}"
    for text in (f"{head}{first}{second}done,a,b,c,d,e,f\n", head + first + head + second):
        found = results(text)
        assert [dict(one.case.problem.dims)["m"] for one in found] == [48, 64]
        assert [one.measurement.median_s for one in found] == pytest.approx([7.5e-6, 9.5e-6])
    head = f"[0]:{LT},hipblaslt-Gflops,us\n    {LT_ROW},1,7\n    --Solution index: 5\n"
    found = results(head + f"    {LT_ROW.replace('48,5', '64,5')},1,9\n    --Solution index: 6\n")
    assert [one.case.config["solution_index"] for one in found] == [5, 6]


@pytest.mark.parametrize("function", ["", "function,"])
def test_a_header_may_begin_with_the_function_and_the_types(results, function):
    named = "gemm_ex," if function else ""
    text = (
        f"{function}{TYPES}{ROCBLAS}{PERF}{named}{F16}T,N,48,5,32,1,32,0,32,48,48,1, 2, 9, 1, 7\n"
    )
    (one,) = results(text)
    assert one.case.problem.key.startswith("gemm m=5 n=48 k=32 a=f16 b=f16 c=f16 acc=f32")
    assert one.case.backend == "rocblas"


@pytest.mark.parametrize("check", ["nan,failed,failed", "0.9,failed,1e-3", "inf,1e-5,1e-5"])
def test_what_failed_the_clients_verification_is_wrong(results, check):
    checked = "hipblaslt-Gflops,us,CPU-Gflops,CPU-us,norm_error,atol,rtol"
    head = f"[0]:{LT},{checked}\n    {LT_ROW},1,7,1,9,"
    (one,) = results(f"{head}{check}\n")
    assert one.status is Status.WRONG
    (one,) = results(f"{head}1e-7,1e-5,1e-5\n")
    assert one.status is Status.OK


def test_solutions_of_a_table_of_winners_stay_apart(results):
    head = f"{LT},soulution_index,hipblaslt-Gflops,us\n"
    found = results(f"{head}{LT_ROW},10002,1,41.2\n{LT_ROW},10003,1,51.2\n")
    assert [one.case.config["solution_index"] for one in found] == [10002, 10003]


def test_a_bias_is_part_of_a_problem_that_no_op_computes(results):
    head = f"{LT},hipblaslt-Gflops,us\n"
    plain = LT_ROW.replace("none,0", "gelu,0")
    rows = [plain, plain.replace("gelu,0", "gelu,1")]
    found = results(head + "".join(f"{row},1,7\n" for row in rows))
    assert len({one.case.problem for one in found}) == 2


def test_rows_without_types_cannot_be_repetitions(results):
    """They may be of two types: the header of f32 and of f16 is the same."""
    row = f"{ROCBLAS}{PERF}N,T,48,5,32,1,48,0,5,48,48,1, 2, 10, 100, 7.5\n"
    assert len(results(row)) == 1
    with pytest.raises(UsageError):
        results(row + row)


def test_other_functions_keep_their_arguments(results):
    head = "N,alpha,incx,incy,cold_iters,hot_iters,rocblas-Gflops,rocblas-GB/s,us\n"
    text = f"function,{head}axpy,64,1,1,1, 2, 10, 3, 5, 7\n"
    text += f"function,{head}axpy,64,1,2,1, 2, 9, 3, 5, 8\n"
    assert len(results(text)) == 2


def test_gaps_and_factors_are_other_problems(results):
    head = f"[0]:{LT},hipblaslt-Gflops,us\n"
    rows = [
        f"    {LT_ROW},1,7\n",
        f"    {LT_ROW},1,8\n".replace("48,240,f16", "64,320,f16"),
        f"    {LT_ROW},1,9\n".replace("0,32,160", "0.5,32,160"),
    ]
    found = times(results("".join(head + row for row in rows)))
    assert sorted(found.values()) == pytest.approx([7e-6, 8e-6, 9e-6])


def test_rows_of_several_kernels_are_several_cases(results):
    """Without --print_kernel_info they differ in their rank alone; with --splitk in that."""
    found = results(
        "".join(f"[{i}]:{LT},hipblaslt-Gflops,us\n    {LT_ROW},1,{7 + i}\n" for i in (0, 1))
    )
    assert [dict(one.case.config) for one in found] == [{}, {"rank": 1}]
    head = f"[0]:{LT},splitK,wgm,hipblaslt-Gflops,us\n"
    found = results(head + f"    {LT_ROW},0,0,1,7\n" + head + f"    {LT_ROW},4,0,1,8\n")
    assert [dict(one.case.config) for one in found] == [{}, {"splitk": 4}]


def test_a_winner_repeats_a_row_unless_it_is_the_only_one(results):
    head, row = f"[0]:{LT},hipblaslt-Gflops,us\n", f"    {LT_ROW},1,7\n"
    other = row.replace("T,N", "N,N")
    text = head + row + f"Winner: \n{head}{row}" + head + other
    assert len(results(text)) == 2
    assert all(len(one.measurement.blocks) == 1 for one in results(text))
    assert len(results(f"Winner: \n{head}{row}Winner: \n{head}{other}")) == 2


@pytest.mark.parametrize("prefix", ["[0]", "[0]:"])
def test_a_table_of_output_types_alone_is_no_product_of_ours(results, prefix):
    head = (
        "transA,transB,M,N,K,alpha,lda,beta,ldb,ldc,ldd,d_type,compute_type,hipblaslt-Gflops,us\n"
    )
    (one,) = results(f"{prefix}{head}    T,N,48,5,32,1,32,0,32,48,48,f32_r,f32_r,1,7\n")
    assert one.case.problem.op == "blas_matmul"
    assert one.case.problem.dims == {"m": 48, "n": 5, "k": 32}


def test_the_time_of_the_cpu_is_not_that_of_the_gpu(results):
    """Before b520bc83 both columns were named us."""
    head = f"{ROCBLAS},rocblas-Gflops,us,CPU-Gflops,us,norm-error\n"
    (found,) = results(f"{head}N,T,48,5,32,1,48,0,5,48,48,1,2,53.5,1,26840,0\n")
    assert found.measurement.median_s == pytest.approx(53.5e-6)
    with pytest.raises(UsageError):
        results(f"{ROCBLAS},us,rocblas-Gflops,us\nN,T,48,5,32,1,48,0,5,48,48,1,7,2,8\n")


def test_solutions_of_one_table_are_several_configs(results):
    head = LT.replace("transA", "sol_idx_global,transA", 1)
    rows = ((7, 20), (8, 120))
    text = "".join(f"{head},hipblaslt-Gflops,us\n{i},{LT_ROW},1,{us}\n" for i, us in rows)
    found = results(text)
    assert [dict(one.case.config) for one in found] == [
        {"solution_index": 7},
        {"solution_index": 8},
    ]


@pytest.mark.parametrize("end", range(1, 30))
def test_a_row_that_was_cut_is_named(results, end):
    """It had been taken for another line of the program, and the row before it for the cut one."""
    row = "N,T,{0},5,32,1,{0},0,5,{0},{0},1, 2, 10, 100, 7.5\n"
    whole = f"{ROCBLAS}{PERF}{row.format(48)}"
    with raises(UsageError, "line 3"):
        results(whole + row.format(64)[:end])
    with raises(UsageError, "line 3"):
        results(whole + row.format(64)[: max(end, 6)] + "\n" + row.format(80))
    (one, two) = results(whole + row.format(64).rstrip())
    assert not importers.notes([one])
    assert importers.notes([two])


@pytest.mark.parametrize("dtype", ["", "f16"])
def test_calls_of_a_table_without_types_are_refused_whatever_dtype_is_given(read, dtype):
    with raises(UsageError, "--log_datatype"):
        read(f"{ROCBLAS}{PERF}N,T,48,5,32,1,48,0,5,48,48,1, 2, 10, 100, 7.5\n", dtype=dtype)


def test_a_value_may_stand_next_to_its_letter(read):
    text = "hipblaslt-bench {} -n 32 -k 16 --precision f16_r\n"
    assert read(text.format("-m64")).workload.calls == read(text.format("-m 64")).workload.calls


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("hipblaslt-bench", "a=f16 b=f16 c=f16 acc=f32 ta=n tb=n"),
        ("hipblaslt-bench {} --transB T", "a=f16 b=f16 c=f16 acc=f32 ta=t tb=n"),
        ("hipblaslt-bench --precision bf16_r", "a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=n"),
        (
            "hipblaslt-bench --lda 64 --a_type bf16_r --b_type bf16_r --c_type bf16_r "
            "--d_type bf16_r --compute_type f32_r",
            "a=bf16 b=bf16 c=bf16 acc=f32 ta=n tb=n",
        ),
        ("rocblas-bench -f gemm", "a=f32 b=f32 c=f32 acc=f32 ta=n tb=n"),
        ("rocblas-bench -f gemm --transposeB T", "a=f32 b=f32 c=f32 acc=f32 ta=t tb=n"),
        ("rocblas-bench -f gemm_ex", "a=f32 b=f32 c=f32 acc=f32 ta=n tb=n"),
        ("rocblas-bench -f gemm -r h", "a=f16 b=f16 c=f16 acc=f16 ta=n tb=n"),
    ],
)
def test_a_command_without_letters_or_types_has_those_of_the_client(read, command, problem):
    sizes = "-m 64 -n 32 -k 16"
    line = command.format(sizes) if "{}" in command else f"{command} {sizes}"
    (call,) = read(f"{line}\n").workload.calls
    assert call.problem.key.startswith(f"gemm m=32 n=64 k=16 {problem} ")
    assert not call.lost


@pytest.mark.parametrize(
    "command",
    [
        "hipblaslt-bench --api_method c -m 64 -n 32 -k 16",
        "hipblaslt-bench -m 64 -n 32 -k 16 --lda 64",
        "rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 64 -n 32 -k 16",
        "rocblas-bench -f gemm -r f32_r --transposeA T --transposeB N -m 64 -n 32",
        "hipblaslt-bench -m 64 -n 32",
        "hipblaslt-bench --transA T --transB N -m 64 -n 32 -k 16",
    ],
)
def test_a_logged_command_that_was_cut_has_no_defaults(read, command):
    with pytest.raises(UsageError):
        read(f"{command}\n")


@pytest.mark.parametrize("column", ["bias_type", "workspace", "anything", "gcnArchName"])
def test_arguments_that_a_problem_does_not_have_keep_rows_apart(results, column):
    values = {"bias_type": ("f32_r", "f16_r"), "gcnArchName": ("gfx942:sramecc+", "gfx950")}
    head = f"{LT},{column},CUs,hipblaslt-Gflops,us\n"
    row = LT_ROW.removesuffix("0") + "1"
    rows = [f"{row},{value},304,1,{us}\n" for us, value in enumerate(values.get(column, "12"), 7)]
    found = results(head + "".join(rows))
    assert sorted(one.measurement.median_s for one in found) == pytest.approx([7e-6, 8e-6])


def test_rows_of_several_devices_stay_apart(results):
    def listed(*devices):
        lines = [f"Device ID {i} : AMD Instinct {text}\nwith 206 GB\n" for i, text in devices]
        return "".join(lines) + f"\n{LT},hipblaslt-Gflops,us\n{LT_ROW},1,7\n"

    first, second = (0, "MI300X gfx942:sramecc+:xnack-"), (1, "MI300X gfx942:sramecc+:xnack-")
    other = (0, "MI350X gfx950:sramecc+:xnack-")
    for blocks, devices in (
        ([first, first], ["unknown"]),
        ([first, second], ["0: AMD Instinct MI300X", "1: AMD Instinct MI300X"]),
        ([first, other], ["0: AMD Instinct MI300X", "0: AMD Instinct MI350X"]),
    ):
        found = results("".join(listed(block) for block in blocks))
        assert [one.device for one in found] == devices
        assert found[0].arch == "gfx942"
    (one,) = results(listed(first, second))  # rocblas-bench lists all of them
    assert (one.device, one.arch) == ("unknown", "gfx942")
    (one,) = results(listed(first).replace("f16_r", "f8_r"))
    assert one.case.problem.dtypes["a"] == "f8e4m3fnuz"


def test_factors_of_a_call_with_gaps_keep_rows_apart(results):
    row = LT_ROW.replace("48,240,f16", "64,320,f16", 1)
    assert row != LT_ROW
    other = row.replace("32,1,32,1536,0", "32,2,32,1536,0"), row.replace("1536,0,", "1536,1,")
    text = "".join(f"{one},1,{us}\n" for us, one in enumerate((row, *other), 7))
    assert sorted(times(results(f"{LT},hipblaslt-Gflops,us\n{text}")).values()) == pytest.approx(
        [7e-6, 8e-6, 9e-6]
    )


def test_two_kernels_of_one_config_are_two_runs(results):
    block = f"[0]:{LT},hipblaslt-Gflops,us\n    {LT_ROW},1,7\n    --kernel name: {{}}\n"
    assert len(results(block.format("a") * 2)) == 1
    with raises(UsageError, "line 5"):
        results(block.format("a") + block.format("b"))


@pytest.mark.parametrize("end", [12, 40, 150])
def test_a_header_that_was_cut_is_named(results, end):
    head, row = f"[0]:{LT},hipblaslt-Gflops,us\n", f"    {LT_ROW},1,7\n"
    with raises(UsageError, "line 1"):
        results(head[:end] + "\n" + row + head + row)
    with raises(UsageError, "line 3"):
        results(head + row + head[:end] + "\n" + row)
    with raises(UsageError, "line 1"):
        results(row + head + row)


def test_matrices_behind_an_array_of_pointers_are_not_strided_ones(results):
    head = f"function,{TYPES}{ROCBLAS}{PERF}"
    rows = [
        f"{head}{name},{F16}T,N,48,5,32,1,32,0,32,48,48,4, 2, 9, 1, {us}\n"
        for name, us in (("gemm_batched_ex", 7), ("gemm_strided_batched_ex", 8))
    ]
    found = results("".join(rows))
    assert [dict(one.case.config) for one in found] == [{"function": "gemm_batched_ex"}, {}]


@pytest.mark.parametrize("column", ["scale_type", "rotating_buffer"])
def test_what_may_choose_another_kernel_or_time_keeps_rows_apart(results, column):
    values = {"scale_type": ("f32_r", "f16_r"), "rotating_buffer": ("1", "512")}[column]
    head = f"[0]:{LT},{column},hipblaslt-Gflops,us\n"
    found = results(head + "".join(f"    {LT_ROW},{value},1,7\n" for value in values))
    assert len(found) == 2
    assert len({one.case.problem for one in found}) == 1


@pytest.mark.parametrize(
    ("kind", "compute", "error", "good"),
    [
        ("f16_r", "f32_r", "0.009", True),
        ("f16_r", "f32_r", "0.011", False),
        ("f32_r", "f32_r", "2e-5", False),
        ("f32_r", "xf32_r", "2e-5", True),
        ("bf16_r", "f32_r", "-0.2", False),
    ],
)
def test_an_error_above_the_limits_of_the_client_is_wrong(results, kind, compute, error, good):
    head = f"[0]:{LT},hipblaslt-Gflops,us,CPU-Gflops,CPU-us,norm_error\n"
    row = LT_ROW.replace("f32_r", compute).replace("f16_r", kind)
    (one,) = results(f"{head}    {row},1,7,1,9,{error}\n")
    assert (one.status is Status.OK) is good


def test_any_error_of_rocblas_bench_counts(results):
    head = f"{TYPES}{ROCBLAS},rocblas-Gflops,us,CPU-Gflops,CPU-us,norm_error_1,norm_error_2\n"
    (one,) = results(f"{head}{F16}T,N,48,5,32,1,32,0,32,48,48,1,1,7,1,9,0,0.9\n")
    assert one.status is Status.WRONG
