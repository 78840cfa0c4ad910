"""A GPU whose kernels cannot count core cycles: what is told in them is refused or left out."""

import pytest

from kernelmark.core.result import Status
from kernelmark.micro import registry
from kernelmark.micro._rigs import GpuRig, no_cycles
from kernelmark.micro.rig import Samples
from kernelmark.micro.session import execute, open_rig
from kernelmark_dev import emulator

KIB = 2**10
REASON = no_cycles("gfx1100") or ""
BY_CYCLES = {*("atomics", "instructions", "latency", "loaded_latency", "shared", "strides", "tlb")}
# Seconds as well, which go by events.
BOTH = {
    "cache": {"sizes": (4 * KIB, 64 * KIB), "seconds": 1e-5, "samples": 1},
    "incore": {"ops": ("fma_f32",), "warps": 1, "ilps": (1, 8), "samples": 1, "seconds": 1e-5},
    "matrix": {"dtypes": ("bf16",), "seconds": 1e-5, "rest": 0, "sustained": 0, "samples": 1},
    "l2_cache": {"sizes": (64 * KIB, 256 * KIB), "seconds": 1e-5, "samples": 1},
}

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(GpuRig, "no_cycles", property(lambda self: REASON))
    with emulator.emulated(block=64):
        made = open_rig("cuda:0")
        yield made
        made.close()


def test_rdna_3_is_such_a_gpu():
    assert "20 bits" in REASON
    assert REASON.startswith("gfx1100 ")
    assert no_cycles("gfx1151")
    others = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1201", "gfx1250", "sm_90", "sm_110")
    assert not any(map(no_cycles, others))


def test_those_by_cycles_are_known():
    names = (name for name in registry.names() if registry.get(name).by_cycles)
    assert set(names) == BY_CYCLES


@pytest.mark.parametrize("name", sorted(BY_CYCLES))
def test_what_is_told_in_cycles_is_refused(rig, name):
    result = execute(registry.get(name), rig, "brief")
    assert result.status is Status.UNSUPPORTED
    assert result.error == REASON


@pytest.mark.parametrize("name", BOTH)
def test_seconds_are_told_without_cycles(rig, monkeypatch, name):
    monkeypatch.setattr(GpuRig, "clock_mhz", property(lambda self: pytest.fail("nobody read it")))
    result = execute(registry.get(name), rig, "quick", BOTH[name])
    assert result.status is Status.OK, result.error
    assert result.rows
    cycles = {"cycles", "reciprocal", "per_clk", "bytes_per_clk"}
    for row in result.rows:
        assert not {name for name in cycles if row.get(name) is not None}
    assert not [m.name for m in result.metrics if m.unit in ("cycles", "B/clk", "FLOP/clk")]
    assert any(REASON in note for note in result.notes)
    if name == "incore":
        assert {m.name for m in result.metrics} == {"peak_f32", "peak_f64"}
    if name == "cache":
        assert {m.name for m in result.metrics} == {"l1_bytes_per_s"}


def test_a_clock_that_nobody_read_is_none(rig, monkeypatch):
    monkeypatch.setattr(GpuRig, "clock_mhz", property(lambda self: pytest.fail("nobody read it")))
    assert rig.clock_during(Samples(seconds=(1.0,))) is None
