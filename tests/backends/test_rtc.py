"""The copy on an emulated GPU: real binding, real kernel source, every byte."""

import dataclasses

import pytest

from kernelmark import backends, devices, ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.timing import Timing
from kernelmark.gpu import pack, rtc
from kernelmark.kernels import rtc as kernels
from kernelmark.measure.protocol import measure
from kernelmark.testing.backends import BackendContract, bench
from kernelmark_dev.emulator import emulated
from kernelmark_dev.raising import raises_code

BACKEND = backends.registry.get("rtc")


@pytest.fixture
def gpu():
    with emulated():
        device = devices.registry.get("cuda").open(0)
        yield device
        device.close()


# one element, less than a line, odd tails, more than the grid takes in one step of four
@pytest.mark.parametrize(
    ("n", "dtype"), [(1, "f32"), (1, "i8"), (15, "i8"), (4099, "i8"), (70001, "f16"), (3000, "f64")]
)
def test_copies_every_element_and_nothing_else(gpu, n, dtype):
    with bench(BACKEND, ops.parse(f"copy n={n} dtype={dtype}"), gpu) as made:
        BackendContract().check(made)
        assert made.worst(0, everywhere=True) == 0.0


def test_is_measured_by_the_whole_protocol(gpu):
    problem = ops.parse("copy n=1 dtype=f32")
    outcome = measure(
        problem=problem,
        op=ops.registry.get("copy"),
        device=gpu,
        # hot: cold would prepare thousands of sets of one element, each with guards
        timing=Timing(cache="hot", allocations=1, max_allocations=1, max_s=0.01, warmup_s=0.01),
        prepare=lambda sets: BACKEND.prepare(problem, {}, gpu, sets),
    )
    assert outcome.check.passed
    assert outcome.kernel.binary_hash


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """A machine with neither NVRTC nor hipRTC nor clang; where a pack is looked for."""
    monkeypatch.setattr(rtc, "_library", lambda vendor: None)
    monkeypatch.setattr(rtc, "find_clang", lambda: None)
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "arch", "other"), [("cuda", "sm_90", "sm_80"), ("hip", "gfx942", "gfx90a")]
)
def test_a_pack_does_without_a_compiler(no_compiler, kind, arch, other):
    info = DeviceInfo(name=f"{kind}:0", kind=kind, model="some", arch=arch)
    problem = ops.parse("copy n=8 dtype=f32")
    reason = rtc.unavailable(kind)
    assert BACKEND.supports(problem, info) == reason
    assert BACKEND.available() == rtc.unavailable("cuda")
    key = rtc.cache_key(kernels.source("copy.cu"), arch, ())
    pack.add(no_compiler, key, arch, b"code")
    assert BACKEND.available() is None
    assert BACKEND.supports(problem, info) is None
    assert BACKEND.compile(problem, {}, info).cached
    assert BACKEND.supports(problem, dataclasses.replace(info, arch=other)) == reason


def test_refuses_what_it_has_not(gpu):
    gemm = ops.parse("gemm m=8 n=8 k=8 dtype=f32")
    assert BACKEND.supports(gemm, gpu.info) == "rtc has no gemm (it has copy)"
    cpu = devices.registry.get("cpu").infos()[0]
    assert "not on cpu" in (BACKEND.supports(ops.parse("copy n=8 dtype=f32"), cpu) or "")
    with raises_code(Unsupported, "config-unknown-name", name="no_such_choice"):
        BACKEND.prepare(ops.parse("copy n=8 dtype=f32"), {"no_such_choice": 1}, gpu, [])
