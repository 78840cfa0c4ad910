"""Atomic operations: rates by contention pattern, latency, and a word passed between SMs/CUs."""

from __future__ import annotations

import itertools
import statistics

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.devices.base import Buffer
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    MicroRun,
    Names,
    Panel,
    Parameter,
    microbenchmark,
)
from kernelmark.micro.hardware import Hardware, Limit, most_lanes
from kernelmark.micro.rig import BoundKernel, Rig, spread_of

FILE = "micro_atomics.cu"
_ROUNDS_GIVE_UP = 200_000_000  # maximum cycles an SM/CU waits for its turn: a tenth of a second
_LINE_WORDS = 32
_LINE_BYTES = 4 * _LINE_WORDS
_CHAIN_LINES = 8192  # of the chain that measures latency: near and far parts of the cache
_SHARED_WORDS = 2048  # of the kernel's array in shared memory
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
_CHECKED_ROUNDS = 3


def _limit_per_cycle(hardware: Hardware) -> Limit:
    """Return the limit of operations per cycle over all SMs/CUs: none starts more than it has
    lanes."""
    lanes = most_lanes(hardware)
    return Limit(
        value=hardware.units * lanes.value, why=f"{hardware.units} units × {lanes.value:g} lanes"
    )


def _limit_per_second(hardware: Hardware) -> Limit:
    per_cycle = _limit_per_cycle(hardware)
    return Limit(
        value=per_cycle.value * hardware.clock_mhz * 1e6,
        why=f"{per_cycle.why} × {hardware.clock_mhz:g} MHz",
    )


def _limit_of_line(rig: Rig) -> Limit:
    """Return the limit for one line: it has one home slice in the shared cache, which takes one
    warp's request per cycle. The slice's clock may be higher than the core's, but less than
    twice."""
    return Limit(value=2.0 * rig.lanes, why=f"2 × the {rig.lanes} lanes of a request to one line")


def _is_one_line(kernel: str, pattern: str) -> bool:
    return pattern in ("same", "line") and not kernel.startswith("shared")


@microbenchmark(
    summary="Atomic adds by contention, with and without result; latency; ping-pong between "
    "SMs/CUs.",
    by_cycles=True,
    measures="All SMs/CUs add to counters: one for all threads (`same`), one line for all "
    "(`line`), adjacent words, one per thread (`spread`), one line per thread (`lines`); also in "
    "shared memory. A launch lasts long enough that its start-up is negligible. A single line is "
    "nearer to some SMs/CUs than to others, so many lines are tried. `fetch` uses the old value, "
    "so it has to be returned. The latency is that of one thread's dependent chain over many "
    "lines. In the ping-pong two SMs/CUs exchange a word by compare-and-swap: a round trip is "
    "twice the path between them through the shared cache.",
    misleads="Adds without a result may be merged in flight. Floating-point adds may become "
    "compare-and-swap loops if the hardware has no such instruction. Adds to many addresses differ "
    "by several percent from run to run, with the placement of the memory. Ping-pong times depend "
    "on the chosen SMs/CUs: near and far parts of a GPU differ.",
    parameters={
        "kernels": Parameter(
            "operations", quick=tuple(KERNELS), brief=("add_u32",), choices=tuple(KERNELS)
        ),
        "patterns": Parameter("how threads contend", quick=PATTERNS, choices=PATTERNS),
        "seconds": Parameter("length of a launch", quick=1e-3, full=4e-3),
        "units": Parameter("SMs/CUs in the ping-pong", quick=6, full=16, brief=2),
        "turns": Parameter("rounds of ping-pong", quick=500, full=5000),
        "samples": Parameter("launches timed for a point", quick=5, full=7),
    },
    columns=(
        Column("what", "operation, or ping-pong"),
        Column("pattern", "how threads contend, or the two SMs/CUs"),
        Column("per_s", "operations per second of the whole device", "1/s", _limit_per_second),
        Column(
            "per_clk", "operations per core cycle of the whole device", "1/clk", _limit_per_cycle
        ),
        Column("cycles", "cycles of a round trip", "cycles"),
        SPREAD,
    ),
    no_spread=FrozenDict({"ping_pong": "each pair of SMs/CUs is one launch"}),
    figure=Figure(
        x="pattern",
        title="pattern",
        scale="band",
        colour="what",
        panels=(Panel("per_clk", "operations a cycle", mark="point", scale="log"),),
    ),
)
def atomics(
    run: MicroRun,
    *,
    kernels: Names,
    patterns: Names,
    seconds: float,
    units: int,
    turns: int,
    samples: int,
) -> None:
    rig = run.rig
    threads = rig.grid * rig.block
    points = list(itertools.product(kernels, patterns))
    points += [("shared_u32", pattern) for pattern in patterns if pattern in _SHARED_PATTERNS]
    counters = rig.memory(max(threads, _CHAIN_LINES) * _LINE_BYTES + 4096)
    sums = rig.memory(threads * 4)

    def call(kernel: str, pattern: str, rounds: int, home: int = 0) -> BoundKernel:
        """Return a call; `home` is the offset of the single line that `same` and `line` add to."""
        shared = kernel.startswith("shared")
        size = 4 if shared else np.dtype(KERNELS[kernel]).itemsize
        line = _LINE_BYTES // size
        counters_used, gap = {
            "same": (1, 1),
            "line": (line, 1),
            "spread": (threads, 1),
            "lines": (threads * 4 // size, line),
        }[pattern]
        return rig.call(
            *(FILE, f"atomic_{kernel}", counters.address + home),
            *(min(counters_used, _SHARED_WORDS) if shared else counters_used, gap, rounds),
            *((sums,) if kernel == "fetch_u32" else ()),
            grid=rig.grid,
            block=rig.block,
        )

    out, word = rig.memory(64), rig.memory(64)
    run.begin_timing()
    rates: dict[tuple[str, str], tuple[float, float | None]] = {}
    clocks = []
    for kernel, pattern in points:
        rounds, _ = rig.calibrated(
            lambda n, k=kernel, p=pattern: call(k, p, n),  # type: ignore[misc]
            _FIRST_ROUNDS,
            seconds,
        )
        by_home = []
        for home in _home_offsets(counters, kernel, pattern):
            launch = call(kernel, pattern, rounds, home)
            rig.run(launch)
            timed = rig.sample(launch, samples=samples, launches=1)
            by_home.append(timed)
            clocks.append(timed.clock_mhz or rig.clock_mhz)
        spreads = [timed.spread for timed in by_home if timed.spread is not None]
        round_s = statistics.fmean(timed.typical_s / rounds for timed in by_home)
        spread = statistics.fmean(spreads) if spreads else None
        rates[kernel, pattern] = threads / round_s, spread
    # The median clock of all points, so that one odd reading does not count.
    hertz = float(np.median(clocks)) * 1e6
    for (kernel, pattern), (per_s, spread) in rates.items():
        run.row(what=kernel, pattern=pattern, per_s=per_s, per_clk=per_s / hertz, spread=spread)
        run.metric(
            *(f"{kernel}_{pattern}_per_clk", per_s / hertz, "1/clk"),
            # Many counters have varying locations: their rates are less repeatable.
            headline=kernel == "add_u32" and pattern in ("same", "line"),
            limit=_limit_of_line(rig)
            if _is_one_line(kernel, pattern)
            else _limit_per_cycle(rig.hardware),
        )
    _measure_latency(run, counters, out, samples)
    lost = _ping_pong(run, word, out, units, turns)

    run.begin_checks()
    if lost:
        run.check(f"{lost} pairs of units did not pass the word to and fro to the end")
    for kernel, pattern in points:
        rig.zero(counters)
        rig.run(call(kernel, pattern, _CHECKED_ROUNDS))
        kind = KERNELS.get(kernel, np.uint32)
        count = counters.nbytes // np.dtype(kind).itemsize
        added = float(rig.read(counters, kind, count).sum(dtype=np.float64))
        if added != float(_CHECKED_ROUNDS * threads):
            expected = _CHECKED_ROUNDS * threads
            run.check(f"{kernel}, {pattern}: {added:g} were added, not {expected}")


def _measure_latency(run: MicroRun, counters: Buffer, out: Buffer, samples: int) -> None:
    rig, hops = run.rig, 2 * _CHAIN_LINES
    chain = rig.call(FILE, "atomic_chain", counters, _CHAIN_LINES, hops, 0, out)
    cycles = []
    for _ in range(samples):
        rig.run(chain)
        cycles.append(float(rig.read(out, np.uint64, 1)[0]) / hops)
    run.metric(
        *("latency", rig.typical(cycles).value, "cycles"),
        least=10.0,
        # The first launch may find the lines outside the cache.
        spread=spread_of(cycles[1:]),
    )


def _ping_pong(run: MicroRun, word: Buffer, out: Buffer, units: int, turns: int) -> int:
    """Pass a word to and fro between pairs of SMs/CUs; return the number of pairs that gave up."""
    rig = run.rig
    numbers = np.linspace(0, rig.grid - 1, min(units, rig.grid)).astype(int).tolist()
    trips: dict[tuple[int, int], float] = {}
    lost = 0
    for first, second in itertools.combinations(numbers, 2):
        rig.zero(word)
        rig.zero(out)
        call = rig.call(
            *(FILE, "atomic_ping_pong", word, first, second, turns, _ROUNDS_GIVE_UP, out),
            grid=rig.grid,
            block=1,
        )
        rig.run(call)
        cycles, unit_a, done_a, _, unit_b, done_b = rig.read(out, np.uint64, 6)
        if min(done_a, done_b) < turns:
            lost += 1
        elif unit_a != unit_b:  # two blocks on one SM/CU need no path between two
            trips[int(unit_a), int(unit_b)] = float(cycles) / turns
    for (a, b), trip in trips.items():
        run.row(what="ping-pong", pattern=f"{a}–{b}", cycles=trip)
    median = float(np.median(list(trips.values()))) if trips else None
    run.metric("ping_pong", median, "cycles", least=20.0, headline=False)
    return lost


def _home_offsets(counters: Buffer, kernel: str, pattern: str) -> list[int]:
    """Return the offsets in the counters at which a single line is tried."""
    if not _is_one_line(kernel, pattern):
        return [0]
    return [at * (counters.nbytes // _HOMES // _LINE_BYTES) * _LINE_BYTES for at in range(_HOMES)]
