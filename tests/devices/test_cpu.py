"""The CPU as a device, and its telemetry."""

import functools
import gc
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernelmark.core.errors import OutOfMemory, Unsupported, UsageError
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.devices import cpu as cpu_module
from kernelmark.devices.base import Tensor
from kernelmark.devices.cpu import CpuDevice, CpuReplay, Health, array, kind, run_queue_ns
from kernelmark_dev.raising import raises


@pytest.fixture
def device():
    device = CpuDevice(1)
    yield device
    device.close()


def tensor(device, dtype, shape):
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
def test_array_writes_through(device, dtype, expected):
    held = tensor(device, dtype, (3, 5))
    view = array(held)
    assert view.dtype == expected
    assert view.shape == (3, 5)
    assert view.ctypes.data == held.address
    view[2, 4] = 1
    assert device.read(held.buffer, held.offset, held.spec.nbytes).view(expected)[14] == 1


def test_array_of_half_bytes_is_packed(device):
    assert array(tensor(device, "f4e2m1", (3, 8))).shape == (3, 4)
    assert array(tensor(device, "f4e2m1", (3, 5))).shape == (8,)


def test_info_says_what_the_machine_is():
    (info,) = kind.infos()
    assert (info.name, info.kind, info.arch) == ("cpu", "cpu", platform.machine())
    assert 1 <= info.units <= len(os.sched_getaffinity(0))
    assert info.attributes["pages"]


def test_every_thread_is_pinned_and_let_go_again():
    before = os.sched_getaffinity(0)
    running = threading.Event()
    done = threading.Event()
    seen = []

    def wait():
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


def test_more_threads_than_cores_is_refused():
    with raises(UsageError, threads=10_000):
        kind.open(0, threads=10_000)
    with raises(UsageError, device="cpu:1"):
        kind.open(1)


def test_blas_obeys_the_worker_variables():
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


def test_cpu_time_leaves_out_what_the_process_waits_for():
    device = kind.open(0, threads=1)
    try:
        waiting = device.record(lambda stream, index: time.sleep(0.05), [0], Timer.CPU)
        assert waiting.method is Timer.CPU
        assert waiting.run().elapsed_s < 0.025
        by_clock = device.record(lambda stream, index: time.sleep(0.05), [0], Timer.AUTO)
        assert by_clock.run().elapsed_s >= 0.05
    finally:
        device.close()


def test_cpu_time_is_of_one_thread(device, monkeypatch):
    monkeypatch.setattr(device, "threads", 2)
    with raises(Unsupported, threads=2):
        device.record(lambda stream, index: None, [0], Timer.CPU)


def test_no_collection_while_timing(device):
    states = []
    replay = device.record(lambda stream, index: states.append(gc.isenabled()), [0], Timer.AUTO)
    assert gc.isenabled()
    replay.run()
    assert states == [False]
    assert gc.isenabled()

    def fail(stream, index):
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        device.record(fail, [0], Timer.LOOP).run()
    assert gc.isenabled()


def test_spare_memory_is_left(device, monkeypatch):
    monkeypatch.setattr(cpu_module, "available_memory", lambda: 10 * cpu_module.SPARE_BYTES)
    assert device.free_bytes() < 10 * cpu_module.SPARE_BYTES
    monkeypatch.setattr(cpu_module, "available_memory", lambda: cpu_module.SPARE_BYTES // 2)
    assert device.free_bytes() == 0
    with pytest.raises(OutOfMemory) as refused:
        device.allocate(1 << 20)
    assert refused.value.message.code == "out-of-memory"


def test_freed_memory_stays_readable_by_its_arrays(device):
    held = tensor(device, "f32", (1000,))
    view = array(held)
    view[...] = 3
    device.free(held.buffer)
    assert (view == 3).all()


def test_evicting_keeps_the_pinning(device):
    device.evict_cache()
    assert os.sched_getaffinity(0) == set(device.cores)


CPUS = "sys/devices/system/cpu"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat(busy_s):
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{i} {int(s * ticks)} 0 0 1000 0 0 0 0 0 0" for i, s in enumerate(busy_s)]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8", *lines, "intr 5"]) + "\n"


def test_clock_is_the_mean_of_the_cores(tmp_path):
    files = {
        f"{CPUS}/cpu{i}/cpufreq/scaling_cur_freq": f"{2_000_000 + i * 500_000}" for i in (0, 1)
    }
    assert Health([0, 1], tree(tmp_path, files)).read().clock_mhz == 2250.0


def test_nothing_readable_says_nothing(tmp_path):
    found = Health([0], tmp_path).read()
    assert (found.clock_mhz, found.temperature_c, found.load) == (None,) * 3
    assert found.throttle == ()


def test_temperature_from_a_zone_or_a_chip(tmp_path):
    tree(
        tmp_path,
        {"sys/class/hwmon/hwmon3/name": "k10temp\n", "sys/class/hwmon/hwmon3/temp1_input": "51500"},
    )
    assert Health([0], tmp_path).read().temperature_c == 51.5
    tree(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/type": "acpitz\n",
            "sys/class/thermal/thermal_zone0/temp": "20000",
            "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp\n",
            "sys/class/thermal/thermal_zone1/temp": "64000",
        },
    )
    assert Health([0], tmp_path).read().temperature_c == 64.0


def test_throttling_counts_from_the_last_reading(tmp_path):
    path = f"{CPUS}/cpu1/thermal_throttle/package_throttle_count"
    health = Health([0, 1], tree(tmp_path, {path: "7\n"}))
    assert health.read().throttle == ()
    tree(tmp_path, {path: "9\n"})
    assert health.read().throttle == ("the package's thermal limit",)
    assert health.read().throttle == ()


@pytest.fixture
def now(monkeypatch):
    """The clock of the wall and that of this process, which stand still until they are set."""
    clocks = {"wall": 100.0, "own": 5.0}
    monkeypatch.setattr(time, "monotonic", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])
    return clocks


@pytest.mark.parametrize(
    ("cores", "before", "wall", "own", "after", "load"),
    [
        # Two cores were busy for 3.5 s of two seconds, of which 2 were ours; core 2 is not used.
        ((0, 1), (10.0, 10.0, 50.0), 2.0, 2.0, (12.0, 11.5, 52.0), 0.75),
        # 2.8 busy seconds in half a second: never more than the cores.
        ((0, 1), (10.0, 10.0), 0.5, 0.0, (11.4, 11.4), 2.0),
        ((0,), (1.0,), 0.04, 0.0, (1.0,), None),  # it needs more than a few ticks
        ((0,), (1.0,), 0.1, 0.0, (1.0,), 0.0),
    ],
)
def test_load_is_what_others_did_on_these_cores(
    tmp_path, now, cores, before, wall, own, after, load
):
    health = Health(cores, tree(tmp_path, {"proc/stat": stat(before)}))
    now.update(wall=100.0 + wall, own=5.0 + own)
    tree(tmp_path, {"proc/stat": stat(after)})
    assert health.read().load == pytest.approx(load)


def test_a_reading_reads_few_files_and_looks_for_none(tmp_path, monkeypatch):
    """What makes it fast enough to be taken between two samples, however many cores there are."""
    clocks = {f"{CPUS}/cpu{i}/cpufreq/scaling_cur_freq": "2000000" for i in range(64)}
    heat = {
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "64000",
    }
    files = {**clocks, **heat, "proc/stat": stat((1.0,) * 64)}
    health = Health(range(64), tree(tmp_path, files))
    opened = []
    plain = Path.read_text

    def counted(path, **how):
        opened.append(path)
        return plain(path, **how)

    monkeypatch.setattr(Path, "read_text", counted)
    monkeypatch.setattr(Path, "glob", lambda *given: pytest.fail("a reading looks for files"))
    found = health.read()
    assert (found.clock_mhz, found.temperature_c) == (2000.0, 64.0)
    assert len(opened) == len(set(opened)) == 10  # eight clocks, the temperature, the usage


@pytest.mark.parametrize(
    ("wall", "used", "waited", "expected"),
    [
        (100, 98, 0, 100),  # not interrupted
        (300, 99, 200, 100),  # other work had the core for two thirds
        (300, 100, 290, 100),  # the wait began before the launches
        (300, 250, 200, 250),  # it was for another thread of this process
        (300, 20, 0, 300),  # the launch slept
        (300, 310, 5, 300),  # CPU time of reading the clock itself
    ],
)
def test_other_work_on_the_core_is_not_a_launch_s_time(monkeypatch, wall, used, waited, expected):
    def clock(*readings):
        return functools.partial(next, iter(readings))

    monkeypatch.setattr(cpu_module, "_foreign_code", False)
    monkeypatch.setattr(cpu_module, "_WALL_CLOCK", clock(1000, 1000 + wall))
    monkeypatch.setattr(cpu_module, "_CPU_CLOCK", clock(50, 50 + used))
    monkeypatch.setattr(cpu_module, "run_queue_ns", clock(7, 7 + waited))
    reading = CpuReplay(lambda stream, index: None, [0], alone=True).run()
    assert reading.elapsed_s == pytest.approx(expected * 1e-9)
    assert reading.spent_s == pytest.approx(wall * 1e-9)


@pytest.mark.parametrize(("threads", "method"), [(1, Timer.CPU), (0, Timer.LOOP)])
def test_waits_are_subtracted_from_wall_time_of_one_thread_only(monkeypatch, threads, method):
    monkeypatch.setattr(cpu_module, "run_queue_ns", lambda: pytest.fail("read"))
    replay = CpuReplay(lambda stream, index: None, [0], method, alone=threads == 1)
    assert replay.run().interrupted_s == 0.0


def test_beside_a_kernel_file_nothing_is_subtracted(monkeypatch):
    # Its code could leave the work to a process that it starts.
    monkeypatch.setattr(cpu_module, "_foreign_code", False)
    monkeypatch.setattr(cpu_module, "run_queue_ns", lambda: pytest.fail("read"))
    cpu_module.note_foreign_code()
    replay = CpuReplay(lambda stream, index: None, [0], alone=True)
    assert replay.run().interrupted_s == 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no scheduler statistics")
def test_the_wait_for_a_core_grows_beside_other_work():
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(2)]
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        waited, end = run_queue_ns(), time.monotonic() + 20
        while run_queue_ns() == waited and time.monotonic() < end:
            pass
        assert run_queue_ns() > waited
    finally:
        os.sched_setaffinity(0, before)
        for process in others:
            process.kill()
            process.wait()


def test_without_scheduler_statistics_nothing_is_subtracted(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(cpu_module, "_LISTDIR", missing)
    assert run_queue_ns() == 0
