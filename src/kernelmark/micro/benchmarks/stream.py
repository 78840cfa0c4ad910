"""Bandwidth by the STREAM kernels (micro_stream.cu): of main memory over occupancy, and of managed
memory, which host and device share page by page."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.units import join_commas
from kernelmark.devices._gpu import GpuBuffer
from kernelmark.devices.base import Buffer
from kernelmark.micro._rigs import as_gpu
from kernelmark.micro.base import (
    EVERYWHERE,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Names,
    Panel,
    Parameter,
    fitting,
    microbenchmark,
)
from kernelmark.micro.rig import BoundKernel, Rig, Samples, waited_in_shortest

FILE = "micro_stream.cu"
PERIOD = 1021  # of the fill pattern: a prime, so that neighbouring pieces differ
FACTOR = 3.0
PAD_BYTES = 4096  # for a stencil's neighbours on both sides of an array

# Number of arrays that each kernel reads or writes once.
STREAMS = {
    "init": 1,
    "read": 1,
    "copy": 2,
    "scale": 2,
    "add": 3,
    "triad": 3,
    "schoenauer": 4,
    "dot": 2,
    "stencil3": 2,
    "stencil5": 2,
}

SUMS = ("read", "dot")
_STENCILS = ("stencil3", "stencil5")
# On a CPU a pass takes an eighth of the arrays, about a millisecond: shorter than a time slice of
# the scheduler, so that some passes are undisturbed.
PARTS = 8
_IN_FLIGHT = 4  # vectors per array that a thread processes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamArrays:
    """Four arrays of `count` doubles; `a` is written, the others contain i mod 1021."""

    a: int
    b: int
    c: int
    d: int
    sums: Buffer
    buffers: tuple[Buffer, ...]
    count: int

    @property
    def nbytes(self) -> int:
        return self.count * 8


def allocate(rig: Rig, nbytes: int, threads: int) -> StreamArrays:
    """Return filled arrays of `nbytes` each; `threads` is the largest grid that will run."""
    buffers = tuple(rig.untouched(nbytes + 2 * PAD_BYTES) for _ in range(4))
    arrays = arrays_in(buffers, nbytes // 8, rig.memory(threads * 8))
    fill(rig, arrays)
    return arrays


def parts(arrays: StreamArrays) -> list[StreamArrays]:
    """Return the arrays split into pieces. A pass over one piece is short, and its data has left
    the caches when it is used again."""
    count = arrays.count // PARTS
    return [
        replace(
            arrays, count=count, **{name: getattr(arrays, name) + 8 * count * i for name in "abcd"}
        )
        for i in range(PARTS)
    ]


def arrays_in(buffers: tuple[Buffer, ...], count: int, sums: Buffer) -> StreamArrays:
    """Return arrays in existing memory."""
    a, b, c, d = (buffer.address + PAD_BYTES for buffer in buffers)
    return StreamArrays(a=a, b=b, c=c, d=d, sums=sums, buffers=buffers, count=count)


def fill(rig: Rig, arrays: StreamArrays) -> None:
    wide = rig.block > 1
    # Fill the padding too, so that neighbours at both ends are valid numbers.
    pad, part = PAD_BYTES // 8, arrays.count // PARTS
    edges = [0, arrays.count + 2 * pad]
    if not wide:
        # Each core first touches the pages that it will use: its part of every piece.
        edges[1:1] = [pad + part * number for number in range(1, PARTS)]
    for buffer in arrays.buffers:
        for first, end in itertools.pairwise(edges):
            call = rig.call(
                *(FILE, "stream_fill", buffer, first, end - first, PERIOD),
                grid=rig.grid * (8 if wide else 1),
                block=256 if wide else 1,
            )
            rig.run(call)


def stream_call(
    rig: Rig, arrays: StreamArrays, kernel: str, *, grid: int, block: int, shared_bytes: int = 0
) -> BoundKernel:
    """Return a call of one STREAM kernel over the whole arrays."""
    n = arrays.nbytes // rig.vector_bytes
    a, b, c, d = arrays.a, arrays.b, arrays.c, arrays.d
    arguments: dict[str, tuple[object, ...]] = {
        "init": (a, n, FACTOR),
        "read": (b, arrays.sums, n),
        "copy": (a, b, n),
        "scale": (a, b, n, FACTOR),
        "add": (a, b, c, n),
        "triad": (a, b, c, n, FACTOR),
        "schoenauer": (a, b, c, d, n),
        "dot": (b, c, arrays.sums, n),
        "stencil3": (a, b, arrays.count, FACTOR),
        "stencil5": (a, b, arrays.count, FACTOR),
    }
    return rig.call(
        *(FILE, f"stream_{kernel}", *arguments[kernel]),
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
    )


def groups(rig: Rig, arrays: StreamArrays, kernel: str) -> int:
    """Return the number of threads if each handles one group of the output."""
    if kernel in _STENCILS:
        return arrays.count
    return arrays.nbytes // rig.vector_bytes // _IN_FLIGHT


def check(rig: Rig, arrays: StreamArrays, kernel: str, *, grid: int, block: int) -> str | None:
    """Run a kernel; compare samples of its output, or its sum, with the expected values."""
    run = stream_call(rig, arrays, kernel, grid=grid, block=block)
    if kernel in SUMS:
        rig.run(run)
        return _check_sum(rig, arrays, kernel, grid * block)
    indices = np.unique(
        np.concatenate(
            [
                np.arange(16),
                arrays.count - 1 - np.arange(16),
                np.random.default_rng(3).integers(0, arrays.count, 48),
            ]
        )
    )
    a = arrays.buffers[0]
    for index in indices:
        rig.device.write(a, PAD_BYTES + 8 * int(index), np.full(1, -1.0).view(np.uint8))
    rig.run(run)
    for index in indices:
        written = float(rig.read(a, np.float64, 1, PAD_BYTES + 8 * int(index))[0])
        expected = _value(kernel, int(index))
        if written != expected:
            return f"{kernel} wrote {written} at {index}, not {expected}"
    return None


def _check_sum(rig: Rig, arrays: StreamArrays, kernel: str, threads: int) -> str | None:
    total = float(rig.read(arrays.sums, np.float64, threads).sum())
    first = PAD_BYTES // 8
    whole, rest = divmod(arrays.count, PERIOD)
    numbers = (np.arange(PERIOD) + first) % PERIOD
    terms = numbers.astype(object) ** (2 if kernel == "dot" else 1)
    expected = float(whole * terms.sum() + terms[:rest].sum())
    # The kernel adds in another order, so that the last digits differ.
    if abs(total - expected) <= 1e-9 * expected:
        return None
    return f"{kernel} gives {total:.17g}, not {expected:.17g}"


def _value(kernel: str, index: int) -> float:
    def b(i: int) -> float:
        return float((i + PAD_BYTES // 8) % PERIOD)

    near = {"stencil3": 1, "stencil5": 2}.get(kernel)
    if near is not None:
        return FACTOR * sum(b(index + r) for r in range(-near, near + 1))
    at = b(index)
    return {
        "init": FACTOR,
        "copy": at,
        "scale": FACTOR * at,
        "add": at + at,
        "triad": at + FACTOR * at,
        "schoenauer": at + at * at,
    }[kernel]


_HEADLINES = ("init", "read", "copy", "triad")
_LEAST_CPU_BYTES = 64 * MIB
_SWEPT = 1024  # threads that fill an SM/CU; a request for no fewer means no sweep
_PASSES = 8  # per sample of a round on a CPU
_NUMPY = "numpy_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A launch shape: `blocks` resident blocks of `block` threads per SM/CU."""

    block: int
    blocks: int
    grid: int
    shared_bytes: int = 0
    kind: str = "staying"

    @property
    def threads(self) -> int:
        return self.block * self.blocks


@microbenchmark(
    summary="Init, read, copy, scale, add, triad, dot and stencils over occupancy.",
    kinds=EVERYWHERE,
    measures="Arrays far larger than every cache, in double precision, 16 bytes per load, four "
    "loads of each array in flight per thread. The grid is `staying` (persistent: as many blocks "
    "as fit), or `passing` (one thread per four vectors, or per element of a stencil), which "
    "accesses memory more nearly in order. Threads per SM/CU are swept from few to as many as fit. "
    "`triad` is a=b+q·c with three arrays, `schoenauer` a=b+c·d with four; stencils along one "
    "dimension count two arrays. Each array is counted once. On a CPU the sweep is over cores, and "
    "a pass takes an eighth of the arrays, about a millisecond; passes repeat until two more "
    "rounds confirm the best. Without a C++ compiler, numpy's copy is timed instead.",
    misleads="A write may also cost a read of the same line (on most CPUs it does), which is not "
    "counted. Bytes in flight saturate the memory, not threads: with wider loads fewer threads are "
    "enough. Because of refresh and error correction no kernel reaches the bus rate.",
    parameters={
        "kernels": Parameter(
            "streams",
            quick=tuple(STREAMS),
            brief=(*_HEADLINES, "schoenauer"),
            choices=tuple(STREAMS),
        ),
        "threads": Parameter(
            "threads per SM/CU; cores of a CPU",
            quick=(64, 128, 256, 512, 1024, 2048),
            full=(32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
            brief=(1024, 2048),
        ),
        "grids": Parameter(
            "staying, passing", quick=("staying", "passing"), choices=("staying", "passing")
        ),
        # Seventeen times the L2 of an H200 (60 MB), four times an Infinity Cache of 256 MB.
        "nbytes": Parameter("bytes of an array", quick=1024 * MIB, full=2048 * MIB, least=MIB),
        "samples": Parameter("launches timed for a point", quick=5, full=11),
    },
    columns=(
        Column("kernel", "stream"),
        Column("threads", "threads per SM/CU; cores of a CPU"),
        Column("block", "threads of a block"),
        Column("grid", "staying or passing"),
        Column(
            "bytes_per_s", "bytes read and written per second", "B/s", lambda h: h.bandwidth("dram")
        ),
        SPREAD,
        Column("steady", "whether two more rounds confirmed it, of a CPU"),
    ),
    figure=Figure(
        x="threads",
        title="threads on a unit; cores of a CPU",
        scale="log",
        colour="kernel",
        facet="grid",
        panels=(Panel("bytes_per_s", "GB/s", per=1e9, zero=True),),
    ),
)
def stream(
    run: MicroRun, *, kernels: Names, threads: Ints, grids: Names, nbytes: int, samples: int
) -> None:
    rig, on_gpu = run.rig, run.rig.block > 1
    nbytes = min(nbytes, int(0.15 * rig.device.free_bytes()))  # there are four arrays
    if not on_gpu:
        least = max(_LEAST_CPU_BYTES, rig.threads * PARTS * MIB)
        nbytes = min(nbytes, max(least, 2 * rig.info.cache_bytes))
    nbytes = nbytes // MIB * MIB
    try:
        rig.kernels(FILE)
    except CaseError as error:
        if on_gpu:
            raise
        run.notes.append(f"{error.message}: numpy's copy stands in")
        run.begin_timing()
        shape = _Shape(block=1, blocks=1, grid=rig.threads)
        _add_row(run, _NUMPY, shape, nbytes, _time_numpy(nbytes, samples, rig.threads))
        _add_metrics(run)
        run.begin_checks()  # no kernel of ours was run
        return
    arrays = allocate(rig, nbytes, rig.grid * 2048 if on_gpu else rig.threads)
    points = [
        (kernel, shape)
        for kernel, kind in itertools.product(kernels, grids)
        for shape in _shapes(rig, arrays, kernel, kind, threads)
    ]
    if not points:
        raise Unsupported(f"there is no passing grid for {join_commas(kernels)} on {rig.info.name}")
    run.notes.append(f"arrays of {nbytes // MIB} MiB")

    run.begin_timing()
    for kernel, shape in points:
        if not on_gpu:
            timed = _time_rounds(rig, arrays, kernel, shape.grid, samples)
            _add_row(run, kernel, shape, nbytes, timed)
            continue
        call = stream_call(
            *(rig, arrays, kernel),
            grid=shape.grid,
            block=shape.block,
            shared_bytes=shape.shared_bytes,
        )
        timed = rig.sample(call, samples=samples, seconds=1.5e-3)
        _add_row(run, kernel, shape, nbytes, timed)
    _add_metrics(run)

    run.begin_checks()
    last = {(kernel, shape.kind): shape for kernel, shape in points}
    for (kernel, _), shape in last.items():
        run.check(check(rig, arrays, kernel, grid=shape.grid, block=shape.block))


def _add_row(run: MicroRun, kernel: str, shape: _Shape, nbytes: int, timed: Samples) -> None:
    run.row(
        kernel=kernel,
        threads=shape.threads if run.rig.block > 1 else shape.grid,
        block=shape.block,
        grid=shape.kind,
        bytes_per_s=STREAMS.get(kernel, 2) * nbytes / timed.typical_s,
        spread=timed.spread,
        steady=timed.steady,
    )


def _add_metrics(run: MicroRun) -> None:
    """Add the best rate of each kernel."""
    # Writes on a CPU may or may not also read the line (write-allocate); such reads are not
    # counted, so `init` is no roof there.
    roofs = _HEADLINES if run.rig.block > 1 else ("read", "copy", "triad", _NUMPY)
    for kernel in dict.fromkeys(row["kernel"] for row in run.rows):
        best = max(run.rows_with(kernel=kernel), key=lambda row: row["bytes_per_s"])
        run.metric(
            *(kernel, best["bytes_per_s"], "B/s"),
            limit=run.rig.hardware.bandwidth("dram"),
            headline=kernel in (*_HEADLINES, _NUMPY),
            roof="bytes dram" if kernel in roofs else "",
            steady=best["steady"] is not False,
            stand_in=kernel == _NUMPY,
        )


def _time_rounds(rig: Rig, arrays: StreamArrays, kernel: str, grid: int, samples: int) -> Samples:
    """Time rounds of passes over parts of the arrays; the best pass of each round is scaled to the
    whole arrays."""
    from kernelmark.micro._rigs import CpuRig, confirmed

    assert isinstance(rig, CpuRig)
    pieces = parts(arrays)
    if kernel == "read":  # read all arrays: a single one is not much larger than the cache
        pieces = [replace(p, b=address) for p in pieces for address in (p.b, p.c, p.d)]
    calls = [stream_call(rig, piece, kernel, grid=grid, block=1) for piece in pieces]
    seconds: list[float] = []
    waited: list[float] = []

    def one_round() -> float:
        passes = rig.passes(calls, max(len(calls), _PASSES * samples))
        seconds.append(max(min(passes.whole_s), 1e-9) * PARTS)
        waited.append(waited_in_shortest(passes.whole_s, passes.waited))
        return 1 / seconds[-1]

    _, steady = confirmed(one_round)
    return Samples(seconds=tuple(seconds), exclusive=False, waited=tuple(waited), steady=steady)


def _time_numpy(nbytes: int, samples: int, threads: int) -> Samples:
    count = nbytes // 8 // threads
    pairs = [(np.ones(count), np.ones(count)) for _ in range(threads)]
    seconds = []
    for _ in range(1 + samples):
        workers = [threading.Thread(target=np.copyto, args=pair) for pair in pairs]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds.append(time.perf_counter() - start)
    return Samples(seconds=tuple(seconds[1:]), exclusive=False)


def _shapes(
    rig: Rig, arrays: StreamArrays, kernel: str, kind: str, threads: Sequence[int]
) -> list[_Shape]:
    """Return shapes with about `threads` threads per SM/CU, as far as they fit."""
    passing = kind == "passing"
    if rig.block == 1:
        few = {1, max(1, rig.threads // 2)} if min(threads) < _SWEPT else set()
        cores = [] if passing else sorted({*few, rig.threads})
        return [_Shape(block=1, blocks=1, grid=count) for count in cores]
    if passing and kernel in SUMS:
        return []  # one sum per thread would itself be a stream
    from kernelmark.micro._rigs import GpuRig

    assert isinstance(rig, GpuRig)
    shapes: dict[int, _Shape] = {}
    for count in threads:
        # A block has at most 1024 threads; two smaller ones hide each other's start and end.
        blocks = 1 if count <= 512 else 2
        # Whole warps: a group of loads belongs to a warp.
        block = max(1, min(1024, count // blocks) // rig.lanes) * rig.lanes
        call = stream_call(rig, arrays, kernel, grid=1, block=block)
        blocks = min(blocks, rig.resident(call))
        every = -(-groups(rig, arrays, kernel) // block)
        shape = _Shape(
            block=block,
            blocks=blocks,
            grid=every if passing else rig.grid * blocks,
            shared_bytes=rig.spoiler(blocks),
            kind=kind,
        )
        shapes.setdefault(shape.threads, shape)
    return list(shapes.values())


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
