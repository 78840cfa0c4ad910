"""rocBLAS's backend over a model of the library in C."""

import pytest

from kernelmark import ops
from kernelmark.backends import rocblas
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.testing.backends import BackendContract, bench
from kernelmark_dev.raising import raises, raises_code

BACKEND = rocblas.backend
PLAIN = "gemm m=5 n=7 k=3 dtype=f32"
TENSILE = "Cijk_Ailk_Bljk_SB_MT64x32x8_SE_K1"  # the third, whose number is -13
LT = "Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x1_SN"  # hipBLASLt's index 3, so number 4


@pytest.mark.parametrize("ta", "nt")
@pytest.mark.parametrize("tb", "nt")
@pytest.mark.parametrize(
    "rest",
    [
        "gemm m=5 n=7 k=3 dtype=f32",
        "gemm m=5 n=7 k=3 dtype=f16 alpha=0.5 beta=2.0",
        "gemm m=5 n=7 k=3 dtype=f16 acc=f16 alpha=0.5",
        "gemm m=5 n=7 k=3 dtype=bf16 c=f32",
        "gemm m=1 n=7 k=3 dtype=f64 alpha=-0.25",
        "gemm m=4 n=8 k=16 dtype=i8 alpha=2.0 beta=-3.0",
        "batched_gemm batch=3 m=5 n=7 k=3 dtype=f32 beta=-1.5",
    ],
)
def test_computes_the_problem(rocm, gpu, rest, ta, tb):
    problem = ops.parse(f"{rest} ta={ta} tb={tb}")
    assert BACKEND.supports(problem, gpu.info) is None
    with bench(BACKEND, problem, gpu) as made:
        BackendContract().check(made)
    assert rocm.fake_handles() == 0


def test_the_workspace_is_as_large_as_the_library_s_own(gpu, monkeypatch):
    """Its default depends on the architecture, and decides which solutions are listed."""
    monkeypatch.setenv("ROCBLAS_DEVICE_MEMORY_SIZE", str(128 * 2**20))
    problem = ops.parse(PLAIN)
    found = rocblas.solutions(0, problem)
    assert len(found) == 4
    for one in found:
        with bench(BACKEND, problem, gpu, config={"solution": one.name}) as made:
            assert made.kernel.info.resources["workspace_bytes"] == 128 * 2**20
            BackendContract().check(made)


@pytest.mark.parametrize("call", ["rocblas_set_workspace", "rocblas_destroy_handle", ""])
def test_a_failure_leaks_no_workspace(rocm, gpu, call):
    before = gpu.free_bytes()
    kernel = BACKEND.prepare(ops.parse(PLAIN), {}, gpu, [])
    assert gpu.free_bytes() < before
    kernel.close()
    if call:
        rocm.fake_fail(call.encode(), 6, 1)
        with raises_code(CaseError, "library-failed", call=call, status=6):
            BACKEND.prepare(ops.parse(PLAIN), {}, gpu, []).close()
    else:
        with pytest.raises(KeyError):  # an argument set without its arguments
            BACKEND.prepare(ops.parse(PLAIN), {}, gpu, [{}])
    assert (rocm.fake_handles(), gpu.free_bytes()) == (0, before)


@pytest.mark.parametrize("shape", ["m=1 n=7", "m=7 n=1"])
def test_vectors_have_no_solutions_where_rocblas_runs_gemv(gpu, shape):
    """There it launches gemv whatever solution of Tensile is asked for, even to check one."""
    problem = ops.parse(f"gemm {shape} k=3 dtype=f32")
    assert rocblas.solutions(0, problem) == ()
    assert BACKEND.space(problem, gpu.info) is None


@pytest.mark.parametrize(
    ("arch", "runs"),
    [
        *((arch, True) for arch in ("gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1100")),
        *((arch, False) for arch in ("gfx942", "gfx950", "gfx1201")),
    ],
)
def test_which_architectures_run_gemv(arch, runs):
    assert rocblas.runs_gemv(ops.parse("gemm m=1 n=7 k=3 dtype=f32"), arch) is runs
    assert not rocblas.runs_gemv(ops.parse("gemm m=2 n=7 k=3 dtype=f32"), arch)


@pytest.mark.parametrize("op", ["gemm", "batched_gemm batch=2"])
@pytest.mark.parametrize(
    ("variables", "name", "number", "tensile", "count"),
    [
        ({}, TENSILE, -13, 2, 3),
        ({"FAKE_ROCBLAS": "4.3"}, TENSILE, 3, 2, 3),
        ({"ROCBLAS_USE_HIPBLASLT": "1"}, LT, 4, None, 6),
        ({"ROCBLAS_USE_HIPBLASLT": "1", "FAKE_ROCBLAS": "4.3"}, LT, 4, None, 6),
    ],
)
def test_solutions_have_names_and_tensile_s_their_index(
    gpu, monkeypatch, op, variables, name, number, tensile, count
):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    problem = ops.parse(f"{op} m=5 n=7 k=3 dtype=f32")
    found = {one.name: one for one in rocblas.solutions(0, problem)}
    assert len(found) == count
    assert (found[name].index, found[name].tensile_index) == (number, tensile)
    with bench(BACKEND, problem, gpu, config={"solution": name}) as made:
        assert made.kernel.info.name == name
        assert made.kernel.info.resources["solution_index"] == number
        assert made.kernel.info.resources.get("tensile_index") == tensile
        BackendContract().check(made)


def test_names_are_asked_for_once_for_all_sizes(gpu, monkeypatch):
    """A child takes half a second, and tuning looks at many sizes."""
    children = []
    run = rocblas.run_child

    def counted(command, **how):
        children.append(command)
        return run(command, **how)

    monkeypatch.setattr(rocblas, "run_child", counted)
    found = [rocblas.solutions(0, ops.parse(f"gemm m={m} n=7 k=3 dtype=f32")) for m in (5, 6, 9)]
    assert found[0]
    assert found[0] == found[1] == found[2]
    assert len(children) == 1
    assert rocblas.solutions(0, ops.parse("gemm m=5 n=7 k=3 dtype=f16"))
    assert len(children) == 2


def test_a_name_that_is_known_needs_no_others(gpu, monkeypatch):
    """Another size may list numbers that nobody has named yet."""
    rocblas.solutions(0, ops.parse(PLAIN))
    other = ops.parse("gemm m=6 n=7 k=3 dtype=f32")
    monkeypatch.setattr(rocblas, "_listed", lambda handle, index, problem: [-1000, -13])
    monkeypatch.setattr(rocblas, "run_child", None)  # nobody may be asked
    with bench(BACKEND, other, gpu, config={"solution": TENSILE}) as made:
        assert made.kernel.info.resources["solution_index"] == -13
    rocblas._numbers.cache_clear()
    monkeypatch.setattr(rocblas, "_listed", lambda handle, index, problem: [-1000])
    with pytest.raises(Unsupported):
        BACKEND.prepare(other, {"solution": TENSILE}, gpu, [])


def test_a_name_finds_its_number_in_another_build(gpu, monkeypatch):
    problem = ops.parse(PLAIN)
    tuned = rocblas.solutions(0, problem)
    monkeypatch.setenv("FAKE_ROCM_BUILD", "1")
    rocblas.solutions.cache_clear()
    rocblas._names_of.cache_clear()
    rocblas._numbers.cache_clear()
    rocblas.hipblaslt.solutions.cache_clear()
    with bench(BACKEND, problem, gpu, config={"solution": TENSILE}) as made:
        assert made.kernel.info.resources["solution_index"] == -14
    for one in tuned:
        config = {"solution": one.name, "solution_index": one.index}
        with pytest.raises(Unsupported):
            BACKEND.prepare(problem, config, gpu, [])


def test_names_follow_the_number_that_was_asked_for():
    text = (
        "@-11\nSelection solution with index: 0 and name: 'Cijk_A'\n@4\nother words\n"
        "@-12\nSelection solution with index: 1 and name: 'Cijk_B'\n"
        "Selection solution with index: 1 and name: 'Cijk_B'\n"
        "@-13\nTried selecting solution with index: 2. Not solution found.\n"
    )
    assert rocblas.parse_names(text) == {-11: ("Cijk_A", 0), -12: ("Cijk_B", 1)}


def test_failures_name_the_call(rocm, gpu):
    assert (BACKEND.available(), BACKEND.version()) == (None, "5.2.0.fa4e0000")
    rocm.fake_fail(b"rocblas_create_handle", 6, 1)
    with raises_code(CaseError, "library-failed", call="rocblas_create_handle", status=6):
        BACKEND.prepare(ops.parse(PLAIN), {}, gpu, [])
    with bench(BACKEND, ops.parse(PLAIN), gpu) as made:
        rocm.fake_fail(b"rocblas_gemm_ex", 2, 1)
        with raises(Unsupported, call="rocblas_gemm_ex", status=2):
            made.kernel.launch(gpu.stream, 0)
