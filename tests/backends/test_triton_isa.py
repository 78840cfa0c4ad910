"""The loops of the Triton kernels for AMD GPUs, by their instructions; nothing runs on a GPU."""

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.backends.triton import _plan, backend
from kernelmark.backends.triton import launch as building
from kernelmark.gpu.architectures import absent

pytestmark = pytest.mark.skipif(
    backend.available() is not None, reason=backend.available() or "Triton is there"
)

LAYOUTS = ("", "tb=t", "ta=t", "ta=t tb=t")
# A small tile, which compiles in a second.
SMALL = "gemm m=64 n=64 k=512 dtype=bf16 "
LARGE = "gemm m=4096 n=4096 k=4096 dtype="
OTHERS = (
    "batched_gemm batch=4 m=128 n=128 k=128 dtype=f16",
    "batched_gemm_quant batch=8 m=128 n=128 k=256 scheme=a8w8",
    "attention batch=2 heads=8 seq=512 dim=64 dtype=bf16 causal=yes",
    "attention batch=2 heads=8 seq=512 dim=64 dtype={f8}",
    "attention batch=4 heads_q=8 heads_kv=2 seq_q=1 seq_kv=1024 dim=128 dtype=f16",
    "conv n=2 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 dtype=bf16 layout=nhwc",
    "conv n=2 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 dtype=f16",
    "conv n=2 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 dtype=i8 layout=nhwc",
    "moe m=64 n=768 k=2048 e=128 top_k=8 dtype=bf16",
)
F8 = {"gfx942": "f8e4m3fnuz", "gfx950": "f8e4m3"}


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        building._build.cache_clear()
        yield
    building._build.cache_clear()


def judged(key, arch, call=None):
    """Return the loop of a problem's main kernel and its faults."""
    from kernelmark_dev.isa import faults, matrix_loop

    problem, info = ops.parse(key), absent(arch)
    plan = _plan(problem, {}, info)
    loop = matrix_loop((call or plan.calls[plan.main]).assembly(arch))
    return loop, faults(loop, problem, backend.default(problem, info), arch)


@pytest.mark.parametrize(
    ("layout", "arch"),
    [
        pytest.param(
            *(layout, arch),
            marks=()
            if (layout, arch) in (("", "gfx942"), ("ta=t", "gfx950"))
            else pytest.mark.slow,
        )
        for layout in LAYOUTS
        for arch in F8
    ],
)
def test_aligned_operands_are_loaded_16_bytes_at_a_time(layout, arch):
    loop, wrong = judged(SMALL + layout, arch)
    assert not wrong
    assert set(loop.loads) == {16}
    assert loop.buffer_loads == sum(loop.loads.values())


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (SMALL, "loads of 1 or 2 bytes"),
        pytest.param(SMALL + "ta=t", "loads of 1 or 2 bytes", marks=pytest.mark.slow),
    ],
)
def test_clamped_edges_are_a_fault(tmp_path, key, fault):
    from kernelmark.kernels.triton import gemm
    from kernelmark_dev.edges import clamped

    (call, *_) = _plan(ops.parse(key), {}, absent("gfx942")).calls
    old = dataclasses.replace(call, function=clamped(gemm, tmp_path).gemm_tiles)
    loop, wrong = judged(key, "gfx942", old)
    assert any(fault in text for text in wrong)
    assert loop.loads[2] >= 16


@pytest.mark.slow
def test_pointers_without_a_range_are_a_fault():
    (call, *_) = _plan(ops.parse(SMALL), {}, absent("gfx942")).calls
    far = [dataclasses.replace(argument, near=False) for argument in call.arguments]
    _, wrong = judged(SMALL, "gfx942", dataclasses.replace(call, arguments=tuple(far)))
    assert "no buffer load" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("arch", F8)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_16_bit_gemms_reach_the_pingpong_schedule(layout, arch):
    loop, wrong = judged(f"{LARGE}bf16 {layout}", arch)
    assert not wrong
    assert loop.pingpong
    assert loop.counts["s_setprio"] >= (8 if arch == "gfx942" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("arch", F8)
@pytest.mark.parametrize("key", OTHERS)
def test_every_op_loads_more_than_two_bytes_at_a_time(key, arch):
    loop, wrong = judged(key.format(f8=F8[arch]), arch)
    assert not wrong
    assert loop.matrix
    assert loop.loads
    assert loop.counts["ds_read_u8"] == 0


@pytest.mark.slow
def test_causal_attention_does_not_spill_on_gfx90a():
    """It has no instruction that rounds to bf16, which takes registers."""
    key = "attention batch=2 heads=8 seq=512 dim=128 dtype=bf16 causal=yes"
    plan = _plan(ops.parse(key), {}, absent("gfx90a"))
    resources = plan.calls[plan.main].build("gfx90a").resources
    assert (resources["spilled_registers"], resources["stack_bytes"]) == (0, 0)


@pytest.mark.slow
def test_a_loop_of_two_steps_is_not_compared_with_an_unrolled_one():
    _, wrong = judged("batched_gemm batch=3 m=65 n=96 k=80 dtype=f8e4m3", "gfx950")
    assert not wrong


ASSEMBLY = """
kernel:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	s_cbranch_scc1 .LBB0_9
.LBB0_1:                                ; outer loop
	buffer_load_ushort v1, v2, s[0:3], 0 offen
.LBB0_2:                                ; =>  inner loop
	buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen lds
	global_load_lds_dwordx3 v[0:1], off
	global_load_b64 v[0:1], v[2:3], off
	buffer_load_u16 v1, v2, s[0:3], 0 offen
	flat_load_sbyte v1, v[2:3]
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	s_waitcnt vmcnt(0)
	s_cbranch_scc0 .LBB0_2
	s_cbranch_vccz .LBB0_1
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
.LBB0_8:
	s_endpgm
.LBB0_9:
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	s_branch .LBB0_8
"""


def test_the_inner_loop_is_found_and_its_loads_have_their_sizes():
    from kernelmark_dev.isa import matrix_loop

    # The jump from the last block to an earlier one is no loop.
    loop = matrix_loop(ASSEMBLY)
    assert loop.matrix == 1
    assert loop.counts.total() == 8
    assert loop.share == 1 / 8
    assert loop.loads == {16: 1, 12: 1, 8: 1, 2: 1, 1: 1}
    assert loop.buffer_loads == 2
    assert matrix_loop("kernel:\n\ts_endpgm\n").matrix == 0
