"""Microbenchmarks that read windows of several sizes, one row per window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.micro import _windows
from kernelmark.micro.base import SPREAD, Column, Microbenchmark, Record, Settings
from kernelmark.micro.rig import Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Windows to read, each with its kind and the size shown in its row."""

    points: tuple[tuple[str, int, _windows.Window], ...]
    buffers: _windows.Buffers
    seconds: float
    samples: int
    notes: list[str]


class WindowSweep(Microbenchmark[Sweep, list[_windows.Reading]]):
    """Reads every window. A subclass chooses the windows and the first columns of a row."""

    def sweep(
        self,
        rig: Rig,
        given: Settings,
        points: Sequence[tuple[str, int, _windows.Window]],
        notes: list[str],
    ) -> Sweep:
        """Return the state for these windows, with memory for the largest."""
        return Sweep(
            points=tuple(points),
            notes=notes,
            buffers=_windows.allocate(rig, max(window.nbytes for _, _, window in points)),
            seconds=given.number("seconds"),
            samples=given.whole("samples"),
        )

    def timed(self, rig: Rig, state: Sweep) -> list[_windows.Reading]:
        return [
            _windows.measure(rig, state.buffers, w, seconds=state.seconds, samples=state.samples)
            for _, _, w in state.points
        ]

    def verify(self, rig: Rig, state: Sweep, raw: list[_windows.Reading]) -> str | None:
        for at in (0, len(state.points) // 2, -1):
            wrong = _windows.check(rig, state.buffers, state.points[at][2])
            if wrong is not None:
                return wrong
        return None

    def rows(self, rig: Rig, state: Sweep, raw: list[_windows.Reading]) -> list[Record]:
        """Return the rows; the first column is the kind of the window."""
        return [
            {
                self.columns[0].name: kind,
                "size_bytes": size,
                "bytes_per_s": reading.bytes_per_s,
                "bytes_per_clk": reading.bytes_per_clk,
                "clock_mhz": rig.clock_during(reading.samples),
                "spread": reading.samples.spread(),
            }
            for (kind, size, _), reading in zip(state.points, raw, strict=True)
        ]


def rate_columns(level: str, reader: str) -> tuple[Column, ...]:
    """Return the columns of a read rate that a cache level limits; `reader` is what runs one
    block."""
    return (
        Column(
            name="bytes_per_s",
            help="bytes read per second by the whole device",
            unit="B/s",
            limit=lambda h: h.bandwidth(level),
        ),
        Column(
            name="bytes_per_clk",
            help=f"bytes read per core cycle by one {reader}",
            unit="B/clk",
            limit=lambda h: h.rate(level),
        ),
        Column(name="clock_mhz", help="core clock meanwhile (GPU)", unit="MHz"),
        SPREAD,
    )
