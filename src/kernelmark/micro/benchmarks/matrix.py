"""Peak arithmetic rates: of matrix units and vector units, and over arithmetic intensity."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Telemetry
from kernelmark.devices.base import Buffer
from kernelmark.micro._rigs import PASS_S, CpuRig, confirmed
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
    available,
    microbenchmark,
)
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import BoundKernel, Rig, Samples, Sustained, Typical, spread_of

MATRIX_FILE = "micro_matrix.cu"
# dtype: (word of ones, bits that may be random: sign and mantissa, C type of the accumulators)
PATTERNS = {
    "f64": (0x3FF00000, 0x800FFFFF, "double"),
    "f32": (0x3F800000, 0x807FFFFF, "float"),
    "tf32": (0x3F800000, 0x807FE000, "float"),
    "f16": (0x3C003C00, 0x83FF83FF, "float"),
    "bf16": (0x3F803F80, 0x807F807F, "float"),
    "f8e4m3": (0x38383838, 0x87878787, "float"),
    "f8e5m2": (0x3C3C3C3C, 0x83838383, "float"),
    "f8e4m3fnuz": (0x40404040, 0x87878787, "float"),
    "f8e5m2fnuz": (0x40404040, 0x83838383, "float"),
    "f4e2m1": (0x22222222, 0x99999999, "float"),
    # The first 32 of the bits that 6-bit numbers repeat.
    "f6e2m3": (0x08208208, 0xE79E79E7, "float"),
    "f6e3m2": (0x0C30C30C, 0xE38E38E3, "float"),
    "i8": (0x01010101, 0xFFFFFFFF, "int"),
}
_ELEMENT: dict[str, type[np.generic]] = {"double": np.float64, "float": np.float32, "int": np.int32}
_WIDE_BLOCK, _GROUP_BLOCK = 512, 256  # threads: of warp-level instructions, and of wgmma or MFMA


def _unsupported(rig: Rig) -> str | None:
    if not any(name.startswith("matrix_") for name in rig.kernels(MATRIX_FILE)):
        return Reason(f"{rig.info.arch} has no matrix instructions that are used here")
    return None


def _highest(hardware: Hardware) -> Limit:
    """Return the limit of the fastest dtype."""
    limits = [hardware.flops("matrix", dtype) for dtype in hardware.matrix or PATTERNS]
    return max(limits, key=lambda limit: limit.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """A call that was timed in bursts; `flops` are those of one block, `cycles` its own."""

    call: BoundKernel
    flops: float
    samples: Samples
    cycles: Typical | None  # None if the GPU cannot count them


@microbenchmark(
    summary="Peak of the matrix units for f64, tf32, f16, bf16, f8, f6, f4 and i8.",
    unsupported=_unsupported,
    measures="Matrix instructions are issued back to back on operands that stay in registers, or "
    "on Hopper in shared memory, with enough independent accumulators to hide the latency; the "
    "loop has nothing else. `flops_per_s` is a short burst after an idle gap, `sustained_per_s` "
    "the end of a longer run, when the power limit may have lowered the clock; operations per "
    "cycle and SM/CU do not depend on it. Power and throttling are read during that run, power "
    "from the energy counter if the device has one. Operands are random, because power depends on "
    "toggled bits. A dtype without an instruction on the GPU has no row.",
    misleads="No real GEMM reaches the burst rate, because it also moves data and draws power for "
    "that. On Blackwell data-centre GPUs the warp-level instructions used here do not reach the "
    "peak. Ones or zeros as operands would give higher, meaningless figures.",
    parameters={
        "dtypes": Parameter("number formats", quick=tuple(PATTERNS), choices=tuple(PATTERNS)),
        "seconds": Parameter("length of a burst", quick=2e-3),
        # With a shorter gap, five runs in a row heat an H200 until its f8 bursts are 2 % slower.
        "rest": Parameter("idle seconds before each burst", quick=0.05, least=0),
        # Sustained bf16 products take an H200 to its limit of 700 W, and its clock falls.
        "sustained": Parameter(
            "seconds of the sustained run of each dtype", quick=1.0, full=2.0, brief=0.0
        ),
        "samples": Parameter("bursts", quick=7, full=11),
    },
    columns=(
        Column("dtype", "dtype of the inputs"),
        Column("flops_per_s", "operations per second in a burst", "FLOP/s", _highest),
        Column("sustained_per_s", "operations per second of the sustained run", "FLOP/s"),
        Column("per_clk", "operations per core cycle of an SM/CU", "FLOP/clk"),
        Column("share", "fraction of the data sheet's operations per cycle and SM/CU"),
        Column("clock_mhz", "core clock in the burst", "MHz"),
        Column("sustained_mhz", "core clock of the sustained run", "MHz"),
        Column("power_w", "power in the sustained run", "W"),
        Column("throttle", "throttle reasons that the driver reports"),
        SPREAD,
    ),
    figure=Figure(
        x="dtype",
        title="dtype",
        scale="band",
        panels=(
            Panel("flops_per_s", "burst (TFLOP/s)", per=1e12, mark="bar"),
            Panel("sustained_per_s", "sustained (TFLOP/s)", per=1e12, mark="bar"),
            Panel("per_clk", "FLOP/clk of a unit", mark="bar"),
        ),
    ),
)
def matrix(
    run: MicroRun, *, dtypes: Names, seconds: float, rest: float, sustained: float, samples: int
) -> None:
    rig = run.rig
    kernels, nvidia = rig.kernels(MATRIX_FILE), rig.info.kind == "cuda"
    group = nvidia and rig.info.arch == "sm_90" and _is_special(rig)
    block = _GROUP_BLOCK if group or not nvidia else _WIDE_BLOCK
    # Two blocks of four waves per CU: two waves for each of its four SIMDs.
    grid = rig.grid * (1 if nvidia else 2)
    dtypes, run.notes = available(dtypes, lambda d: f"matrix_{d}" in kernels, rig.info.arch)
    clocks, out, facts = rig.memory(grid * 16), rig.memory(grid * 512 * 8), rig.memory(64)

    def launch(dtype: str, rounds: int, *, ones: bool) -> BoundKernel:
        word, mask, kind = PATTERNS[dtype]
        return rig.call(
            *(
                MATRIX_FILE,
                f"matrix_{dtype}",
                rounds,
                word,
                0 if ones else mask,
                clocks,
                out,
                facts,
            ),
            grid=grid,
            # f64 has warp-level matrix instructions only.
            block=_WIDE_BLOCK if dtype == "f64" and nvidia else block,
            types={"T": kind},
        )

    def burst(dtype: str) -> _Burst:
        rounds, call = rig.calibrated(lambda n: launch(dtype, n, ones=False), 8, seconds)
        cycles, timed = [], []
        for _ in range(samples):
            time.sleep(rest)
            timed.append(rig.time(call))
            if rig.no_cycles is None:
                cycles.append(float(np.median(rig.cycles(clocks, grid))))
        return _Burst(
            call=call,
            flops=float(rig.read(facts, np.uint64, 1)[0]) * rounds,
            samples=rig.samples(timed),
            cycles=rig.typical(cycles) if cycles else None,
        )

    run.begin_timing()
    # All bursts first: after a sustained run the clock stays low for a while.
    bursts = {dtype: burst(dtype) for dtype in dtypes}
    for dtype, point in bursts.items():
        long = rig.sustain(point.call, sustained) if sustained else None
        _add_dtype(run, dtype, point, grid, long)

    run.begin_checks()
    # Multiply ones by ones: every sum must be the number of products in it.
    for dtype in dtypes:
        call = launch(dtype, 2, ones=True)
        rig.run(call)
        kind = _ELEMENT[PATTERNS[dtype][2]]
        sums = rig.read(out, kind, call.grid * call.block).astype(np.float64)
        expected = 2.0 * float(rig.read(facts, np.uint64, 2)[1])
        if (odd := sums[sums != expected]).size:
            error = f"{odd.size} of {sums.size} sums are {odd[0]:g}, not {expected:g}"
            run.check(f"{dtype}: {error}")


def _add_dtype(run: MicroRun, dtype: str, burst: _Burst, grid: int, long: Sustained | None) -> None:
    """Add the row and the metrics of a dtype; `long` is its sustained run."""
    hardware = run.rig.hardware
    limit, most = hardware.per_cycle("matrix", dtype), hardware.flops("matrix", dtype)
    per_s = burst.flops * grid / burst.samples.typical_s
    blocks, cycles = grid // run.rig.grid, burst.cycles
    per_clk = burst.flops * blocks / cycles.value if cycles else None
    # The last third: until then the power limit has lowered the clock.
    seconds = (long or burst).samples.seconds
    late = sorted(seconds[-max(3, len(seconds) // 3) :])
    sustained_per_s = burst.flops * grid / late[len(late) // 2]
    clocks = (long or burst).samples.clocks_mhz
    run.row(
        dtype=dtype,
        flops_per_s=per_s,
        sustained_per_s=sustained_per_s,
        per_clk=per_clk,
        share=per_clk / limit.value if per_clk and dtype in hardware.matrix else None,
        clock_mhz=burst.samples.clock_mhz,
        sustained_mhz=clocks[-1] if clocks else None,
        power_w=long.power_w if long else None,
        throttle=long.throttle if long else None,
        spread=burst.samples.spread,
    )
    run.metric(
        *(f"flops_{dtype}", per_s, "FLOP/s"),
        limit=most,
        spread=burst.samples.spread,
        roof=f"flops {dtype} matrix",
    )
    if cycles and per_clk:
        run.metric(f"per_clk_{dtype}", per_clk, "FLOP/clk", limit=limit, spread=cycles.spread)
    if long is not None:
        run.metric(
            *(f"sustained_{dtype}", sustained_per_s, "FLOP/s"),
            limit=most,
            headline=False,
            spread=spread_of(late),
        )


def _is_special(rig: Rig) -> bool:
    """Return whether the kernels use the architecture's warpgroup instructions."""
    binary = getattr(rig, "binary", None)
    return binary is not None and str(binary(MATRIX_FILE).arch).endswith("a")


VECTOR_FILE = "vector.cc"
_VECTOR_KINDS: dict[str, type[np.floating]] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
}
_TRIAL = 1000  # steps; sums of ones are exact in every dtype up to 2048
_SIZE = 1024  # of numpy's matrices: a product takes far longer than starting BLAS's threads
_CALLS = 5  # of numpy's matmul


@microbenchmark(
    summary="FLOP/s of a CPU's vector multiply-adds by dtype, on all cores at once.",
    kinds=("cpu",),
    measures="Independent chains of FMAs in registers, on the widest vectors that the compiler "
    "supports for this CPU, with one thread per core. Passes of a third of a millisecond repeat "
    "until two more rounds confirm the best. The result is the sum over cores of each core's best "
    "pass while all cores run, because cores share no vector units. Without a C++ compiler, "
    "numpy's matmul is timed instead, and the metrics have other names.",
    misleads="A core that runs wide vectors for longer may lower its clock: this is the peak of a "
    "short burst. Matrix units (AMX, SME) are not used. The host of a virtual machine may give its "
    "guest half of a core.",
    parameters={
        "dtypes": Parameter(
            "f32, f64, f16", quick=tuple(_VECTOR_KINDS), choices=tuple(_VECTOR_KINDS)
        ),
        "passes": Parameter("passes per round", quick=60, full=200),
    },
    columns=(
        Column("dtype", "f32, f64 or f16"),
        Column("what", "multiply-add, or numpy's matmul"),
        Column(
            "flops_per_s",
            "operations per second of all cores",
            "FLOP/s",
            lambda h: h.flops("vector", "f32"),
        ),
        SPREAD,
        Column("steady", "whether two more rounds confirmed it"),
    ),
    figure=Figure(
        x="dtype",
        title="dtype",
        scale="band",
        panels=(Panel("flops_per_s", "GFLOP/s", per=1e9, mark="bar"),),
    ),
)
def vector(run: MicroRun, *, dtypes: Names, passes: int) -> None:
    rig = run.rig
    out = rig.memory(8 * max(8, rig.threads))
    try:
        kernels = rig.kernels(VECTOR_FILE)
    except CaseError as error:
        run.notes.append(f"{error.message}: numpy's matrix product stands in")
        run.begin_timing()
        for dtype in dtypes:
            if dtype != "f16":  # numpy has no BLAS for f16
                _add_rate(run, dtype, _time_numpy(dtype), compiled=False)
        run.begin_checks()
        return
    rig.run(rig.call(VECTOR_FILE, "vector_chains", out))
    chains = int(rig.read(out, np.uint32, 1)[0])
    run.begin_timing()
    for dtype in dtypes:
        if f"vector_{dtype}" in kernels:
            _add_rate(run, dtype, time_chains(rig, dtype, out, chains, passes), compiled=True)
    run.begin_checks()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopRate:
    """FLOP/s of all cores; `right` if the results were exact, `spread` over rounds, `steady` if two
    more rounds confirmed the best."""

    per_s: float
    right: bool
    spread: float | None
    steady: bool = True


def _add_rate(run: MicroRun, dtype: str, rate: FlopRate, *, compiled: bool) -> None:
    run.row(
        dtype=dtype,
        what="multiply-add" if compiled else "numpy product",
        flops_per_s=rate.per_s,
        spread=rate.spread,
        steady=rate.steady,
    )
    run.metric(
        *(f"peak_{dtype}" if compiled else f"numpy_{dtype}", rate.per_s, "FLOP/s"),
        limit=_limit(run.rig, dtype),
        roof=f"flops {dtype} vector",
        steady=rate.steady,
        stand_in=not compiled,
    )
    if not rate.right:
        run.check(f"the sums of {dtype} are not what was added")


def _limit(rig: Rig, dtype: str) -> Limit:
    """Return a limit that no core reaches: four pipes of 64-byte vectors, at a clock above any
    core's."""
    lanes, hertz = 64 // np.dtype(_VECTOR_KINDS[dtype]).itemsize, rig.hardware.clock_mhz * 1e6
    why = f"{rig.threads} × 4 pipes of {lanes} lanes × {hertz / 1e9:g} GHz"
    return Limit(value=rig.threads * 4 * 2 * lanes * hertz, why=why)


def time_chains(rig: Rig, dtype: str, out: Buffer, chains: int, passes: int) -> FlopRate:
    """Measure the rate of chains of multiply-adds."""
    assert isinstance(rig, CpuRig)
    per_step = chains * rig.vector_bytes // np.dtype(_VECTOR_KINDS[dtype]).itemsize

    def call(steps: int) -> BoundKernel:
        return rig.call(VECTOR_FILE, f"vector_{dtype}", steps, out, grid=rig.threads)

    trial = rig.passes([call(_TRIAL)], passes)
    sums = rig.read(out, np.float64, rig.threads)
    steps = max(1, int(_TRIAL * PASS_S / max(min(trial.alone_s), 1e-9)))
    launch, alone_s = call(steps), [math.inf] * rig.threads
    rounds_s: list[float] = []

    def per_s(seconds: list[float]) -> float:
        return sum(2.0 * steps * per_step / max(each, 1e-9) for each in seconds)

    def one_round() -> float:
        cores_s = list(rig.passes([launch], passes).alone_s)
        alone_s[:] = map(min, alone_s, cores_s)
        rounds_s.append(1 / per_s(cores_s))
        return per_s(cores_s)

    _, steady = confirmed(one_round)
    right = bool((sums == float(_TRIAL * per_step)).all())
    spread = spread_of(rounds_s, shortest=True)
    return FlopRate(per_s=per_s(alone_s), right=right, spread=spread, steady=steady)


def _time_numpy(dtype: str) -> FlopRate:
    """Measure with numpy's BLAS, which has as many threads as the rig: it reads their number when
    it is loaded."""
    a = np.ones((_SIZE, _SIZE), _VECTOR_KINDS[dtype])
    out = np.empty_like(a)
    times = []
    for _ in range(1 + _CALLS):  # the first one starts the threads
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        times.append(time.perf_counter() - start)
    right = bool((out == _SIZE).all())
    per_s = 2 * _SIZE**3 / min(times[1:])
    return FlopRate(per_s=per_s, right=right, spread=spread_of(times[1:], shortest=True))


ROOFLINE_FILE = "micro_roofline.cu"
_ROOFLINE_KINDS: dict[str, type[np.generic]] = {"f32": np.float32, "f64": np.float64}
_BYTES = {dtype: np.dtype(kind).itemsize for dtype, kind in _ROOFLINE_KINDS.items()}
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
        numbers = (np.arange(_PART // _BYTES[dtype]) % _PERIOD).astype(
            _ROOFLINE_KINDS[dtype]
        ) / 1024
        part = numbers.astype(_ROOFLINE_KINDS[dtype]).view(np.uint8)
        for at in range(0, nbytes, part.size):
            rig.device.write(data, at, part[: nbytes - at])

    def call(dtype: str, steps: int, nbytes: int) -> BoundKernel:
        few, sixteens = (steps, 0) if steps in _FEW else (0, steps // 16)
        return rig.call(
            *(ROOFLINE_FILE, f"roofline_{dtype}_{few}", data, sums),
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
        total = float(
            rig.read(sums, _ROOFLINE_KINDS[dtype], grid * rig.block).astype(np.float64).sum()
        )
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
