"""Streams that also write, within a footprint divided among the SMs/CUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro import _windows
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
    fitting,
    metric,
)
from kernelmark.micro.rig import CHUNK_BYTES, Call, Rig, Samples

MIB = 2**20
# Arrays that a kernel uses; the footprint is all of them.
STREAMS = {"read": 1, "write": 1, "copy": 2, "scale": 2, "triad": 4}
_QUICK = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 512, 2048)
_FULL = tuple(sorted({*_QUICK, *(int(1.25**i) for i in range(1, 36))}))
_FACTOR = 3.0
_CHECKED = MIB  # bytes of an array that the check writes


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    points: tuple[tuple[str, int], ...]
    arrays: tuple[Buffer, ...]
    buffers: _windows.Buffers
    seconds: float
    samples: int
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    kernel: str
    nbytes: int
    bytes_per_s: float
    samples: Samples


class L2Stream(Microbenchmark[_State, list[_Point]]):
    name = "l2-stream"
    summary = "Read, write, copy, scale and triad inside a bounded footprint."
    measures = (
        "The footprint, all arrays together, is divided among the blocks of one persistent grid, "
        "which read and write it repeatedly: `read`, `write`, `copy` a=b, `scale` a=q·b and "
        "`triad` a=b+c·d with four arrays. Each array is counted once per pass."
    )
    misleads = (
        "An SM/CU gets another part of the footprint in each pass, but small footprints are in "
        "many private caches at once. Writes go through to the shared cache. Beyond it, a write "
        "may also cost a read, which is not counted."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of all arrays together",
                quick=tuple(m * MIB for m in _QUICK),
                full=tuple(m * MIB for m in _FULL),
                brief=(12 * MIB, 16 * MIB, 24 * MIB),
                # one chunk of each array
                least=CHUNK_BYTES * max(STREAMS.values()),
            ),
            "kernels": Parameter(
                help="streams",
                quick=tuple(STREAMS),
                brief=("copy", "triad"),
                choices=tuple(STREAMS),
            ),
            "seconds": Parameter(help="length of a launch", quick=1.5e-3, full=3e-3),
            "samples": Parameter(help="launches timed for a point", quick=3, full=11),
        }
    )
    columns = (
        Column(name="kernel", help="read, write, copy, scale or triad"),
        Column(name="size_bytes", help="bytes of all arrays together", unit="B"),
        Column(
            name="bytes_per_s",
            help="bytes read and written per second",
            unit="B/s",
            # A footprint divided among the SMs/CUs is partly in their L1 caches.
            limit=lambda h: h.bandwidth("l1"),
        ),
        Column(name="clock_mhz", help="core clock meanwhile", unit="MHz"),
        SPREAD,
    )
    figure = Figure(
        x="size_bytes",
        title="footprint (MiB)",
        per=MIB,
        scale="log",
        colour="kernel",
        panels=(Panel(y="bytes_per_s", title="all units (TB/s)", per=1e12, zero=True),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        sizes, notes = fitting(
            given.wholes("sizes"), rig.device.free_bytes() // 8, "an eighth of what is free"
        )
        largest = max(*sizes, _CHECKED)
        buffers = _windows.allocate(rig, largest)
        arrays = [rig.memory(largest) for _ in range(4)]
        state = _State(
            points=tuple((k, size) for k in given.words("kernels") for size in sizes),
            arrays=tuple(arrays),
            buffers=buffers,
            seconds=given.number("seconds"),
            samples=given.whole("samples"),
            notes=notes,
        )
        whole = _windows.shared_out(rig, largest)
        for array in arrays:
            fill = rig.call(
                *(_windows.FILE, "window_write", array, array, array, array, 1.0),
                *(whole.chunks, whole.rotate, whole.step, self._rounds_per_sweep(rig, whole)),
                grid=rig.grid,
                block=rig.block,
            )
            rig.run(fill)
        return state

    def _rounds_per_sweep(self, rig: Rig, window: _windows.Window) -> int:
        """Return the rounds in which all blocks together read the window once."""
        return math.ceil(window.chunks / (rig.grid * rig.warps))

    def _call(self, rig: Rig, state: _State, kernel: str, window: _windows.Window, n: int) -> Call:
        if kernel == "read":
            return _windows.read_call(rig, state.buffers, window, n)
        return rig.call(
            *(_windows.FILE, f"window_{kernel}", *state.arrays, _FACTOR),
            *(window.chunks, window.rotate, window.step, n),
            grid=rig.grid,
            block=rig.block,
        )

    def timed(self, rig: Rig, state: _State) -> list[_Point]:
        found = []
        per_round = rig.grid * rig.warps * CHUNK_BYTES
        for kernel, size in state.points:
            streams = STREAMS[kernel]
            window = _windows.shared_out(rig, size // streams)
            rounds, call = rig.calibrated(
                lambda n, k=kernel, w=window: self._call(rig, state, k, w, n),  # type: ignore[misc]
                2 * self._rounds_per_sweep(rig, window),
                state.seconds,
            )
            timed = rig.sample(call, samples=state.samples, launches=1)
            rate = rounds * per_round * streams / timed.typical_s
            found.append(_Point(kernel=kernel, nbytes=size, bytes_per_s=rate, samples=timed))
        return found

    def verify(self, rig: Rig, state: _State, raw: list[_Point]) -> str | None:
        wanted = {"write": _FACTOR, "copy": 1.0, "scale": _FACTOR, "triad": 2.0}
        window = _windows.shared_out(rig, _CHECKED)
        rounds = self._rounds_per_sweep(rig, window)
        for kernel in dict.fromkeys(kernel for kernel, _ in state.points):
            if kernel == "read":
                wrong = _windows.check(rig, state.buffers, window, rounds=5)
                if wrong is not None:
                    return wrong
                continue
            rig.zero(state.arrays[0], window.nbytes)
            rig.run(self._call(rig, state, kernel, window, rounds))
            found = rig.read(state.arrays[0], np.float32, window.nbytes // 4)
            if not (found == wanted[kernel]).all():
                odd = found[found != wanted[kernel]]
                return f"{kernel} wrote {odd[0]} in {odd.size} places, not {wanted[kernel]}"
        return None

    def metrics(self, rig: Rig, state: _State, raw: list[_Point]) -> Findings:
        rows: list[Record] = [
            {
                "kernel": point.kernel,
                "size_bytes": point.nbytes,
                "bytes_per_s": point.bytes_per_s,
                "clock_mhz": rig.clock_during(point.samples),
                "spread": point.samples.spread(),
            }
            for point in raw
        ]
        cache = rig.info.cache_bytes
        found: list[Metric] = []
        for kernel in dict.fromkeys(point.kernel for point in raw):
            inside = sorted(
                p.bytes_per_s
                for p in raw
                if p.kernel == kernel and min(8 * MIB, cache // 4) <= p.nbytes <= 0.4 * cache
            )
            if inside:
                found += metric(
                    f"l2_{kernel}",
                    inside[len(inside) // 2],
                    "B/s",
                    limit=rig.hardware.bandwidth("l1"),
                    headline=kernel in ("copy", "triad"),
                )
        return Findings(rows=rows, metrics=found, notes=state.notes)


benchmark = L2Stream()
