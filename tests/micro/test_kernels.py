"""The kernels as NVIDIA's compiler makes them: no spills, and what is counted is what runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmark.gpu import objects, rtc
from kernelmark.kernels import rtc as kernels
from kernelmark.micro._rigs import build

pytestmark = pytest.mark.slow

FILES = [name for name in kernels.names() if name.startswith("micro_")]


@pytest.fixture(autouse=True)
def nvrtc():
    reason = rtc.unavailable("cuda")
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("name", FILES)
def test_hopper_kernels_need_no_local_memory(name):
    binary = build(name, "sm_90")
    assert binary.arch == ("sm_90a" if name == "micro_matrix.cu" else "sm_90")
    found = objects.resources(binary.code)
    assert found
    for kernel, used in found.items():
        assert used["stack_bytes"] == 0, kernel
        # Blocks of 1024 threads, or of 512, or of 256 with the matrix units' many sums.
        assert used["registers"] <= (168 if kernel.startswith("matrix_") else 64), kernel


def test_ampere_has_matrix_units_without_f8():
    found = objects.resources(build("micro_matrix.cu", "sm_80").code)
    assert {"matrix_bf16", "matrix_f16", "matrix_tf32", "matrix_i8", "matrix_f64"} == found.keys()


def test_turing_has_what_it_can_have():
    found = objects.resources(build("micro_ops.cu", "sm_75").code)
    assert "chain_fma_f16x2_8" in found
    assert "chain_fma_bf16x2_8" not in found
    assert not objects.resources(build("micro_matrix.cu", "sm_75").code)


@pytest.fixture(scope="module")
def disassembler():
    place = shutil.which("nvdisasm")
    try:
        import triton

        inside = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
        place = place or (str(inside) if inside.exists() else None)
    except ImportError:
        pass
    if place is None:
        pytest.skip("needs nvdisasm, of Triton (make test installs it) or the CUDA toolkit")
    return place


def loops(disassembler, tmp_path, name, kernel):
    """The instructions of a kernel, each once a line."""
    code = tmp_path / "code.cubin"
    code.write_bytes(build(name, "sm_90").code)
    done = subprocess.run([disassembler, "-c", code], capture_output=True, text=True, check=True)
    text = done.stdout.partition(f".text.{kernel}:")[2].partition(".section")[0]
    assert text, kernel
    return [line.partition("*/")[2].split() for line in text.splitlines() if "*/" in line]


def count(instructions, word):
    return sum(1 for i in instructions if any(w.startswith(word) for w in i[:2]))


@pytest.mark.parametrize(
    ("name", "kernel", "word", "times"),
    [
        ("micro_ops.cu", "chain_fma_f32_8", "FFMA", 512),
        ("micro_ops.cu", "chain_fma_f64_1", "DFMA", 512),
        ("micro_ops.cu", "chain_popc_i32_8", "POPC", 128),
        ("micro_ops.cu", "chain_shuffle_i32_1", "SHFL", 128),
        ("micro_ops.cu", "chain_dot4_i8_8", "IDP", 128),
        ("micro_window.cu", "window_read", "LDG.E.128", 8),
        ("micro_window.cu", "window_scatter", "LDG.E.128", 8),
        ("micro_shared.cu", "shared_read_16", "LDS.128", 8 + 2),  # and two for the clocks
        ("micro_matrix.cu", "matrix_bf16", "HGMMA.64x256x16", 16),
        ("micro_matrix.cu", "matrix_f8e4m3", "QGMMA.64x256x32", 16),
        ("micro_matrix.cu", "matrix_i8", "IGMMA.64x256x32", 16),
        ("micro_matrix.cu", "matrix_f64", "DMMA", 16),
        # What the block counted is stored: adding it up in one place took longer than counting.
        ("micro_atomics.cu", "atomic_shared_u32", "ATOMS", 1),
        ("micro_atomics.cu", "atomic_shared_u32", "RED", 0),
        ("micro_atomics.cu", "atomic_shared_u32", "ATOMG", 0),
    ],
)
def test_what_is_counted_is_what_runs(disassembler, tmp_path, name, kernel, word, times):
    assert count(loops(disassembler, tmp_path, name, kernel), word) == times


def test_matrix_products_are_not_serialised(disassembler, tmp_path):
    """A wait between two products would halve the rate; the compiler puts one where it must."""
    instructions = loops(disassembler, tmp_path, "micro_matrix.cu", "matrix_bf16")
    assert count(instructions, "WARPGROUP.DEPBAR") == 1


def test_a_chain_of_loads_is_nothing_but_loads(disassembler, tmp_path):
    instructions = loops(disassembler, tmp_path, "micro_chase.cu", "chase")
    assert count(instructions, "LDG.E.64") == 64  # 32 in each of the two loops
    assert count(instructions, "LD.E") == 0
