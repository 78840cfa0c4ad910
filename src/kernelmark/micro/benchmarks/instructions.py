"""Latency and throughput of single instructions."""

from __future__ import annotations

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
from kernelmark.micro.rig import Rig, Typical, widest

_HEADLINES = ("fma_f32", "fma_f64", "fma_f16x2", "mul_i32")


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    ops: tuple[str, ...]
    cycles: int
    samples: int
    buffers: _chains.Buffers
    notes: list[str]


_Raw = dict[str, tuple[Typical, Typical]]  # latency, and cycles of an SM/CU per warp instruction


class Instructions(Microbenchmark[_State, _Raw]):
    name = "instructions"
    summary = "Latency and throughput of each instruction."
    kinds = EVERYWHERE
    by_cycles = True
    measures = (
        "The latency is that of one warp with one chain; the throughput that of a full block with "
        "eight chains per thread, in lanes per cycle of an SM/CU. Both are counted inside the "
        "kernel. One operation may be several instructions: `add_xor_i32` is two, `div` and `sqrt` "
        "are short programs. On a CPU it is scalar code on one core."
    )
    misleads = (
        "Each throughput is of one instruction alone: contention for pipes that several "
        "instructions share does not show. f16x2 and bf16x2 compute two numbers per lane."
    )
    parameters = FrozenDict(
        {
            "ops": Parameter(
                help="instructions",
                quick=tuple(_chains.OPS),
                brief=_HEADLINES,
                choices=tuple(_chains.OPS),
            ),
            "cycles": Parameter(help="minimum cycles of a point", quick=40_000, full=400_000),
            "samples": Parameter(help="launches timed for a point", quick=3, full=11),
        }
    )
    columns = (
        Column(name="op", help="instruction and dtype"),
        Column(name="latency", help="cycles until the result can be used", unit="cycles"),
        Column(
            name="per_clk",
            help="lanes per cycle of an SM/CU",
            unit="1/clk",
            limit=_chains.most_lanes,
        ),
        Column(name="ns", help="latency in nanoseconds", unit="ns"),
        SPREAD,
    )
    figure = Figure(
        x="op",
        title="instruction",
        scale="band",
        panels=(
            Panel(y="latency", title="latency (cycles)", mark="bar"),
            Panel(y="per_clk", title="lanes a cycle", mark="bar"),
        ),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        there = rig.kernels(_chains.FILE)
        ops, notes = available(
            given.words("ops"), lambda op: f"chain_{op}_8" in there, rig.info.arch
        )
        return _State(
            ops=ops,
            notes=notes,
            cycles=given.whole("cycles"),
            samples=given.whole("samples") * (1 if rig.exclusive else 5),
            buffers=_chains.allocate(rig, rig.grid),
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        found = {}
        full = rig.block if rig.block > 1 else 1
        for name in state.ops:
            op = _chains.OPS[name]
            steps = max(4, state.cycles // (op.loop * 4))
            alone, many = (
                _chains.cycles_per_step(
                    rig, state.buffers, op, ilp, threads=threads, steps=steps, samples=state.samples
                )
                for ilp, threads in ((1, min(rig.lanes, full)), (8, full))
            )
            found[name] = alone, many.over(full / rig.lanes)
        return found

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        for name in state.ops:
            wrong = _chains.check(rig, state.buffers, _chains.OPS[name], 8)
            if wrong is not None:
                return wrong
        return None

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for name, (latency, cycles) in raw.items():
            per_clk = rig.lanes / cycles.value
            rows.append(
                {
                    "op": name,
                    "latency": latency.value,
                    "per_clk": per_clk,
                    "ns": latency.value / rig.clock_mhz * 1e3,
                    "spread": widest((latency.spread, cycles.spread)),
                }
            )
            headline = name in _HEADLINES
            found += metric(
                *(f"latency_{name}", latency.value, "cycles"),
                better="lower",
                headline=headline,
                least=0.5,
                spread=latency.spread,
            )
            found += metric(
                f"per_clk_{name}",
                per_clk,
                "1/clk",
                headline=headline,
                limit=_chains.lanes_of(rig.hardware, name),
                spread=cycles.spread,
            )
        return Findings(rows=rows, metrics=found, notes=state.notes)


benchmark = Instructions()
