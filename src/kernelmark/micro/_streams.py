"""The STREAM kernels (micro_stream.cu): arrays, calls and expected results."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from kernelmark.devices.base import Buffer
from kernelmark.micro.rig import Call, Rig

FILE = "micro_stream.cu"
PERIOD = 1021
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
PARTS = 8
_IN_FLIGHT = 4  # vectors per array that a thread processes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
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


def arrays(rig: Rig, nbytes: int, threads: int) -> Arrays:
    """Return filled arrays of `nbytes` each; `threads` is the largest grid that will run."""
    buffers = tuple(rig.untouched(nbytes + 2 * PAD_BYTES) for _ in range(4))
    made = over(buffers, nbytes // 8, rig.memory(threads * 8))
    fill(rig, made)
    return made


def parts(made: Arrays) -> list[Arrays]:
    """Return the arrays split into pieces. A pass over one piece is short, and its data has left
    the caches when it is used again."""
    count = made.count // PARTS
    return [
        replace(made, count=count, **{name: getattr(made, name) + 8 * count * i for name in "abcd"})
        for i in range(PARTS)
    ]


def over(buffers: tuple[Buffer, ...], count: int, sums: Buffer) -> Arrays:
    """Return arrays in existing memory."""
    a, b, c, d = (buffer.address + PAD_BYTES for buffer in buffers)
    return Arrays(a=a, b=b, c=c, d=d, sums=sums, buffers=buffers, count=count)


def fill(rig: Rig, made: Arrays) -> None:
    wide = rig.block > 1
    # Fill the padding too, so that neighbours at both ends are valid numbers.
    pad, part = PAD_BYTES // 8, made.count // PARTS
    edges = [0, made.count + 2 * pad]
    if not wide:
        # Each core first touches the pages that it will use: its part of every piece.
        edges[1:1] = [pad + part * number for number in range(1, PARTS)]
    for buffer in made.buffers:
        for first, end in itertools.pairwise(edges):
            call = rig.call(
                *(FILE, "stream_fill", buffer, first, end - first, PERIOD),
                grid=rig.grid * (8 if wide else 1),
                block=256 if wide else 1,
            )
            rig.run(call)


def call(
    rig: Rig, made: Arrays, kernel: str, *, grid: int, block: int, shared_bytes: int = 0
) -> Call:
    """Return a call of one STREAM kernel over the whole arrays."""
    n = made.nbytes // rig.vector_bytes
    a, b, c, d = made.a, made.b, made.c, made.d
    given: dict[str, tuple[object, ...]] = {
        "init": (a, n, FACTOR),
        "read": (b, made.sums, n),
        "copy": (a, b, n),
        "scale": (a, b, n, FACTOR),
        "add": (a, b, c, n),
        "triad": (a, b, c, n, FACTOR),
        "schoenauer": (a, b, c, d, n),
        "dot": (b, c, made.sums, n),
        "stencil3": (a, b, made.count, FACTOR),
        "stencil5": (a, b, made.count, FACTOR),
    }
    return rig.call(
        *(FILE, f"stream_{kernel}", *given[kernel]),
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
    )


def groups(rig: Rig, made: Arrays, kernel: str) -> int:
    """Return the number of threads if each handles one group of the output."""
    if kernel in _STENCILS:
        return made.count
    return made.nbytes // rig.vector_bytes // _IN_FLIGHT


def check(rig: Rig, made: Arrays, kernel: str, *, grid: int, block: int) -> str | None:
    """Run a kernel; compare samples of its output, or its sum, with the expected values."""
    run = call(rig, made, kernel, grid=grid, block=block)
    if kernel in SUMS:
        rig.run(run)
        return _check_sum(rig, made, kernel, grid * block)
    indices = np.unique(
        np.concatenate(
            [
                np.arange(16),
                made.count - 1 - np.arange(16),
                np.random.default_rng(3).integers(0, made.count, 48),
            ]
        )
    )
    a = made.buffers[0]
    for index in indices:
        rig.device.write(a, PAD_BYTES + 8 * int(index), np.full(1, -1.0).view(np.uint8))
    rig.run(run)
    for index in indices:
        found = float(rig.read(a, np.float64, 1, PAD_BYTES + 8 * int(index))[0])
        wanted = _value(kernel, int(index))
        if found != wanted:
            return f"{kernel} wrote {found} at {index}, not {wanted}"
    return None


def _check_sum(rig: Rig, made: Arrays, kernel: str, threads: int) -> str | None:
    found = float(rig.read(made.sums, np.float64, threads).sum())
    first = PAD_BYTES // 8
    whole, rest = divmod(made.count, PERIOD)
    numbers = (np.arange(PERIOD) + first) % PERIOD
    terms = numbers.astype(object) ** (2 if kernel == "dot" else 1)
    wanted = float(whole * terms.sum() + terms[:rest].sum())
    if abs(found - wanted) <= 1e-9 * wanted:
        return None
    return f"{kernel} gives {found:.17g}, not {wanted:.17g}"


def _value(kernel: str, index: int) -> float:
    def b(i: int) -> float:
        return float((i + PAD_BYTES // 8) % PERIOD)

    near = {"stencil3": 1, "stencil5": 2}.get(kernel)
    if near is not None:
        return FACTOR * sum(b(index + r) for r in range(-near, near + 1))
    one = b(index)
    return {
        "init": FACTOR,
        "copy": one,
        "scale": FACTOR * one,
        "add": one + one,
        "triad": one + FACTOR * one,
        "schoenauer": one + one * one,
    }[kernel]
