"""The quantised Triton kernels: right in the interpreter, compiled for several architectures."""

import importlib.util

import pytest

from kernelmark import ops
from kernelmark.backends.triton import backend
from kernelmark.backends.triton.quantized import default, native_fp4, space
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark_dev.raising import raises, raises_code

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs Triton, which make test installs"
    ),
]


def info(arch):
    kind = "cuda" if arch.startswith("sm_") else "hip"
    return DeviceInfo(name=f"{kind}:0", kind=kind, model="none", arch=arch, units=132)


def problem(text):
    return ops.parse(f"batched_gemm_quant {text}")


@pytest.mark.parametrize(
    ("text", "arch", "name"),
    [
        ("batch=2 m=16 n=64 k=128 scheme=a8w8 bias=yes", "sm_90", "int8_tiles"),
        ("batch=2 m=16 n=64 k=200 scheme=a8w8_group", "sm_90", "group_tiles"),
        (
            "batch=2 m=16 n=64 k=200 b=f8e4m3fnuz scheme=a8w8_group c_order=mbn",
            "gfx942",
            "group_tiles",
        ),
        ("batch=2 m=16 n=64 k=128 scheme=a16wfp4", "sm_90", "mxfp4_emulated_tiles"),
        ("batch=2 m=16 n=64 k=128 scheme=afp4wfp4", "gfx942", "mxfp4_emulated_tiles"),
        ("batch=2 m=16 n=64 k=128 scheme=a16wfp4", "gfx950", "mxfp4_native_tiles"),
        ("batch=2 m=16 n=64 k=128 scheme=afp4wfp4", "gfx950", "mxfp4_native_tiles"),
        ("batch=2 m=16 n=64 k=128 scheme=afp4wfp4", "sm_100", "mxfp4_native_tiles"),
    ],
)
def test_compiles_and_says_whether_it_emulates(text, arch, name):
    assert backend.compile(problem(text), {}, info(arch)).name == name


def test_who_has_native_fp4():
    found = {arch: native_fp4(info(arch)) for arch in ("sm_90", "sm_100", "sm_120", "gfx942")}
    assert found == {"sm_90": False, "sm_100": True, "sm_120": False, "gfx942": False}
    assert native_fp4(info("gfx950"))


def test_a_split_has_a_workspace_and_a_second_launch():
    from kernelmark.backends.triton.quantized import plan

    made = plan(problem("batch=3 m=4 n=8 k=4096 scheme=a8w8"), {"split_k": 4}, info("sm_90"))
    assert len(made.calls) == 2
    assert made.workspace_bytes == 3 * 4 * 4 * 8 * 4
    assert made.calls[0].grid[1] == 4


def test_what_cannot_be_done_is_told():
    group = problem("batch=1 m=4 n=4 k=256 scheme=a8w8_group")
    with raises_code(Unsupported, "config-unknown-name", name="block_k"):
        backend.compile(group, {"block_k": 64}, info("sm_90"))
    fp4 = problem("batch=1 m=4 n=4 k=256 scheme=afp4wfp4")
    with raises(Unsupported, name="block_k", value=48, multiple=32):
        backend.compile(fp4, {"block_k": 48}, info("sm_90"))


@pytest.mark.parametrize("arch", ["sm_90", "gfx942", "gfx950"])
@pytest.mark.parametrize("scheme", ["a8w8", "a8w8_group b=i8", "a16wfp4", "afp4wfp4"])
def test_the_default_is_in_the_space(arch, scheme):
    asked = problem(f"batch=16 m=64 n=512 k=512 scheme={scheme}")
    found = space(asked, info(arch))
    chosen = default(asked, info(arch))
    assert found.forbids(chosen) is None
    assert all(chosen[name] in values for name, values in found.parameters.items())
