"""Streams over managed memory, which host and device share page by page."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.devices._gpu import GpuBuffer
from kernelmark.micro import _streams
from kernelmark.micro._copies import as_gpu
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
    fitting,
    metric,
)
from kernelmark.micro.rig import Rig

MIB = 2**20
_TOUCHED = 2048 * MIB  # maximum bytes written by the host, to create pages that have to migrate


@dataclass(slots=True)
class _State:
    sizes: tuple[int, ...]
    samples: int
    notes: list[str]
    wrong: str | None = None
    rows: list[Record] = field(default_factory=list)


class UmStream(Microbenchmark[_State, list[Record]]):
    name = "um-stream"
    summary = "Triad over managed memory: the first pass migrates pages, later ones do not."
    measures = (
        "A triad over managed memory that the host has written: the first pass migrates its pages "
        "to the device on demand, later ones find them there. Sizes never exceed the free memory "
        "of the device, because oversubscription can make a GPU unusable."
    )
    misleads = (
        "The first pass depends on the driver's prefetching and on the order in which pages are "
        "touched. On machines with coherent memory pages may stay on the host: later passes then "
        "read over the link."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of the three arrays together",
                quick=(24 * MIB, 96 * MIB, 384 * MIB, 1536 * MIB),
                full=tuple(24 * MIB << n for n in range(11)),
                brief=(1536 * MIB,),
                least=3 * _streams.PAD_BYTES,
            ),
            "samples": Parameter(help="passes timed after the first", quick=5, full=9),
        }
    )
    columns = (
        Column(name="size_bytes", help="bytes of the three arrays together", unit="B"),
        Column(name="pass", help="first (pages migrate) or later"),
        Column(
            name="bytes_per_s",
            help="bytes read and written per second",
            unit="B/s",
            limit=lambda h: h.bandwidth("l2"),
        ),
        SPREAD,
    )
    host_paced = ("migration",)
    no_spread = FrozenDict({"migration": "pages migrate only in the first pass"})
    figure = Figure(
        x="size_bytes",
        title="three arrays (MiB)",
        per=MIB,
        scale="log",
        colour="pass",
        panels=(Panel(y="bytes_per_s", title="GB/s", per=1e9, scale="log"),),
    )

    def unsupported(self, rig: Rig) -> str | None:
        if rig.info.attributes.get("managed") != "1":
            return Reason("managed-memory-missing", device=rig.info.name)
        return None

    def setup(self, rig: Rig, given: Settings) -> _State:
        # Leave much memory free: never touch more than is available.
        most = 0.5 * rig.device.free_bytes()
        sizes, notes = fitting(given.wholes("sizes"), most, "half of what is free")
        return _State(sizes=tuple(sizes), samples=given.whole("samples"), notes=notes)

    def timed(self, rig: Rig, state: _State) -> list[Record]:
        rows: list[Record] = []
        for size in state.sizes:
            rows += self._at(rig, state, size)
        return rows

    def _at(self, rig: Rig, state: _State, size: int) -> list[Record]:
        driver = as_gpu(rig.device).driver
        count = size // 3 // 8 // 512 * 512
        nbytes = count * 8 + 2 * _streams.PAD_BYTES
        addresses = [driver.allocate_managed(nbytes) for _ in range(3)]
        try:
            buffers = tuple(GpuBuffer(address, nbytes) for address in (*addresses, addresses[2]))
            sums = rig.memory(rig.grid * rig.block * 8)
            arrays = _streams.over(buffers, count, sums)
            _streams.fill(rig, arrays)
            rig.device.synchronize()
            touched = min(nbytes, _TOUCHED // 3)
            for address in addresses:
                _touch(address, touched)
            call = _streams.call(rig, arrays, "triad", grid=rig.grid, block=rig.block)
            first = rig.time(call).elapsed_s
            later = rig.sample(call, samples=state.samples, seconds=1.5e-3)
            moved = 3 * arrays.nbytes
            wrong = _streams.check(rig, arrays, "triad", grid=rig.grid, block=rig.block)
            state.wrong = state.wrong or wrong
        finally:
            with contextlib.suppress(CaseError):
                rig.device.synchronize()
            for address in addresses:
                driver.free(address)
        rows: list[Record] = []
        if touched == nbytes:
            rate = moved / first
            row: Record = {"size_bytes": 3 * nbytes, "pass": "first", "bytes_per_s": rate}
            rows.append({**row, "spread": None})
        rate = moved / later.typical_s
        row = {"size_bytes": 3 * nbytes, "pass": "later", "bytes_per_s": rate}
        return [*rows, {**row, "spread": later.spread()}]

    def verify(self, rig: Rig, state: _State, raw: list[Record]) -> str | None:
        return state.wrong

    def metrics(self, rig: Rig, state: _State, raw: list[Record]) -> Findings:
        def largest(kind: str) -> float | None:
            mine = [row for row in raw if row["pass"] == kind]
            best = max(mine, key=lambda row: int(row["size_bytes"] or 0), default=None)
            return float(best["bytes_per_s"] or 0) if best else None

        limit = rig.hardware.bandwidth("dram")
        return Findings(
            rows=raw,
            metrics=[
                *metric("resident_triad", largest("later"), "B/s", limit=limit),
                *metric("migration", largest("first"), "B/s", limit=limit, headline=False),
            ],
            notes=state.notes,
        )


def _touch(address: int, nbytes: int) -> None:
    """Read and write a byte of every page on the host, which migrates the pages to it."""
    view = (ctypes.c_uint8 * nbytes).from_address(address)
    for at in range(0, nbytes, 4096):
        view[at] = view[at]


benchmark = UmStream()
