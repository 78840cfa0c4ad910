"""Latency of main memory under load by the other SMs/CUs."""

from __future__ import annotations

import numpy as np

from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.units import bytes_text
from kernelmark.micro import _chase
from kernelmark.micro._windows import filled
from kernelmark.micro.base import (
    MIB,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    microbenchmark,
)

_LINE = 128
# Limit for the other SMs/CUs, in case the chain never ends: two seconds at 2 GHz.
_MOST_CYCLES = 4e9
_LEAST_PAUSE = 4096  # cycles that a chunk takes at least, for that limit
_IN_FLIGHT = 4  # loads of a thread in a chunk
_WARM = 256  # hops until the load has built up
_LINES_PER_HOP = 4  # a sample of the lines is enough: the chain never wraps around


@microbenchmark(
    summary="Latency of main memory over the bandwidth that other SMs/CUs use.",
    by_cycles=True,
    measures="One SM/CU follows a random chain through main memory while all others read it, one "
    "chunk at a time with a pause after each. The pauses are swept from long to none; the latency "
    "is plotted over the bandwidth measured meanwhile.",
    misleads="The latency is too low where requests are queued per SM/CU. The reading SMs/CUs "
    "access their parts in order, which suits the rows of the memory.",
    parameters={
        "pauses": Parameter(
            "cycles from one chunk to the next",
            quick=(65536, 32768, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 0),
            full=(*(int(65536 / 1.3**n) for n in range(24)), 0),
            brief=(2**20, 0),
        ),
        "hops": Parameter(
            "hops of the chain", quick=2**12, full=2**14, brief=2**11, least=_chase.UNROLLED
        ),
        "nbytes": Parameter("bytes of the chain and of the data", quick=1024 * MIB, least=MIB),
    },
    columns=(
        Column("pause", "cycles from one chunk to the next", "cycles"),
        Column(
            "bytes_per_s",
            "bytes per second read meanwhile by the other SMs/CUs",
            "B/s",
            lambda h: h.bandwidth("dram"),
        ),
        Column("ns", "nanoseconds per load of the chain", "ns"),
        Column("cycles", "core cycles per load of the chain", "cycles"),
    ),
    no_spread=FrozenDict(
        dict.fromkeys(("quiet_ns", "busy_ns", "busy_bytes"), "each pause is one launch")
    ),
    figure=Figure(
        x="bytes_per_s",
        title="drawn by the others (TB/s)",
        per=1e12,
        panels=(Panel("ns", "ns a load", zero=True),),
    ),
)
def loaded_latency(run: MicroRun, *, pauses: Ints, hops: int, nbytes: int) -> None:
    rig = run.rig
    nbytes = min(nbytes, int(0.2 * rig.device.free_bytes())) // MIB * MIB
    count = _LINES_PER_HOP * hops
    if count * _LINE > nbytes:
        chain = f"a chain of {hops} hops"
        reason = Reason(
            f"{bytes_text(count * _LINE)} needed for {chain}, {bytes_text(nbytes)} free",
            "out-of-memory",
            needed=count * _LINE,
            what=chain,
            free=nbytes,
        )
        raise Unsupported(reason)
    chaser = _chase.Chaser(rig, nbytes)
    lines = np.random.default_rng(11).choice(nbytes // _LINE, count, replace=False)
    chaser.link(lines.astype(np.uint64) * np.uint64(_LINE))
    data, out, done = filled(rig, nbytes), rig.memory(64), rig.memory(64)
    chunks, sums = rig.memory(rig.grid * 4), rig.memory(rig.grid * rig.block * 4)
    hops = hops // _chase.UNROLLED * _chase.UNROLLED

    run.begin_timing()
    ended = True
    for pause in pauses:
        rig.zero(done)
        rig.zero(chunks)
        most = int(_MOST_CYCLES / max(pause, _LEAST_PAUSE))
        call = rig.call(
            *(_chase.FILE, "chase_loaded", chaser.start, _WARM, hops, out, 0, data, nbytes // 16),
            *(pause, most, done, chunks, sums),
            grid=rig.grid,
            block=rig.block,
        )
        elapsed = rig.time(call).elapsed_s
        ticks, wall, end = rig.read(out, np.uint64, 3)
        chaser.check(int(end), _WARM + hops)
        # The other SMs/CUs read from the start of the launch to the end of the chain.
        read = rig.read(chunks, np.uint32, rig.grid)[1:]
        ended = ended and bool((read < most).all())
        run.row(
            pause=pause,
            bytes_per_s=float(read.sum()) * rig.block * _IN_FLIGHT * 16 / elapsed,
            ns=float(wall) * rig.wall_tick_s / hops * 1e9,
            cycles=float(ticks) / hops,
        )
    quiet = min(run.rows, key=lambda row: row["bytes_per_s"])
    busy = max(run.rows, key=lambda row: row["bytes_per_s"])
    run.metric("quiet_ns", quiet["ns"], "ns", least=10.0)
    run.metric("busy_ns", busy["ns"], "ns", least=10.0, headline=False)
    limit = rig.hardware.bandwidth("dram")
    run.metric("busy_bytes", busy["bytes_per_s"], "B/s", limit=limit, headline=False)
    run.begin_checks()
    run.check(chaser.wrong)
    if not ended:
        run.check("the units that make the load stopped before the chain had ended")
