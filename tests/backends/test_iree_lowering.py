"""Spaces of lowering configs and the specs that apply them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.backends.iree import choices, compiler, lowering
from kernelmark.backends.iree.spec import EMPTY, missing, parse_spec
from kernelmark.backends.iree.targets import target, vector_unit
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.tune.plans import narrowed
from kernelmark.tune.strategies.base import Points
from kernelmark_dev.raising import raises

CPU = [
    "gemm m=100 n=96 k=70 dtype=f32 tb=t",
    "gemm m=64 n=64 k=64 dtype=i8",
    "batched_gemm batch=3 m=64 n=64 k=64 dtype=f16",
    "conv n=2 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc",
    "conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32",
    "attention heads_q=4 heads_kv=2 seq=32 dim=16 dtype=f32 causal=yes",
]
AMD = [
    ("gfx90a", "gemm m=512 n=512 k=512 dtype=bf16"),
    ("gfx942", "gemm m=1024 n=2048 k=512 dtype=f16 tb=t"),
    ("gfx942", "gemm m=1024 n=1024 k=1024 dtype=f8e4m3fnuz tb=t"),
    ("gfx942", "conv n=2 c=256 h=34 w=34 k=256 r=3 s=3 dtype=f16 layout=nhwc"),
    ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f16"),
    ("gfx942", "conv n=2 c=128 h=34 w=34 k=128 r=3 s=3 layout=nhwc dtype=f8e4m3fnuz"),
    ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f8e4m3fnuz"),
    ("gfx950", "gemm m=1024 n=1024 k=1024 dtype=f8e4m3 tb=t"),
    ("gfx950", "attention heads=8 seq=1024 dim=128 dtype=bf16"),
    ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f16 causal=yes"),
    ("gfx950", "attention heads_q=8 heads_kv=2 seq=512 dim=128 dtype=bf16 causal=yes"),
    ("gfx950", "conv n=2 c=128 h=34 w=34 k=128 r=3 s=3 layout=nhwc dtype=f8e4m3"),
    ("gfx950", "attention heads=8 seq=1024 dim=128 dtype=f8e4m3"),
    ("gfx942", "conv n=2 c=256 h=32 w=32 k=128 r=1 s=1 dtype=f16 layout=nhwc"),
    # bshd: heads of their own, of K shared by Q's, and one of K for all; the batch folded away.
    ("gfx942", "attention batch=2 heads=4 seq=512 dim=64 dtype=f16 layout=bshd"),
    ("gfx942", "attention heads_q=8 heads_kv=2 seq=512 dim=128 dtype=bf16 layout=bshd causal=yes"),
    (
        "gfx942",
        "attention batch=2 heads_q=8 heads_kv=1 seq=512 dim=64 dtype=f16 layout=bshd causal=yes",
    ),
    ("gfx90a", "attention heads=1 seq=512 dim=64 dtype=f16"),
    ("gfx1100", "attention batch=2 heads=4 seq=512 dim=64 dtype=f16"),
    ("gfx1100", "attention heads=8 seq=512 dim=64 dtype=bf16 layout=bshd causal=yes"),
    ("gfx1100", "gemm m=512 n=512 k=512 dtype=f16"),
    ("gfx1100", "gemm m=1024 n=512 k=256 dtype=bf16 tb=t"),
    ("gfx1100", "batched_gemm batch=4 m=256 n=256 k=256 dtype=i8"),
    ("gfx1100", "conv n=2 c=64 h=34 w=34 k=128 r=3 s=3 dtype=f16 layout=nhwc"),
    # What a tile does not divide is padded: in the input of a convolution (nhwc) or in its GEMM.
    ("gfx942", "conv n=2 c=3 h=29 w=29 k=64 r=7 s=7 stride=2 dtype=f16 layout=nhwc"),
    ("gfx942", "conv n=1 c=48 h=30 w=30 k=50 r=3 s=3 dtype=i8 y=i32 acc=i32"),
    ("gfx950", "conv n=2 c=64 h=30 w=30 k=64 r=3 s=3 groups=2 dtype=bf16"),
    ("gfx950", "conv n=2 c=64 h=30 w=30 k=64 r=3 s=3 groups=2 dtype=bf16 layout=nhwc"),
    # One tap, with and without strides: contractions of pixels and filters.
    ("gfx942", "conv n=2 c=64 h=32 w=32 k=64 r=1 s=1 dtype=f16 layout=nhwc stride=2"),
    ("gfx942", "conv n=2 c=64 h=30 w=46 k=96 r=1 s=1 dtype=bf16"),
    ("gfx1201", "conv n=1 c=64 h=31 w=31 k=96 r=1 s=1 dtype=f16 stride=2"),
    ("gfx942", "conv n=2 c=112 h=1 w=1 k=448 r=1 s=1 dtype=bf16"),
    ("gfx1201", "conv n=2 c=64 h=30 w=30 k=64 r=3 s=1 dtype=f16 layout=nhwc"),
    # A matrix times a vector.
    ("gfx942", "gemm m=4096 n=1 k=4096 dtype=f16"),
    ("gfx942", "batched_gemm batch=8 m=1 n=512 k=512 dtype=bf16 tb=t"),
    ("gfx1201", "conv n=1 c=112 h=1 w=1 k=448 r=1 s=1 dtype=bf16"),
    ("gfx942", "gemm m=96 n=96 k=1 dtype=f16"),
    ("gfx942", "attention heads=8 seq_q=1000 seq_kv=1024 dim=64 dtype=f16"),
    ("gfx1250", "gemm m=512 n=512 k=512 dtype=f16"),
    ("gfx1250", "attention heads=8 seq=512 dim=64 dtype=bf16"),
]


def goal(arch):
    kind = "hip" if arch.startswith("gfx") else "cpu"
    found = target(DeviceInfo(name=kind, kind=kind, model="some", arch=arch))
    assert found is not None
    return found


def space(key, arch="x86_64", **vectors):
    """`vectors` are what the target has instead of its own."""
    return choices.space(ops.parse(key), replace(goal(arch), **vectors))


ALL = [*(("x86_64", key) for key in CPU), *AMD]


def test_a_named_convolution_on_a_cpu_is_left_to_the_compiler():
    problem = ops.parse("conv n=2 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc")
    assert not choices.choose(problem, {"im2col": False}, goal("x86_64")).entries


@pytest.mark.parametrize(("arch", "key"), ALL)
def test_seeds_are_distinct_points_of_the_space(arch, key):
    assert not choices.untunable(ops.parse(key), goal(arch))
    found = space(key, arch)
    starts = [found.default, *found.seeds]
    for one in starts:
        assert found.forbids(one) is None
        given = [one[name] for name in found.parameters]
        assert len(given) == len(one)
        assert any(
            all(value in values for value, values in zip(given, product, strict=True))
            for product in found.products
        )
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ("m=240 n=240 k=240", (14, 32, 1)),  # the rest of n is one register
        ("m=240 n=240 k=240 ta=t", (14, 32, 1)),
        ("m=300 n=90 k=160 ta=t", (16, 16, 1)),  # the rest of 32 would be 26
    ],
)
def test_the_first_tile_leaves_at_most_a_register_of_columns(sizes, first):
    found = space(f"gemm {sizes} dtype=f32", vector_bytes=64, registers=32)
    starts = [one for one in (found.default, *found.seeds) if one["tile_m"]]
    vectors = [tuple(one[f"vector_{dim}"] for dim in "mnk") for one in starts]
    assert vectors[0] == first
    if "ta=t" in sizes:  # more steps along k would transpose A in registers
        assert {steps for _, _, steps in vectors} == {1}


def test_short_registers_have_tiles_of_their_own():
    found = space("gemm m=256 n=256 k=256 dtype=f32", vector_bytes=16, registers=32)
    starts = [one for one in (found.default, *found.seeds) if one["tile_m"]]
    vectors = [tuple(one[f"vector_{dim}"] for dim in "mnk") for one in starts]
    caches = [tuple(one[f"cache_{dim}"] for dim in "mnk") for one in starts]
    assert vectors[:2] == [(4, 16, 4)] * 2
    assert caches[:2] == [(0, 0, 0), (32, 32, 64)]


@pytest.mark.parametrize(
    ("vector_bytes", "key", "places"),
    [
        # Measured on a Neoverse N1 only: elsewhere they come after all tiles.
        (16, "gemm m=256 n=256 k=256 dtype=f32", {1: True}),
        (64, "gemm m=256 n=256 k=256 dtype=f32", {-1: True}),
        (16, CPU[3], {1: True, 2: False, -1: False}),
        (64, CPU[3], {-2: True, -1: False}),
    ],
)
def test_packing_is_tried_without_tiles(vector_bytes, key, places):
    some = replace(goal("x86_64"), vector_bytes=vector_bytes, registers=32)
    found = choices.space(ops.parse(key), some)
    starts = [found.default, *found.seeds]
    sizes = [name for name in starts[0] if "_" in name[-2:]]
    for place, packed in places.items():
        flags = {"data_tiling": packed, "ukernels": packed}
        assert starts[place].items() >= flags.items()
        assert not any(starts[place][name] for name in sizes)
    untiled = [one for one in found if not any(one[name] for name in sizes)]
    assert {*untiled} <= {*starts}
    assert len(untiled) == (3 if key.startswith("conv") else 1)


@pytest.mark.parametrize(
    ("arch", "key"),
    [
        ("gfx942", "conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 dtype=f16"),
        ("x86_64", "conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 dtype=f32 groups=2"),
        ("x86_64", "attention heads=8 seq=64 dim=64 dtype=f32"),
    ],
)
def test_only_a_convolution_without_groups_on_a_cpu_has_hwcf_filters(arch, key):
    problem = ops.parse(key)
    for config in ({"hwcf": True}, {"direct_tile_p": 2}):
        assert not choices.form_of(problem, config, goal(arch)).hwcf
        with pytest.raises(Unsupported):
            choices.choose(problem, config, goal(arch))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_one_image_is_tuned_in_bands_of_rows(layout):
    """IREE drops the tiles of a convolution of one image."""
    problem = ops.parse(f"conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout={layout}")
    cpu = replace(goal("x86_64"), vector_bytes=64, registers=32)
    found = choices.space(problem, cpu)
    (entry,) = choices.choose(problem, found.default, cpu).entries
    assert entry.root.sizes["batch"] == (2,)
    assert entry.root.sizes["image"] == (7, 14)
    # In a model it is the named op of either order of filters.
    assert len(entry.rewrites) == (2 if layout == "nhwc" else 1)
    tiles = {name: value for name, value in found.default.items() if name.startswith("direct_")}
    for name, value in tiles.items():
        bad = {**found.default, name: value + 27}
        with pytest.raises(Unsupported):
            choices.choose(problem, bad, cpu)


@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_tuned_convolution_is_found_by_the_op_of_the_model(layout, vector_bytes):
    """Also where the backend's default form has no tiles: im2col of several images in nchw."""
    problem = ops.parse(f"conv n=2 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout={layout}")
    cpu = replace(goal("x86_64"), vector_bytes=vector_bytes, registers=32)
    (model,) = lowering.model_roots(problem, choices.form_of(problem, {}, cpu))
    found = choices.space(problem, cpu)
    for config in (found.default, *found.seeds):
        (entry,) = choices.choose(problem, config, cpu).entries
        assert model in [rewrite.root for rewrite in entry.rewrites]


def test_a_convolution_without_bands_has_no_tiles_but_those_of_im2col():
    key = "conv n=1 c=16 h=13 w=13 k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc"
    cpu = replace(goal("x86_64"), vector_bytes=64, registers=32)
    found = choices.space(ops.parse(key), cpu)
    assert not any(name.startswith("direct_") for name in found.parameters)
    assert all(config["im2col"] for config in (found.default, *found.seeds))


def test_plans_and_configs_from_before_packing_stay_valid():
    """They list no sizes of 0, and do not have ukernels."""
    problem, found = ops.parse(CPU[0]), space(CPU[0])
    assert found is not None
    old = {
        name: tuple(value for value in values if value or name.startswith("cache"))
        for name, values in found.parameters.items()
        if name not in ("ukernels", "data_tiling")
    } | {"data_tiling": (False,)}
    narrow = narrowed(found, old)
    assert len(Points.of(narrow)) == len(Points.of(found)) - 1
    config = {name: value for name, value in found.default.items() if name != "ukernels"}
    assert choices.choose(problem, config, goal("x86_64")) == choices.choose(
        problem, found.default, goal("x86_64")
    )


@pytest.mark.parametrize(
    ("size", "vector"),
    [
        # A wide register tile pays where it divides n, a narrow one leaves less of a tail.
        ("m=256 n=256 k=256", (6, 64, 1)),
        ("m=100 n=100 k=100", (14, 32, 1)),
        ("m=64 n=784 k=64", (8, 32, 4)),
    ],
)
def test_the_first_seed_fits_the_size_and_the_registers(size, vector):
    wide = space(f"gemm {size} dtype=f32", vector_bytes=64, registers=32)
    assert tuple(wide.default[f"vector_{dim}"] for dim in "mnk") == vector
    narrow = space(f"gemm {size} dtype=f32", vector_bytes=16, registers=16)
    assert narrow.default["vector_n"] <= 8


@pytest.mark.parametrize(("vector_bytes", "fits"), [(16, False), (32, True), (64, True)])
def test_a_contraction_fits_the_compilers_largest_vector(vector_bytes, fits):
    """8 × 16 × 16 products of 4 bytes are 8 KiB, as much as 512 registers of NEON."""
    found = space("gemm m=64 n=64 k=64 dtype=f32", vector_bytes=vector_bytes, registers=32)
    config = dict.fromkeys(("cache_m", "cache_n", "cache_k"), 0) | {"tile_m": 64, "tile_n": 64}
    config |= {"vector_m": 8, "vector_n": 16, "vector_k": 16}
    assert (found.forbids(config) is None) == fits


@pytest.mark.parametrize(
    ("isa", "unit"),
    [
        (("sse4_2", "avx", "avx2", "avx512f"), (64, 32)),
        (("sse4_2", "avx", "avx2"), (32, 16)),
        (("sse4_2",), (16, 16)),
        (("asimd",), (16, 32)),
    ],
)
def test_the_vector_unit_follows_the_instruction_sets(isa, unit):
    assert vector_unit(isa) == unit


def test_flags_of_the_softmax_are_those_of_an_attention_on_a_cpu():
    attention = ops.parse("attention heads=2 seq=32 dim=16 dtype=f32")
    cpu = goal("x86_64")
    plain = choices.choose(attention, {"data_tiling": False}, cpu)
    both = choices.choose(attention, {"data_tiling": False, "peel": True, "reassociate": True}, cpu)
    assert set(both.flags) - set(plain.flags) == {
        "--iree-llvmcpu-vector-pproc-strategy=peel",
        "--iree-llvmcpu-reassociate-fp-reductions=true",
    }
    with pytest.raises(Unsupported):
        choices.choose(ops.parse("gemm m=64 n=64 k=64 dtype=f32"), {"peel": True}, cpu)


@pytest.mark.parametrize(("arch", "key"), ALL)
def test_candidates_are_many_and_distinct(arch, key):
    found, problem = space(key, arch), ops.parse(key)
    assert found is not None
    points = Points.of(found, limit=1000)  # the whole of a space takes a second to enumerate
    assert len(points) > 50
    assert points.index(found.default) is not None
    drawn = random.Random(1).sample(range(len(points)), 40)
    made = [choices.choose(problem, points.config(i), goal(arch)) for i in drawn]
    assert len({choice.spec for choice in made}) == len(made)
    assert all(choice.entries for choice in made)


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000))
def test_a_cpu_space_holds_something_unless_a_loop_is_folded(m, n, k):
    found = space(f"gemm m={m} n={n} k={k} dtype=f32")
    assert (found is None) == (1 in (m, n, k))
    if found is not None:
        assert next(iter(found), None) is not None
        for name, dim in (("tile_m", m), ("tile_n", n)):
            values = [value for value in found.parameters[name] if value]
            assert all(value < dim for value in values[:-1]), "two beyond the dim are the same"


@pytest.mark.parametrize(
    ("arch", "key"),
    [
        ("x86_64", "copy n=64 dtype=f32"),
        ("x86_64", "gemm m=64 n=1 k=64 dtype=f32"),
        ("x86_64", "conv n=2 c=16 h=14 w=14 k=32 r=1 s=1 dtype=f32"),
        ("x86_64", "conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 dtype=f32 groups=2"),
        ("x86_64", "attention heads=8 seq=64 dim=64 dtype=f16 kv=f8e4m3"),
        # Nothing to multiply by matrix instructions: one filter, one channel of each group.
        ("gfx942", "conv n=2 c=64 h=34 w=34 k=1 r=3 s=3 dtype=f16 layout=nhwc"),
        ("gfx942", "conv n=2 c=64 h=34 w=34 k=64 r=3 s=3 dtype=f16 groups=64"),
        ("gfx942", "conv n=2 c=64 h=3 w=34 k=64 r=3 s=3 dtype=f16"),
        ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f16 kv=f8e4m3fnuz"),
        ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f64"),
        ("gfx942", "attention heads=8 seq=1000 dim=64 dtype=f16"),
        ("gfx1100", "gemm m=512 n=512 k=512 dtype=f32"),
        ("gfx908", "gemm m=512 n=512 k=512 dtype=f16"),
        # An instruction of k=16 does not divide the head's dim.
        ("gfx1100", "attention heads=8 seq=1024 dim=72 dtype=f16"),
    ],
)
def test_what_cannot_be_tuned_has_a_cause(arch, key):
    found, cause = space(key, arch), choices.untunable(ops.parse(key), goal(arch))
    assert found is None or next(iter(found), None) is None
    assert cause


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("mma", "MFMA_F32_16x16x16_F16", True),  # of another dtype
        ("tile_m", 48, True),
        ("tile_k", 256, False),
        ("subgroups_m", 4, False),
    ],
)
def test_an_impossible_amd_lowering_is_refused(name, value, named):
    problem = ops.parse("gemm m=1024 n=1024 k=1024 dtype=bf16")
    found = choices.space(problem, goal("gfx942"))
    fitting = {"mma": "MFMA_F32_32x32x8_BF16", "tile_m": 64, "tile_n": 256, "tile_k": 64}
    config = {**found.default, **fitting}
    assert choices.choose(problem, config, goal("gfx942")).entries
    with raises(Unsupported, values=(name, value) if named else ()):
        choices.choose(problem, {**config, name: value}, goal("gfx942"))


@pytest.mark.parametrize(("arch", "wave"), [("gfx942", 64), ("gfx1100", 32)])
def test_a_workgroup_has_the_waves_of_its_architecture(arch, wave):
    problem = ops.parse("gemm m=512 n=512 k=512 dtype=f16")
    found = choices.space(problem, goal(arch))
    config = {**found.default, "subgroups_m": 2, "subgroups_n": 2}
    (one,) = choices.choose(problem, config, goal(arch)).entries
    assert f"workgroup_size = [{4 * wave}, 1, 1] subgroup_size = {wave}" in one.lowering.translation


@pytest.mark.parametrize(
    ("key", "padding"),
    [
        ("gemm m=96 n=128 k=120 dtype=f16", "padding = [32, 64, 64], "),
        ("batched_gemm batch=6 m=50 n=128 k=64 dtype=f16", "padding = [1, 32, 64, 64], "),
        ("gemm m=96 n=128 k=64 dtype=f16", ""),
    ],
)
def test_a_tile_that_does_not_divide_a_gemm_is_padded(key, padding):
    problem = ops.parse(key)
    found = choices.space(problem, goal("gfx942"))
    tiles = {"tile_m": 32, "tile_n": 64, "tile_k": 64, "subgroups_m": 1, "subgroups_n": 1}
    config = {**found.default, **tiles, "pipeline": "TileAndFuse"}
    (one,) = choices.choose(problem, config, goal("gfx942")).entries
    assert ("padding = " in one.lowering.config) == bool(padding)
    assert padding in one.lowering.config
    if padding:
        with pytest.raises(Unsupported):
            choices.choose(problem, config | {"pipeline": "VectorDistribute"}, goal("gfx942"))


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000))
def test_every_gemm_has_a_lowering_on_a_gpu(m, n, k):
    found = space(f"gemm m={m} n={n} k={k} dtype=f16", "gfx942")
    assert found.forbids(found.default) is None
    assert found.default


@settings(max_examples=25)
@given(
    sizes=st.tuples(*[st.integers(1, 300)] * 3, st.integers(2, 300)),
    taps=st.sampled_from([(1, 1), (3, 3), (1, 5)]),
    stride=st.integers(1, 2),
    layout=st.sampled_from(["nhwc", "nchw"]),
)
def test_every_convolution_with_filters_has_a_lowering_on_a_gpu(sizes, taps, stride, layout):
    (n, h, c, k), (r, s) = sizes, taps
    key = f"conv n={n} c={c + 1} h={h + r + 1} w={h + s + 1} k={k} r={r} s={s} stride={stride}"
    found = space(f"{key} dtype=f16 layout={layout}", "gfx942")
    assert found.forbids(found.default) is None
    assert found.default


def lowering_of(arch, key, **config):
    problem = ops.parse(key)
    found = choices.space(problem, goal(arch))
    (one,) = choices.choose(problem, {**found.default, **config}, goal(arch)).entries
    return one


@pytest.mark.parametrize(
    ("key", "loops", "sizes"),
    [
        # As iree-compile has them when it applies a spec: without loops of one iteration, and
        # with pixels as one loop where they are adjacent.
        (
            "conv n=1 c=8 h=9 w=9 k=16 r=3 s=3 stride=2 dtype=f16",
            "f, p, q, c, r, s",
            {"batch": (), "image": (4, 4), "channels": (16,), "filter": (3, 3), "terms": (8,)},
        ),
        (
            "conv n=2 c=8 h=9 w=9 k=16 r=3 s=1 dtype=f16 layout=nhwc",
            "n, p, q, f, r, c",
            {"batch": (2, 9), "image": (7,), "channels": (16,), "filter": (3,), "terms": (8,)},
        ),
        (
            "conv n=2 c=8 h=9 w=7 k=16 r=1 s=1 dtype=f16 layout=nhwc",
            "q, f, c",
            {"batch": (), "m": (126,), "n": (16,), "k": (8,)},
        ),
        (
            "conv n=2 c=8 h=9 w=7 k=16 r=1 s=1 dtype=f16",
            "n, f, q, c",
            {"batch": (), "m": (2, 63), "n": (16,), "k": (8,)},
        ),
        (
            "conv n=2 c=8 h=9 w=7 k=16 r=1 s=1 stride=2 groups=2 dtype=f16",
            "n, g, f, p, q, c",
            {"batch": (2,), "m": (2, 5, 4), "n": (8,), "k": (4,)},
        ),
        (
            "conv n=1 c=8 h=1 w=1 k=16 r=1 s=1 dtype=f16",
            "f, c",
            {"batch": (), "m": (), "n": (16,), "k": (8,)},
        ),
    ],
)
def test_the_root_of_a_convolution_on_a_gpu(key, loops, sizes):
    root = lowering_of("gfx942", key).root
    assert (root.loops, root.sizes) == (loops, sizes)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"pad_conv": False}, ("padding = [1, 4, 16, 32, 32], ", "reduction = [0, 0, 0, 0, 2]")),
        # 27 terms are less than a step, so that the GEMM pads them.
        ({"pad_conv": True}, ("padding_conv = [1, 4, 16, 32, 0, 0, 0]", "padding = [1, 4,")),
    ],
)
def test_a_convolution_is_padded_as_a_gemm_or_before(config, parts):
    key = "conv n=2 c=3 h=15 w=15 k=40 r=3 s=3 dtype=f16 layout=nhwc"
    tiles = {"tile_p": 4, "tile_q": 16, "tile_n": 32, "tile_k": 32}
    text = lowering_of("gfx942", key, **tiles, subgroups_m=1, subgroups_n=1, **config)
    assert all(part in text.lowering.config for part in parts)
    assert ("padding_conv" in text.lowering.config) == config["pad_conv"]


def test_a_convolution_of_single_taps_steps_over_channels():
    key = "conv n=2 c=64 h=34 w=34 k=64 r=3 s=3 dtype=f16 layout=nhwc"
    tiles = {"tile_q": 32, "tile_n": 64, "tile_k": 32, "subgroups_m": 1, "subgroups_n": 2}
    direct = lowering_of("gfx942", key, **tiles, tile_p=2, igemm=False).lowering
    assert "reduction = [0, 0, 0, 0, 1, 1, 2]" in direct.config
    assert "use_igemm_convolution = false" in direct.translation
    vector = {"pipeline": "VectorDistribute", "igemm": False}
    distributed = lowering_of("gfx942", key, **tiles, tile_p=1, **vector).lowering
    assert "reduction = [0, 0, 0, 0, 1, 1, 32]" in distributed.config
    assert "subgroup_basis = [[1, 1, 1, 2, 1, 1, 1], " in distributed.config
    with pytest.raises(Unsupported):
        lowering_of("gfx942", f"{key} stride=2", **tiles, tile_p=1, igemm=False)


def test_lanes_share_the_sum_of_a_matrix_times_a_vector():
    config = {"tile_m": 4, "lanes_k": 32, "vector_k": 8, "subgroups_k": 2}
    one = lowering_of("gfx942", "gemm m=64 n=1 k=512 dtype=f16", **config).lowering
    assert "workgroup = [4, 1, 0]" in one.config
    assert "partial_reduction = [0, 0, 512]" in one.config
    assert "lane_basis = [[1, 1, 32], " in one.config
    assert "workgroup_size = [128, 1, 1]" in one.translation


def test_gemms_of_an_attention_have_their_own_instructions():
    key = "attention heads=8 seq=1024 dim=64 dtype=f16"
    one = lowering_of("gfx942", key, qk_mma="MFMA_F32_16x16x16_F16", tile_n=32).lowering
    assert "VMFMA" in lowering_of("gfx942", key).lowering.parts
    assert "VMFMA" not in one.parts
    assert "workgroup = [1, 64, 32, 0, 0]" in one.config
    assert "preserve-sign" in one.translation
    assert "preserve-sign" not in lowering_of("gfx942", key, flush_denormals=False).lowering.info
    with pytest.raises(Unsupported):
        lowering_of("gfx942", key, qk_mma="MFMA_F32_32x32x8_F16")


@pytest.mark.parametrize(
    "key", ["gemm m=512 n=512 k=512 dtype=f16", "attention heads=8 seq=1024 dim=64 dtype=f16"]
)
def test_operands_stay_in_global_memory_if_a_plan_asks(key):
    assert "promote" not in space(key, "gfx942").parameters
    assert "promote" in space(key, "gfx942").opt_in
    assert "promote_operands = []" in lowering_of("gfx942", key, promote="none").lowering.config


def test_convolutions_from_before_their_pipelines_keep_their_lowering():
    key = "conv n=2 c=256 h=34 w=34 k=256 r=3 s=3 dtype=f16 layout=nhwc"
    problem, found = ops.parse(key), space(key, "gfx942")
    later = ("pipeline", "igemm", "pad_conv")
    old = {name: value for name, value in found.default.items() if name not in later}
    assert choices.choose(problem, old, goal("gfx942")) == choices.choose(
        problem, found.default, goal("gfx942")
    )


def test_a_masked_attention_is_another_root_than_one_without():
    keys = [f"attention heads=8 seq=1024 dim=64 dtype=f16{more}" for more in ("", " causal=yes")]
    plain, masked = (entry(key, "gfx942") for key in keys)
    assert plain.lowering == masked.lowering
    assert plain.root.name != masked.root.name
    spec = EMPTY.with_entries([plain, masked])
    assert parse_spec(spec.text).pairs == spec.pairs


# -- specs

FOREIGN = """// A spec of somebody else.
#map = affine_map<(d0) -> (d0)>
module attributes {transform.with_named_sequence,
    iree_codegen.tuning_spec_with_default_entrypoint} {

// ======
// * Tuned *
// ======

// Theirs.
transform.named_sequence @theirs(%op: !transform.any_op {transform.readonly},
                                 %config: !transform.any_param {transform.readonly}) {
  transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
  transform.yield
}

transform.named_sequence
@match_1(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
  transform.match.operation_name %op ["linalg.fill"] : !transform.any_op
  %config = transform.param.constant {x = {y = 1}} -> !transform.any_param
  transform.yield %op, %config : !transform.any_op, !transform.any_param
}

transform.named_sequence
@__kernel_config(%op: !transform.any_op {transform.consumed}) -> !transform.any_op
  attributes { iree_codegen.tuning_spec_entrypoint } {
  %res = transform.foreach_match in %op
    // Fast.
    @match_1 -> @theirs
    : (!transform.any_op) -> !transform.any_op
  transform.yield %res : !transform.any_op
}

}
"""


def entry(key=CPU[0], arch="x86_64"):
    found = space(key, arch)
    choice = choices.choose(ops.parse(key), found.default, goal(arch))
    return replace(choice.entries[0], note={"problem": key})


def test_a_spec_reads_back_as_it_was_written():
    spec = EMPTY.with_entries([entry(), entry(AMD[4][1], "gfx942")])
    again = parse_spec(spec.text)
    assert again.text == spec.text
    assert again.pairs == spec.pairs
    assert [note["problem"] for note in again.notes.values()] == [CPU[0], AMD[4][1]]


def test_a_spec_of_other_origin_is_kept_behind_ours():
    foreign = parse_spec(FOREIGN)
    assert list(foreign.sequences) == ["theirs", "match_1"]
    assert foreign.pairs == (("match_1", "theirs"),)
    merged = foreign.with_entries([entry()])
    assert [matcher for matcher, _ in merged.pairs] == [entry().root.name, "match_1"]
    assert foreign.sequences["match_1"] in merged.text
    assert merged.text.startswith(FOREIGN[: FOREIGN.index("// Theirs")].rstrip())
    assert parse_spec(merged.text).pairs == merged.pairs


def test_another_lowering_of_a_root_replaces_the_first():
    first = entry()
    spec = EMPTY.with_entries([first])
    other = replace(first, lowering=replace(first.lowering, config="#x<y>"))
    assert spec.with_entries([other]).pairs == spec.pairs
    assert first.lowering.config not in spec.with_entries([other]).text
    spec = EMPTY.with_entries([left(CPU[0])]).with_entries([first])  # tiles replace packing
    assert not spec.packs
    assert len(spec.pairs) == 1
    assert not parse_spec(spec.text).preprocesses


def left(key, *, packed=True):
    """The entry of a config without tiles."""
    flags = ("data_tiling", "ukernels", "im2col", "hwcf")
    names = [name for name in space(key).parameters if name not in flags]
    config = dict.fromkeys(names, 0) | {"data_tiling": packed, "ukernels": packed}
    config |= {"im2col": True} if key.startswith("conv") else {}
    (one,) = choices.choose(ops.parse(key), config, goal("x86_64")).entries
    return replace(one, note={"problem": key})


@pytest.mark.parametrize("keys", [CPU[:1], CPU[3:5], CPU[:5]])
def test_a_spec_that_preprocesses_reads_back_as_it_was_written(keys):
    spec = EMPTY.with_entries([left(key) for key in keys])
    again = parse_spec(spec.text)
    assert again == spec
    assert spec.preprocesses
    assert len(again.packs) == len(keys)
    assert len(again.rewrites) == sum(1 + ("nhwc" in key) for key in keys if key.startswith("conv"))


def test_preprocessing_of_other_origin_is_kept_and_not_added_to():
    theirs = (
        "transform.named_sequence @__transform_main(%m: !transform.any_op) {\n"
        "  transform.yield\n}\n\n"
    )
    at = FOREIGN.index("transform.named_sequence\n@__kernel")
    text = FOREIGN[:at] + theirs + FOREIGN[at:]
    foreign = parse_spec(text)
    assert foreign.sequences["__transform_main"] == theirs.rstrip()
    assert theirs.rstrip() in foreign.with_entries([entry()]).text
    with pytest.raises(UsageError):
        foreign.with_entries([left(CPU[0])])


@pytest.mark.parametrize("text", ["module {}", FOREIGN[: FOREIGN.index("@match_1 ->")]])
def test_what_is_no_spec_is_refused(text):
    with pytest.raises(UsageError):
        parse_spec(text)


def test_a_config_in_another_dispatch_is_no_proof():
    one = entry().lowering
    split = (
        f"  func.func @a() attributes {{translation_info = {one.translation}}} {{\n"
        f"  func.func @b() {{\n  linalg.matmul {{lowering_config = {one.config}}}\n"
    )
    assert missing(split, [entry()]) == [entry()]
    assert missing(split.replace("  func.func @b() {\n", ""), [entry()]) == []


compiled = pytest.mark.skipif(
    not compiler.compiler_present(), reason="needs iree-base-compiler, which make test installs"
)


@compiled
def test_the_compiler_applies_a_spec_and_none_of_another_size():
    problem = ops.parse("gemm m=32 n=48 k=16 dtype=f32 bias=yes")
    found = choices.space(problem, goal("x86_64"))
    choice = choices.choose(problem, found.default, goal("x86_64"))
    assert choices.unapplied(problem, choice, choice.spec) == []
    other = choices.choose(ops.parse(CPU[0]), space(CPU[0]).default, goal("x86_64"))
    assert choices.unapplied(problem, choice, other.spec) == list(choice.entries)


TWO = """module {
  func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x32xf32>)
      -> (tensor<64x64xf32>, tensor<64x32xf32>) {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x64xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
    %0 = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
        outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
    %g = tensor.empty() : tensor<64x32xf32>
    %h = linalg.fill ins(%z : f32) outs(%g : tensor<64x32xf32>) -> tensor<64x32xf32>
    %1 = linalg.matmul ins(%a, %c : tensor<64x64xf32>, tensor<64x32xf32>)
        outs(%h : tensor<64x32xf32>) -> tensor<64x32xf32>
    return %0, %1 : tensor<64x64xf32>, tensor<64x32xf32>
  }
}
"""


@compiled
@pytest.mark.parametrize("packed", [64, 32, 16])
def test_only_the_gemm_of_the_spec_is_packed(packed):
    """One of two GEMMs, the other, or none of them; the other one has the tiles of the spec."""
    keys = {n: f"gemm m=64 n={n} k=64 dtype=f32" for n in (64, 32, 16)}
    tiled = {n: entry(key) for n, key in keys.items() if n != packed}
    pack = left(keys[packed])
    spec = EMPTY.with_entries([pack, *tiled.values()])
    flags = (*goal("x86_64").flags, "--iree-opt-data-tiling=true")
    flags = (*flags, "--compile-to=executable-configurations")
    dump = compiler.run_compiler(TWO, flags, spec.text).decode()
    assert missing(dump, [pack]) == ([pack] if packed == 16 else [])
    assert missing(dump, [one for n, one in tiled.items() if n != 16]) == []


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "key",
    [
        CPU[3],
        CPU[4],
        "conv n=1 c=8 h=11 w=9 k=16 r=3 s=2 stride=2 dilation=2 pad=1 dtype=f16 layout=nhwc",
    ],
)
def test_a_named_convolution_becomes_the_gemm_of_the_spec(key, packed):
    problem, cpu = ops.parse(key), goal("x86_64")
    found = choices.space(problem, cpu)
    assert found is not None
    config = next(
        one for one in found if not one["tile_m"] and one["im2col"] and one["data_tiling"] == packed
    )
    for one in (config, found.default):
        choice = choices.choose(problem, one, cpu)
        whole = EMPTY.with_entries(choice.entries).text
        assert choices.unapplied(problem, choice, whole, choice.flags) == []
        # Without the rewriting, the named op stays what it is.
        assert choices.unapplied(problem, choice, choice.spec, choice.flags) != []


CONV = """func.func @main(%x: tensor<1x9x8x4xf32>, %w: tensor<8x3x2x4xf32>,
    %y: tensor<1x4x6x8xf32>) -> tensor<1x4x6x8xf32> {
  %0 = linalg.conv_2d_nhwc_fhwc
      {dilations = dense<[1, 2]> : tensor<2xi64>, strides = dense<[2, 1]> : tensor<2xi64>}
      ins(%x, %w : tensor<1x9x8x4xf32>, tensor<8x3x2x4xf32>) outs(%y : tensor<1x4x6x8xf32>)
      -> tensor<1x4x6x8xf32>
  return %0 : tensor<1x4x6x8xf32>
}
"""


@compiled
@pytest.mark.parametrize("packed", [True, False])
def test_a_rewritten_convolution_adds_to_what_its_result_starts_with(packed):
    rt = pytest.importorskip("iree.runtime", reason="needs IREE, which make test installs")
    key = "conv n=1 c=4 h=9 w=8 k=8 r=3 s=2 dtype=f32 layout=nhwc"
    key += " stride_h=2 stride_w=1 dilation_h=1 dilation_w=2"
    spec = EMPTY.with_entries([left(key, packed=packed)])
    flags = (*goal("x86_64").flags, f"--iree-opt-data-tiling={str(packed).lower()}")
    dump = (*flags, "--compile-to=executable-configurations")
    assert missing(compiler.run_compiler(CONV, dump, spec.text).decode(), [left(key)]) == (
        [] if packed else [left(key)]
    )
    random = np.random.default_rng(1)
    shapes = ((1, 9, 8, 4), (8, 3, 2, 4), (1, 4, 6, 8))
    x, w, y = (random.random(shape, np.float32) for shape in shapes)
    module = rt.load_vm_flatbuffer(
        compiler.run_compiler(CONV, flags, spec.text), driver="local-sync"
    )
    taps = [(r, s) for r in range(3) for s in range(2)]
    expected = y + sum(
        np.einsum("npqc,fc->npqf", x[:, r : r + 7 : 2, 2 * s : 2 * s + 6], w[:, r, s])
        for r, s in taps
    )
    np.testing.assert_allclose(np.asarray(module.main(x, w, y)), expected, rtol=1e-5)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize(("arch", "key"), ALL)
def test_every_candidate_is_applied_and_compiles(arch, key):
    problem, found = ops.parse(key), space(key, arch)
    assert found is not None
    points = Points.of(found)
    for i in random.Random(7).sample(range(len(points)), 2):
        choice = choices.choose(problem, points.config(i), goal(arch))
        assert choices.unapplied(problem, choice, choice.spec) == []
        assert compiler.run_compiler(choices.source(problem, choice), choice.flags, choice.spec)


@compiled
@pytest.mark.slow
def test_a_merged_spec_is_a_spec_to_the_compiler():
    problem = ops.parse(CPU[0])
    found = choices.space(problem, goal("x86_64"))
    choice = choices.choose(problem, found.default, goal("x86_64"))
    merged = parse_spec(FOREIGN).with_entries(choice.entries)
    assert choices.unapplied(problem, choice, merged.text) == []
