"""Throughput over arithmetic intensity, from memory-bound to compute-bound."""

from __future__ import annotations

import itertools

import numpy as np

from kernelmark.core.result import Telemetry
from kernelmark.micro.base import (
    EVERYWHERE,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Names,
    Panel,
    Parameter,
    microbenchmark,
)
from kernelmark.micro.rig import Call, Rig, Sustained

FILE = "micro_roofline.cu"
_KINDS: dict[str, type[np.generic]] = {"f32": np.float32, "f64": np.float64}
_BYTES = {dtype: np.dtype(kind).itemsize for dtype, kind in _KINDS.items()}
_PERIOD = 1021
_LEAST = 64 * MIB  # granularity of the bytes of a launch
_PART = 4 * MIB  # the fill pattern repeats after this many bytes
_FEW = (0, 1, 2, 4, 8)  # step counts with a dedicated kernel; larger ones are multiples of 16
_GROWTH = 2.0**-12  # relative growth of a number per step: 1024 steps stay far from overflow
# Maximum per launch, on a GPU (True) and per CPU core (False): some 70 ms, and some milliseconds.
_MOST_FLOPS = {True: 4e12, False: 1e8}
_CHECKED_STEPS = 512


@microbenchmark(
    summary="FLOP/s and bytes/s over arithmetic intensity, with clock and power.",
    kinds=EVERYWHERE,
    measures="Numbers are read once from main memory, with n multiply-adds on each, from 0 to 512: "
    "memory-bound on the left, compute-bound on the right. The number of multiply-adds is a loop "
    "count, so all points but the first few run the same code. Clock, power and throttling are "
    "read in the later part of a point; power comes from the energy counter if the device has one.",
    misleads="The multiply-add has two register operands; one with three may be slower. Points "
    "near the ridge use both memory and arithmetic and so draw the most power: the clock may fall "
    "there. The energy counter has coarse steps, so the power of a short point is rough; without "
    "one it is the driver's average, which may include the point before.",
    parameters={
        "steps": Parameter(
            "multiply-adds on a number: 0, 1, 2, 4, 8 or a multiple of 16",
            quick=(0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512),
            full=(0, 1, 2, 4, 8, *range(16, 272, 16), 320, 384, 448, 512, 768, 1024),
            brief=(0, 1, 512),
        ),
        "dtypes": Parameter("f32, f64", quick=("f32", "f64"), choices=tuple(_BYTES)),
        "seconds": Parameter("seconds of a point", quick=0.1, full=0.25, brief=0.05),
        # Several steps of the energy counter, which are up to 0.1 s long, after the clock settled.
        "powered": Parameter(
            "minimum seconds on a device that reports its power", quick=0.75, full=1.0, brief=0.0
        ),
        "most": Parameter("bytes read by a launch", quick=1024 * MIB, least=_LEAST),
    },
    columns=(
        Column("dtype", "f32 or f64"),
        Column("steps", "multiply-adds on a number"),
        Column("intensity", "operations per byte", "FLOP/B"),
        Column(
            "flops_per_s", "operations per second", "FLOP/s", lambda h: h.flops("vector", "f32")
        ),
        Column("bytes_per_s", "bytes read per second", "B/s", lambda h: h.bandwidth("dram")),
        Column("clock_mhz", "core clock meanwhile (GPU)", "MHz"),
        Column("power_w", "power meanwhile", "W"),
        Column("temperature_c", "temperature meanwhile", "°C"),
        Column("throttle", "throttle reasons that the driver reports"),
        SPREAD,
    ),
    figure=Figure(
        x="intensity",
        title="FLOP/B",
        scale="log",
        colour="dtype",
        panels=(
            Panel("flops_per_s", "TFLOP/s", per=1e12, scale="log"),
            Panel("power_w", "power (W)"),
            Panel("clock_mhz", "core clock (MHz)"),
        ),
    ),
)
def roofline(
    run: MicroRun, *, steps: Ints, dtypes: Names, seconds: float, powered: float, most: int
) -> None:
    rig = run.rig
    most = min(most, int(0.25 * rig.device.free_bytes()))
    if rig.block == 1:
        most = min(most, max(_LEAST, 4 * rig.info.cache_bytes))
    nbytes = most // _LEAST * _LEAST or _LEAST
    grid = rig.grid * (2 if rig.block > 1 else 1)
    nearest = {count: _nearest(count) for count in steps}
    if odd := ", ".join(f"{a} as {b}" for a, b in nearest.items() if a != b):
        run.notes.append(f"steps are 0, 1, 2, 4, 8 or multiples of 16: measured {odd}")
    point_s = max(seconds, powered if rig.look().power_w is not None else 0.0)
    data, sums = rig.memory(nbytes), rig.memory(grid * rig.block * 8)

    def fill(dtype: str) -> None:
        numbers = (np.arange(_PART // _BYTES[dtype]) % _PERIOD).astype(_KINDS[dtype]) / 1024
        part = numbers.astype(_KINDS[dtype]).view(np.uint8)
        for at in range(0, nbytes, part.size):
            rig.device.write(data, at, part[: nbytes - at])

    def call(dtype: str, steps: int, nbytes: int) -> Call:
        few, sixteens = (steps, 0) if steps in _FEW else (0, steps // 16)
        return rig.call(
            *(FILE, f"roofline_{dtype}_{few}", data, sums),
            *(nbytes // rig.vector_bytes, sixteens, _GROWTH),
            grid=grid,
            block=rig.block,
        )

    run.begin_timing()
    rates = []
    for dtype, points in itertools.groupby(
        itertools.product(dtypes, sorted(set(nearest.values()))), key=lambda point: point[0]
    ):
        fill(dtype)
        for _, count in points:
            volume = min(nbytes, _volume(rig, dtype, count))
            launch = call(dtype, count, volume)
            rig.run(launch)
            _add_point(run, dtype, count, volume, rig.sustain(launch, point_s))
            # Compute-bound launches may read less than the caches hold.
            if volume == nbytes:
                rates.append(run.rows[-1]["bytes_per_s"])
    for dtype in dtypes:
        best = max(row["flops_per_s"] for row in run.rows_with(dtype=dtype))
        limit = rig.hardware.flops("vector", dtype)
        run.metric(f"flops_{dtype}", best, "FLOP/s", limit=limit)
    rate = max(rates, default=None)
    run.metric("bytes", rate, "B/s", limit=rig.hardware.bandwidth("dram"))

    run.begin_checks()
    # Every number grows by the same factor, so the expected sum is known. Whole registers for every
    # thread: the kernel skips a partial rest.
    whole = grid * rig.block * rig.vector_bytes * 8
    checked = max(whole, 4 * MIB // whole * whole)
    for dtype in dtypes:
        fill(dtype)
        rig.zero(sums)
        rig.run(call(dtype, _CHECKED_STEPS, checked))
        total = float(rig.read(sums, _KINDS[dtype], grid * rig.block).astype(np.float64).sum())
        index = np.arange(checked // _BYTES[dtype]) % (_PART // _BYTES[dtype])
        expected = float((index % _PERIOD / 1024).sum()) * (1 + _GROWTH) ** _CHECKED_STEPS
        if abs(total - expected) > 1e-3 * expected:
            run.check(f"{dtype}: the numbers came to {total:g}, not to {expected:g}")


def _add_point(run: MicroRun, dtype: str, steps: int, nbytes: int, point: Sustained) -> None:
    samples, telemetry = point.samples, point.seen or Telemetry()
    # Plus one addition per number for the sum.
    flops = nbytes // _BYTES[dtype] * (2 * steps + 1)
    run.row(
        dtype=dtype,
        steps=steps,
        intensity=flops / nbytes,
        flops_per_s=flops / samples.typical_s,
        bytes_per_s=nbytes / samples.typical_s,
        clock_mhz=samples.clock_mhz or telemetry.clock_mhz or run.rig.clock_during(samples),
        power_w=point.power_w,
        temperature_c=telemetry.temperature_c,
        throttle=point.throttle,
        spread=samples.spread,
    )


def _volume(rig: Rig, dtype: str, steps: int) -> int:
    """Return the most bytes that a launch may read: fewer if arithmetic takes long, in whole
    MiB."""
    most = _MOST_FLOPS[rig.block > 1] * (1 if rig.block > 1 else rig.threads)
    return max(MIB, int(most / (2 * steps + 1) * _BYTES[dtype]) // MIB * MIB)


def _nearest(steps: int) -> int:
    """Return the nearest number of steps that a kernel supports; of two equally near, the
    larger."""
    sixteens = (steps // 16 * 16, (steps // 16 + 1) * 16)
    return min((*_FEW, *sixteens), key=lambda count: (abs(count - steps), -count))
