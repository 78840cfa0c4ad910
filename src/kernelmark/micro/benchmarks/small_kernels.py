"""Cost of starting a kernel: a plain launch, in a graph, or as a step of a persistent kernel."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.core.reason import Reason
from kernelmark.core.timing import Timer
from kernelmark.micro import _kernels
from kernelmark.micro._rigs import GpuRig, as_gpu
from kernelmark.micro.base import (
    KIB,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    microbenchmark,
)
from kernelmark.micro.rig import BoundKernel, Typical, typical_of, widest

FILE = "micro_launch.cu"
_GIVE_UP_CYCLES = 400_000_000  # timeout at a barrier: a fifth of a second
_BLOCK = 256
_BLOCKS = 8  # of that size per SM/CU: as many as fit
# Lower bounds for any hardware: starting a kernel takes dozens of cycles in several parts of a GPU,
# and a round trip also goes from the host to the device and back.
_LEAST_NS = 50.0
_LEAST_TRIP_NS = 100.0
_MIN_START = 0.05  # minimum fitted start-up time, as a fraction of the shortest time
_MIN_GROWTH = 0.25  # minimum fitted growth, as a fraction of the longest time
_ROW_S = 0.05  # maximum length of launches in a row
_PAIRS = 101  # maximum pairs of graphs of two lengths
_STEPS = (100, 300)  # of a persistent kernel; their difference is free of its start
_TRIPS = 200
_ARRAY_ROOM = 64  # bytes beyond each array


@microbenchmark(
    summary="Cost of a launch: plain, in a graph, or as a step of a persistent kernel; its fit.",
    measures="The same small kernel, a[i]=b[i]/4, runs repeatedly: launched by a loop in C, "
    "captured in a graph (difference of two lengths), or as steps of one kernel with a barrier "
    "across all blocks. Over sizes the time is fitted as start-up + bytes / rate. The round trip "
    "is one empty kernel and the wait for it.",
    misleads="Plain launches measure the host and the driver as much as the GPU. The barrier of "
    "the persistent kernel uses one word, and its cost grows with the number of SMs/CUs. Medium "
    "sizes are in the shared cache, so the fitted rate is not that of main memory.",
    parameters={
        "sizes": Parameter(
            "bytes of both arrays",
            quick=tuple(64 * KIB << n for n in range(12)),
            full=tuple(int(64 * KIB * 2 ** (n / 2)) // 16 * 16 for n in range(28)),
            brief=(64 * KIB, 16 * MIB),
            least=16,
            multiple=16,  # one number of each array
        ),
        "launches": Parameter("launches in a row", quick=1000, full=3000),
        "samples": Parameter("timings of a point", quick=3, full=7),
    },
    columns=(
        Column("way", "plain, graph or persistent"),
        Column("size_bytes", "bytes of both arrays; 0 is an empty kernel", "B"),
        Column("seconds", "seconds per kernel or step", "s"),
        Column(
            "bytes_per_s", "bytes read and written per second", "B/s", lambda h: h.bandwidth("l1")
        ),
        SPREAD,
    ),
    host_paced=("plain_empty_ns", "plain_ns", "plain_start_ns", "plain_rate", "round_trip_ns"),
    figure=Figure(
        x="size_bytes",
        title="both arrays (KiB)",
        per=KIB,
        scale="log",
        colour="way",
        panels=(
            Panel("seconds", "µs a kernel", per=1e-6, scale="log"),
            Panel("bytes_per_s", "GB/s", per=1e9, scale="log"),
        ),
    ),
)
def small_kernels(run: MicroRun, *, sizes: Ints, launches: int, samples: int) -> None:
    rig = run.rig
    assert isinstance(rig, GpuRig)
    sizes = tuple(sorted(sizes))
    launch_many, note = _launcher(rig)
    run.notes += [note] if note else []
    a, b = (rig.memory(max(sizes) // 2 + _ARRAY_ROOM) for _ in range(2))
    for buffer in (a, b):
        rig.zero(buffer)
    arrived, failed = rig.memory(64), rig.memory(64)

    def scale(size: int) -> BoundKernel:
        if size == 0:
            return rig.call(FILE, "launch_nothing", grid=1, block=32)
        count = size // 16
        grid = min(rig.grid * _BLOCKS, -(-count // _BLOCK))
        return rig.call(FILE, "launch_scale", a, b, count, grid=grid, block=_BLOCK)

    def persistent(size: int, steps: int) -> BoundKernel:
        rig.zero(arrived)
        rig.zero(failed)
        return rig.call(
            *(FILE, "launch_persistent", a, b, size // 16, steps),
            *(arrived, _GIVE_UP_CYCLES, failed),
            grid=rig.grid,
            block=rig.block,
        )

    run.begin_timing()
    times: dict[tuple[str, int], Typical] = {}
    for size in (0, *sizes):
        call = scale(size)
        times["plain", size] = _time_plain(rig, launch_many, call, launches, samples)
        times["graph", size] = _time_graph(rig, call, launches, samples)
        if size:
            by_steps = []
            for steps in _STEPS:
                seconds = []
                for _ in range(samples):
                    seconds.append(rig.time(persistent(size, steps)).elapsed_s)
                    if rig.read(failed, np.uint32, 1)[0]:
                        run.check("blocks of the persistent kernel waited in vain for each other")
                by_steps.append(rig.typical(seconds))
            times["persistent", size] = _per_step(*by_steps)
    trip = _round_trip(rig, launch_many, scale(0))
    _report(run, times, sizes, trip)

    run.begin_checks()
    size, count = sizes[-1], sizes[-1] // 16
    numbers = np.arange(count, dtype=np.float64)
    rig.device.write(b, 0, numbers.view(np.uint8))
    rig.run(scale(size))
    if not np.array_equal(rig.read(a, np.float64, count), numbers / 4):
        run.check("the kernel did not quarter its input")
    rig.run(persistent(size, 3))
    if not np.array_equal(rig.read(a, np.float64, count), numbers / 64):
        run.check("three steps of the persistent kernel did not quarter three times")


def _time_plain(
    rig: GpuRig,
    launch_many: Callable[[BoundKernel, int], None],
    call: BoundKernel,
    launches: int,
    samples: int,
) -> Typical:
    def launch(count: int) -> float:
        begin = time.perf_counter()
        launch_many(call, count)
        rig.device.synchronize()
        return (time.perf_counter() - begin) / count

    launch(20)
    count = int(min(launches, max(50, _ROW_S / launch(20))))
    # The host's clock: other work on the host only lengthens it, so the shortest counts.
    return typical_of([launch(count) for _ in range(samples)], exclusive=False)


def _time_graph(rig: GpuRig, call: BoundKernel, launches: int, samples: int) -> Typical:
    """Return the time difference between graphs of n and 2n launches, divided by n."""

    def launch(stream: int, _: int) -> None:
        rig.enqueue(call, stream)

    rough = rig.time(call, 5).elapsed_s
    length = int(min(max(20, launches // 10), max(20, _ROW_S / 4 / rough)))
    short, long = (rig.device.record(launch, [0] * n, Timer.GRAPH) for n in (length, 2 * length))
    try:
        for replay in (short, long):
            replay.run()
        # Replays of a few milliseconds may all coincide with a temporary clock change.
        pairs = int(min(_PAIRS, _ROW_S / (3 * length * rough)))
        return typical_of(
            (long.run().elapsed_s - short.run().elapsed_s) / length
            for _ in range(max(pairs, 2 * samples + 1))
        )
    finally:
        short.close()
        long.close()


def _per_step(short: Typical, long: Typical) -> Typical:
    """Return the time per step of a persistent kernel, from the difference of two step counts."""
    more = _STEPS[1] - _STEPS[0]
    step_s = max(1e-9, (long.value - short.value) / more)
    # The ranges of both add up in their difference.
    ranges = [t.value * t.spread for t in (short, long) if t.spread is not None]
    return Typical(value=step_s, spread=sum(ranges) / more / step_s if ranges else None)


def _round_trip(
    rig: GpuRig, launch_many: Callable[[BoundKernel, int], None], call: BoundKernel
) -> Typical:
    seconds = []
    for _ in range(_TRIPS):
        begin = time.perf_counter()
        launch_many(call, 1)
        rig.device.synchronize()
        seconds.append(time.perf_counter() - begin)
    return typical_of(seconds)


def _report(
    run: MicroRun, times: dict[tuple[str, int], Typical], sizes: Ints, trip: Typical
) -> None:
    """Add the rows and metrics of times by way and size."""
    for (way, size), taken in times.items():
        run.row(
            way=way,
            size_bytes=size,
            seconds=taken.value,
            bytes_per_s=size / taken.value if size else None,
            spread=taken.spread,
        )

    def add_ns(name: str, taken: Typical, least: float = _LEAST_NS, **more: Any) -> None:
        run.metric(name, taken.value * 1e9, "ns", least=least, spread=taken.spread, **more)

    for way in ("plain", "graph"):
        empty = times[way, 0]
        add_ns(f"{way}_empty_ns", empty, headline=False, roof=f"launches {way}")
    for way in ("plain", "graph", "persistent"):
        add_ns(f"{way}_ns", times[way, sizes[0]], headline=way == "graph")
        start_ns, rate = _fit([(n, times[way, n].value) for n in sizes])
        spread = widest(times[way, n].spread for n in sizes)
        run.metric(
            *(f"{way}_start_ns", start_ns, "ns"), least=_LEAST_NS, headline=False, spread=spread
        )
        limit = run.rig.hardware.bandwidth("l1")
        run.metric(f"{way}_rate", rate, "B/s", limit=limit, headline=False, spread=spread)
    add_ns("round_trip_ns", trip, _LEAST_TRIP_NS, headline=False)


def _fit(points: list[tuple[int, float]]) -> tuple[float | None, float | None]:
    """Fit t = start + bytes / rate by relative least squares; return start-up nanoseconds and bytes
    per second. A value is None if the points do not determine it: there is only one point, or
    start-up dominates and the slope is noise."""
    if len(points) < 2:
        return None, None
    sizes = np.array([size for size, _ in points], np.float64)
    times = np.array([seconds for _, seconds in points], np.float64)
    weights = 1 / times
    design = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    (start, slope), *_ = np.linalg.lstsq(design, times * weights, rcond=None)
    # A start-up time far below the shortest time is not measurable.
    measurable = start > _MIN_START * times.min()
    grown = slope * sizes.max() > _MIN_GROWTH * times.max()
    return float(start) * 1e9 if measurable else None, 1 / float(slope) if grown else None


def _launcher(rig: GpuRig) -> tuple[Callable[[BoundKernel, int], None], str]:
    """Return a function that launches n times, and a note if it is not a loop in C."""
    driver, stream = as_gpu(rig.device).driver, as_gpu(rig.device).stream
    address: Any = ctypes.cast(driver.library[driver.table.symbols["launch"]], ctypes.c_void_p)
    try:
        library = _kernels.library(FILE).library
    except CaseError as error:

        def slowly(call: BoundKernel, count: int) -> None:
            for _ in range(count):
                rig.enqueue(call)

        return slowly, f"plain launches are a loop in Python here: {error.message}"

    def quickly(call: BoundKernel, count: int) -> None:
        code = library.launch_many(
            address,
            ctypes.c_void_p(call.function),
            ctypes.c_uint(call.grid),
            ctypes.c_uint(call.block),
            ctypes.c_void_p(stream),
            call.arguments,
            ctypes.c_uint(count),
        )
        if code:
            symbol = driver.table.symbols["launch"]
            raise CaseError(
                Reason(
                    f"{symbol} failed with status {code}",
                    "library-failed",
                    call=symbol,
                    status=code,
                )
            )

    return quickly, ""
