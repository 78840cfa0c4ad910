"""Streams over managed memory, which host and device share page by page."""

from __future__ import annotations

import contextlib
import ctypes

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.devices._gpu import GpuBuffer
from kernelmark.micro._gpu_rig import as_gpu
from kernelmark.micro.base import (
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    fitting,
    microbenchmark,
)
from kernelmark.micro.benchmarks.stream import PAD_BYTES, arrays_in, check, fill, stream_call
from kernelmark.micro.rig import Rig

# Maximum bytes written by the host, to create pages that have to migrate: it does so at a page per
# step of a Python loop, and the first pass over larger arrays is left out.
_TOUCHED = 2048 * MIB
_PAGE = 4096  # of the host; larger ones are only touched more often


def _unsupported(rig: Rig) -> str | None:
    if rig.info.attributes.get("managed") != "1":
        return Reason(f"{rig.info.name} has no managed memory")
    return None


@microbenchmark(
    summary="Triad over managed memory: the first pass migrates pages, later ones do not.",
    unsupported=_unsupported,
    measures="A triad over managed memory that the host has written: the first pass migrates its "
    "pages to the device on demand, later ones find them there. Sizes never exceed the free memory "
    "of the device, because oversubscription can make a GPU unusable.",
    misleads="The first pass depends on the driver's prefetching and on the order in which pages "
    "are touched. On machines with coherent memory pages may stay on the host: later passes then "
    "read over the link.",
    parameters={
        "sizes": Parameter(
            "bytes of the three arrays together",
            quick=(24 * MIB, 96 * MIB, 384 * MIB, 1536 * MIB),
            full=tuple(24 * MIB << n for n in range(11)),
            brief=(1536 * MIB,),
            least=3 * PAD_BYTES,
        ),
        "samples": Parameter("passes timed after the first", quick=5, full=9),
    },
    columns=(
        Column("size_bytes", "bytes of the three arrays together", "B"),
        Column("pass", "first (pages migrate) or later"),
        Column(
            "bytes_per_s",
            "bytes read and written per second",
            "B/s",
            lambda h: h.bandwidth("l2"),  # the smallest arrays stay in it
        ),
        SPREAD,
    ),
    host_paced=("migration",),
    no_spread=FrozenDict({"migration": "pages migrate only in the first pass"}),
    figure=Figure(
        x="size_bytes",
        title="three arrays (MiB)",
        per=MIB,
        scale="log",
        colour="pass",
        panels=(Panel("bytes_per_s", "GB/s", per=1e9, scale="log"),),
    ),
)
def um_stream(run: MicroRun, *, sizes: Ints, samples: int) -> None:
    # Leave much memory free: a GPU whose managed memory is oversubscribed may hang.
    most = 0.5 * run.rig.device.free_bytes()
    kept, run.notes = fitting(sizes, most, "half of what is free")
    run.begin_timing()
    for size in kept:
        _measure(run, size, samples)

    def largest(kind: str) -> float | None:
        rows = run.rows_with(**{"pass": kind})
        return max(rows, key=lambda row: row["size_bytes"])["bytes_per_s"] if rows else None

    limit = run.rig.hardware.bandwidth("dram")
    run.metric("resident_triad", largest("later"), "B/s", limit=limit)
    run.metric("migration", largest("first"), "B/s", limit=limit, headline=False)
    run.begin_checks()


def _measure(run: MicroRun, size: int, samples: int) -> None:
    """Add the rows of one size. Its arrays are freed before those of the next, and so they are
    checked here."""
    rig = run.rig
    driver = as_gpu(rig.device).driver
    count = size // 3 // 8 // 512 * 512
    nbytes = count * 8 + 2 * PAD_BYTES
    addresses = [driver.allocate_managed(nbytes) for _ in range(3)]
    try:
        buffers = tuple(GpuBuffer(address, nbytes) for address in (*addresses, addresses[2]))
        arrays = arrays_in(buffers, count, rig.memory(rig.grid * rig.block * 8))
        fill(rig, arrays)
        rig.device.synchronize()
        touched = min(nbytes, _TOUCHED // 3)
        for address in addresses:
            _touch(address, touched)
        shape = {"grid": rig.grid, "block": rig.block}
        call = stream_call(rig, arrays, "triad", **shape)
        first_s = rig.time(call).elapsed_s
        later = rig.sample(call, samples=samples, seconds=1.5e-3)
        moved = 3 * arrays.nbytes
        run.check(check(rig, arrays, "triad", **shape))
    finally:
        with contextlib.suppress(CaseError):
            rig.device.synchronize()
        for address in addresses:
            driver.free(address)
    if touched == nbytes:
        run.row(size_bytes=3 * nbytes, bytes_per_s=moved / first_s, **{"pass": "first"})
    run.row(
        size_bytes=3 * nbytes,
        bytes_per_s=moved / later.typical_s,
        spread=later.spread,
        **{"pass": "later"},
    )


def _touch(address: int, nbytes: int) -> None:
    """Read and write a byte of every page on the host, which migrates the pages to it."""
    view = (ctypes.c_uint8 * nbytes).from_address(address)
    for at in range(0, nbytes, _PAGE):
        view[at] = view[at]
