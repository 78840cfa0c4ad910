"""The protocol on the real CPU, with a plain NumPy kernel."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.result import KernelInfo
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


def test_strain_is_for_gpus(twice: Any, device: CpuDevice) -> None:
    with pytest.raises(Unsupported) as refused:
        run(twice, device, 1000, strain="compute")
    assert refused.value.message.code == "needs-gpu"


def test_too_large_is_out_of_memory(twice: Any, device: CpuDevice) -> None:
    with pytest.raises(OutOfMemory) as refused:
        run(twice, device, 2**40)
    assert refused.value.message.code == "out-of-memory"


def test_measuring_needs_only_numpy() -> None:
    script = (
        "import sys, kernelmark.measure.protocol, kernelmark.measure.merge,"
        " kernelmark.devices.cpu, kernelmark.devices.fake;"
        "heavy = {'scipy', 'sqlalchemy', 'typer', 'rich', 'ml_dtypes', 'torch'};"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
