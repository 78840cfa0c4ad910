"""What the triton backend plans: spaces, defaults, refusals. Nothing is compiled here."""

import dataclasses
import importlib.util
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.backends.triton import _plan, _planner, backend, gemm
from kernelmark.backends.triton.configs import ceil_div, check_config, power_of_two
from kernelmark.backends.triton.launch import TensorBlocks
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.tune.install.emitters.aiter import to_bucket
from kernelmark.tune.strategies.base import TRIES
from kernelmark_dev.raising import raises

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which make test installs"
)
SHARED = {
    "sm_80": 166912,
    "sm_90": 232448,
    "sm_120": 101376,
    "gfx90a": 65536,
    "gfx942": 65536,
    "gfx950": 163840,
}


def info(arch, *, shared=None):
    kind = "cuda" if arch.startswith("sm_") else "hip"
    return DeviceInfo(
        name=f"{kind}:0",
        kind=kind,
        model="none",
        arch=arch,
        index=0,
        units=132 if kind == "cuda" else 304,
        attributes={"shared_per_block": str(shared or SHARED[arch])},
    )


sizes = st.sampled_from([1, 3, 16, 20, 33, 64, 100, 128, 256, 1000, 4096])


@st.composite
def problems(draw):
    op = draw(st.sampled_from(["gemm", "batched_gemm", "attention", "conv", "moe"]))
    if op == "moe":
        e, top_k = draw(st.sampled_from([(1, 1), (8, 2), (64, 6), (128, 8), (256, 8)]))
        shape = f"m={draw(sizes)} n={draw(sizes)} k={draw(sizes)} e={e} top_k={top_k}"
        return f"moe {shape} dtype={draw(st.sampled_from(['f16', 'bf16']))}"
    if op == "conv":
        kind = draw(st.sampled_from(["f32", "f16", "bf16", "i8"]))
        c, k, edge = draw(sizes), draw(sizes), draw(st.sampled_from([1, 14, 56]))
        layout, taps = draw(st.sampled_from(["nchw", "nhwc"])), draw(st.sampled_from([1, 3]))
        shape = f"n=8 c={c} h={edge} w={edge} k={k} r={taps} s={taps} pad=1"
        return f"conv {shape} dtype={kind} layout={layout}"
    if op == "attention":
        kind = draw(st.sampled_from(["f16", "bf16", "f8e4m3", "f8e4m3fnuz"]))
        dim = draw(st.sampled_from([16, 24, 64, 80, 128, 192, 256]))
        lengths = sorted((draw(sizes), draw(sizes)))
        heads = f"heads_q=8 heads_kv={draw(st.sampled_from([1, 2, 8]))} dim={dim}"
        return f"attention {heads} seq_q={lengths[0]} seq_kv={lengths[1]} dtype={kind} causal=yes"
    kind = draw(st.sampled_from(["f32", "f16", "bf16", "i8", "f8e4m3", "f8e4m3fnuz"]))
    batch = "batch=3 " if op == "batched_gemm" else ""
    ta, tb = draw(st.sampled_from("nt")), draw(st.sampled_from("nt"))
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    return f"{op} {batch}m={m} n={n} k={k} dtype={kind} ta={ta} tb={tb}"


@given(problems(), st.sampled_from(sorted(SHARED)))
@settings(max_examples=300, deadline=None)
def test_the_default_is_in_the_space_and_allowed(key, arch):
    problem = ops.parse(key)
    if backend.supports(problem, info(arch)) is not None:
        return
    space = backend.space(problem, info(arch))
    assert space.default == backend.default(problem, info(arch))
    assert space.forbids(space.default) is None
    assert space.default.keys() == space.parameters.keys()
    for name, value in space.default.items():
        assert value in space.parameters[name], name
    check_config(space.default, space.default)


@pytest.mark.parametrize(
    ("key", "arch"),
    [
        ("gemm m=4096 n=4096 k=4096 dtype=f16", "sm_90"),
        ("gemm m=4096 n=4096 k=4096 dtype=f16", "gfx942"),
        ("attention heads=8 seq=1024 dim=128 dtype=f16", "gfx942"),
        ("conv n=8 c=256 h=28 w=28 k=256 r=3 s=3 pad=1 dtype=f16", "gfx942"),
    ],
)
def test_too_much_shared_memory_is_forbidden(key, arch):
    problem = ops.parse(key)
    space = backend.space(problem, info(arch))
    small = backend.space(problem, info(arch, shared=20_000))
    greedy = {name: max(values) for name, values in space.parameters.items()}
    assert "shared memory" in (space.forbids(greedy) or "")
    # Less memory, fewer configs: everything that fits the small device fits the large one.
    rng = random.Random(5)
    some = [{n: rng.choice(v) for n, v in space.parameters.items()} for _ in range(300)]
    few = [c for c in some if small.forbids(c) is None]
    many = [c for c in some if space.forbids(c) is None]
    assert len(few) < len(many) < len(some)
    assert all(space.forbids(config) is None for config in few)


def test_persistent_kernels_want_rows_that_descriptors_can_address():
    problem = ops.parse("gemm m=256 n=256 k=252 dtype=f16")  # rows of A are not 16-byte multiples
    space = backend.space(problem, info("sm_90"))
    config = {**space.default, "persistent": True, "split_k": 1}
    assert space.forbids(config)
    with raises(Unsupported, arch="sm_90"):
        backend.compile(problem, {"persistent": True}, info("sm_90"))
    split = {**space.default, "persistent": True, "split_k": 2}
    assert space.forbids(split)
    assert True not in backend.space(problem, info("sm_80")).parameters["persistent"]


def legal(key, arch, **fixed):
    space = backend.space(ops.parse(key), info(arch))
    parameters = {
        name: tuple(value for value in values if value == fixed.get(name, value))
        for name, values in space.parameters.items()
    }
    return [dict(c) for c in dataclasses.replace(space, parameters=parameters)]


@pytest.mark.parametrize(
    ("key", "arch"),
    [
        ("gemm m=16 n=2048 k=5120 dtype=f8e4m3 tb=t", "sm_90"),
        ("gemm m=100 n=256 k=1000 dtype=f16", "sm_80"),
        ("gemm m=64 n=512 k=1152 dtype=bf16 tb=t", "gfx942"),
    ],
)
def test_no_kernel_is_in_a_space_twice(key, arch):
    problem = ops.parse(key)
    seen = {}
    names = {"block_n": 64, "num_warps": 4, "num_stages": 2}
    for config in legal(key, arch, **names):
        calls = []
        for call in gemm.plan(problem, config, info(arch)).calls:
            rows = ceil_div(problem.dims["m"], int(config["block_m"]))
            constants = dict(call.constants)
            if "GROUP_M" in constants:  # more than there are rows of tiles is as many
                constants["GROUP_M"] = min(rows, constants["GROUP_M"])
            options = tuple(sorted(call.options.items()))
            calls.append((call.function, call.values, call.grid, options, *constants.items()))
        made = tuple(calls)
        assert made not in seen, (config, seen[made])
        seen[made] = config
    assert len(seen) > 20


def test_operands_are_swapped_for_few_rows_on_matrix_units_that_want_many():
    few = "gemm m=16 n=4096 k=4096 dtype=bf16 tb=t"
    swapped = legal(few, "sm_90", swap=True)
    assert swapped
    assert all(c["block_m"] < 64 <= c["block_n"] for c in swapped)
    assert {c["persistent"] for c in swapped} == {False, True}
    assert {c["fused_sum"] for c in swapped} == {False, True}
    for key, arch in (
        ("gemm m=64 n=4096 k=4096 dtype=bf16 tb=t", "sm_90"),
        ("gemm m=16 n=4096 k=4096 dtype=bf16", "sm_90"),
        ("gemm m=16 n=4096 k=4096 dtype=f32 tb=t", "sm_90"),
        (few, "sm_80"),
        (few, "sm_120"),
    ):
        assert not legal(key, arch, swap=True, num_stages=2), (key, arch)


def test_what_a_split_cannot_help_is_left_out():
    key = "gemm m={} n=8192 k=4096 dtype=f16 tb=t"
    many, few = (
        {c["split_k"] for c in legal(key.format(m), "sm_90", block_m=64, block_n=64)}
        for m in (2048, 64)
    )
    assert many == {1}
    assert {1, 2, 8} <= few


def test_accumulators_fit_into_the_registers_of_the_warps():
    wide = legal("gemm m=512 n=512 k=512 dtype=f16 tb=t", "sm_90", block_m=128, block_n=256)
    assert {c["num_warps"] for c in wide} == {8}
    key = "attention heads=8 seq=1024 dim=128 dtype=bf16"
    scores = legal(key, "sm_90", block_m=128)
    assert {(c["block_n"], c["num_warps"]) for c in scores} >= {(64, 4), (128, 8)}
    assert not {(c["block_n"], c["num_warps"]) for c in scores} & {(128, 4), (32, 2)}


def test_a_config_for_amd_says_nothing_that_its_libraries_have_no_word_for():
    problem = ops.parse("gemm m=16 n=512 k=1024 dtype=bf16 tb=t")
    default = backend.default(problem, info("gfx950"))
    bucket = to_bucket(default, {}, "GEMM-A16W16")
    assert bucket["BLOCK_SIZE_M"] == default["block_m"]


@pytest.mark.parametrize(
    ("arch", "units", "chiplets", "choices"),
    [
        ("gfx942", 304, "", (1, 8)),
        ("gfx942", 228, "", (1, 6)),  # MI300A
        ("gfx942", 38, "", (1,)),  # one of eight devices in CPX mode
        ("gfx942", 304, "8", (1, 8)),
        ("gfx942", 76, "2", (1, 2)),
        ("gfx950", 256, "", (1, 8)),
        ("gfx90a", 110, "", (1,)),
    ],
)
def test_programs_are_numbered_by_the_chiplets_there_are(arch, units, chiplets, choices):
    told = {"chiplets": chiplets} if chiplets else {}
    gpu = dataclasses.replace(info(arch), units=units, attributes=told)
    space = backend.space(ops.parse("gemm m=4096 n=4096 k=4096 dtype=bf16 tb=t"), gpu)
    assert space.parameters["xcds"] == choices


@pytest.mark.parametrize(
    ("key", "arch", "tile"),
    [
        ("gemm m=4096 n=4096 k=4096 dtype=bf16", "gfx942", (256, 256, 64, 8, 2)),
        ("gemm m=4096 n=4096 k=4096 dtype=f16 ta=t", "gfx950", (256, 128, 64, 8, 3)),
        ("gemm m=4096 n=4096 k=4096 dtype=f8e4m3fnuz", "gfx942", (256, 256, 64, 8, 2)),
        ("gemm m=4096 n=4096 k=4096 dtype=f8e4m3", "gfx950", (256, 128, 128, 8, 3)),
        # Too few tiles, rows that are not aligned, no such schedule.
        ("gemm m=2048 n=2048 k=4096 dtype=bf16", "gfx942", (128, 128, 64, 8, 2)),
        ("gemm m=4096 n=4097 k=4096 dtype=bf16", "gfx942", (128, 128, 64, 8, 2)),
        ("gemm m=4096 n=4096 k=4096 dtype=bf16", "gfx90a", (128, 128, 64, 8, 2)),
    ],
)
def test_large_aligned_gemms_on_amd_default_to_the_pingpong_schedule(key, arch, tile):
    default = backend.default(ops.parse(key), info(arch))
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
    assert tuple(default[name] for name in names) == tile


def test_limits_of_tiles_on_amd_are_those_of_its_registers_and_lds():
    problem = ops.parse("gemm m=4096 n=4096 k=4096 dtype=bf16")
    space = backend.space(problem, info("gfx942"))
    large = {**space.default, "block_m": 256, "block_n": 256, "block_k": 64, "num_stages": 2}
    assert space.forbids({**large, "num_warps": 8}) is None
    assert space.forbids({**large, "num_warps": 4, "waves_per_eu": 1}) is None
    for more in ({"num_stages": 3}, {"block_k": 128}, {"num_warps": 2}, {"waves_per_eu": 4}):
        assert space.forbids({**large, "num_warps": 8, **more})
    roomy = backend.space(problem, info("gfx950"))
    assert roomy.forbids({**large, "num_warps": 8, "num_stages": 3}) is None
    assert backend.space(problem, info("sm_90")).forbids({**large, "num_warps": 8})


@pytest.mark.parametrize(
    ("arch", "key"),
    [
        ("gfx942", "gemm m=16 n=4096 k=4096 dtype=bf16 tb=t"),
        ("gfx942", "gemm m=4096 n=4096 k=4096 dtype=bf16 tb=t"),
        ("gfx950", "gemm m=512 n=512 k=512 dtype=i8 ta=t"),
        ("gfx950", "batched_gemm batch=8 m=65 n=96 k=300 dtype=f32"),
    ],
)
def test_the_parts_of_a_space_hold_the_legal_configs_and_no_others(arch, key):
    """Points are listed from them, and the rules are not asked."""
    space = backend.space(ops.parse(key), info(arch))
    rng = random.Random(3)
    drawn = [{n: rng.choice(v) for n, v in space.parameters.items()} for _ in range(10_000)]
    drawn += [
        {name: rng.choice(values) for name, values in zip(space.parameters, product, strict=True)}
        for product in rng.choices(space.products, k=500)
    ]
    part_of = {
        tuple(part[name][0] for name in ("block_m", "block_n", "block_k", "num_warps")): part
        for part in space.parts
    }
    legal = 0
    for config in drawn:
        tile = tuple(config[name] for name in ("block_m", "block_n", "block_k", "num_warps"))
        part = part_of.get(tile)
        inside = part is not None and all(config[name] in values for name, values in part.items())
        assert inside == (space.forbids(config) is None), config
        legal += inside
    assert legal > 200
    assert space.size < TRIES * 200_000  # few enough that a search lists every one


def test_an_unknown_cache_modifier_is_refused():
    with pytest.raises(Unsupported):
        _plan(ops.parse("gemm m=16 n=64 k=64 dtype=f16"), {"cache_modifier": "x"}, info("gfx942"))


@pytest.mark.parametrize(
    "config",
    [
        {"blok_m": 64},
        {"waves_per_eu": 2},  # AMD's alone
        {"block_m": "64"},
        {"block_m": 64.0},
        {"block_m": True},
        {"persistent": 1},
        {"block_n": 0},
        {"split_k": -2},
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config):
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=f16")
    (name,) = config
    with raises(Unsupported, name=name):
        backend.compile(problem, config, info("sm_90"))


def test_small_arithmetic():
    assert [ceil_div(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    sizes = {n: power_of_two(n, 16, 128) for n in (1, 16, 17, 64, 65, 4096)}
    assert sizes == {1: 16, 16: 16, 17: 32, 64: 64, 65: 128, 4096: 128}


BOTH = ["transposed x", "transposed w"]
# By these words kmark ab tells a slip from a regression.


@pytest.mark.parametrize(
    ("key", "arch", "copied"),
    [
        ("conv n=8 c=256 h=14 w=14 k=256 r=3 s=3 dtype=f16", "sm_90", BOTH),
        ("conv n=8 c=256 h=14 w=14 k=512 r=1 s=1 dtype=i8", "sm_90", ["transposed x"]),
        ("conv n=8 c=256 h=14 w=14 k=128 r=3 s=3 stride=2 dtype=f16", "sm_90", BOTH),
        ("conv n=8 c=256 h=14 w=14 k=512 r=1 s=1 stride=2 dtype=f16", "sm_90", ["transposed x"]),
        # One tap and few filters read too little of it to pay for a copy.
        ("conv n=8 c=256 h=14 w=14 k=64 r=1 s=1 dtype=f16", "sm_90", []),
        ("conv n=8 c=256 h=1 w=1 k=512 r=1 s=1 dtype=f16", "sm_90", []),
        ("conv n=8 c=16 h=14 w=14 k=256 r=3 s=3 dtype=f16", "sm_90", []),
        ("conv n=8 c=256 h=14 w=14 k=256 r=3 s=3 dtype=f32", "sm_90", []),
        ("conv n=8 c=256 h=14 w=14 k=256 r=3 s=3 dtype=f16", "gfx942", BOTH),
        ("conv n=8 c=256 h=14 w=14 k=256 r=3 s=3 dtype=f16 layout=nhwc", "sm_90", []),
        ("attention heads=8 seq=2048 dim=128 dtype=f8e4m3", "sm_90", ["upcast v"]),
        ("attention heads=8 seq=512 dim=128 dtype=f8e4m3", "sm_90", []),
        ("attention heads=8 seq_q=1 seq_kv=8192 dim=128 dtype=f8e4m3", "sm_90", []),
        ("attention heads=8 seq=2048 dim=128 dtype=f8e4m3", "sm_120", []),
        ("attention heads=8 seq=512 dim=128 dtype=f8e4m3fnuz", "gfx942", ["upcast v"]),
        ("attention heads=8 seq_q=1 seq_kv=8192 dim=128 dtype=f8e4m3fnuz", "gfx942", []),
        ("attention heads=8 seq=2048 dim=128 dtype=bf16", "sm_90", []),
    ],
)
@needs_triton
def test_operands_are_copied_where_that_pays(key, arch, copied):
    problem = ops.parse(key)
    plan = _planner(problem).plan(problem, {}, info(arch))
    assert list(plan.named_bytes) == copied
    values = plan.calls[plan.main].values
    read = {v.tensor if isinstance(v, TensorBlocks) else v for v in values}
    assert set(copied) <= read
    assert not {place.split()[1] for place in copied} & read


@needs_triton
def test_a_copy_may_be_asked_for_or_refused():
    conv = ops.parse("conv n=2 c=16 h=8 w=8 k=32 r=3 s=3 dtype=f16")
    made = _planner(conv).plan(conv, {"turn": True}, info("gfx942"))
    assert made.named_bytes == {"transposed x": 2 * 16 * 64 * 2, "transposed w": 32 * 16 * 9 * 2}
    attention = ops.parse("attention batch=2 heads=8 seq=2048 dim=128 dtype=f8e4m3")
    made = _planner(attention).plan(attention, {}, info("sm_90"))
    assert made.named_bytes == {"upcast v": 2 * 8 * 2048 * 128 * 2}
    refused = _planner(attention).plan(attention, {"widen": False}, info("sm_90"))
    assert not refused.named_bytes
    # What it leaves out is the default of a kernel that does not copy.
    assert refused.calls[0].options["num_warps"] == 8
    split = _planner(attention).plan(attention, {"split_kv": 4}, info("sm_90"))
    assert not split.named_bytes
    with pytest.raises(Unsupported):
        _planner(attention).plan(attention, {"split_kv": 4, "widen": True}, info("sm_90"))


@needs_triton
@pytest.mark.parametrize(("width", "wide"), [(1023, False), (1024, True)])
def test_a_large_image_is_addressed_with_64_bits(width, wide):
    problem = ops.parse(f"conv n=1 c=1024 h=2048 w={width} k=8 r=1 s=1 dtype=f16")
    plan = _planner(problem).plan(problem, {}, info("sm_90"))
    assert plan.calls[plan.main].constants["WIDE"] is wide


SQUARE = "gemm m=256 n=256 k=256 dtype=bf16"


@pytest.mark.parametrize(
    ("key", "config", "values"),
    [
        (SQUARE, {"persistent": True, "split_k": 4}, {}),
        (SQUARE, {"persistent": True, "fused_sum": True}, {}),
        (SQUARE, {"persistent": False, "split_k": 1, "fused_sum": True}, {}),
        (
            "gemm m=256 n=256 k=64 dtype=bf16",
            {"persistent": False, "split_k": 4, "block_k": 64},
            {"k": 64, "block_k": 64},
        ),
        ("attention heads=8 seq=256 dim=80 dtype=bf16", {"descriptors": True}, {"arch": "sm_90"}),
        ("attention heads=8 seq=256 dim=64 dtype=bf16", {"descriptors": True, "split_kv": 4}, {}),
        ("attention heads=8 seq=2048 dim=64 dtype=bf16", {"widen": True}, {"name": "widen"}),
        (
            "conv n=2 c=64 h=8 w=8 k=64 r=3 s=3 dtype=f16 layout=nhwc",
            {"turn": False},
            {"name": "turn"},
        ),
        ("gemm m=256 n=256 k=64 dtype=f8e4m3 tb=t", {"turn": True}, {"name": "turn"}),
    ],
)
@needs_triton
def test_what_would_have_no_effect_is_refused(key, config, values):
    with raises(Unsupported, **values):
        _plan(ops.parse(key), config, info("sm_90"))


@needs_triton
@pytest.mark.parametrize(
    ("key", "tile"),
    [
        ("gemm m=16 n=4608 k=2048 a=f8e4m3 b=f8e4m3 c=bf16 tb=t", (16, 64, 256, True)),
        ("gemm m=151 n=3200 k=2752 dtype=bf16 tb=t", (64, 128, 128, False)),
        ("gemm m=512 n=6144 k=4096 dtype=bf16 tb=t", (128, 256, 64, False)),
    ],
)
def test_hopper_s_rules_read_by_descriptors_unless_k_is_split(key, tile):
    problem, gpu = ops.parse(key), info("sm_90")
    # Not the backend's default, which the shipped times choose.
    config = _planner(problem).default(problem, gpu)
    assert tuple(config[x] for x in ("block_m", "block_n", "block_k", "swap")) == tile
    assert config["persistent"]
    assert backend.space(problem, gpu).forbids(config) is None
    (call,) = _plan(problem, config, gpu).calls
    assert [argument.block for argument in call.arguments[:2]] == [
        (config["block_m"], config["block_k"]),
        (config["block_n"], config["block_k"]),
    ]
    main, _ = _plan(problem, {"split_k": 2}, gpu).calls
    assert main.function.__name__ == "gemm_tiles"


CONV = "conv n=8 c=256 h=14 w=14 k=256 r=3 s=3 pad=1 dtype=f16"


@needs_triton
def test_a_patch_of_pixels_wastes_as_few_as_it_can():
    (call,) = _plan(ops.parse(f"{CONV} layout=nhwc"), {"block_m": 128}, info("sm_90")).calls
    assert call.function.__name__ == "conv_patches"
    images, rows, columns, channels = call.arguments[0].block
    # 2 × 14 × 14 pixels in boxes of 128: no other shape needs fewer.
    assert images * rows * columns == 128
    assert channels == call.constants["BLOCK_K"] == 64
    (flat,) = _plan(
        ops.parse("conv n=8 c=256 h=14 w=14 k=512 r=1 s=1 dtype=f16 layout=nhwc"),
        {"block_m": 128},
        info("sm_90"),
    ).calls
    assert flat.arguments[0].block[:3] == (1, 1, 128)
    assert flat.values[0].shape == (1, 1, 8 * 14 * 14, 256)


@needs_triton
@pytest.mark.parametrize(
    ("key", "arch"),
    [
        (f"{CONV} layout=nchw", "sm_90"),
        (f"{CONV} layout=nhwc stride=2", "sm_90"),
        (f"{CONV} layout=nhwc", "sm_80"),
        (CONV.replace("c=256", "c=252") + " layout=nhwc", "sm_90"),
    ],
)
def test_descriptors_that_cannot_address_a_convolution_are_refused(key, arch):
    problem = ops.parse(key)
    assert backend.space(problem, info(arch)).parameters["descriptors"] == (False,)
    with raises(Unsupported, arch=arch):
        _plan(problem, {"descriptors": True}, info(arch))


@needs_triton
def test_the_persistent_kernel_may_be_requested_where_the_rules_split_k():
    problem = ops.parse("gemm m=128 n=1024 k=16384 dtype=bf16 tb=t")
    assert int(_planner(problem).default(problem, info("sm_90"))["split_k"]) > 1
    (call,) = _plan(problem, {"persistent": True}, info("sm_90")).calls
    assert call.function.__name__ == "gemm_persistent"
