"""Peak of the matrix units, by dtype."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from kernelmark.core.reason import Reason
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    MicroRun,
    Names,
    Panel,
    Parameter,
    available,
    microbenchmark,
)
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Call, Rig, Samples, Sustained, Typical, spread_of

FILE = "micro_matrix.cu"
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
    "i8": (0x01010101, 0xFFFFFFFF, "int"),
}
_ELEMENT: dict[str, type[np.generic]] = {"double": np.float64, "float": np.float32, "int": np.int32}
_WIDE_BLOCK, _GROUP_BLOCK = 512, 256  # threads: of warp-level instructions, and of wgmma or MFMA


def _unsupported(rig: Rig) -> str | None:
    if not any(name.startswith("matrix_") for name in rig.kernels(FILE)):
        return Reason(f"{rig.info.arch} has no matrix instructions that are used here")
    return None


def _highest(hardware: Hardware) -> Limit:
    """Return the limit of the fastest dtype."""
    limits = [hardware.flops("matrix", dtype) for dtype in hardware.matrix or PATTERNS]
    return max(limits, key=lambda limit: limit.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """A call that was timed in bursts; `flops` are those of one block, `cycles` its own."""

    call: Call
    flops: float
    samples: Samples
    cycles: Typical


@microbenchmark(
    summary="Peak of the matrix units for f64, tf32, f16, bf16, f8, f4 and i8.",
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
    kernels, nvidia = rig.kernels(FILE), rig.info.kind == "cuda"
    group = nvidia and rig.info.arch == "sm_90" and _is_special(rig)
    block = _GROUP_BLOCK if group or not nvidia else _WIDE_BLOCK
    # Two blocks of four waves per CU: two waves for each of its four SIMDs.
    grid = rig.grid * (1 if nvidia else 2)
    dtypes, run.notes = available(dtypes, lambda d: f"matrix_{d}" in kernels, rig.info.arch)
    clocks, out, facts = rig.memory(grid * 16), rig.memory(grid * 512 * 8), rig.memory(64)

    def launch(dtype: str, rounds: int, *, ones: bool) -> Call:
        word, mask, kind = PATTERNS[dtype]
        return rig.call(
            *(FILE, f"matrix_{dtype}", rounds, word, 0 if ones else mask, clocks, out, facts),
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
            cycles.append(float(np.median(rig.cycles(clocks, grid))))
        return _Burst(
            call=call,
            flops=float(rig.read(facts, np.uint64, 1)[0]) * rounds,
            samples=rig.samples(timed),
            cycles=rig.typical(cycles),
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
    per_clk = burst.flops * (grid // run.rig.grid) / burst.cycles.value
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
        share=per_clk / limit.value if dtype in hardware.matrix else None,
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
    spread = burst.cycles.spread
    run.metric(f"per_clk_{dtype}", per_clk, "FLOP/clk", limit=limit, spread=spread)
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
    return binary is not None and str(binary(FILE).arch).endswith("a")
