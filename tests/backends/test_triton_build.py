"""The triton backend compiles for GPUs that are not here: NVIDIA's and AMD's."""

import random

import pytest

from kernelmark import ops
from kernelmark.backends.triton import _plan, _planner, backend
from kernelmark.backends.triton import launch as building
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported, UsageError
from kernelmark.gpu.objects import resources
from kernelmark_dev.raising import raises

pytestmark = pytest.mark.skipif(
    backend.available() is not None, reason=backend.available() or "Triton is there"
)

SHARED = {"sm_90": 232448, "gfx942": 65536, "gfx950": 163840}
LARGEST = {**SHARED, "sm_100": 232448, "sm_120": 101376}
# Small blocks, so that each compiles in about a second.
PROBLEMS = (
    "gemm m=64 n=64 k=64 dtype=f16",
    "gemm m=16 n=32 k=4096 dtype=bf16 tb=t bias=yes",
    "gemm m=32 n=32 k=64 dtype=i8 tb=t",
    "gemm m=32 n=32 k=64 dtype=f8e4m3 tb=t",
    "gemm m=32 n=32 k=64 dtype=f8e4m3fnuz tb=t",
    "batched_gemm batch=4 m=32 n=32 k=32 dtype=f32 beta=1.0",
    "attention heads_q=4 heads_kv=1 seq=32 dim=32 dtype=f16 causal=yes",
    "attention heads_q=8 heads_kv=2 seq_q=1 seq_kv=2048 dim=64 dtype=bf16",
    "attention heads_q=4 heads_kv=1 seq=32 dim=32 dtype=f8e4m3",
    "conv n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 dtype=bf16 layout=nhwc",
    "conv n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 dtype=i8",
    "conv n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 dtype=f8e5m2 layout=nhwc",
    "moe m=32 n=32 k=64 e=8 top_k=2 dtype=bf16",
    "moe m=32 n=36 k=40 e=8 top_k=2 dtype=f16",
)

# Built by the quick tests: every op for each vendor and every dtype, not every combination.
# Both AMD targets are CDNA: gfx950 has a dtype that gfx942 does not have.
QUICK = {
    "sm_90": [n for n in range(len(PROBLEMS)) if n not in (1, 9, 13)],
    "gfx942": [0, 2, 4, 5, 7, 9, 12],
    "gfx950": [3],
}
BUILDS = [
    pytest.param(key, arch, marks=() if number in QUICK[arch] else pytest.mark.slow)
    for number, key in enumerate(PROBLEMS)
    for arch in sorted(SHARED)
]


def info(arch):
    kind = "cuda" if arch.startswith("sm_") else "hip"
    return DeviceInfo(
        name=f"{kind}:0",
        kind=kind,
        model="none",
        arch=arch,
        index=0,
        units=132,
        attributes={"shared_per_block": str(LARGEST.get(arch, 65536))},
    )


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        building._build.cache_clear()
        yield
    building._build.cache_clear()


@pytest.mark.parametrize(("key", "arch"), BUILDS)
def test_every_op_compiles_for_every_architecture(key, arch):
    problem, target = ops.parse(key), info(arch)
    if backend.supports(problem, target) is not None:
        return  # test_triton_plan looks at the reasons
    told = backend.compile(problem, {}, target)
    plan = _plan(problem, {}, target)
    built = [call.build(arch) for call in plan.calls]
    assert told.name == "+".join(one.name for one in built)
    assert told.binary_hash
    assert ("+" in told.name) == (plan.workspace_bytes > 0 or bool(plan.named_bytes))
    for one in built:
        used = resources(one.code)[one.name]
        assert used["registers"] > 0
        assert used["stack_bytes"] == 0
        assert used.get("spilled_registers", 0) == 0
        assert one.threads in (32, 64, 128, 256, 512)
        assert one.shared_bytes <= SHARED[arch]
    main = built[plan.main]
    assert main.name not in ("transpose", "upcast")
    assert told.resources["registers"] == resources(main.code)[main.name]["registers"]
    assert told.resources["shared_bytes"] == main.shared_bytes
    machine = int.from_bytes(built[0].code[18:20], "little")
    assert machine == (190 if arch.startswith("sm") else 224)


def legal(key, arch, count):
    space = backend.space(ops.parse(key), info(arch))
    assert space is not None
    rng = random.Random(20)
    found = []
    while len(found) < count:
        config = {name: rng.choice(values) for name, values in space.parameters.items()}
        if space.forbids(config) is None:
            found.append(config)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "arch"),
    [
        ("gemm m=64 n=64 k=256 dtype=f16 tb=t", "sm_90"),
        ("gemm m=64 n=64 k=256 dtype=f16", "gfx942"),
        ("attention heads=2 seq=32 dim=32 dtype=f16", "sm_90"),
        ("attention heads=2 seq=32 dim=32 dtype=f16", "gfx950"),
        ("conv n=1 c=32 h=5 w=5 k=32 r=3 s=3 dtype=f16", "gfx942"),
    ],
)
def test_configs_of_the_space_compile(key, arch):
    for config in legal(key, arch, 2):
        told = backend.compile(ops.parse(key), config, info(arch))
        assert told.resources["registers"] > 0, config
        assert told.resources["num_warps"] == config["num_warps"]


def test_hoppers_persistent_kernel_compiles():
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=bf16 tb=t")
    config = {"persistent": True, "block_m": 64, "block_n": 32, "block_k": 32}
    told = backend.compile(problem, config, info("sm_90"))
    assert told.name == "gemm_persistent"
    plan = _planner(problem).plan(problem, config, info("sm_90"))
    built = plan.calls[0].build("sm_90")
    assert [layout["block_size"] for layout in built.maps] == [[64, 32], [32, 32], [64, 32]]
    assert built.scratch_bytes == 0  # the kernel makes no descriptors


@pytest.mark.parametrize("kind", ["f8e4m3", "i8"])
def test_bytes_with_k_innermost_reach_the_wide_matrix_unit(kind):
    problem = ops.parse(f"gemm m=2048 n=2048 k=2048 dtype={kind}")
    transpose, main = _planner(problem).plan(problem, {}, info("sm_90")).calls
    assert transpose.build("sm_90").name == "transpose"
    text = main.assembly("sm_90")
    assert "wgmma.mma_async" in text
    assert (
        backend.compile(problem, {}, info("sm_90")).resources["num_warps"]
        == main.options["num_warps"]
    )


def test_warps_that_load_and_warps_that_multiply():
    problem = ops.parse("gemm m=128 n=128 k=256 dtype=bf16 tb=t")
    config = {"persistent": True, "block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4}
    config |= {"specialize": True, "split_k": 1}
    plan = _planner(problem).plan(problem, config, info("sm_90"))
    assert plan.calls[0].build("sm_90").threads > 128  # the launch has the loading warps too
    refused = ({"persistent": False}, {"block_m": 128}, {"block_m": 32}, {"num_warps": 8})
    for change in (*refused, {"block_n": 256}):
        with pytest.raises(Unsupported):
            _planner(problem).plan(problem, {**config, **change}, info("sm_90"))


@pytest.mark.parametrize("kind", ["bf16", "f8e4m3"])
def test_few_rows_reach_the_wide_matrix_unit_when_swapped(kind):
    problem = ops.parse(f"gemm m=16 n=128 k=512 a={kind} b={kind} c=bf16 tb=t")
    config = {"block_m": 16, "block_n": 64, "block_k": 128, "split_k": 2, "fused_sum": True}
    config |= {"num_warps": 4, "num_stages": 3, "persistent": False, "swap": True}
    call = _planner(problem).plan(problem, config, info("sm_90")).calls[0]
    text = call.assembly("sm_90")
    assert "wgmma.mma_async" in text
    # Every thread's partial sums are stored, then announced; what is read then is not from the L1.
    at = text.index("atom.global.gpu.acq_rel.add")
    stored = text.rindex("st.global", 0, at)
    assert "bar.sync" in text[stored:at]
    loads = [line for line in text[at:].splitlines() if "ld.global" in line]
    assert loads
    assert all("ld.global.cg" in line for line in loads)
    assert "bar.sync" in text[at : text.index("ld.global.cg", at)]


def test_a_second_time_costs_nothing():
    problem = ops.parse(PROBLEMS[0])
    first = backend.compile(problem, {}, info("sm_90"))
    again = backend.compile(problem, {}, info("sm_90"))
    assert again == first
    building._build.cache_clear()
    from_disk = backend.compile(problem, {}, info("sm_90"))
    assert from_disk.binary_hash == first.binary_hash


@pytest.mark.parametrize(
    ("config", "arch"),
    [
        ({"block_m": 24}, "sm_90"),
        ({"num_warps": 3}, "sm_90"),
        ({"block_k": 8}, "sm_90"),
        ({"num_warps": 3}, "gfx942"),
        ({"block_n": 48}, "gfx942"),
    ],
)
def test_what_triton_refuses_is_a_compile_error(config, arch):
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=f16")
    with raises(CompileError, kernel="gemm_tiles", arch=arch) as caught:
        backend.compile(problem, config, info(arch))
    assert "\n" not in caught.value.message


def test_an_architecture_that_triton_does_not_know():
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=f16")
    with pytest.raises((CompileError, Unsupported)):
        backend.compile(problem, {}, info("gfx803"))
    with raises(UsageError, arch="mi300"):
        backend.compile(problem, {}, info("mi300"))


# Four warps that spill a few registers were faster on an H200 than eight that need not.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "arch", "spilled"),
    [
        ("gemm m=4096 n=4096 k=4096 dtype=bf16 c=f32 tb=t", "sm_90", 0),
        ("gemm m=4096 n=4096 k=4096 dtype=f8e4m3 c=f32", "sm_90", 0),
        ("gemm m=4096 n=4096 k=4096 dtype=i8 tb=t", "sm_90", 0),
        ("attention heads=4 seq=512 dim=64 dtype=bf16 causal=yes", "sm_90", 0),
        ("attention heads=4 seq=512 dim=32 dtype=f16 causal=yes", "sm_90", 0),
        ("attention heads=32 seq=4096 dim=16 dtype=f8e4m3", "sm_90", 0),
        ("attention heads=32 seq=4096 dim=128 dtype=f8e4m3", "sm_90", 0),
        ("attention heads=32 seq=4096 dim=128 dtype=f8e4m3 causal=yes", "sm_90", 128),
        ("attention heads=32 seq=4096 dim=128 dtype=f8e4m3 causal=yes", "sm_100", 0),
        ("conv n=2 c=64 h=28 w=28 k=64 r=3 s=3 stride=2 dtype=i8", "sm_90", 0),
        ("conv n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1 dtype=f16", "sm_90", 0),
        ("conv n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1 dtype=f16", "sm_120", 0),
        ("conv n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1 dtype=f32", "sm_90", 128),
        ("conv n=32 c=256 h=56 w=56 k=256 r=3 s=3 pad=1 dtype=f32", "sm_120", 0),
    ],
)
def test_large_defaults_fit_into_registers_and_shared_memory(key, arch, spilled):
    told = backend.compile(ops.parse(key), {}, info(arch))
    assert told.resources["shared_bytes"] <= LARGEST[arch]
    assert told.resources["stack_bytes"] <= spilled
