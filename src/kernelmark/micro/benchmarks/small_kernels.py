"""Cost of starting a kernel: a plain launch, in a graph, or as a step of a persistent kernel."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.reason import Reason
from kernelmark.core.timing import Timer
from kernelmark.devices.base import Buffer
from kernelmark.micro import _host
from kernelmark.micro._copies import as_gpu
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    Findings,
    Microbenchmark,
    Panel,
    Parameter,
    Record,
    Settings,
    metric,
)
from kernelmark.micro.rig import Call, Rig, Typical, spread_of, widest

FILE = "micro_launch.cu"
KIB, MIB = 2**10, 2**20
_GIVE_UP_CYCLES = 400_000_000  # timeout at a barrier: a fifth of a second
_BLOCK = 256
# Lower bounds for any hardware: starting a kernel takes dozens of cycles in several parts of a GPU,
# and a round trip also goes from the host to the device and back.
_LEAST_NS = 50.0
_LEAST_TRIP_NS = 100.0
_MIN_START = 0.05  # minimum fitted start-up time, as a fraction of the shortest time
_MIN_GROWTH = 0.25  # minimum fitted growth, as a fraction of the longest time
_ROW_S = 0.05  # maximum length of launches in a row
_PAIRS = 101  # maximum pairs of graphs of two lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    sizes: tuple[int, ...]
    a: Buffer
    b: Buffer
    arrived: Buffer
    failed: Buffer
    launches: int
    samples: int
    many: Callable[[Call, int], None]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    seconds: dict[tuple[str, int], Typical]  # per kernel or step; size 0 is an empty kernel
    round_trip_s: Typical
    gave_up: bool


class SmallKernels(Microbenchmark[_State, _Raw]):
    name = "small-kernels"
    summary = "Cost of a launch: plain, in a graph, or as a step of a persistent kernel; its fit."
    measures = (
        "The same small kernel, a[i]=b[i]/4, runs repeatedly: launched by a loop in C, captured in "
        "a graph (difference of two lengths), or as steps of one kernel with a barrier across all "
        "blocks. Over sizes the time is fitted as start-up + bytes / rate. The round trip is one "
        "empty kernel and the wait for it."
    )
    misleads = (
        "Plain launches measure the host and the driver as much as the GPU. The barrier of the "
        "persistent kernel uses one word, and its cost grows with the number of SMs/CUs. Medium "
        "sizes are in the shared cache, so the fitted rate is not that of main memory."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of both arrays",
                quick=tuple(64 * KIB << n for n in range(12)),
                full=tuple(int(64 * KIB * 2 ** (n / 2)) // 16 * 16 for n in range(28)),
                brief=(64 * KIB, 16 * MIB),
                least=16,
                multiple=16,  # one number of each array
            ),
            "launches": Parameter(help="launches in a row", quick=1000, full=3000),
            "samples": Parameter(help="timings of a point", quick=3, full=7),
        }
    )
    columns = (
        Column(name="way", help="plain, graph or persistent"),
        Column(name="size_bytes", help="bytes of both arrays; 0 is an empty kernel", unit="B"),
        Column(name="seconds", help="seconds per kernel or step", unit="s"),
        Column(
            name="bytes_per_s",
            help="bytes read and written per second",
            unit="B/s",
            limit=lambda h: h.bandwidth("l1"),
        ),
        SPREAD,
    )
    host_paced = ("plain_empty_ns", "plain_ns", "plain_start_ns", "plain_rate", "round_trip_ns")
    figure = Figure(
        x="size_bytes",
        title="both arrays (KiB)",
        per=KIB,
        scale="log",
        colour="way",
        panels=(
            Panel(y="seconds", title="µs a kernel", per=1e-6, scale="log"),
            Panel(y="bytes_per_s", title="GB/s", per=1e9, scale="log"),
        ),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        sizes = tuple(sorted(given.wholes("sizes")))
        most = max(sizes) // 2 + 64
        many, note = _launcher(rig)
        a, b = rig.memory(most), rig.memory(most)
        for buffer in (a, b):
            rig.zero(buffer)
        return _State(
            sizes=sizes,
            a=a,
            b=b,
            arrived=rig.memory(64),
            failed=rig.memory(64),
            launches=given.whole("launches"),
            samples=given.whole("samples"),
            many=many,
            note=note,
        )

    def _scale(self, rig: Rig, state: _State, size: int) -> Call:
        if size == 0:
            return rig.call(FILE, "launch_nothing", grid=1, block=32)
        count = size // 16
        grid = min(rig.grid * 8, -(-count // _BLOCK))
        return rig.call(FILE, "launch_scale", state.a, state.b, count, grid=grid, block=_BLOCK)

    def timed(self, rig: Rig, state: _State) -> _Raw:
        found: dict[tuple[str, int], Typical] = {}
        gave_up = False
        for size in (0, *state.sizes):
            call = self._scale(rig, state, size)
            found["plain", size] = self._plain(rig, state, call)
            found["graph", size] = self._graph(rig, state, call)
            if size:
                seconds, failed = self._persistent(rig, state, size)
                gave_up = gave_up or failed
                found["persistent", size] = seconds
        return _Raw(seconds=found, round_trip_s=self._round_trip(rig, state), gave_up=gave_up)

    def _plain(self, rig: Rig, state: _State, call: Call) -> Typical:
        def once(count: int) -> float:
            begin = time.perf_counter()
            state.many(call, count)
            rig.device.synchronize()
            return (time.perf_counter() - begin) / count

        once(20)
        count = int(min(state.launches, max(50, _ROW_S / once(20))))
        seen = [once(count) for _ in range(state.samples)]
        return Typical(value=min(seen), spread=spread_of(seen, shortest=True))

    def _graph(self, rig: Rig, state: _State, call: Call) -> Typical:
        """Return the time difference between graphs of n and 2n launches, divided by n."""
        device = as_gpu(rig.device)

        def launch(stream: int, _: int) -> None:
            device.driver.launch(
                call.function, (call.grid, 1, 1), (call.block, 1, 1), call.arguments, stream
            )

        rough = rig.time(call, 5).elapsed_s
        length = int(min(max(20, state.launches // 10), max(20, _ROW_S / 4 / rough)))
        short = device.record(launch, [0] * length, Timer.GRAPH)
        long = device.record(launch, [0] * (2 * length), Timer.GRAPH)
        try:
            for replay in (short, long):
                replay.run()
            # Replays of a few milliseconds may all coincide with a temporary clock change.
            pairs = int(min(_PAIRS, _ROW_S / (3 * length * rough)))
            seen = [
                (long.run().elapsed_s - short.run().elapsed_s) / length
                for _ in range(max(pairs, 2 * state.samples + 1))
            ]
        finally:
            short.close()
            long.close()
        return _median(seen)

    def _persistent(self, rig: Rig, state: _State, size: int) -> tuple[Typical, bool]:
        """Return the time per step of a persistent kernel, from the difference of two step
        counts."""
        times = {}
        failed = False
        for steps in (100, 300):
            call = rig.call(
                *(FILE, "launch_persistent", state.a, state.b, size // 16, steps),
                *(state.arrived, _GIVE_UP_CYCLES, state.failed),
                grid=rig.grid,
                block=rig.block,
            )
            seen = []
            for _ in range(state.samples):
                rig.zero(state.arrived)
                rig.zero(state.failed)
                seen.append(rig.time(call).elapsed_s)
                failed = failed or bool(rig.read(state.failed, np.uint32, 1)[0])
            times[steps] = rig.typical(seen)
        short, long = times[100], times[300]
        step_s = max(1e-9, (long.value - short.value) / 200)
        # The ranges of both add up in their difference.
        ranges = [one.value * one.spread for one in (short, long) if one.spread is not None]
        return Typical(value=step_s, spread=sum(ranges) / 200 / step_s if ranges else None), failed

    def _round_trip(self, rig: Rig, state: _State) -> Typical:
        call = self._scale(rig, state, 0)
        seen = []
        for _ in range(200):
            begin = time.perf_counter()
            state.many(call, 1)
            rig.device.synchronize()
            seen.append(time.perf_counter() - begin)
        return _median(seen)

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        if raw.gave_up:
            return "blocks of the persistent kernel waited in vain for each other"
        size = state.sizes[-1]
        count = size // 16
        numbers = np.arange(count, dtype=np.float64)
        rig.device.write(state.b, 0, numbers.view(np.uint8))
        rig.run(self._scale(rig, state, size))
        if not np.array_equal(rig.read(state.a, np.float64, count), numbers / 4):
            return "the kernel did not quarter its input"
        rig.zero(state.arrived)
        rig.zero(state.failed)
        rig.run(
            rig.call(
                *(FILE, "launch_persistent", state.a, state.b, count, 3),
                *(state.arrived, _GIVE_UP_CYCLES, state.failed),
                grid=rig.grid,
                block=rig.block,
            )
        )
        if not np.array_equal(rig.read(state.a, np.float64, count), numbers / 64):
            return "three steps of the persistent kernel did not quarter three times"
        return None

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = [
            {
                "way": way,
                "size_bytes": size,
                "seconds": seconds.value,
                "bytes_per_s": size / seconds.value if size else None,
                "spread": seconds.spread,
            }
            for (way, size), seconds in raw.seconds.items()
        ]
        found: list[Metric] = []
        for way in ("plain", "graph"):
            found += metric(
                f"{way}_empty_ns",
                raw.seconds[way, 0].value * 1e9,
                "ns",
                better="lower",
                headline=False,
                least=_LEAST_NS,
                spread=raw.seconds[way, 0].spread,
                roof=f"launches {way}",
            )
        first = state.sizes[0]
        for way in ("plain", "graph", "persistent"):
            found += metric(
                f"{way}_ns",
                raw.seconds[way, first].value * 1e9,
                "ns",
                better="lower",
                headline=way == "graph",
                least=_LEAST_NS,
                spread=raw.seconds[way, first].spread,
            )
            start_ns, rate = _fit([(n, raw.seconds[way, n].value) for n in state.sizes])
            fitted = widest(raw.seconds[way, n].spread for n in state.sizes)
            found += metric(
                f"{way}_start_ns",
                start_ns,
                "ns",
                better="lower",
                headline=False,
                least=_LEAST_NS,
                spread=fitted,
            )
            limit = rig.hardware.bandwidth("l1")
            found += metric(f"{way}_rate", rate, "B/s", headline=False, limit=limit, spread=fitted)
        found += metric(
            "round_trip_ns",
            raw.round_trip_s.value * 1e9,
            "ns",
            better="lower",
            headline=False,
            least=_LEAST_TRIP_NS,
            spread=raw.round_trip_s.spread,
        )
        return Findings(rows=rows, metrics=found, notes=[state.note] if state.note else [])


def _median(seen: list[float]) -> Typical:
    return Typical(value=float(np.median(seen)), spread=spread_of(seen))


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


def _launcher(rig: Rig) -> tuple[Callable[[Call, int], None], str]:
    """Return a function that launches n times, and a note if it is not a loop in C."""
    device = as_gpu(rig.device)
    driver = device.driver
    address: Any = ctypes.cast(driver.library[driver.table.symbols["launch"]], ctypes.c_void_p)
    try:
        library = _host.library(FILE).library
    except CaseError as error:

        def slowly(call: Call, count: int) -> None:
            for _ in range(count):
                driver.launch(
                    call.function,
                    (call.grid, 1, 1),
                    (call.block, 1, 1),
                    call.arguments,
                    device.stream,
                )

        return slowly, f"plain launches are a loop in Python here: {error.message}"

    def quickly(call: Call, count: int) -> None:
        code = library.launch_many(
            address,
            ctypes.c_void_p(call.function),
            ctypes.c_uint(call.grid),
            ctypes.c_uint(call.block),
            ctypes.c_void_p(device.stream),
            call.arguments,
            ctypes.c_uint(count),
        )
        if code:
            symbol = driver.table.symbols["launch"]
            raise CaseError(Reason("library-failed", call=symbol, status=code))

    return quickly, ""


benchmark = SmallKernels()
