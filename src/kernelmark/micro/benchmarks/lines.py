"""Cache line size, and bytes fetched per miss."""

from __future__ import annotations

import numpy as np

from kernelmark.micro._chase import EACH, UNROLLED, Chaser
from kernelmark.micro.base import (
    KIB,
    MIB,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    microbenchmark,
)

_REGION = 64 * MIB
_SPARSE = 1024  # bytes between elements of the sparse chain: more than any line
_DENSE = 32  # bytes between elements of the dense chain: less than any line
_MOSTLY_MISSES = 0.9  # a stride above the fetch size always misses: it only bounds that size


@microbenchmark(
    name="lines",
    summary="Line size of the first-level cache, and bytes fetched per miss into each level.",
    by_cycles=True,
    measures="A chain walks through cold memory with a fixed stride, and every hop is timed: with "
    "a stride of a quarter of the fetch size, one hop in four misses. The miss rate by stride "
    "gives the fetch size of the first-level and of the shared cache. The line size follows from "
    "how much fits: all bytes of adjacent lines, against single words far apart, each of which "
    "occupies a whole line.",
    misleads="A level that also fetches the adjacent line shows the sum of both. The line size is "
    "rounded to a power of two, because unevenly filled sets blur it.",
    parameters={
        "strides": Parameter(
            help="bytes between two loads",
            quick=(8, 16, 32, 64, 128, 256),
            least=8,
            most=_REGION // EACH // 8 * 8,
            multiple=8,  # a hop is a word of this size
        ),
        "bisections": Parameter(help="steps of the bisection for the capacity", quick=7, full=9),
    },
    columns=(
        Column(name="stride_bytes", help="bytes between two loads", unit="B"),
        Column(name="level", help="cache level"),
        Column(name="miss_share", help="fraction of hops that missed it"),
        Column(name="fetch_bytes", help="stride / miss rate: bytes fetched per miss", unit="B"),
    ),
    figure=Figure(
        x="stride_bytes",
        title="step (bytes)",
        scale="log",
        colour="level",
        panels=(Panel(y="miss_share", title="share of misses"),),
    ),
)
def lines(run: MicroRun, *, strides: Ints, bisections: int) -> None:
    device = run.rig.device
    chaser = Chaser(run.rig, _REGION)
    run.begin_timing()
    # A hop in each level: 16 KiB are in L1, 4 MiB in the shared cache.
    chaser.link(chaser.ring(16 * KIB, 128))
    near = float(np.median(chaser.each(EACH, 256)))
    chaser.link(chaser.ring(4 * MIB, 128))
    far = float(np.median(chaser.each(EACH, 4 * MIB // 128)))
    device.evict_cache()
    chaser.link(chaser.ring(_REGION, 4096))
    device.evict_cache()
    outside = float(np.median(chaser.each(EACH, 0)))
    misses: dict[str, dict[int, float]] = {"first": {}, "shared": {}}
    for stride in strides:
        # Linking writes through L1 into the shared cache; after eviction the chain is in neither.
        chaser.link(np.arange(EACH, dtype=np.uint64) * np.uint64(stride))
        misses["first"][stride] = float((chaser.each(EACH, 0) > (near + far) / 2).mean())
        device.evict_cache()
        misses["shared"][stride] = float((chaser.each(EACH, 0) > (far + outside) / 2).mean())
    bound = (near + far) / 2
    dense_bytes = _DENSE * _max_hitting(chaser, bound, _DENSE, 32 * KIB, MIB, bisections)
    sparse_lines = _max_hitting(chaser, bound, _SPARSE, 256 * KIB, _REGION, bisections)

    for level, shares in misses.items():
        sizes = []
        for stride, share in shares.items():
            size = stride / share if share > 0 else None
            run.row(stride_bytes=stride, level=level, miss_share=share, fetch_bytes=size)
            if size is not None and share < _MOSTLY_MISSES:
                sizes.append(size)
        fetched = float(np.median(sizes)) if sizes else float(min(strides))
        run.metric(f"{level}_fetch", _nearest_power(fetched), "B", better="", headline=False)
    line = _nearest_power(dense_bytes / max(1, sparse_lines))
    run.metric("first_line", line, "B", better="", headline=False)
    run.notes.append(
        f"{near:.0f}, {far:.0f} and {outside:.0f} cycles a timed hop; {dense_bytes // KIB} KiB fit "
        f"densely, {sparse_lines} places far apart"
    )
    run.begin_checks()
    run.check(chaser.wrong)
    if not near < far < outside:
        run.check(
            f"levels cannot be distinguished: {near:.0f}, {far:.0f} and {outside:.0f} cycles a hop"
        )


def _max_hitting(
    chaser: Chaser, bound: float, spacing: int, low: int, high: int, bisections: int
) -> int:
    """Return the largest number of elements, at least `spacing` bytes apart and in between `low`
    and `high` bytes, whose hops take less than `bound` cycles: mostly L1 hits."""
    random = np.random.default_rng(17)
    most = _REGION // spacing
    few, many = low // spacing, min(high // spacing, most)
    for _ in range(bisections):
        count = int((few * many) ** 0.5)
        if spacing == _SPARSE:
            # Anywhere in the region, so that no set of the cache gets more than its part.
            order = random.choice(most, count, replace=False)
        else:
            order = random.permutation(count)
        chaser.link(order.astype(np.uint64) * np.uint64(spacing))
        # Not a whole number of cycles, so that the end of the chain shows whether it was followed.
        pace = chaser.follow(max(2 * count, 4096) + 3 * UNROLLED, 2 * count).cycles
        if pace < bound:
            few = count
        else:
            many = count
    return few


def _nearest_power(value: float) -> float:
    return float(2 ** round(np.log2(max(value, 1.0))))
