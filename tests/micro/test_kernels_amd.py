"""The kernels as clang makes them for AMD: what is counted is what runs."""

import re
from collections import Counter

import pytest

from kernelmark.gpu import rtc
from kernelmark.kernels import rtc as kernels
from kernelmark.micro.benchmarks.matrix import PATTERNS

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


def assembly(arch, name):
    found = rtc.find_clang()
    if found is None:
        pytest.skip(
            f"needs ziglang, which make test installs, or clang {rtc.OLDEST_CLANG} for AMD GPUs"
        )
    return found.compile(kernels.source(name), arch, name, ("-S",))[0].decode()


@pytest.fixture(scope="module")
def texts():
    return {arch: assembly(arch, "micro_ops.cu") for arch in ARCHS}


def loop(text, kernel, key=len):
    """The instructions of a kernel's longest block, or of the first by `key`: its unrolled loop."""
    body = text.partition(f"\n{kernel}:")[2].partition("s_endpgm")[0]
    blocks = re.split(r"^\.LBB\w+:|^; %bb\.\d+:", body, flags=re.MULTILINE)
    found = (re.findall(r"^\s+([a-z]+_\w+?)(?:_e32|_e64)?\s", b, re.MULTILINE) for b in blocks)
    return Counter(max(found, key=key))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", STEPS)
def test_a_chain_is_nothing_but_its_steps(texts, arch, op):
    steps = LONG.get(op, 128)
    for ilp in (1, 2, 4, 8) if op in LONG else (1, 8):
        found = loop(texts[arch], f"chain_{op}_{ilp}")
        pauses = found["s_nop"]
        work = {name: n for name, n in found.items() if name not in AROUND}
        assert work == {name: n * steps for name, n in STEPS[op].items()}, (ilp, found)
        assert pauses <= steps // 128, (ilp, found)


def test_every_chain_is_looked_at(texts):
    there = set(re.findall(r"^chain_(\w+)_8:", texts["gfx942"], re.MULTILINE))
    many = {"div_f32", "div_f64", "sqrt_f32", "sqrt_f64"}  # short programs
    assert there == STEPS.keys() | many


# -- matrix products

MATRIX = {
    "gfx1100": {
        "bf16": "v_wmma_f32_16x16x16_bf16",
        "f16": "v_wmma_f32_16x16x16_f16",
        "i8": "v_wmma_i32_16x16x16_iu8",
    },
    "gfx1201": {
        "bf16": "v_wmma_f32_16x16x16_bf16",
        "f16": "v_wmma_f32_16x16x16_f16",
        "f8e4m3": "v_wmma_f32_16x16x16_fp8_fp8",
        "f8e5m2": "v_wmma_f32_16x16x16_bf8_bf8",
        "i8": "v_wmma_i32_16x16x16_iu8",
    },
    "gfx950": {
        "f6e2m3": "v_mfma_scale_f32_32x32x64_f8f6f4",
        "f6e3m2": "v_mfma_scale_f32_32x32x64_f8f6f4",
        "f4e2m1": "v_mfma_scale_f32_32x32x64_f8f6f4",
    },
}
FORMATS = {"f6e2m3": 2, "f6e3m2": 3, "f4e2m1": 4}  # cbsz and blgp of the CDNA 4 ISA


@pytest.mark.parametrize("arch", MATRIX)
def test_a_matrix_loop_is_nothing_but_products(arch):
    text = assembly(arch, "micro_matrix.cu")
    there = set(re.findall(r"^matrix_(\w+):", text, re.MULTILINE))
    assert there >= MATRIX[arch].keys()
    for dtype, instruction in MATRIX[arch].items():
        found = loop(text, f"matrix_{dtype}", lambda names, it=instruction: names.count(it))
        # RDNA's hints for its schedulers, and the loop's jumps there.
        around = AROUND | {"s_delay_alu", "s_wait_alu", "s_add_co_i32", "s_branch"}
        assert {name: n for name, n in found.items() if name not in around} == {instruction: 16}
        if dtype in FORMATS:
            body = text.partition(f"\nmatrix_{dtype}:")[2].partition("s_endpgm")[0]
            number = FORMATS[dtype]
            assert len(re.findall(rf"cbsz:{number} blgp:{number}", body)) == 16
        assert "scratch_" not in text


@pytest.mark.parametrize(("dtype", "bits"), [("f6e2m3", 0b001_000), ("f6e3m2", 0b001_100)])
def test_six_bits_are_ones_in_every_word(dtype, bits):
    """As `repeated` of micro_matrix.cu fills six words."""
    word, mask, _ = PATTERNS[dtype]
    once = word & 0x3FFFFFFF
    words = [(once | once << 30) >> 32 * i % 6 & 0xFFFFFFFF for i in range(6)]
    packed = sum(word << 32 * i for i, word in enumerate(words))
    assert {packed >> 6 * i & 63 for i in range(32)} == {bits}
    assert mask & 63 == {"f6e2m3": 0b100_111, "f6e3m2": 0b100_011}[dtype]  # no exponents


# -- the core clock


@pytest.mark.parametrize("name", [n for n in kernels.names() if n != "copy.cu"])
def test_nothing_goes_by_the_20_bits_of_rdna_3(name):
    """A wait for longer than they last would never end."""
    assert "SHADER_CYCLES" not in assembly("gfx1100", name)


@pytest.mark.parametrize(("arch", "counter"), [("gfx942", "s_memtime"), ("gfx1201", "SHADER_CYC")])
def test_other_units_have_a_core_clock(arch, counter):
    gate = assembly(arch, "device.cu").partition("\ngate:")[2].partition("s_endpgm")[0]
    assert counter in gate


def test_rdna_3_stamps_no_core_clock():
    stamp = assembly("gfx1100", "device.cu").partition("\nstamp:")[2].partition("s_endpgm")[0]
    assert stamp.count("s_sendmsg_rtn_b64") == 1  # the wall clock alone
