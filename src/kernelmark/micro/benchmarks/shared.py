"""Loads that stay in an SM/CU, by the stride between the lanes of a warp: from shared memory (LDS)
and from the first-level cache."""

from __future__ import annotations

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    microbenchmark,
)
from kernelmark.micro.hardware import Hardware, Limit, most_lanes
from kernelmark.micro.rig import Call

_SHARED, _STRIDED = "micro_shared.cu", "micro_strides.cu"
_WIDTHS = (4, 8, 16)  # bytes per lane of one load instruction
_IN_FLIGHT = 8  # loads of a round, in both kernels
_LINKS = 4096  # of the chain in shared memory
_LINK_STEP = 33  # of the chain: one more than the banks of an NVIDIA GPU, so that it visits all
_ROOM = 256 * 2**10  # bytes of the strided array: it fits in the L1 of a Hopper SM
_PITCH = 130  # elements between two rows of lanes: not a multiple of a line
_CHECKS = 8  # patterns checked: a wrong address pattern shows in any of them


@microbenchmark(
    summary="Shared memory: bandwidth by width, bank conflicts by stride, latency.",
    by_cycles=True,
    measures="A full block on every SM/CU reads its shared memory, 4, 8 or 16 bytes per lane, with "
    "a stride between lanes: stride 1 is the bandwidth, larger ones show bank conflicts. The "
    "latency is that of one thread's dependent chain of offsets. Cycles are counted inside the "
    "kernel.",
    misleads="Stores and atomics have other rates. A stride of 0 is a broadcast: its bytes per "
    "cycle count every lane's copy and may exceed what the memory delivers.",
    parameters={
        "strides": Parameter(
            "elements between lanes",
            quick=(1, 2, 3, 4, 5, 8, 16, 17, 31, 32),
            full=tuple(range(1, 33)),
            brief=(1, 2, 32),
            most=32,  # the limit of micro_shared.cu
        ),
        "bytes": Parameter("bytes per lane", quick=_WIDTHS, choices=_WIDTHS),
        "rounds": Parameter("rounds of 8 loads", quick=400, full=4000),
        "hops": Parameter("loads of the chain", quick=2**14, full=2**17, least=32),
        "samples": Parameter("launches timed for a point", quick=3, full=9),
    },
    columns=(
        Column("bytes", "bytes per lane", "B"),
        Column("stride", "elements between lanes"),
        Column("cycles", "cycles of the SM/CU per warp load", "cycles"),
        Column(
            "bytes_per_clk",
            "bytes loaded per cycle by an SM/CU",
            "B/clk",
            lambda h: h.rate("shared"),
        ),
        SPREAD,
    ),
    figure=Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        panels=(Panel("bytes_per_clk", "B/clk of a unit", scale="log"),),
    ),
)
def shared(
    run: MicroRun, *, strides: Ints, bytes: Ints, rounds: int, hops: int, samples: int
) -> None:
    rig = run.rig
    points = [(width, stride) for width in bytes for stride in strides]
    clocks, sums = rig.memory(rig.grid * 16), rig.memory(rig.grid * rig.block * 4)
    out = rig.memory(64)
    hops = hops // 32 * 32  # the kernel's loop is unrolled that often

    def call(width: int, stride: int, rounds: int) -> Call:
        return rig.call(
            *(_SHARED, f"shared_read_{width}", stride, rounds, 0, clocks, sums),
            grid=rig.grid,
            block=rig.block,
        )

    run.begin_timing()
    for width, stride in points:
        timed = rig.sample(call(width, stride, rounds), samples=samples, launches=1, clocks=clocks)
        cycles = timed.cycles_over(rounds * _IN_FLIGHT * rig.warps)
        rate = rig.lanes * width / cycles.value
        run.row(
            bytes=width,
            stride=stride,
            cycles=cycles.value,
            bytes_per_clk=rate,
            spread=cycles.spread,
        )
        if stride == 1:
            limit = rig.hardware.rate("shared")
            run.metric(f"bytes_per_clk_{width}", rate, "B/clk", limit=limit)
        if stride == 32 and width == 4:  # all lanes in one bank
            run.metric("conflict_cycles", cycles.value, "cycles", least=1.0, headline=False)
    chase, ticks = rig.call(_SHARED, "shared_chase", hops, 0, out, block=1), []
    for _ in range(samples):
        rig.run(chase)
        ticks.append(float(rig.read(out, np.uint64, 1)[0]))
    latency = rig.typical(ticks).over(hops)
    run.metric("latency", latency.value, "cycles", least=1.0, spread=latency.spread)

    run.begin_checks()
    end = int(rig.read(out, np.uint64, 2)[1])
    if end != hops * _LINK_STEP % _LINKS:
        run.check(f"the chain ended at {end}, not at {hops * _LINK_STEP % _LINKS}")
    for width, stride in points[:: max(1, len(points) // _CHECKS)]:
        rig.run(call(width, stride, 3))
        numbers = rig.read(sums, np.uint32, rig.lanes)
        per = width // 4
        first = np.arange(rig.lanes, dtype=np.int64) * stride * per
        offsets = np.arange(_IN_FLIGHT)[:, None] * 512 + np.arange(per)[None, :]
        expected = 3 * (first[:, None] + offsets.ravel()[None, :]).sum(axis=1)
        if not np.array_equal(numbers, expected.astype(np.uint32)):
            run.check(f"{width} bytes with stride {stride}: wrong words were read")


def _requested_limit(hardware: Hardware) -> Limit:
    """Return the limit: lanes that load the same bytes are served together, so the bytes of all
    lanes count."""
    lanes, widest = most_lanes(hardware), _WIDTHS[-1]
    return Limit(value=lanes.value * widest, why=f"{lanes.value:g} lanes × {widest} B")


@microbenchmark(
    summary="Cycles of a load that hits the first-level cache, by the stride between lanes.",
    by_cycles=True,
    measures="One full block per SM/CU loads 4, 8 or 16 bytes per lane that all hit the "
    "first-level cache, with a stride between lanes, or in rows (`block w`: w adjacent lanes, then "
    "another row). Cycles are counted inside the kernel: they show how many banks and lines a load "
    "touches.",
    misleads="Only the pattern inside a warp matters here; working sets stay in the cache. Bytes "
    "per cycle count requested bytes: a stride leaves most of each line unused.",
    parameters={
        "strides": Parameter(
            "elements between lanes",
            # Around the powers of two, where banks and lines repeat.
            quick=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64),
            full=tuple(range(65)),
            brief=(1, 2, 4),
        ),
        "widths": Parameter(
            "adjacent lanes", quick=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16), brief=(8,)
        ),
        "bytes": Parameter("bytes per lane", quick=_WIDTHS, brief=(4, 16), choices=_WIDTHS),
        "rounds": Parameter("rounds of 8 loads", quick=200, full=1000),
        "samples": Parameter("launches timed for a point", quick=3, full=7),
    },
    columns=(
        Column("pattern", "stride s or block w"),
        Column("bytes", "bytes per lane", "B"),
        Column("stride", "elements between lanes"),
        Column("width", "adjacent lanes"),
        Column("cycles", "cycles of the SM/CU per warp load", "cycles"),
        Column("bytes_per_clk", "bytes requested per cycle by an SM/CU", "B/clk", _requested_limit),
        SPREAD,
    ),
    figure=Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        where=FrozenDict({"pattern": "stride"}),
        panels=(Panel("cycles", "cycles a warp's load", scale="log"),),
    ),
)
def strides(
    run: MicroRun, *, strides: Ints, widths: Ints, bytes: Ints, rounds: int, samples: int
) -> None:
    rig = run.rig
    # (pattern, bytes per lane, lanes in a row, elements between them)
    every = [("stride", size, rig.lanes, stride) for size in bytes for stride in strides]
    # The last lane of the last load in flight must stay inside the array.
    most = (_ROOM - _IN_FLIGHT * 2048) // (rig.lanes - 1)
    points = [p for p in every if p[3] * p[1] <= most]
    wide = ", ".join(f"{p[3]} × {p[1]} B" for p in every if p not in points)
    if wide:
        run.notes.append(f"left out, since the cache has no room for them: {wide}")
    points += [("block", size, width, 1) for size in bytes for width in widths]
    words = np.arange(_ROOM // 4, dtype=np.uint32)
    data, clocks = rig.upload(words), rig.memory(rig.grid * 16)
    sums = rig.memory(rig.grid * rig.block * 4)

    def call(size: int, width: int, stride: int, rounds: int) -> Call:
        strided = rig.call(
            *(_STRIDED, f"strided_read_{size}", data, width),
            *(stride, _PITCH, rounds, 0, clocks, sums),
            grid=rig.grid,
            block=rig.block,
        )
        rig.prefer_cache(strided)
        return strided

    run.begin_timing()
    for pattern, size, width, stride in points:
        launch = call(size, width, stride, rounds)
        timed = rig.sample(launch, samples=samples, launches=1, clocks=clocks)
        cycles = timed.cycles_over(rounds * _IN_FLIGHT * rig.warps)
        rate = rig.lanes * size / cycles.value
        run.row(
            pattern=pattern,
            bytes=size,
            stride=stride,
            width=width,
            cycles=cycles.value,
            bytes_per_clk=rate,
            spread=cycles.spread,
        )
        if pattern == "stride" and size == 4 and stride in (1, 2, 4):
            limit = rig.hardware.rate("l1")
            run.metric(f"stride{stride}_bytes_per_clk", rate, "B/clk", limit=limit)

    run.begin_checks()
    for pattern, size, width, stride in points[:: max(1, len(points) // _CHECKS)]:
        rig.run(call(size, width, stride, 3))
        numbers = rig.read(sums, np.uint32, rig.block)[: rig.lanes]
        lane, per = np.arange(rig.lanes), size // 4
        first = (lane % width * stride + lane // width * _PITCH) * per
        at = first[:, None, None] + np.arange(_IN_FLIGHT)[None, :, None] * 512
        at = at + np.arange(per)[None, None, :]
        expected = words[at].sum(axis=(1, 2), dtype=np.uint32) * np.uint32(4)  # one more round
        if not np.array_equal(numbers, expected):
            run.check(f"{pattern} {stride}/{width}: wrong words were read")
