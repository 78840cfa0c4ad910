"""What the triton backend plans: spaces, defaults, refusals. Nothing is compiled here."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.backends.triton import backend
from kernelmark.backends.triton.plan import ceil_div, check_config, power_of_two
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import ProblemError, Unsupported

SHARED = {"sm_80": 166912, "sm_90": 232448, "gfx90a": 65536, "gfx942": 65536, "gfx950": 163840}


def info(arch: str, *, shared: int | None = None) -> DeviceInfo:
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
def problems(draw: st.DrawFn) -> str:
    op = draw(st.sampled_from(["gemm", "batched_gemm", "attention", "conv"]))
    if op == "conv":
        kind = draw(st.sampled_from(["f32", "f16", "bf16", "i8"]))
        c, k = draw(sizes), draw(sizes)
        return f"conv n=2 c={c} h=14 w=14 k={k} r=3 s=3 pad=1 dtype={kind}"
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
def test_the_default_is_in_the_space_and_allowed(key: str, arch: str) -> None:
    problem = ops.parse(key)
    if backend.supports(problem, info(arch)) is not None:
        return
    space = backend.space(problem, info(arch))
    assert space is not None
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
def test_too_much_shared_memory_is_forbidden(key: str, arch: str) -> None:
    problem = ops.parse(key)
    space = backend.space(problem, info(arch))
    small = backend.space(problem, info(arch, shared=20_000))
    assert space is not None
    assert small is not None
    greedy = {name: max(values) for name, values in space.parameters.items()}
    assert "shared memory" in (space.forbids(greedy) or "")
    # Less memory, fewer configs: everything that fits the small device fits the large one.
    rng = random.Random(5)
    some = [{n: rng.choice(v) for n, v in space.parameters.items()} for _ in range(300)]
    few = [c for c in some if small.forbids(c) is None]
    many = [c for c in some if space.forbids(c) is None]
    assert len(few) < len(many) < len(some)
    assert all(space.forbids(config) is None for config in few)


def test_persistent_kernels_want_rows_that_descriptors_can_address() -> None:
    problem = ops.parse("gemm m=256 n=256 k=252 dtype=f16")  # rows of A are not 16-byte multiples
    space = backend.space(problem, info("sm_90"))
    assert space is not None
    config = {**space.default, "persistent": True, "split_k": 1}
    assert "16 bytes" in (space.forbids(config) or "")
    with pytest.raises(Unsupported, match="cannot address"):
        backend.compile(problem, {"persistent": True}, info("sm_90"))
    split = {**space.default, "persistent": True, "split_k": 2}
    assert "does not split k" in (space.forbids(split) or "")
    assert True not in backend.space(problem, info("sm_80")).parameters["persistent"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "arch", "words"),
    [
        ("gemm m=64 n=64 k=64 dtype=f64", "sm_90", "accumulates in f32 or i32, not f64"),
        ("gemm m=64 n=64 k=64 dtype=f16 acc=f16", "sm_90", "accumulates in f32 or i32, not f16"),
        ("gemm m=64 n=64 k=64 dtype=f8e4m3", "sm_80", "sm_80 has no 8-bit float matrix unit"),
        ("gemm m=64 n=64 k=64 dtype=f8e4m3", "gfx942", "gfx942 has no OCP 8-bit floats"),
        ("gemm m=64 n=64 k=64 dtype=f8e4m3", "gfx950", None),
        ("gemm m=64 n=64 k=64 dtype=f8e5m2fnuz", "gfx942", None),
        ("gemm m=64 n=64 k=64 dtype=f8e5m2fnuz", "gfx950", "only native on gfx942, not gfx950"),
        ("gemm m=64 n=64 k=64 dtype=bf16", "gfx90a", None),
        ("attention heads=2 seq=64 dim=64 dtype=f32", "sm_90", "has no f32 attention"),
        ("attention heads=2 seq=64 dim=512 dtype=f16", "sm_90", "at most 256 long"),
        ("attention heads=2 seq=64 dim=64 q=bf16 kv=f8e4m3", "sm_90", "Q, K and V of one dtype"),
        ("attention heads=2 seq=64 dim=64 dtype=f8e4m3", "gfx942", "no OCP 8-bit floats"),
        ("conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=f64", "sm_90", "not f64"),
        ("conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=i8", "gfx942", None),
    ],
)
def test_supports_or_says_why_not(key: str, arch: str, words: str | None) -> None:
    try:
        problem = ops.parse(key)
    except ProblemError as error:
        pytest.fail(f"the op itself refuses {key}: {error.message}")
    reason = backend.supports(problem, info(arch))
    if words is None:
        assert reason is None
    else:
        assert reason is not None
        assert words in reason


def test_a_cpu_is_no_place_for_it() -> None:
    cpu = DeviceInfo(name="cpu", kind="cpu", model="", arch="x86_64", index=0)
    reason = backend.supports(ops.parse("gemm m=64 n=64 k=64 dtype=f16"), cpu)
    assert reason == "Triton kernels run on GPUs, not on cpu"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"blok_m": 64}, "does not know 'blok_m'"),
        ({"waves_per_eu": 2}, "does not know 'waves_per_eu'"),  # AMD's alone
        ({"block_m": "64"}, "block_m is a whole number, not '64'"),
        ({"block_m": 64.0}, "block_m is a whole number, not 64.0"),
        ({"block_m": True}, "block_m is a whole number, not True"),
        ({"persistent": 1}, "persistent is yes or no, not 1"),
        ({"block_n": 0}, "block_n is at least 1, not 0"),
        ({"split_k": -2}, "split_k is at least 1, not -2"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(
    config: dict[str, object], words: str
) -> None:
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=f16")
    with pytest.raises(Unsupported) as caught:
        backend.compile(problem, config, info("sm_90"))  # type: ignore[arg-type]
    assert words in caught.value.message


def test_small_arithmetic() -> None:
    assert [ceil_div(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [power_of_two(n, 16, 128) for n in (1, 16, 17, 64, 65, 4096)] == [
        16,
        16,
        32,
        64,
        128,
        128,
    ]
