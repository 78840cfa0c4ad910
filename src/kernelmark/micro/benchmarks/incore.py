"""Cycles per instruction: dependent chains by number of warps and of independent chains, the FMA
peak of the device, and the latency and throughput of each instruction."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark.micro.base import (
    EVERYWHERE,
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
from kernelmark.micro.hardware import lanes_of, most_lanes
from kernelmark.micro.rig import BoundKernel, Rig, Samples, Typical, widest

FILE = "micro_ops.cu"
# Steps per iteration of the unrolled loop. Long for the peaks, where the loop's own instructions
# would show (512 FMAs hide 3); short where a step is a program, so that the loop still fits in the
# instruction cache.
_STEPS, _LOOPS = 128, {"fma_f32": 512, "fma_f64": 512}
_LOOPS |= dict.fromkeys(("div_f32", "div_f64", "sqrt_f32", "sqrt_f64"), 8)
_NUMPY = {"float": np.float32, "double": np.float64, "u32": np.uint32, "u64": np.uint64}
_CHAINS = 8  # output elements per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: each step counts as `flops` operations. `next` computes a step on the host,
    if that is exact."""

    name: str
    kind: str  # C type
    seed: float | int
    other: float | int
    flops: int = 0
    next: Callable[[Any, Any], Any] | None = None

    @property
    def loop(self) -> int:
        return _LOOPS.get(self.name, _STEPS)

    @property
    def element(self) -> Any:
        return _NUMPY[self.kind]

    def after(self, steps: int) -> Any:
        """Return the value of a chain after `steps` steps, or None if the host cannot compute
        it."""
        if self.next is None:
            return None
        with np.errstate(over="ignore"):
            x, y = self.element(self.seed), self.element(self.other)
            for _ in range(steps):
                x = self.next(x, y)
        return x


def _real(
    name: str, flops: int, next: Callable[[Any, Any], Any], seed: float = 3.0, other: float = 0.5
) -> list[Instruction]:
    kinds = {"f32": "float", "f64": "double"}
    return [
        Instruction(
            name=f"{name}_{dtype}", kind=kind, seed=seed, other=other, flops=flops, next=next
        )
        for dtype, kind in kinds.items()
    ]


def _whole(
    name: str, next: Callable[[Any, Any], Any] | None = None, kind: str = "u32", flops: int = 0
) -> Instruction:
    # The multiplier of Knuth's hash: odd, and its bits are mixed, so that no product degenerates.
    return Instruction(name=name, kind=kind, seed=12345, other=2654435761, flops=flops, next=next)


# Of an FMA x/2 + 1/2: exact in every format, so that a fused step rounds like two operations.
OPS = {
    op.name: op
    for op in (
        *_real("fma", 2, lambda x, y: x * y + y),
        *_real("add", 1, lambda x, y: x + y),
        *_real("mul", 1, lambda x, y: x * y, seed=1.0, other=1.0009765625),
        *_real("div", 1, lambda x, y: y / x, seed=1.5, other=1.1),
        *_real("sqrt", 1, lambda x, y: np.sqrt(x), seed=1.5),
        # The same in halves, twice in a word: 3.0 and 0.5; in pairs of floats -2.0 and 0.5.
        Instruction(name="fma_f16x2", kind="u32", seed=0x42004200, other=0x38003800, flops=4),
        Instruction(name="fma_bf16x2", kind="u32", seed=0x40404040, other=0x3F003F00, flops=4),
        Instruction(
            name="fma_f32x2", kind="u64", seed=0xC0000000C0000000, other=0x3F0000003F000000, flops=4
        ),
        Instruction(name="rsqrt_f32", kind="float", seed=1.5, other=0.0),
        Instruction(name="exp2_f32", kind="float", seed=-1.5, other=0.0),
        Instruction(name="log2_f32", kind="float", seed=1.5, other=0.0),
        Instruction(name="sin_f32", kind="float", seed=1.5, other=0.0),
        _whole("add_xor_i32", lambda x, y: (x + y) ^ y),
        _whole("mul_i32", lambda x, y: x * y),
        _whole("mad_i32", lambda x, y: x * y + y),
        _whole("add_i64", lambda x, y: x + y, kind="u64"),
        _whole("mul_i64", lambda x, y: x * y, kind="u64"),
        _whole("shift_i32"),
        _whole("permute_i32"),
        _whole("popc_i32"),
        _whole("dot4_i8", flops=8),
        _whole("shuffle_i32"),
        _whole("convert_i32_f32"),
    )
}


class Chains:
    """Launches of dependent chains, with memory for their clocks and results."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._clocks = rig.memory(rig.grid * 16)
        self._out = rig.memory(max(64, rig.grid * rig.block * _CHAINS * 8))

    def _call(
        self, op: Instruction, ilp: int, steps: int, *, grid: int = 1, block: int = 1
    ) -> BoundKernel:
        """Return a launch of `steps` iterations of the unrolled loop with `ilp` chains per
        thread."""
        return self._rig.call(
            *(FILE, f"chain_{op.name}_{ilp}", steps, op.seed, op.other, 0),
            *(self._clocks, self._out),
            grid=grid,
            block=block,
            types={"T": op.kind},
        )

    def cycles(
        self, op: Instruction, ilp: int, *, threads: int, least: int, samples: int
    ) -> Typical:
        """Return the cycles per step of every thread in a block of `threads`, counting steps of all
        its chains, in launches of about `least` cycles. On a CPU, measured on that many cores at
        once."""
        rig = self._rig
        # Four cycles a step: the latency of an FMA on the GPUs of both vendors.
        steps = max(4, least // (op.loop * 4))
        shape = {"grid": threads} if rig.block == 1 else {"block": threads}
        call = self._call(op, ilp, steps, **shape)
        rig.run(call)
        timed = rig.sample(call, samples=samples, launches=1, clocks=self._clocks)
        return timed.cycles_over(steps * op.loop)

    def peak(self, op: Instruction, *, seconds: float, samples: int) -> tuple[float, Samples]:
        """Time an instruction with all SMs/CUs busy; return the operations of one SM/CU in a
        launch, and the timings."""
        rig = self._rig
        # One block per SM/CU: with two, one would be served first, and the cycles of neither would
        # be those of the SM/CU.
        rounds, call = rig.calibrated(
            lambda n: self._call(op, 8, n, grid=rig.grid, block=rig.block), 16, seconds
        )
        timed = rig.sample(call, samples=samples, launches=1, clocks=self._clocks)
        return rounds * op.loop * op.flops * rig.block, timed

    def check(self, op: Instruction, ilp: int) -> str | None:
        """Compare one iteration of the loop with the host, bit for bit; return the error or None.
        Return None if the host cannot compute the instruction."""
        expected = op.after(op.loop // ilp)
        if expected is None:
            return None
        rig = self._rig
        threads = min(rig.block, 64)
        rig.run(self._call(op, ilp, 1, block=threads))
        results = rig.read(self._out, op.element, threads * _CHAINS).reshape(threads, _CHAINS)
        wrong = results[:, :ilp][results[:, :ilp] != expected]
        return (
            f"{op.name} with {ilp} chains gives {wrong[0]}, not {expected}" if wrong.size else None
        )


def _samples(rig: Rig, samples: int) -> int:
    # On a CPU the shortest counts, and more launches make it likelier that one is undisturbed.
    return samples * (1 if rig.exclusive else 5)


# A dtype's peak is that of its fastest instruction: on some GPUs (CDNA 2 and later) a packed one.
_PEAKS = {
    "fma_f32": "f32",
    "fma_f32x2": "f32",
    "fma_f64": "f64",
    "fma_f16x2": "f16",
    "fma_bf16x2": "bf16",
}
_ILPS = (1, 2, 4, 8)
_CLASSIC = ("fma_f32", "fma_f64", "div_f32", "div_f64", "sqrt_f32", "sqrt_f64")
_HEADLINES = ("fma_f32", "fma_f64", "fma_f16x2", "mul_i32")
# Reading the clock costs some dozens of cycles at each end: a thousandth of this.
_LEAST_CYCLES = Parameter("minimum cycles of a point", quick=40_000, full=400_000)
_LAUNCHES = Parameter("launches timed for a point", quick=3, full=11)


@microbenchmark(
    summary="Cycles of FMA, DIV and SQRT by warps and independent chains; the FMA peak.",
    kinds=EVERYWHERE,
    measures="One block on one SM/CU runs dependent chains of one instruction: one warp with one "
    "chain gives the latency, many of both the reciprocal throughput of the SM/CU. Cycles are "
    "counted inside the kernel. The peak is the same chain on all SMs/CUs at once, by events. On a "
    "CPU a warp is a core, cycles are calibrated with a dependent-add loop, and there is no peak: "
    "see roofline.",
    misleads="Division and square root are many instructions on a GPU, with a branch for rare "
    "operands that is never taken here. The operands of a chain converge to ordinary numbers; a "
    "CPU's divider may be slower for others. The peak holds only as long as the power limit "
    "allows: see the clock.",
    parameters={
        "ops": Parameter(
            "instructions", quick=_CLASSIC, brief=("fma_f32", "fma_f64"), choices=tuple(OPS)
        ),
        "warps": Parameter("warps of the block", quick=(1, 2, 4, 8, 16, 32), brief=(1, 32)),
        "ilps": Parameter("chains in a thread", quick=_ILPS, brief=(1, 8), choices=_ILPS),
        "cycles": _LEAST_CYCLES,
        "samples": _LAUNCHES,
        "seconds": Parameter("length of a launch for the peak", quick=3e-3, full=2e-2),
    },
    columns=(
        Column("op", "instruction and dtype"),
        Column("warps", "warps in the block; cores of a CPU"),
        Column("ilp", "independent chains in a thread"),
        Column("cycles", "cycles per instruction of each warp", "cycles"),
        Column(
            "reciprocal",
            "the same over the warps: cycles of the SM/CU per warp instruction",
            "cycles",
        ),
        Column("per_clk", "lanes per cycle of an SM/CU", "1/clk", most_lanes),
        SPREAD,
    ),
    figure=Figure(
        x="warps",
        title="warps",
        scale="log",
        colour="ilp",
        facet="op",
        panels=(Panel("reciprocal", "cycles", scale="log"),),
    ),
)
def incore(
    run: MicroRun, *, ops: Names, warps: Ints, ilps: Ints, cycles: int, samples: int, seconds: float
) -> None:
    rig, on_gpu = run.rig, run.rig.block > 1
    most = rig.warps if on_gpu else rig.threads
    counts = sorted({min(w, most) for w in warps})
    kernels = rig.kernels(FILE)
    ops, run.notes = available(ops, lambda op: f"chain_{op}_1" in kernels, rig.info.arch)
    samples = _samples(rig, samples)
    chains = Chains(rig)

    run.begin_timing()
    for op, count, ilp in itertools.product(ops, counts, ilps):
        point = None
        if rig.no_cycles is None:
            threads = count * rig.lanes
            point = chains.cycles(OPS[op], ilp, threads=threads, least=cycles, samples=samples)
        _add_point(run, op, count, ilp, point)
        if point is not None and (count, ilp) == (counts[0], ilps[0]) and ilp == 1:
            run.metric(
                *(f"latency_{op}", point.value, "cycles"),
                least=0.5,  # no chain is faster than two dependent instructions a cycle
                headline=op.startswith("fma"),
                spread=point.spread,
            )
    if on_gpu:  # the peak of a CPU is that of its vector units: see roofline and vector
        _add_peaks(run, chains, seconds, 3 + samples)

    run.begin_checks()
    for op, ilp in itertools.product(ops, ilps):
        run.check(chains.check(OPS[op], ilp))


def _add_point(run: MicroRun, op: str, warps: int, ilp: int, point: Typical | None) -> None:
    cycles = point.value if point else None
    # On a CPU every core has its own execution units: more cores do not shorten a cycle count.
    reciprocal = None if cycles is None else cycles / (warps if run.rig.block > 1 else 1)
    run.row(
        op=op,
        warps=warps,
        ilp=ilp,
        cycles=cycles,
        reciprocal=reciprocal,
        per_clk=run.rig.lanes / reciprocal if reciprocal and reciprocal > 0 else None,
        spread=point.spread if point else None,
    )


def _add_peaks(run: MicroRun, chains: Chains, seconds: float, samples: int) -> None:
    rig = run.rig
    peaks: dict[str, tuple[float, float, Samples]] = {}
    for name, dtype in _PEAKS.items():
        if f"chain_{name}_8" in rig.kernels(FILE):
            flops, timed = chains.peak(OPS[name], seconds=seconds, samples=samples)
            peak = flops * rig.grid / timed.typical_s, flops, timed
            peaks[dtype] = max(peaks.get(dtype, peak), peak, key=lambda peak: peak[0])
    for dtype, (per_s, flops, timed) in peaks.items():
        cycles = timed.cycles
        run.metric(
            *(f"peak_{dtype}", per_s, "FLOP/s"),
            limit=rig.hardware.flops("vector", dtype),
            spread=timed.spread,
            roof=f"flops {dtype} vector",
        )
        run.metric(
            *(f"per_clk_{dtype}", flops / cycles.value if cycles else None, "FLOP/clk"),
            limit=rig.hardware.per_cycle("vector", dtype),
            spread=cycles.spread if cycles else None,
        )


@microbenchmark(
    summary="Latency and throughput of each instruction.",
    kinds=EVERYWHERE,
    by_cycles=True,
    measures="The latency is that of one warp with one chain; the throughput that of a full block "
    "with eight chains per thread, in lanes per cycle of an SM/CU. Both are counted inside the "
    "kernel. One operation may be several instructions: `add_xor_i32` is two, `div` and `sqrt` are "
    "short programs. On a CPU it is scalar code on one core.",
    misleads="Each throughput is of one instruction alone: contention for pipes that several "
    "instructions share does not show. f16x2 and bf16x2 compute two numbers per lane.",
    parameters={
        "ops": Parameter("instructions", quick=tuple(OPS), brief=_HEADLINES, choices=tuple(OPS)),
        "cycles": _LEAST_CYCLES,
        "samples": _LAUNCHES,
    },
    columns=(
        Column("op", "instruction and dtype"),
        Column("latency", "cycles until the result can be used", "cycles"),
        Column("per_clk", "lanes per cycle of an SM/CU", "1/clk", most_lanes),
        Column("ns", "latency in nanoseconds", "ns"),
        SPREAD,
    ),
    figure=Figure(
        x="op",
        title="instruction",
        scale="band",
        panels=(
            Panel("latency", "latency (cycles)", mark="bar"),
            Panel("per_clk", "lanes a cycle", mark="bar"),
        ),
    ),
)
def instructions(run: MicroRun, *, ops: Names, cycles: int, samples: int) -> None:
    rig = run.rig
    kernels = rig.kernels(FILE)
    ops, run.notes = available(ops, lambda op: f"chain_{op}_8" in kernels, rig.info.arch)
    samples = _samples(rig, samples)
    chains = Chains(rig)

    run.begin_timing()
    for op in ops:
        latency, full = (
            chains.cycles(OPS[op], ilp, threads=threads, least=cycles, samples=samples)
            for ilp, threads in ((1, min(rig.lanes, rig.block)), (8, rig.block))
        )
        per_clk = rig.lanes / full.over(rig.block / rig.lanes).value
        run.row(
            op=op,
            latency=latency.value,
            per_clk=per_clk,
            ns=latency.value / rig.clock_mhz * 1e3,
            spread=widest((latency.spread, full.spread)),
        )
        headline = op in _HEADLINES
        run.metric(
            *(f"latency_{op}", latency.value, "cycles"),
            least=0.5,
            headline=headline,
            spread=latency.spread,
        )
        run.metric(
            *(f"per_clk_{op}", per_clk, "1/clk"),
            headline=headline,
            limit=lanes_of(rig.hardware, op),
            spread=full.spread,
        )

    run.begin_checks()
    for op in ops:
        run.check(chains.check(OPS[op], 8))
