"""Peak of the matrix units, by dtype."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.reason import Reason
from kernelmark.devices.base import Buffer
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
    available,
    metric,
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
_ELEMENT: dict[str, type[np.generic]] = {
    "double": np.float64,
    "float": np.float32,
    "int": np.int32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    dtypes: tuple[str, ...]
    clocks: Buffer
    out: Buffer
    facts: Buffer
    grid: int
    block: int
    seconds: float
    rest: float
    sustained: float
    samples: int
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    call: Call
    flops: float  # of one block
    samples: Samples
    cycles: Typical


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    flops_per_s: float
    sustained_per_s: float
    sustained_spread: float | None
    per_clk: float
    clk_spread: float | None
    burst: Samples
    long: Sustained


class Matrix(Microbenchmark[_State, dict[str, _Point]]):
    name = "matrix"
    summary = "Peak of the matrix units for f64, tf32, f16, bf16, f8, f4 and i8."
    measures = (
        "Matrix instructions are issued back to back on operands that stay in registers, or on "
        "Hopper in shared memory, with enough independent accumulators to hide the latency; the "
        "loop has nothing else. `flops_per_s` is a short burst after an idle gap, "
        "`sustained_per_s` the end of a longer run, when the power limit may have lowered the "
        "clock; operations per cycle and SM/CU do not depend on it. Power and throttling are read "
        "during that run, power from the energy counter if the device has one. Operands are "
        "random, because power depends on toggled bits. A dtype without an instruction on the GPU "
        "has no row."
    )
    misleads = (
        "No real GEMM reaches the burst rate, because it also moves data and draws power for that. "
        "On Blackwell data-centre GPUs the warp-level instructions used here do not reach the "
        "peak. Ones or zeros as operands would give higher, meaningless figures."
    )
    parameters = FrozenDict(
        {
            "dtypes": Parameter(
                help="number formats", quick=tuple(PATTERNS), choices=tuple(PATTERNS)
            ),
            "seconds": Parameter(help="length of a burst", quick=2e-3),
            # With a shorter gap, five runs in a row heat an H200 until its f8 bursts are 2 %
            # slower.
            "rest": Parameter(help="idle seconds before each burst", quick=0.05, least=0),
            "sustained": Parameter(
                help="seconds of the sustained run of each dtype", quick=1.0, full=2.0, brief=0.0
            ),
            "samples": Parameter(help="bursts", quick=7, full=11),
        }
    )
    columns = (
        Column(name="dtype", help="dtype of the inputs"),
        Column(
            name="flops_per_s",
            help="operations per second in a burst",
            unit="FLOP/s",
            limit=lambda h: _highest(h),
        ),
        Column(
            name="sustained_per_s", help="operations per second of the sustained run", unit="FLOP/s"
        ),
        Column(name="per_clk", help="operations per core cycle of an SM/CU", unit="FLOP/clk"),
        Column(name="share", help="fraction of the data sheet's operations per cycle and SM/CU"),
        Column(name="clock_mhz", help="core clock in the burst", unit="MHz"),
        Column(name="sustained_mhz", help="core clock of the sustained run", unit="MHz"),
        Column(name="power_w", help="power in the sustained run", unit="W"),
        Column(name="throttle", help="throttle reasons that the driver reports"),
        SPREAD,
    )
    figure = Figure(
        x="dtype",
        title="dtype",
        scale="band",
        panels=(
            Panel(y="flops_per_s", title="burst (TFLOP/s)", per=1e12, mark="bar"),
            Panel(y="sustained_per_s", title="sustained (TFLOP/s)", per=1e12, mark="bar"),
            Panel(y="per_clk", title="FLOP/clk of a unit", mark="bar"),
        ),
    )

    def unsupported(self, rig: Rig) -> str | None:
        if not any(name.startswith("matrix_") for name in rig.kernels(FILE)):
            return Reason("matrix-missing", arch=rig.info.arch)
        return None

    def setup(self, rig: Rig, given: Settings) -> _State:
        there = rig.kernels(FILE)
        nvidia = rig.info.kind == "cuda"
        group = nvidia and rig.info.arch == "sm_90" and _is_special(rig)
        block = 256 if group or not nvidia else 512
        grid = rig.grid * (1 if nvidia else 2)
        dtypes, notes = available(
            given.words("dtypes"), lambda dtype: f"matrix_{dtype}" in there, rig.info.arch
        )
        return _State(
            dtypes=dtypes,
            notes=notes,
            clocks=rig.memory(grid * 16),
            out=rig.memory(grid * 512 * 8),
            facts=rig.memory(64),
            grid=grid,
            block=block,
            seconds=given.number("seconds"),
            rest=given.number("rest"),
            sustained=given.number("sustained"),
            samples=given.whole("samples"),
        )

    def _call(self, rig: Rig, state: _State, dtype: str, rounds: int, *, ones: bool) -> Call:
        word, mask, kind = PATTERNS[dtype]
        return rig.call(
            *(FILE, f"matrix_{dtype}", rounds, word, 0 if ones else mask),
            *(state.clocks, state.out, state.facts),
            grid=state.grid,
            # f64 has warp-level matrix instructions only.
            block=512 if dtype == "f64" and rig.info.kind == "cuda" else state.block,
            types={"T": kind},
        )

    def timed(self, rig: Rig, state: _State) -> dict[str, _Point]:
        # All bursts first: after a sustained run the clock stays low for a while.
        bursts = {dtype: self._burst(rig, state, dtype) for dtype in state.dtypes}
        found = {}
        for dtype, burst in bursts.items():
            long = Sustained(samples=burst.samples, seen=None)
            if state.sustained:
                long = rig.sustain(burst.call, state.sustained)
            seconds = long.samples.seconds
            late = sorted(seconds[-max(3, len(seconds) // 3) :])
            found[dtype] = _Point(
                flops_per_s=burst.flops * state.grid / burst.samples.typical_s,
                sustained_per_s=burst.flops * state.grid / late[len(late) // 2],
                sustained_spread=spread_of(late),
                per_clk=burst.flops * (state.grid // rig.grid) / burst.cycles.value,
                clk_spread=burst.cycles.spread,
                burst=burst.samples,
                long=long,
            )
        return found

    def _burst(self, rig: Rig, state: _State, dtype: str) -> _Burst:
        rounds, call = rig.calibrated(
            lambda n: self._call(rig, state, dtype, n, ones=False), 8, state.seconds
        )
        cycles, timed = [], []
        for _ in range(state.samples):
            time.sleep(state.rest)
            timed.append(rig.time(call))
            cycles.append(float(np.median(rig.cycles(state.clocks, state.grid))))
        return _Burst(
            call=call,
            flops=float(rig.read(state.facts, np.uint64, 1)[0]) * rounds,
            samples=rig.samples(timed),
            cycles=rig.typical(cycles),
        )

    def verify(self, rig: Rig, state: _State, raw: dict[str, _Point]) -> str | None:
        """Multiply ones by ones: every sum must be the number of products in it."""
        for dtype in state.dtypes:
            call = self._call(rig, state, dtype, 2, ones=True)
            rig.run(call)
            kind = _ELEMENT[PATTERNS[dtype][2]]
            found = rig.read(state.out, kind, call.grid * call.block).astype(np.float64)
            wanted = 2.0 * float(rig.read(state.facts, np.uint64, 2)[1])
            if not (found == wanted).all():
                odd = found[found != wanted]
                return f"{dtype}: {odd.size} of {found.size} sums are {odd[0]:g}, not {wanted:g}"
        return None

    def metrics(self, rig: Rig, state: _State, raw: dict[str, _Point]) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for dtype, point in raw.items():
            limit = rig.hardware.per_cycle("matrix", dtype)
            known = dtype in rig.hardware.matrix
            clocks = point.long.samples.clocks_mhz
            rows.append(
                {
                    "dtype": dtype,
                    "flops_per_s": point.flops_per_s,
                    "sustained_per_s": point.sustained_per_s,
                    "per_clk": point.per_clk,
                    "share": point.per_clk / limit.value if known else None,
                    "clock_mhz": point.burst.clock_mhz,
                    "sustained_mhz": clocks[-1] if clocks else None,
                    "power_w": point.long.power_w,
                    "throttle": point.long.throttle,
                    "spread": point.burst.spread(),
                }
            )
            most = rig.hardware.flops("matrix", dtype)
            roof = f"flops {dtype} matrix"
            found += metric(
                *(f"flops_{dtype}", point.flops_per_s, "FLOP/s"),
                limit=most,
                spread=point.burst.spread(),
                roof=roof,
            )
            found += metric(
                *(f"per_clk_{dtype}", point.per_clk, "FLOP/clk"),
                limit=limit,
                spread=point.clk_spread,
            )
            if state.sustained:
                found += metric(
                    f"sustained_{dtype}",
                    point.sustained_per_s,
                    "FLOP/s",
                    limit=most,
                    headline=False,
                    spread=point.sustained_spread,
                )
        return Findings(rows=rows, metrics=found, notes=state.notes)


def _highest(hardware: Hardware) -> Limit:
    """Return the limit of the fastest dtype."""
    limits = [hardware.flops("matrix", dtype) for dtype in hardware.matrix or PATTERNS]
    return max(limits, key=lambda limit: limit.value)


def _is_special(rig: Rig) -> bool:
    """Return whether the kernels use the architecture's warpgroup instructions."""
    binary = getattr(rig, "binary", None)
    return binary is not None and str(binary(FILE).arch).endswith("a")


benchmark = Matrix()
