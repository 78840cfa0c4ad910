"""The CPU as a device: newly mapped host memory, pinned threads, a monotonic clock around
launches."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Telemetry
from kernelmark.core.timing import Timer
from kernelmark.core.units import counted
from kernelmark.devices._cores import (
    ASSUMED_CACHE_BYTES,
    ROOT,
    Cpu,
    available_memory,
    cache_sizes,
    describe,
    huge_pages,
    last_level_bytes,
    read_text,
    total_memory,
    usable_cpus,
)
from kernelmark.devices._host import MIN_BYTES, HostBuffer, HostDevice, PagePool, array
from kernelmark.devices.base import Buffer, DeviceKind, Launch, Reading, Replay

# Reading one core's clock can take microseconds, so only this many cores are sampled.
_CLOCK_CORES = 8
_SENSORS = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "acpitz")
_HWMON = ("coretemp", "k10temp", "zenpower")
_THROTTLES = {
    "core_throttle_count": "the core's thermal limit",
    "package_throttle_count": "the package's thermal limit",
}


@dataclass(frozen=True, slots=True)
class _Usage:
    """Busy core-seconds on the measured cores, by all processes and by this one."""

    at_s: float
    busy_s: float
    own_s: float


class Health:
    """Telemetry of the cores that launches run on; throttling and load are since the previous
    reading."""

    def __init__(self, cores: Sequence[int], root: Path = ROOT) -> None:
        self._cores = tuple(cores)
        self._root = root
        cpus = root / "sys/devices/system/cpu"
        self._clocks = _present(
            cpus / f"cpu{c}/cpufreq/scaling_cur_freq" for c in self._cores[:_CLOCK_CORES]
        )
        self._temperature = _temperature_file(root)
        self._throttles = {
            path: why
            for core in self._cores
            for name, why in _THROTTLES.items()
            for path in _present([cpus / f"cpu{core}/thermal_throttle/{name}"])
        }
        self._throttle_counts = self._read_throttles()
        self._usage = self._read_usage()

    def read(self) -> Telemetry:
        """Return the current clock and temperature, and throttling and load since the last reading.

        `load` is work by other processes (or time stolen by a hypervisor) on these cores, in cores.
        The system's load average would include our own work and cover the last minutes.
        """
        counts, usage = self._read_throttles(), self._read_usage()
        throttled = {
            self._throttles[path]
            for path, count in counts.items()
            if count > self._throttle_counts.get(path, count)
        }
        load = _load_by_others(self._usage, usage, len(self._cores))
        self._throttle_counts, self._usage = counts, usage
        clocks = [value for path in self._clocks if (value := _integer(path)) is not None]
        millidegrees = _integer(self._temperature) if self._temperature else None
        return Telemetry(
            clock_mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            temperature_c=millidegrees / 1e3 if millidegrees is not None else None,
            load=load,
            throttle=tuple(sorted(throttled)),
        )

    def _read_throttles(self) -> dict[Path, int]:
        return {path: value for path in self._throttles if (value := _integer(path)) is not None}

    def _read_usage(self) -> _Usage | None:
        wanted = {f"cpu{core}" for core in self._cores}
        busy = matched = 0
        for line in read_text(self._root / "proc/stat").splitlines():
            if not line.startswith("cpu"):
                break
            name, *values = line.split()
            if name in wanted and len(values) >= 8:
                user, nice, system, _idle, _iowait, irq, soft, steal = map(int, values[:8])
                busy += user + nice + system + irq + soft + steal
                matched += 1
        if matched != len(wanted):
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return _Usage(time.monotonic(), busy / ticks, time.process_time())


def _load_by_others(before: _Usage | None, after: _Usage | None, cores: int) -> float | None:
    """Return the load by other processes between two readings, in cores, at most `cores`; None if
    the interval is shorter than a few of the kernel's 10 ms ticks.

    A busy virtual machine accounts ticks late and stolen ticks twice: 5.6 of 2 cores were
    measured.
    """
    if before is None or after is None or after.at_s - before.at_s < 0.05:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(0.0, others / (after.at_s - before.at_s)), float(cores))


def _temperature_file(root: Path) -> Path | None:
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    by_type = {read_text(zone / "type").strip(): zone / "temp" for zone in reversed(zones)}
    for name in _SENSORS:
        if name in by_type and _integer(by_type[name]) is not None:
            return by_type[name]
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        path = chip / "temp1_input"
        if read_text(chip / "name").strip() in _HWMON and _integer(path) is not None:
            return path
    return None


def _present(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if _integer(path) is not None]


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


__all__ = ["CpuDevice", "CpuKind", "CpuReplay", "array", "kind"]

# Memory left to the rest of the system, so that a large problem ends as out_of_memory and does not
# trigger the kernel's OOM killer.
SPARE_BYTES = 256 * 2**20
SPARE_SHARE = 0.05

# Bound here, before a kernel file is imported that may replace them in `time`.
_WALL_CLOCK, _CPU_CLOCK = time.perf_counter_ns, time.process_time_ns
_LISTDIR, _OPEN, _READ, _CLOSE = os.listdir, os.open, os.read, os.close

# Thread-count variables that common CPU libraries read when they are loaded.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def run_queue_ns() -> int:
    """Return the nanoseconds that the threads of this process have waited for a core while other
    work ran on it, from the scheduler's statistics; 0 where the system has none."""
    total = 0
    try:
        for task in _LISTDIR("/proc/self/task"):
            descriptor = _OPEN(f"/proc/self/task/{task}/schedstat", os.O_RDONLY)
            try:
                total += int(_READ(descriptor, 64).split()[1])
            finally:
                _CLOSE(descriptor)
    except (OSError, IndexError, ValueError):  # no such file, or a thread has just ended
        return 0
    return total


_foreign_code = False


def note_foreign_code() -> None:
    """Count the time of other processes from now on. Code of a kernel file runs in this one, and
    could leave its work to another process, on the same core."""
    global _foreign_code
    _foreign_code = True


class CpuReplay(Replay):
    """Launches that return when done; the whole loop is timed, not each launch.

    With `alone`, for launches on one thread, the time in which other processes had the core is
    subtracted. Beside work that used 0.7 of the core of a Xeon, the slowest block of a case took
    2.5 times as long as the fastest (median of 69 cases); with this, and 0.85 of the core used,
    1.06 times (91 cases).
    """

    def __init__(
        self,
        launch: Launch,
        order: Sequence[int],
        method: Timer = Timer.LOOP,
        *,
        alone: bool = False,
    ) -> None:
        self._launch = launch
        self._order = tuple(order)
        self.launches = len(self._order)
        self.method = method
        self._clock = _CPU_CLOCK if method is Timer.CPU else _WALL_CLOCK
        self._alone = alone and method is not Timer.CPU and not _foreign_code

    def run(self) -> Reading:
        launch, order, clock = self._launch, self._order, self._clock
        collecting = gc.isenabled()
        gc.disable()
        try:
            waited = run_queue_ns() if self._alone else 0
            used = _CPU_CLOCK()
            start = clock()
            for index in order:
                launch(0, index)
            end = clock()
            used = _CPU_CLOCK() - used
            waited = run_queue_ns() - waited if self._alone else 0
            if self.at_end is not None:
                self.at_end()
        finally:
            if collecting:
                gc.enable()
        wall = end - start
        # A wait for another thread of this process is no gain: that thread's work is CPU time of
        # the process, too.
        elapsed = min(wall, max(used, wall - waited)) if waited > 0 else wall
        return Reading(elapsed_s=elapsed * 1e-9, interrupted_s=(wall - elapsed) * 1e-9)


class CpuDevice(HostDevice):
    """The cores that this process may use, or the first `threads` of these cores."""

    def __init__(self, threads: int = 0) -> None:
        cpu = describe()
        if threads > len(cpu.cores):
            raise UsageError(
                f"{threads} threads were asked for and "
                f"{counted(len(cpu.cores), 'core')} can be used",
                hint=f"use threads={len(cpu.cores)} or less",
            )
        self.threads = threads or len(cpu.cores)
        self.cores = cpu.cores[: self.threads]
        self._before = usable_cpus()
        pinned = _pin(self.cores)
        self.info = _info(cpu, self.cores, {"pinned": "yes" if pinned else "no"})
        self._spare = max(SPARE_BYTES, int(self.info.memory_bytes * SPARE_SHARE))
        self._health = Health(self.cores)
        self._private_bytes = _private_cache_bytes(self.cores)
        self._evictor: HostBuffer | None = None
        self._pages = PagePool()

    def free_bytes(self) -> int:
        return max(0, available_memory() + self._pages.nbytes - self._spare)

    def allocate(self, nbytes: int) -> HostBuffer:
        kept = self._pages.take(nbytes)
        if kept is not None:
            return kept
        capacity = self._pages.capacity(nbytes)
        if capacity > available_memory() - self._spare:
            self._pages.clear()
            capacity = nbytes
        return self.fresh(nbytes, capacity)

    def reuses_freed(self, nbytes: int) -> bool:
        return nbytes >= MIN_BYTES

    def free(self, buffer: Buffer) -> None:
        self._pages.put(cast(HostBuffer, buffer))

    def record(self, launch: Launch, order: Sequence[int], timer: Timer) -> CpuReplay:
        if timer is Timer.CPU and self.threads > 1:
            # CPU time summed over threads is not a launch's time: it does not include time that
            # threads spend waiting for each other.
            raise Unsupported(
                f"timer=cpu needs one thread, and the device has {self.threads}",
                hint="use threads=1, or timer=loop",
            )
        if timer not in (Timer.AUTO, Timer.LOOP, Timer.CPU):
            raise Unsupported(
                Reason(
                    f"a CPU has no {timer} timer",
                    "timer-unsupported",
                    device="a CPU",
                    timer=str(timer),
                ),
                hint="use timer=loop or leave it out",
            )
        method = Timer.CPU if timer is Timer.CPU else Timer.LOOP
        return CpuReplay(launch, order, method, alone=self.threads == 1)

    def evict_cache(self) -> None:
        """Read through twice the last-level cache size, a part on each core so that private caches
        are evicted too. Reads leave no dirty lines to be written back during the next launch."""
        if self._evictor is None:
            share = max(-(-2 * self.info.cache_bytes // len(self.cores)), 2 * self._private_bytes)
            self._evictor = self.allocate(-(-share // 4096) * 4096 * len(self.cores))
            self._evictor.array[:] = 1
        parts = np.split(self._evictor.array.view(np.uint64), len(self.cores))
        readers = [
            threading.Thread(target=_read_on, args=(core, part))
            for core, part in zip(self.cores, parts, strict=True)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    def telemetry(self) -> Telemetry:
        return self._health.read()

    def close(self) -> None:
        if self._evictor is not None:
            self.free(self._evictor)
            self._evictor = None
        self._pages.clear()
        _pin(self._before)


def _read_on(core: int, part: NDArray[np.uint64]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {core})  # 0: this thread only
    part.max()


class CpuKind(DeviceKind):
    """All cores of the machine as one device."""

    name = "cpu"

    def available(self) -> str | None:
        return None

    def infos(self) -> list[DeviceInfo]:
        cpu = describe()
        return [_info(cpu, cpu.cores, {})]

    def open(self, index: int, threads: int = 0) -> CpuDevice:
        if index != 0:
            raise UsageError(
                f"there is no device 'cpu:{index}'", hint="all cores are one device: cpu"
            )
        return CpuDevice(threads)

    def worker_variables(self, index: int, threads: int) -> dict[str, str]:
        count = str(threads or len(describe().cores))
        return dict.fromkeys(THREAD_VARIABLES, count) | {
            "OMP_DYNAMIC": "FALSE",
            "MKL_DYNAMIC": "FALSE",
        }


kind = CpuKind()


def _info(cpu: Cpu, cores: Sequence[int], more: dict[str, str]) -> DeviceInfo:
    cache = last_level_bytes(cores)
    return DeviceInfo(
        name="cpu",
        kind="cpu",
        model=cpu.model,
        arch=platform.machine(),
        units=len(cpu.cores),
        memory_bytes=total_memory(),
        cache_bytes=cache or ASSUMED_CACHE_BYTES,
        attributes={
            "logical_cpus": str(cpu.logical),
            "isa": " ".join(cpu.isa),
            "pages": "huge, where large enough" if huge_pages() else "small",
            "cache": "as the kernel says" if cache else "assumed",
            **more,
        },
    )


def _private_cache_bytes(cores: Sequence[int]) -> int:
    """Return the bytes of one core's caches below the last level."""
    sizes = cache_sizes(cores[:1])
    return sum(size for level, size in sizes.items() if level != max(sizes))


def _pin(cpus: Sequence[int] | set[int]) -> bool:
    """Pin every thread of this process to `cpus`, including threads that libraries started when
    they were loaded. Return False if that is not possible."""
    tasks = Path("/proc/self/task")
    try:
        for task in tasks.iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)
    except (OSError, AttributeError):
        return False
    return True
