"""hipBLASLt's backend over a model of the library in C."""

import ctypes

import pytest

from kernelmark import ops
from kernelmark.backends import _hipblaslt_ext, hipblaslt
from kernelmark.core.errors import CaseError, Unsupported, UsageError
from kernelmark.devices.fake import FakeDevice
from kernelmark.gpu.architectures import absent
from kernelmark.testing.backends import BackendContract, bench
from kernelmark.tune.plans import narrowed
from kernelmark_dev.raising import raises

BACKEND = hipblaslt.backend
PLAIN = "gemm m=5 n=7 k=3 dtype=f32"
FIRST = "Cijk_Ailk_Bljk_SB_MT32x64x16_MI32x32x1_SN"
THIRD = "Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x1_SN"


@pytest.mark.parametrize("ta", "nt")
@pytest.mark.parametrize("tb", "nt")
@pytest.mark.parametrize(
    "rest",
    [
        "gemm m=5 n=7 k=3 dtype=f32",
        "gemm m=5 n=7 k=3 dtype=f16 alpha=0.5 beta=2.0 bias=yes",
        "gemm m=5 n=7 k=3 dtype=bf16 c=f32",
        "gemm m=1 n=7 k=3 dtype=f64 alpha=-0.25",
        "gemm m=4 n=8 k=16 dtype=i8 alpha=2.0 beta=-3.0",
        "batched_gemm batch=3 m=5 n=7 k=3 dtype=f32 beta=-1.5 bias=yes",
    ],
)
def test_computes_the_problem(rocm, gpu, rest, ta, tb):
    problem = ops.parse(f"{rest} ta={ta} tb={tb}")
    assert BACKEND.supports(problem, gpu.info) is None
    with bench(BACKEND, problem, gpu) as made:
        BackendContract().check(made)
    assert rocm.fake_made() == 0, "a description was not given back"


FP8 = "gemm_epilogue m=5 n=7 k=32 dtype=f8e4m3fnuz"


@pytest.mark.parametrize(
    "key",
    [
        "gemm m=5 n=7 k=32 dtype=f8e4m3 tb=t",
        "gemm m=5 n=7 k=32 a=f8e5m2 b=f8e4m3 c=f16",
        "gemm m=5 n=7 k=32 dtype=f8e4m3fnuz",
        "gemm m=5 n=7 k=32 dtype=f8e5m2fnuz ta=t",
        "batched_gemm_quant batch=1 m=5 n=7 k=96 scheme=afp4wfp4",
        "batched_gemm_quant batch=1 m=5 n=7 k=64 scheme=afp4wfp4 c=f16",
        *(f"gemm_epilogue m=5 n=7 k=33 dtype=f32 act={act}" for act in ("relu", "gelu", "silu")),
        *(f"gemm_epilogue m=5 n=7 k=33 dtype=bf16 act={act} bias=yes" for act in ("gelu", "silu")),
        "gemm_epilogue m=5 n=7 k=33 dtype=f16 bias=yes bias_type=f32 ta=t tb=t",
        f"{FP8} act=relu bias=yes scale=tensor",
        f"{FP8} c=f8e4m3fnuz act=gelu scale=tensor tb=t",
        "gemm_epilogue m=5 n=7 k=32 dtype=f8e5m2 c=f8e5m2 bias=yes scale=tensor",
        "gemm_epilogue m=5 n=7 k=96 dtype=f8e4m3 act=silu scale=mx",
        f"{FP8} act=relu bias=yes tb=t scale=row",
        "gemm_epilogue m=5 n=7 k=32 a=f8e4m3 b=f8e5m2 c=f16 scale=row",
        "gemm_epilogue m=5 n=7 k=96 dtype=f4e2m1 act=relu bias=yes scale=mx",
    ],
)
def test_computes_few_bits_epilogues_and_scales(rocm, key):
    with bench(BACKEND, ops.parse(key), FakeDevice()) as made:
        BackendContract().check(made)
    assert rocm.fake_made() == 0


# Numbers of hipblaslt.h, not of the table under test.
EPILOGUE, BIAS, BIAS_TYPE, A_SCALE, B_SCALE, D_SCALE, A_MODE, B_MODE = 2, 3, 4, 5, 6, 8, 31, 32
F32, BF16, VEC32_UE8M0, OUTER_VEC_32F = 0, 14, 2, 3


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("dtype=bf16", {EPILOGUE: 1}),
        ("dtype=bf16 bias=yes", {EPILOGUE: 4, BIAS: "bias", BIAS_TYPE: BF16}),
        ("dtype=bf16 act=relu", {EPILOGUE: 2}),
        ("dtype=bf16 act=relu bias=yes bias_type=f32", {EPILOGUE: 6, BIAS_TYPE: F32}),
        ("dtype=bf16 act=gelu", {EPILOGUE: 32}),
        ("dtype=bf16 act=gelu bias=yes", {EPILOGUE: 36}),
        ("dtype=bf16 act=silu", {EPILOGUE: 65536}),
        ("dtype=bf16 act=silu bias=yes", {EPILOGUE: 65540}),
        # The library's A is our B.
        ("dtype=f8e4m3 scale=tensor", {A_SCALE: "b_scale", B_SCALE: "a_scale", D_SCALE: 0}),
        ("dtype=f8e4m3 scale=tensor", {A_MODE: 0, B_MODE: 0}),
        ("dtype=f8e4m3 c=f8e5m2 scale=tensor", {D_SCALE: "d_scale", A_SCALE: "b_scale"}),
        ("dtype=f8e4m3 scale=mx", {A_MODE: VEC32_UE8M0, B_MODE: VEC32_UE8M0, D_SCALE: 0}),
        ("dtype=f8e4m3 scale=row", {A_SCALE: "b_scale", B_SCALE: "a_scale", D_SCALE: 0}),
        ("dtype=f8e4m3 scale=row", {A_MODE: OUTER_VEC_32F, B_MODE: OUTER_VEC_32F}),
        ("dtype=f4e2m1 scale=mx", {A_SCALE: "b_scale", B_SCALE: "a_scale", A_MODE: VEC32_UE8M0}),
    ],
)
def test_the_description_holds_epilogue_and_scales(rocm, rest, expected):
    rocm.fake_attribute.restype = ctypes.c_uint64
    with bench(BACKEND, ops.parse(f"gemm_epilogue m=4 n=8 k=32 {rest}"), FakeDevice()) as made:
        for index, arguments in enumerate(made.sets):
            made.kernel.launch(made.device.stream, index)
            found = {number: rocm.fake_attribute(number) for number in expected}
            assert found == {
                number: arguments[value].address if isinstance(value, str) else value
                for number, value in expected.items()
            }


@pytest.mark.parametrize(
    "key",
    [
        "gemm m=4 n=8 k=32 dtype=bf16 bias=yes",
        "gemm_epilogue m=4 n=8 k=32 dtype=bf16 act=gelu bias=yes",
        "batched_gemm_quant batch=1 m=4 n=8 k=32 scheme=afp4wfp4",
        f"{FP8} scale=tensor bias=yes",
    ],
)
def test_solutions_are_listed_for_an_epilogue(gpu, key):
    """The library offers none for a bias or scales that have no address yet."""
    space = BACKEND.space(ops.parse(key), gpu.info)
    assert len(space.parameters["solution"]) == 6


def test_every_solution_is_in_the_space_by_name(rocm, gpu):
    space = BACKEND.space(ops.parse(PLAIN), gpu.info)
    assert len(space.parameters["solution"]) == 6
    assert space.default == {"solution": FIRST}  # the heuristic's first choice
    assert rocm.fake_made() == 0
    assert rocm.fake_strings() == 0, "a name was not freed"
    with bench(BACKEND, ops.parse(PLAIN), gpu) as made:
        assert made.kernel.info.name == FIRST
        assert made.kernel.info.resources["solution_index"] == 1
    with pytest.raises(Unsupported):  # those of another GPU are not listed
        BACKEND.space(ops.parse(PLAIN), absent("gfx942"))


def test_the_workspace_is_that_of_pytorch(rocm, gpu, monkeypatch):
    """76 MiB, or what its variables say; one of the solutions needs 48 MiB."""
    problem = ops.parse(PLAIN)
    assert BACKEND.settings(gpu.info) == {}
    with bench(BACKEND, problem, gpu) as made:
        assert made.kernel.info.resources["workspace_bytes"] == 76 * 2**20
    names = BACKEND.space(problem, gpu.info).parameters["solution"]
    monkeypatch.setenv("HIPBLASLT_WORKSPACE_SIZE", "32768")
    fixed = {"workspace_kib": 32768}
    assert BACKEND.settings(gpu.info) == fixed
    space = BACKEND.space(problem, gpu.info)
    assert len(space.parameters["solution"]) == len(names) - 1
    assert all(config.items() >= fixed.items() for config in space)
    with bench(BACKEND, problem, gpu, config=fixed | {"solution": THIRD}) as made:
        assert made.kernel.info.resources["workspace_bytes"] == 32 * 2**20
        BackendContract().check(made)
    lost = (set(names) - set(space.parameters["solution"])).pop()
    with pytest.raises(Unsupported):
        BACKEND.prepare(problem, {"solution": lost}, gpu, [])
    with bench(BACKEND, problem, gpu, config={"solution": lost, "workspace_kib": 49152}) as made:
        assert made.kernel.info.name == lost  # the config overrides the variable
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "77824")  # PyTorch reads it first
    assert BACKEND.settings(gpu.info) == {}


@pytest.mark.parametrize("value", [-1, 1.5, True, "big"])
def test_a_workspace_that_is_no_size_is_refused(gpu, monkeypatch, value):
    with pytest.raises(Unsupported):
        BACKEND.prepare(ops.parse(PLAIN), {"workspace_kib": value}, gpu, [])
    monkeypatch.setenv("HIPBLASLT_WORKSPACE_SIZE", "76MB")
    with pytest.raises(UsageError):
        BACKEND.settings(gpu.info)


def test_a_name_finds_its_index_in_another_build(rocm, gpu, monkeypatch):
    problem = ops.parse(PLAIN)
    for build, index in (("0", 3), ("1", 4), ("4", 1)):
        monkeypatch.setenv("FAKE_ROCM_BUILD", build)
        hipblaslt.solutions.cache_clear()
        with bench(BACKEND, problem, gpu, config={"solution": THIRD}) as made:
            assert made.kernel.info.name == THIRD
            assert made.kernel.info.resources["solution_index"] == index
            BackendContract().check(made)


def test_solutions_are_listed_once_for_a_problem(rocm, gpu):
    before = rocm.fake_asked()
    for _ in range(3):
        with bench(BACKEND, ops.parse(PLAIN), gpu, config={"solution": THIRD}):
            pass
    assert rocm.fake_asked() == before + 1


@pytest.mark.parametrize(
    ("config", "now"),
    [
        ({"solution": THIRD, "solution_index": 4}, None),
        ({"solution": THIRD, "solution_index": 99}, ""),
        ({"solution_index": 3}, THIRD),
        ({"solution": "Cijk_nothing"}, None),
        ({"algo": "id=66"}, None),
    ],
)
def test_a_config_that_means_another_kernel_is_refused(rocm, gpu, config, now):
    before = gpu.free_bytes()
    with raises(Unsupported, now=now):
        BACKEND.prepare(ops.parse(PLAIN), config, gpu, [])
    assert (rocm.fake_made(), gpu.free_bytes()) == (0, before)


def test_a_failure_leaks_no_workspace(rocm, gpu):
    before = gpu.free_bytes()
    with pytest.raises(KeyError):  # an argument set without its arguments
        BACKEND.prepare(ops.parse(PLAIN), {}, gpu, [{}])
    assert (rocm.fake_made(), gpu.free_bytes()) == (0, before)


@pytest.mark.parametrize("build", range(1, 6))
def test_every_shuffle_of_the_indices_is_noticed(gpu, monkeypatch, build):
    problem = ops.parse(PLAIN)
    tuned = hipblaslt.solutions(0, problem, 76 << 20)
    monkeypatch.setenv("FAKE_ROCM_BUILD", str(build))
    hipblaslt.solutions.cache_clear()
    for one in tuned:
        config = {"solution": one.name, "solution_index": one.index}
        with pytest.raises(Unsupported):
            BACKEND.prepare(problem, config, gpu, [])


def test_a_library_without_names_runs_its_own_choice_only(gpu, monkeypatch):
    monkeypatch.setattr(hipblaslt, "SOLUTION_NAME", "no_such_symbol")
    problem = ops.parse(PLAIN)
    assert BACKEND.space(problem, gpu.info) is None
    with bench(BACKEND, problem, gpu) as made:
        assert made.kernel.info.name == "solution 1"
    with pytest.raises(Unsupported):
        BACKEND.prepare(problem, {"solution_index": 1}, gpu, [])


def test_short_names_are_held_in_the_string_itself(rocm):
    told = hipblaslt._String(size=5)
    told.local[:5] = b"short"

    class Function:
        def __call__(self, handle, algorithm):
            return told

    shared = {hipblaslt.SOLUTION_NAME: Function()}
    lt = type("Lt", (), {"shared": shared, "handle": None})()
    assert hipblaslt.name_of(lt, bytes(24)) == "short"


@pytest.mark.parametrize("rest", ["dtype=f16 alpha=0.5 beta=2.0 bias=yes ta=t", "dtype=f32 tb=t"])
@pytest.mark.parametrize("config", [{"splitk": 2}, {"wgm": 8}, {"splitk": 4, "solution": THIRD}])
def test_a_gemm_with_a_split_of_k_at_run_time(rocm, gpu, config, rest):
    with bench(BACKEND, ops.parse(f"gemm m=5 n=7 k=3 {rest}"), gpu, config=config) as made:
        BackendContract().check(made)
        assert made.kernel.info.name.startswith(config.get("solution", FIRST))
        assert "splitk" in made.kernel.info.name
    assert rocm.fake_made() == 0, "an object was not destroyed"


@pytest.mark.parametrize("value", [-1, 2**16, True, "four"])
def test_a_split_of_k_that_is_no_number_is_refused(gpu, value):
    with pytest.raises(Unsupported):
        BACKEND.prepare(ops.parse(PLAIN), {"splitk": value}, gpu, [])


def test_values_that_a_solution_does_not_take_are_refused(rocm, gpu, monkeypatch):
    """The last solution has no split of k; 60,000 parts need more workspace than there is."""
    problem, before = ops.parse("gemm m=50 n=70 k=3 dtype=f32"), gpu.free_bytes()
    last = BACKEND.space(problem, gpu.info).parameters["solution"][-1]
    for config in ({"solution": last, "splitk": 2}, {"splitk": 60000}):
        with pytest.raises(Unsupported), bench(BACKEND, problem, gpu, config=config):
            pass
    monkeypatch.setattr(_hipblaslt_ext, "VERSIONS", ("V9",))
    with pytest.raises(Unsupported), bench(BACKEND, problem, gpu, config={"wgm": 8}):
        pass
    assert rocm.fake_made() == 0
    assert before - gpu.free_bytes() < 76 << 20, "a workspace was not freed"


def test_both_are_searched_only_if_a_plan_lists_them(gpu):
    space = BACKEND.space(ops.parse(PLAIN), gpu.info)
    assert "splitk" not in space.parameters
    listed = narrowed(space, {"splitk": (0, 2, 4)})
    assert listed.size == 3 * space.size
    assert listed.default == {**space.default, "splitk": 0}
    with pytest.raises(UsageError):
        narrowed(space, {"splitk": (5,)})


GROUPED = "grouped_gemm m=40 n=8 k=16 e=6 "


def test_a_library_without_these_methods_offers_neither(gpu, monkeypatch):
    grouped = ops.parse(GROUPED + "dtype=f32")
    assert BACKEND.supports(grouped, gpu.info) is None
    assert BACKEND.space(ops.parse(PLAIN), gpu.info).opt_in
    monkeypatch.setattr(_hipblaslt_ext, "VERSIONS", ("V9",))
    assert BACKEND.supports(grouped, gpu.info)
    assert not BACKEND.space(ops.parse(PLAIN), gpu.info).opt_in


@pytest.mark.parametrize("rest", ["e=6 dtype=f32", "e=6 dtype=bf16 split=even", "e=64 dtype=f16"])
@pytest.mark.parametrize("config", [{}, {"solution": THIRD}])
def test_groups_are_multiplied_by_their_own_matrices(rocm, gpu, rest, config):
    """Of 64 groups some have no rows. Each set has arguments of its own in its workspace."""
    problem = ops.parse(f"grouped_gemm m=40 n=8 k=16 {rest}")
    with bench(BACKEND, problem, gpu, config=config) as made:
        assert len(made.sets) > 1
        BackendContract().check(made)
        assert made.kernel.info.name == config.get("solution", FIRST)
        before = gpu.free_bytes()
        made.kernel.close()
        assert gpu.free_bytes() > before, "a workspace was not freed"
    assert (rocm.fake_made(), rocm.fake_strings()) == (0, 0)


def test_a_wrong_grouped_solution_is_noticed(gpu):
    problem = ops.parse(f"{GROUPED}dtype=f32")
    names = BACKEND.space(problem, gpu.info).parameters["solution"]
    assert len(names) == 6
    config = {"solution": names[4]}
    with bench(BACKEND, problem, gpu, config=config) as made, pytest.raises(AssertionError):
        BackendContract().check(made)


def test_a_split_of_k_is_not_for_groups(gpu):
    problem = ops.parse(f"{GROUPED}dtype=f32")
    assert not BACKEND.space(problem, gpu.info).opt_in
    with pytest.raises(Unsupported):
        BACKEND.prepare(problem, {"splitk": 2}, gpu, [])


def test_failures_name_the_call(rocm, gpu):
    problem = ops.parse(PLAIN)
    for symbol, status, kind in (
        ("hipblasLtMatmulAlgoGetHeuristic", 7, Unsupported),
        ("hipblasLtMatrixLayoutCreate", 3, CaseError),
    ):
        rocm.fake_fail(symbol.encode(), status, 1)
        with raises(kind, call=symbol, status=status):
            BACKEND.prepare(problem, {}, gpu, [])
        assert rocm.fake_made() == 0


def test_version_has_the_git_revision(rocm, monkeypatch):
    assert BACKEND.available() is None
    assert BACKEND.version() == "100202-fa4e0000"
    monkeypatch.setattr(hipblaslt, "_shared_object", lambda: None)
    assert (BACKEND.available() or "").startswith("libhipblaslt.so not found")


def test_no_handle_is_made_without_a_device(rocm, monkeypatch):
    rocm.fake_fail(b"hipGetDeviceCount", 100, 2)
    assert BACKEND.available() is not None
    rocm.fake_fail(b"hipGetDeviceCount", 100, 2)
    with pytest.raises(UsageError):
        hipblaslt.library(0)
