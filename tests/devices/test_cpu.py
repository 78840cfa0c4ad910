from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from kernelmark.core.errors import OutOfMemory, Unsupported, UsageError
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.devices import cpu as cpu_module
from kernelmark.devices.base import Tensor
from kernelmark.devices.cpu import CpuDevice, array, kind
from kernelmark_dev.raising import raises_code


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(1)
    yield device
    device.close()


def tensor(device: CpuDevice, dtype: str, shape: tuple[int, ...]) -> Tensor:
    spec = TensorSpec(name="x", shape=shape, dtype=dtype)
    return Tensor(spec=spec, buffer=device.allocate(spec.nbytes + 1024), offset=512)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f64", np.float64),
        ("f32", np.float32),
        ("tf32", np.float32),
        ("f16", np.float16),
        ("i8", np.int8),
        ("i32", np.int32),
        ("bf16", np.uint16),
        ("f8e4m3", np.uint8),
        ("f8e5m2fnuz", np.uint8),
    ],
)
def test_array_writes_through(device: CpuDevice, dtype: str, expected: type) -> None:
    held = tensor(device, dtype, (3, 5))
    view = array(held)
    assert view.dtype == expected
    assert view.shape == (3, 5)
    assert view.ctypes.data == held.address
    view[2, 4] = 1
    assert device.read(held.buffer, held.offset, held.spec.nbytes).view(expected)[14] == 1


def test_array_of_half_bytes_is_packed(device: CpuDevice) -> None:
    assert array(tensor(device, "f4e2m1", (3, 8))).shape == (3, 4)
    assert array(tensor(device, "f4e2m1", (3, 5))).shape == (8,)


def test_info_says_what_the_machine_is() -> None:
    (info,) = kind.infos()
    assert (info.name, info.kind, info.arch) == ("cpu", "cpu", platform.machine())
    assert 1 <= info.units <= len(os.sched_getaffinity(0))
    assert info.attributes["pages"]


def test_every_thread_is_pinned_and_let_go_again() -> None:
    before = os.sched_getaffinity(0)
    running = threading.Event()
    done = threading.Event()
    seen: list[int] = []

    def wait() -> None:
        seen.append(threading.get_native_id())
        running.set()
        done.wait(600)

    thread = threading.Thread(target=wait)
    thread.start()
    assert running.wait(600)
    device = CpuDevice(1)
    assert os.sched_getaffinity(0) == os.sched_getaffinity(seen[0]) == set(device.cores)
    assert len(device.cores) == 1
    device.close()
    assert os.sched_getaffinity(0) == os.sched_getaffinity(seen[0]) == before
    done.set()
    thread.join()


def test_more_threads_than_cores_is_refused() -> None:
    with raises_code(UsageError, "too-many-threads", threads=10_000):
        kind.open(0, threads=10_000)
    with raises_code(UsageError, "device-missing", device="cpu:1"):
        kind.open(1)


def test_worker_variables_set_the_count() -> None:
    assert kind.worker_variables(0, 3)["OPENBLAS_NUM_THREADS"] == "3"
    assert kind.worker_variables(0, 0)["OMP_NUM_THREADS"] == str(kind.infos()[0].units)


def test_blas_obeys_the_worker_variables() -> None:
    """The variables act before the library is loaded: only a fresh process can show it."""
    script = (
        "import numpy, os; a = numpy.ones((300, 300)); a @ a;"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, **kind.worker_variables(0, 1)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("timer", [Timer.GRAPH, Timer.GATE, Timer.PROFILER])
def test_timers_of_a_gpu_are_unsupported(device: CpuDevice, timer: Timer) -> None:
    with pytest.raises(Unsupported) as refused:
        device.record(lambda stream, index: None, [0], timer)
    assert refused.value.message.code == "timer-unsupported"


def test_cpu_time_leaves_out_what_the_process_waits_for() -> None:
    device = kind.open(0, threads=1)
    try:
        waiting = device.record(lambda stream, index: time.sleep(0.05), [0], Timer.CPU)
        assert waiting.method is Timer.CPU
        assert waiting.run().elapsed_s < 0.025
        by_clock = device.record(lambda stream, index: time.sleep(0.05), [0], Timer.AUTO)
        assert by_clock.run().elapsed_s >= 0.05
    finally:
        device.close()


def test_cpu_time_is_of_one_thread(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "threads", 2)
    with raises_code(Unsupported, "timer-one-thread", threads=2):
        device.record(lambda stream, index: None, [0], Timer.CPU)


def test_no_collection_while_timing(device: CpuDevice) -> None:
    states: list[bool] = []
    replay = device.record(lambda stream, index: states.append(gc.isenabled()), [0], Timer.AUTO)
    assert gc.isenabled()
    replay.run()
    assert states == [False]
    assert gc.isenabled()


def test_collection_is_back_after_a_failing_launch(device: CpuDevice) -> None:
    def fail(stream: int, index: int) -> None:
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        device.record(fail, [0], Timer.LOOP).run()
    assert gc.isenabled()


def test_spare_memory_is_left(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "available_memory", lambda: 10 * cpu_module.SPARE_BYTES)
    assert device.free_bytes() < 10 * cpu_module.SPARE_BYTES
    monkeypatch.setattr(cpu_module, "available_memory", lambda: cpu_module.SPARE_BYTES // 2)
    assert device.free_bytes() == 0
    with pytest.raises(OutOfMemory) as refused:
        device.allocate(1 << 20)
    assert refused.value.message.code == "out-of-memory"


def test_freed_memory_stays_readable_by_its_arrays(device: CpuDevice) -> None:
    held = tensor(device, "f32", (1000,))
    view = array(held)
    view[...] = 3
    device.free(held.buffer)
    assert (view == 3).all()


def test_evicting_keeps_the_pinning(device: CpuDevice) -> None:
    device.evict_cache()
    assert os.sched_getaffinity(0) == set(device.cores)
