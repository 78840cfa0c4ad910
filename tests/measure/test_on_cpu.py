"""The protocol on the real CPU, with a plain NumPy kernel."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.core.reason import read_reason, reason_document
from kernelmark.core.result import Fault, KernelInfo
from kernelmark.core.timing import Timing
from kernelmark.devices.base import ArgumentSet
from kernelmark.devices.cpu import CpuDevice, array
from kernelmark.measure.protocol import Outcome, measure


class Doubling:
    """y = x + x."""

    def __init__(self, sets: Sequence[ArgumentSet]) -> None:
        self.info = KernelInfo(name="numpy add")
        self._views = [(array(s["x"]), array(s["y"])) for s in sets]

    def launch(self, stream: int, set_index: int) -> None:
        x, y = self._views[set_index]
        np.add(x, x, out=y)

    def collect(self, set_index: int) -> None:
        pass

    def close(self) -> None:
        self._views = []


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(1)
    # Rotating over and evicting the real cache would take most of the time of these tests.
    device.info = dataclasses.replace(device.info, cache_bytes=2**21)
    yield device
    device.close()


def run(twice: Any, device: CpuDevice, n: int, **timing: Any) -> Outcome:
    return measure(
        problem=twice.problem(n=n, x="f32"),
        op=twice,
        device=device,
        timing=Timing.preset("quick", **{"max_s": 0.2, "warmup_s": 0.05, "threads": 1, **timing}),
        prepare=Doubling,
    )


@pytest.mark.parametrize("cache", ["cold", "hot", "flush"])
def test_a_real_kernel_is_timed_and_checked(twice: Any, device: CpuDevice, cache: str) -> None:
    start = time.perf_counter()
    outcome = run(twice, device, 100_000, cache=cache)
    whole_s = time.perf_counter() - start
    found = outcome.measurement
    assert outcome.check.passed, outcome.check.detail
    assert found.method == "loop"
    assert found.low_s <= found.median_s <= found.high_s
    assert "host_s" not in found.also
    if cache == "cold":
        assert found.sets * found.footprint_bytes >= 3 * device.info.cache_bytes
    # 0.8 MB cannot move faster than 1 TB/s, and no launch takes longer than all of them.
    assert 0.8e-6 < found.median_s < whole_s


def aligned(count: int) -> np.ndarray:
    """Ones that begin with a page, as the device's memory does: vectors of 64 bytes that straddle
    cache lines take twice as long."""
    room = np.ones(count + 1024, np.float32)
    first = -room.ctypes.data % 4096 // 4
    return room[first : first + count]


def test_the_number_is_the_number_of_a_plain_loop(twice: Any, device: CpuDevice) -> None:
    """Hot, so that a busy machine disturbs little. The best of both ways is compared, taken in
    turns until they agree: other work makes either longer, and nothing makes one shorter."""
    x, y = aligned(20_000), aligned(20_000)
    plain: list[float] = []
    ours: list[float] = []
    for _ in range(40):
        blocks = run(twice, device, 20_000, cache="hot", max_s=0.1).measurement.blocks
        ours += [min(block.samples_s) for block in blocks]
        for _ in range(50):
            start = time.perf_counter()
            for _ in range(100):
                np.add(x, x, out=y)
            plain.append((time.perf_counter() - start) / 100)
        if min(ours) == pytest.approx(min(plain), rel=0.25):
            return
    pytest.fail(f"{min(ours):g} s a launch, {min(plain):g} s in a plain loop")


def test_measuring_needs_only_numpy() -> None:
    script = (
        "import sys, kernelmark.measure.protocol, kernelmark.measure.blocks,"
        " kernelmark.devices.cpu, kernelmark.devices.fake;"
        "heavy = {'scipy', 'sqlalchemy', 'typer', 'rich', 'ml_dtypes', 'torch'};"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


class Wrong:
    """A kernel that writes one number everywhere."""

    def __init__(self, value: float, sets: Sequence[ArgumentSet], output: str) -> None:
        self.info = KernelInfo(name="wrong")
        self._value = value
        self._outputs = [array(one[output]) for one in sets]

    def launch(self, stream: int, set_index: int) -> None:
        self._outputs[set_index][...] = self._value

    def collect(self, set_index: int) -> None:
        pass

    def close(self) -> None:
        self._outputs = []


@pytest.mark.parametrize(
    ("key", "unit", "rows"),
    [
        ("gemm m=32 n=128 k=16 dtype=f32", "column", 128),
        ("gemm m=128 n=32 k=16 dtype=f32", "row", 128),
        ("batched_gemm batch=3 m=8 n=16 k=16 dtype=f32", "column", 48),
        ("conv n=2 h=6 w=5 c=4 k=8 r=1 s=1 dtype=f32", "pixel", 60),
    ],
)
@pytest.mark.parametrize(("value", "finite"), [(1e3, True), (np.nan, False)])
def test_what_was_projected_is_named(
    device: CpuDevice, key: str, unit: str, rows: int, value: float, finite: bool
) -> None:
    problem = ops.parse(key)
    op = ops.registry.get(problem.op)
    outcome = measure(
        problem=problem,
        op=op,
        device=device,
        timing=Timing.preset("quick", cache="hot", max_s=0.05, warmup_s=0.01, threads=1),
        prepare=lambda sets: Wrong(value, sets, op.output(problem).name),
    )
    assert Fault.PROJECTION in outcome.check.faults
    findings = outcome.check.detail.fields["findings"]
    found = next(one for one in findings if one.code == "projection-wrong")
    assert (found.fields["rows"], found.fields["bad"]) == (rows, rows)
    assert found.fields["nonfinite"] == (0 if finite else rows)
    assert np.isfinite(found.fields["ratio"]) == finite
    assert f"{unit}s" in found
    assert "inf" not in found.replace("infinite", "")
    assert read_reason(reason_document(found)) == found
