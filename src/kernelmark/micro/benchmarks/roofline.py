"""Throughput over arithmetic intensity, from memory-bound to compute-bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.result import Telemetry
from kernelmark.devices.base import Buffer
from kernelmark.micro.base import (
    EVERYWHERE,
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
from kernelmark.micro.rig import Call, Rig, Samples, Sustained

FILE = "micro_roofline.cu"
MIB = 2**20
_BYTES = {"f32": 4, "f64": 8}
_KINDS: dict[str, type[np.generic]] = {"f32": np.float32, "f64": np.float64}
_PERIOD = 1021
_LEAST = 64 * MIB  # granularity of the bytes of a launch
_PART = 4 * MIB  # the fill pattern repeats after this many bytes
_FEW = (0, 1, 2, 4, 8)  # step counts with a dedicated kernel; larger ones are multiples of 16
_GROWTH = 2.0**-12  # relative growth of a number per step
_MOST_FLOPS = {True: 4e12, False: 1e8}  # maximum per launch: on a GPU (True), per CPU core (False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    points: tuple[tuple[str, int], ...]
    data: Buffer
    sums: Buffer
    nbytes: int
    grid: int
    block: int
    seconds: float
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    run: Sustained
    nbytes: int


class Roofline(Microbenchmark[_State, list[_Point]]):
    name = "roofline"
    summary = "FLOP/s and bytes/s over arithmetic intensity, with clock and power."
    kinds = EVERYWHERE
    measures = (
        "Numbers are read once from main memory, with n multiply-adds on each, from 0 to 512: "
        "memory-bound on the left, compute-bound on the right. The number of multiply-adds is a "
        "loop count, so all points but the first few run the same code. Clock, power and "
        "throttling are read in the later part of a point; power comes from the energy counter if "
        "the device has one."
    )
    misleads = (
        "The multiply-add has two register operands; one with three may be slower. Points near the "
        "ridge use both memory and arithmetic and so draw the most power: the clock may fall "
        "there. The energy counter has coarse steps, so the power of a short point is rough; "
        "without one it is the driver's average, which may include the point before."
    )
    parameters = FrozenDict(
        {
            "steps": Parameter(
                help="multiply-adds on a number: 0, 1, 2, 4, 8 or a multiple of 16",
                quick=(0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512),
                full=(0, 1, 2, 4, 8, *range(16, 272, 16), 320, 384, 448, 512, 768, 1024),
                brief=(0, 1, 512),
            ),
            "dtypes": Parameter(help="f32, f64", quick=("f32", "f64"), choices=tuple(_BYTES)),
            "seconds": Parameter(help="seconds of a point", quick=0.1, full=0.25, brief=0.05),
            "powered": Parameter(
                help="minimum seconds on a device that reports its power",
                quick=0.75,
                full=1.0,
                brief=0.0,
            ),
            "most": Parameter(help="bytes read by a launch", quick=1024 * MIB, least=_LEAST),
        }
    )
    columns = (
        Column(name="dtype", help="f32 or f64"),
        Column(name="steps", help="multiply-adds on a number"),
        Column(name="intensity", help="operations per byte", unit="FLOP/B"),
        Column(
            name="flops_per_s",
            help="operations per second",
            unit="FLOP/s",
            limit=lambda h: h.flops("vector", "f32"),
        ),
        Column(
            name="bytes_per_s",
            help="bytes read per second",
            unit="B/s",
            limit=lambda h: h.bandwidth("dram"),
        ),
        Column(name="clock_mhz", help="core clock meanwhile (GPU)", unit="MHz"),
        Column(name="power_w", help="power meanwhile", unit="W"),
        Column(name="temperature_c", help="temperature meanwhile", unit="°C"),
        Column(name="throttle", help="throttle reasons that the driver reports"),
        SPREAD,
    )
    figure = Figure(
        x="intensity",
        title="FLOP/B",
        scale="log",
        colour="dtype",
        panels=(
            Panel(y="flops_per_s", title="TFLOP/s", per=1e12, scale="log"),
            Panel(y="power_w", title="power (W)"),
            Panel(y="clock_mhz", title="core clock (MHz)"),
        ),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        most = min(given.whole("most"), int(0.25 * rig.device.free_bytes()))
        if rig.block == 1:
            most = min(most, max(_LEAST, 4 * rig.info.cache_bytes))
        nbytes = most // _LEAST * _LEAST or _LEAST
        grid = rig.grid * (2 if rig.block > 1 else 1)
        asked = given.wholes("steps")
        made = [_nearest(steps) for steps in asked]
        odd = ", ".join(f"{a} as {b}" for a, b in zip(asked, made, strict=True) if a != b)
        powered = rig.look().power_w is not None
        return _State(
            points=tuple((d, s) for d in given.words("dtypes") for s in sorted(set(made))),
            data=rig.memory(nbytes),
            sums=rig.memory(grid * rig.block * 8),
            nbytes=nbytes,
            grid=grid,
            block=rig.block,
            seconds=max(given.number("seconds"), given.number("powered") if powered else 0.0),
            notes=[f"steps are 0, 1, 2, 4, 8 or multiples of 16: measured {odd}"] if odd else [],
        )

    def _fill(self, rig: Rig, state: _State, dtype: str) -> None:
        numbers = (np.arange(_PART // _BYTES[dtype]) % _PERIOD).astype(_KINDS[dtype]) / 1024
        part = numbers.astype(_KINDS[dtype]).view(np.uint8)
        for at in range(0, state.nbytes, part.size):
            rig.device.write(state.data, at, part[: state.nbytes - at])

    def _call(self, rig: Rig, state: _State, dtype: str, steps: int, nbytes: int) -> Call:
        few, sixteens = (steps, 0) if steps in _FEW else (0, steps // 16)
        return rig.call(
            *(FILE, f"roofline_{dtype}_{few}", state.data, state.sums),
            *(nbytes // rig.vector_bytes, sixteens, _GROWTH),
            grid=state.grid,
            block=state.block,
        )

    def timed(self, rig: Rig, state: _State) -> list[_Point]:
        found = []
        filled = ""
        for dtype, steps in state.points:
            if dtype != filled:
                self._fill(rig, state, dtype)
                filled = dtype
            nbytes = self._volume(rig, state, dtype, steps)
            call = self._call(rig, state, dtype, steps, nbytes)
            rig.run(call)
            found.append(_Point(run=rig.sustain(call, state.seconds), nbytes=nbytes))
        return found

    def _volume(self, rig: Rig, state: _State, dtype: str, steps: int) -> int:
        """Return the bytes that a launch reads: fewer if arithmetic takes long, in whole MiB."""
        most = _MOST_FLOPS[rig.block > 1] * (1 if rig.block > 1 else rig.threads)
        wanted = int(most / (2 * steps + 1) * _BYTES[dtype])
        return min(state.nbytes, max(MIB, wanted // MIB * MIB))

    def verify(self, rig: Rig, state: _State, raw: list[_Point]) -> str | None:
        """Compare the sums: every number grows by the same factor, so the expected sum is known."""
        steps = 512
        # Whole registers for every thread: the kernel skips a partial rest.
        whole = state.grid * state.block * rig.vector_bytes * 8
        nbytes = max(whole, 4 * MIB // whole * whole)
        for dtype in dict.fromkeys(dtype for dtype, _ in state.points):
            self._fill(rig, state, dtype)
            rig.zero(state.sums)
            rig.run(self._call(rig, state, dtype, steps, nbytes))
            sums = rig.read(state.sums, _KINDS[dtype], state.grid * state.block)
            found = float(sums.astype(np.float64).sum())
            index = np.arange(nbytes // _BYTES[dtype]) % (_PART // _BYTES[dtype])
            wanted = float((index % _PERIOD / 1024).sum()) * (1 + _GROWTH) ** steps
            if abs(found - wanted) > 1e-3 * wanted:
                return f"{dtype}: the numbers came to {found:g}, not to {wanted:g}"
        return None

    def metrics(self, rig: Rig, state: _State, raw: list[_Point]) -> Findings:
        rows: list[Record] = []
        for (dtype, steps), point in zip(state.points, raw, strict=True):
            count = point.nbytes // _BYTES[dtype]
            seconds, telemetry = point.run.samples.typical_s, point.run.seen or Telemetry()
            flops = count * (2 * steps + 1)  # plus one addition per number for the sum
            rows.append(
                {
                    "dtype": dtype,
                    "steps": steps,
                    "intensity": flops / point.nbytes,
                    "flops_per_s": flops / seconds,
                    "bytes_per_s": point.nbytes / seconds,
                    "clock_mhz": _clock(rig, point.run.samples, telemetry),
                    "power_w": point.run.power_w,
                    "temperature_c": telemetry.temperature_c,
                    "throttle": point.run.throttle,
                    "spread": point.run.samples.spread(),
                }
            )
        found: list[Metric] = []
        for dtype in dict.fromkeys(dtype for dtype, _ in state.points):
            mine = [row for row in rows if row["dtype"] == dtype]
            best = max(float(row["flops_per_s"] or 0.0) for row in mine)
            limit = rig.hardware.flops("vector", dtype)
            found += metric(f"flops_{dtype}", best, "FLOP/s", limit=limit)
        # Compute-bound launches may read less than the caches hold.
        full = [p for p in raw if p.nbytes == state.nbytes]
        rate = max((p.nbytes / p.run.samples.typical_s for p in full), default=None)
        found += metric("bytes", rate, "B/s", limit=rig.hardware.bandwidth("dram"))
        return Findings(rows=rows, metrics=found, notes=state.notes)


def _nearest(steps: int) -> int:
    """Return the nearest number of steps that a kernel supports; of two equally near, the
    larger."""
    sixteens = (steps // 16 * 16, (steps // 16 + 1) * 16)
    return min((*_FEW, *sixteens), key=lambda known: (abs(known - steps), -known))


def _clock(rig: Rig, samples: Samples, telemetry: Telemetry) -> float | None:
    return samples.clock_mhz or telemetry.clock_mhz or rig.clock_during(samples)


benchmark = Roofline()
