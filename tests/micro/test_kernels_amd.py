"""The kernels as clang makes them for AMD: what is counted is what runs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from kernelmark.gpu import clang
from kernelmark.kernels import rtc as kernels

pytestmark = pytest.mark.slow

ARCHS = ("gfx90a", "gfx942")
# Instructions of a step, by the chain that takes it.
STEPS = {
    "add_f32": {"v_add_f32": 1},
    "mul_f32": {"v_mul_f32": 1},
    "fma_f32": {"v_fma_f32": 1},
    "add_f64": {"v_add_f64": 1},
    "mul_f64": {"v_mul_f64": 1},
    "fma_f64": {"v_fma_f64": 1},
    "fma_f16x2": {"v_pk_fma_f16": 1},
    "fma_f32x2": {"v_pk_fma_f32": 1},
    "add_xor_i32": {"v_add_u32": 1, "v_xor_b32": 1},
    "mul_i32": {"v_mul_lo_u32": 1},
    "mad_i32": {"v_mad_u64_u32": 1},  # all 32 bits: v_mad_u32_u24 would take 24 of them
    "shift_i32": {"v_alignbit_b32": 1},
    "permute_i32": {"v_perm_b32": 1},
    "popc_i32": {"v_bcnt_u32_b32": 1},
    "rsqrt_f32": {"v_rsq_f32": 1},
    "exp2_f32": {"v_exp_f32": 1},
    "log2_f32": {"v_log_f32": 1},
    "sin_f32": {"v_sin_f32": 1},
    "shuffle_i32": {"ds_bpermute_b32": 1},
    "convert_i32_f32": {"v_cvt_f32_u32": 1},
}
LONG = {"fma_f32": 512, "fma_f64": 512}
# What the loop itself is made of. A trans instruction may need a pause after it on gfx942, and the
# compiler leaves one after assembly, of which it does not know what it did.
AROUND = {"s_add_i32", "s_cmp_lg_u32", "s_cmp_eq_u32", "s_cbranch_scc0", "s_cbranch_scc1", "s_nop"}
AROUND |= {"s_waitcnt", "s_add_u32", "s_sub_i32"}


def assembly(arch: str, name: str) -> str:
    found = clang.find()
    if found is None:
        pytest.skip(
            f"needs ziglang, which make test installs, or clang {clang.OLDEST} for AMD GPUs"
        )
    return found.compile(kernels.source(name), arch, name, ("-S",))[0].decode()


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {arch: assembly(arch, "micro_ops.cu") for arch in ARCHS}


def loop(text: str, kernel: str) -> Counter[str]:
    """The instructions of a kernel's longest block: its unrolled loop."""
    body = text.partition(f"\n{kernel}:")[2].partition("s_endpgm")[0]
    blocks = re.split(r"^\.LBB\w+:|^; %bb\.\d+:", body, flags=re.MULTILINE)
    found = (re.findall(r"^\s+([a-z]+_\w+?)(?:_e32|_e64)?\s", b, re.MULTILINE) for b in blocks)
    return Counter(max(found, key=len))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", STEPS)
def test_a_chain_is_nothing_but_its_steps(texts: dict[str, str], arch: str, op: str) -> None:
    steps = LONG.get(op, 128)
    for ilp in (1, 2, 4, 8) if op in LONG else (1, 8):
        found = loop(texts[arch], f"chain_{op}_{ilp}")
        pauses = found["s_nop"]
        work = {name: n for name, n in found.items() if name not in AROUND}
        assert work == {name: n * steps for name, n in STEPS[op].items()}, (ilp, found)
        assert pauses <= steps // 128, (ilp, found)


def test_every_chain_is_looked_at(texts: dict[str, str]) -> None:
    there = set(re.findall(r"^chain_(\w+)_8:", texts["gfx942"], re.MULTILINE))
    many = {"div_f32", "div_f64", "sqrt_f32", "sqrt_f64"}  # short programs
    assert there == STEPS.keys() | many


# -- the core clock


@pytest.mark.parametrize("name", [n for n in kernels.names() if n != "copy.cu"])
def test_nothing_goes_by_the_20_bits_of_rdna_3(name: str) -> None:
    """A wait for longer than they last would never end."""
    assert "SHADER_CYCLES" not in assembly("gfx1100", name)


@pytest.mark.parametrize(("arch", "counter"), [("gfx942", "s_memtime"), ("gfx1201", "SHADER_CYC")])
def test_other_units_have_a_core_clock(arch: str, counter: str) -> None:
    gate = assembly(arch, "device.cu").partition("\ngate:")[2].partition("s_endpgm")[0]
    assert counter in gate


def test_rdna_3_stamps_no_core_clock() -> None:
    stamp = assembly("gfx1100", "device.cu").partition("\nstamp:")[2].partition("s_endpgm")[0]
    assert stamp.count("s_sendmsg_rtn_b64") == 1  # the wall clock alone
