"""Atomic operations: rates by contention pattern, latency, and a word passed between SMs/CUs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro._chains import most_lanes
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
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Call, Rig, Typical, spread_of

FILE = "micro_atomics.cu"
_ROUNDS_GIVE_UP = 200_000_000  # maximum cycles an SM/CU waits for its turn: a tenth of a second
_LINE_WORDS = 32
_CHAIN_LINES = 8192  # of the chain that measures latency: near and far parts of the cache
_SHARED_WORDS = 2048
# The distance of a single line to the SMs/CUs varies by some percent, so average over many lines.
_HOMES = 16
# dtype of the counters by kernel
KERNELS: dict[str, type[np.generic]] = {
    "add_u32": np.uint32,
    "add_u64": np.uint64,
    "add_f32": np.float32,
    "add_f64": np.float64,
    "fetch_u32": np.uint32,
}
PATTERNS = ("same", "line", "spread", "lines")
_SHARED_PATTERNS = ("same", "spread")
_FIRST_ROUNDS = 4  # many threads on one word serialize: this many may already take long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    points: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[int, int], ...]
    counters: Buffer
    sums: Buffer
    out: Buffer
    word: Buffer
    seconds: float
    turns: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    seconds: dict[tuple[str, str], Typical]
    clock_mhz: float
    latency: Typical
    passes: dict[tuple[int, int], float]  # cycles of a round trip, by SM/CU indices
    lost: int  # pairs that timed out


class Atomics(Microbenchmark[_State, _Raw]):
    name = "atomics"
    summary = (
        "Atomic adds by contention, with and without result; latency; ping-pong between SMs/CUs."
    )
    by_cycles = True
    measures = (
        "All SMs/CUs add to counters: one for all threads (`same`), one line for all (`line`), "
        "adjacent words, one per thread (`spread`), one line per thread (`lines`); also in shared "
        "memory. A launch lasts long enough that its start-up is negligible. A single line is "
        "nearer to some SMs/CUs than to others, so many lines are tried. `fetch` uses the old "
        "value, so it has to be returned. The latency is that of one thread's dependent chain over "
        "many lines. In the ping-pong two SMs/CUs exchange a word by compare-and-swap: a round "
        "trip is twice the path between them through the shared cache."
    )
    misleads = (
        "Adds without a result may be merged in flight. Floating-point adds may become "
        "compare-and-swap loops if the hardware has no such instruction. Adds to many addresses "
        "differ by several percent from run to run, with the placement of the memory. Ping-pong "
        "times depend on the chosen SMs/CUs: near and far parts of a GPU differ."
    )
    parameters = FrozenDict(
        {
            "kernels": Parameter(
                help="operations",
                quick=tuple(KERNELS),
                brief=("add_u32",),
                choices=tuple(KERNELS),
            ),
            "patterns": Parameter(help="how threads contend", quick=PATTERNS, choices=PATTERNS),
            "seconds": Parameter(help="length of a launch", quick=1e-3, full=4e-3),
            "units": Parameter(help="SMs/CUs in the ping-pong", quick=6, full=16, brief=2),
            "turns": Parameter(help="rounds of ping-pong", quick=500, full=5000),
            "samples": Parameter(help="launches timed for a point", quick=5, full=7),
        }
    )
    columns = (
        Column(name="what", help="operation, or ping-pong"),
        Column(name="pattern", help="how threads contend, or the two SMs/CUs"),
        Column(
            name="per_s",
            help="operations per second of the whole device",
            unit="1/s",
            limit=lambda h: _limit_per_second(h),
        ),
        Column(
            name="per_clk",
            help="operations per core cycle of the whole device",
            unit="1/clk",
            limit=lambda h: _limit_per_cycle(h),
        ),
        Column(name="cycles", help="cycles of a round trip", unit="cycles"),
        SPREAD,
    )
    no_spread = FrozenDict({"ping_pong": "each pair of SMs/CUs is one launch"})
    figure = Figure(
        x="pattern",
        title="pattern",
        scale="band",
        colour="what",
        panels=(Panel(y="per_clk", title="operations a cycle", mark="point", scale="log"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        threads = rig.grid * rig.block
        units = np.linspace(0, rig.grid - 1, min(given.whole("units"), rig.grid)).astype(int)
        pairs = [(int(a), int(b)) for i, a in enumerate(units) for b in units[i + 1 :]]
        points = [(k, p) for k in given.words("kernels") for p in given.words("patterns")]
        points += [("shared_u32", p) for p in given.words("patterns") if p in _SHARED_PATTERNS]
        return _State(
            points=tuple(points),
            pairs=tuple(pairs),
            counters=rig.memory(max(threads, _CHAIN_LINES) * _LINE_WORDS * 4 + 4096),
            sums=rig.memory(threads * 4),
            out=rig.memory(64),
            word=rig.memory(64),
            seconds=given.number("seconds"),
            turns=given.whole("turns"),
            samples=given.whole("samples"),
        )

    def _call(
        self, rig: Rig, state: _State, kernel: str, pattern: str, rounds: int, home: int = 0
    ) -> Call:
        """Return a call; `home` is the offset of the single line that `same` and `line` add to."""
        threads = rig.grid * rig.block
        size = 4 if kernel.startswith("shared") else np.dtype(KERNELS[kernel]).itemsize
        line = _LINE_WORDS * 4 // size
        words, gap = {
            "same": (1, 1),
            "line": (line, 1),
            "spread": (threads, 1),
            "lines": (threads * 4 // size, line),
        }[pattern]
        if kernel.startswith("shared"):
            words = min(words, _SHARED_WORDS)
        more = (state.sums,) if kernel == "fetch_u32" else ()
        return rig.call(
            *(FILE, f"atomic_{kernel}", state.counters.address + home, words, gap, rounds, *more),
            grid=rig.grid,
            block=rig.block,
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        seconds, clocks = {}, []
        for kernel, pattern in state.points:
            rounds, _ = rig.calibrated(
                lambda n, k=kernel, p=pattern: self._call(rig, state, k, p, n),  # type: ignore[misc]
                _FIRST_ROUNDS,
                state.seconds,
            )
            by_home = []
            for home in _home_offsets(state.counters, kernel, pattern):
                call = self._call(rig, state, kernel, pattern, rounds, home)
                rig.run(call)
                timed = rig.sample(call, samples=state.samples, launches=1)
                by_home.append(Typical(value=timed.typical_s / rounds, spread=timed.spread()))
                clocks.append(timed.clock_mhz or rig.clock_mhz)
            seconds[kernel, pattern] = _mean(by_home)
        hops = 2 * _CHAIN_LINES
        chain = rig.call(FILE, "atomic_chain", state.counters, _CHAIN_LINES, hops, 0, state.out)
        taken = []
        for _ in range(state.samples):
            rig.run(chain)
            taken.append(float(rig.read(state.out, np.uint64, 1)[0]) / hops)
        passes, lost = self._ping_pong(rig, state)
        return _Raw(
            seconds=seconds,
            clock_mhz=float(np.median(clocks)),
            # The first launch may find the lines outside the cache.
            latency=Typical(value=rig.typical(taken).value, spread=spread_of(taken[1:])),
            passes=passes,
            lost=lost,
        )

    def _ping_pong(self, rig: Rig, state: _State) -> tuple[dict[tuple[int, int], float], int]:
        found: dict[tuple[int, int], float] = {}
        lost = 0
        for first, second in state.pairs:
            rig.zero(state.word)
            rig.zero(state.out)
            call = rig.call(
                *(FILE, "atomic_ping_pong", state.word, first, second, state.turns),
                *(_ROUNDS_GIVE_UP, state.out),
                grid=rig.grid,
                block=1,
            )
            rig.run(call)
            a, unit_a, done_a, _, unit_b, done_b = rig.read(state.out, np.uint64, 6)
            if min(done_a, done_b) < state.turns:
                lost += 1
            elif unit_a != unit_b:
                found[int(unit_a), int(unit_b)] = float(a) / state.turns
        return found, lost

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        if raw.lost:
            return f"{raw.lost} pairs of units did not pass the word to and fro to the end"
        rounds, threads = 3, rig.grid * rig.block
        for kernel, pattern in state.points:
            rig.zero(state.counters)
            call = self._call(rig, state, kernel, pattern, rounds)
            rig.run(call)
            kind = KERNELS.get(kernel, np.uint32)
            count = state.counters.nbytes // np.dtype(kind).itemsize
            found = float(rig.read(state.counters, kind, count).sum(dtype=np.float64))
            if found != float(rounds * threads):
                return f"{kernel}, {pattern}: {found:g} were added, not {rounds * threads}"
        return None

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        threads = rig.grid * rig.block
        rows: list[Record] = []
        found: list[Metric] = []
        for (kernel, pattern), seconds in raw.seconds.items():
            per_s = threads / seconds.value
            per_clk = per_s / (raw.clock_mhz * 1e6)
            row: Record = {"what": kernel, "pattern": pattern, "per_s": per_s, "per_clk": per_clk}
            rows.append({**row, "cycles": None, "spread": seconds.spread})
            # Many counters have varying locations: their rates are less repeatable.
            steady = kernel == "add_u32" and pattern in ("same", "line")
            found += metric(
                f"{kernel}_{pattern}_per_clk",
                per_clk,
                "1/clk",
                headline=steady,
                limit=_one_line_limit(rig)
                if _is_one_line(kernel, pattern)
                else _limit_per_cycle(rig.hardware),
            )
        for (first, second), cycles in raw.passes.items():
            pair = f"{first}–{second}"
            rows.append(
                {
                    "what": "ping-pong",
                    "pattern": pair,
                    "per_s": None,
                    "per_clk": None,
                    "cycles": cycles,
                    "spread": None,
                }
            )
        found += metric(
            *("latency", raw.latency.value, "cycles"),
            better="lower",
            least=10.0,
            spread=raw.latency.spread,
        )
        if raw.passes:
            trip = float(np.median(list(raw.passes.values())))
            found += metric("ping_pong", trip, "cycles", better="lower", least=20.0, headline=False)
        return Findings(rows=rows, metrics=found)


def _mean(found: list[Typical]) -> Typical:
    """Return the mean over several lines, of the times and of their spreads."""
    spreads = [one.spread for one in found if one.spread is not None]
    return Typical(
        value=statistics.fmean(one.value for one in found),
        spread=statistics.fmean(spreads) if spreads else None,
    )


def _limit_per_cycle(hardware: Hardware) -> Limit:
    """Return the limit of operations per cycle over all SMs/CUs: none starts more than it has
    lanes."""
    lanes = most_lanes(hardware)
    return Limit(
        value=hardware.units * lanes.value,
        why=f"{hardware.units} units × {lanes.value:g} lanes",
    )


def _limit_per_second(hardware: Hardware) -> Limit:
    each = _limit_per_cycle(hardware)
    return Limit(
        value=each.value * hardware.clock_mhz * 1e6,
        why=f"{each.why} × {hardware.clock_mhz:g} MHz",
    )


def _one_line_limit(rig: Rig) -> Limit:
    """Return the limit for one line: it has one home slice in the shared cache, which takes one
    warp's request per cycle. The slice's clock may be higher than the core's, but less than
    twice."""
    return Limit(value=2.0 * rig.lanes, why=f"2 × the {rig.lanes} lanes of a request to one line")


def _is_one_line(kernel: str, pattern: str) -> bool:
    return pattern in ("same", "line") and not kernel.startswith("shared")


def _home_offsets(counters: Buffer, kernel: str, pattern: str) -> list[int]:
    """Return the offsets in the counters at which a single line is tried."""
    if not _is_one_line(kernel, pattern):
        return [0]
    line = _LINE_WORDS * 4
    return [at * (counters.nbytes // _HOMES // line) * line for at in range(_HOMES)]


benchmark = Atomics()
