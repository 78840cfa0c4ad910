"""Cycles per instruction by number of warps and of independent chains."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.micro import _chains
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
    available,
    metric,
)
from kernelmark.micro.rig import Rig, Typical

# A dtype's peak is that of its fastest instruction: on some GPUs a packed one.
_PEAKS = {
    "fma_f32": "f32",
    "fma_f32x2": "f32",
    "fma_f64": "f64",
    "fma_f16x2": "f16",
    "fma_bf16x2": "bf16",
}
_ILPS = (1, 2, 4, 8)
_CLASSIC = ("fma_f32", "fma_f64", "div_f32", "div_f64", "sqrt_f32", "sqrt_f64")


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    ops: tuple[str, ...]
    warps: tuple[int, ...]
    ilps: tuple[int, ...]
    cycles: int
    samples: int
    seconds: float
    buffers: _chains.Buffers
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    # cycles per instruction of each warp; None if kernels cannot count them
    points: dict[tuple[str, int, int], Typical | None]
    peaks: dict[str, _chains.Peak]  # by dtype


class Incore(Microbenchmark[_State, _Raw]):
    name = "incore"
    summary = "Cycles of FMA, DIV and SQRT by warps and independent chains; the FMA peak."
    kinds = EVERYWHERE
    measures = (
        "One block on one SM/CU runs dependent chains of one instruction: one warp with one chain "
        "gives the latency, many of both the reciprocal throughput of the SM/CU. Cycles are "
        "counted inside the kernel. The peak is the same chain on all SMs/CUs at once, by events. "
        "On a CPU a warp is a core, cycles are calibrated with a dependent-add loop, and there is "
        "no peak: see roofline."
    )
    misleads = (
        "Division and square root are many instructions on a GPU, with a branch for rare operands "
        "that is never taken here. The operands of a chain converge to ordinary numbers; a CPU's "
        "divider may be slower for others. The peak holds only as long as the power limit allows: "
        "see the clock."
    )
    parameters = FrozenDict(
        {
            "ops": Parameter(
                help="instructions",
                quick=_CLASSIC,
                brief=("fma_f32", "fma_f64"),
                choices=tuple(_chains.OPS),
            ),
            "warps": Parameter(
                help="warps of the block", quick=(1, 2, 4, 8, 16, 32), brief=(1, 32)
            ),
            "ilps": Parameter(help="chains in a thread", quick=_ILPS, brief=(1, 8), choices=_ILPS),
            "cycles": Parameter(help="minimum cycles of a point", quick=40_000, full=400_000),
            "samples": Parameter(help="launches timed for a point", quick=3, full=11),
            "seconds": Parameter(help="length of a launch for the peak", quick=3e-3, full=2e-2),
        }
    )
    columns = (
        Column(name="op", help="instruction and dtype"),
        Column(name="warps", help="warps in the block; cores of a CPU"),
        Column(name="ilp", help="independent chains in a thread"),
        Column(name="cycles", help="cycles per instruction of each warp", unit="cycles"),
        Column(
            name="reciprocal",
            help="the same over the warps: cycles of the SM/CU per warp instruction",
            unit="cycles",
        ),
        Column(
            name="per_clk",
            help="lanes per cycle of an SM/CU",
            unit="1/clk",
            limit=_chains.most_lanes,
        ),
        SPREAD,
    )
    figure = Figure(
        x="warps",
        title="warps",
        scale="log",
        colour="ilp",
        facet="op",
        panels=(Panel(y="reciprocal", title="cycles", scale="log"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        most = rig.warps if rig.block > 1 else rig.threads
        warps = sorted({min(w, most) for w in given.wholes("warps")})
        there = rig.kernels(_chains.FILE)
        ops, notes = available(
            given.words("ops"), lambda op: f"chain_{op}_1" in there, rig.info.arch
        )
        return _State(
            ops=ops,
            notes=notes,
            warps=tuple(warps),
            ilps=tuple(given.wholes("ilps")),
            cycles=given.whole("cycles"),
            samples=given.whole("samples") * (1 if rig.exclusive else 5),
            seconds=given.number("seconds"),
            buffers=_chains.allocate(rig, rig.grid),
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        points: dict[tuple[str, int, int], Typical | None] = {}
        for name in state.ops:
            op = _chains.OPS[name]
            steps = max(4, state.cycles // (op.loop * 4))
            for warps, ilp in itertools.product(state.warps, state.ilps):
                points[name, warps, ilp] = None
                if rig.no_cycles is None:
                    points[name, warps, ilp] = _chains.cycles_per_step(
                        rig,
                        state.buffers,
                        op,
                        ilp,
                        threads=warps * rig.lanes,
                        steps=steps,
                        samples=state.samples,
                    )
        return _Raw(points=points, peaks=self._peaks(rig, state))

    def _peaks(self, rig: Rig, state: _State) -> dict[str, _chains.Peak]:
        found: dict[str, _chains.Peak] = {}
        if rig.block == 1:
            # A CPU's peak is that of its vector units, not of these scalar chains: see roofline.
            return found
        for name, dtype in _PEAKS.items():
            if f"chain_{name}_8" in rig.kernels(_chains.FILE):
                op, samples = _chains.OPS[name], 3 + state.samples
                peak = _chains.peak(rig, state.buffers, op, seconds=state.seconds, samples=samples)
                found[dtype] = max(found.get(dtype, peak), peak, key=lambda one: one.per_s)
        return found

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        for name in state.ops:
            for ilp in state.ilps:
                wrong = _chains.check(rig, state.buffers, _chains.OPS[name], ilp)
                if wrong is not None:
                    return wrong
        return None

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = []
        for (name, warps, ilp), point in raw.points.items():
            cycles = point.value if point else None
            # On a CPU every core has its own execution units: more cores do not shorten a cycle
            # count.
            reciprocal = None if cycles is None else cycles / (warps if rig.block > 1 else 1)
            rows.append(
                {
                    "op": name,
                    "warps": warps,
                    "ilp": ilp,
                    "cycles": cycles,
                    "reciprocal": reciprocal,
                    "per_clk": rig.lanes / reciprocal if reciprocal and reciprocal > 0 else None,
                    "spread": point.spread if point else None,
                }
            )
        found: list[Metric] = []
        for name in state.ops:
            latency = raw.points.get((name, state.warps[0], state.ilps[0]))
            if latency is not None and state.ilps[0] == 1:
                headline = name.startswith("fma")
                found += metric(
                    f"latency_{name}",
                    latency.value,
                    "cycles",
                    better="lower",
                    headline=headline,
                    least=0.5,
                    spread=latency.spread,
                )
        for dtype, peak in raw.peaks.items():
            limit = rig.hardware.flops("vector", dtype)
            each = rig.hardware.per_cycle("vector", dtype)
            roof = f"flops {dtype} vector"
            found += metric(
                *(f"peak_{dtype}", peak.per_s, "FLOP/s"),
                limit=limit,
                spread=peak.spread,
                roof=roof,
            )
            found += metric(
                *(f"per_clk_{dtype}", peak.per_clk, "FLOP/clk"),
                limit=each,
                spread=peak.clk_spread,
            )
        return Findings(rows=rows, metrics=found, notes=state.notes)


benchmark = Incore()
