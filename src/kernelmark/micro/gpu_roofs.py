"""Roofs of a GPU, from the headline points of the microbenchmarks that measure limits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

from kernelmark.core.micro import MicroResult
from kernelmark.core.result import Status
from kernelmark.core.roof import Roof
from kernelmark.micro.execute import WIDE
from kernelmark.micro.hardware import Sheet
from kernelmark.micro.session import Tell, run

# In the order they run; what each gives is in `roofs_of`.
SOURCES = ("incore", "matrix", "cache", "l2_cache", "stream", "small_kernels")
_STREAMS = ("init", "read", "copy", "triad")
_L2_READS = ("l2_read", "l2_read_together")
Kind = Literal["flops", "bytes", "launches"]


def measure(
    device: str, tell: Tell | None = None
) -> tuple[tuple[Roof, ...], tuple[MicroResult, ...]]:
    """The roofs of a GPU and the results they come from; what failed is left out and told."""
    say = tell or (lambda text: None)
    results = []
    for result in run(SOURCES, device=device, mode="brief", tell=say):
        results.append(result)
        if result.status is not Status.OK:
            say(f"{result.benchmark} gives no roof: {result.status.value}, {result.error}")
    return roofs_of(results), tuple(results)


def roofs_of(results: Iterable[MicroResult]) -> tuple[Roof, ...]:
    """Roofs out of results; only of those that are `ok`."""
    found: list[Roof] = []
    for result in results:
        if result.status is Status.OK:
            found += _of(result)
    return tuple(found)


def _of(result: MicroResult) -> list[Roof]:
    values = {metric.name: metric.value for metric in result.metrics}
    if result.benchmark == "incore":
        return [
            _roof(result, "flops", name.removeprefix("peak_"), value, "vector", "multiply-adds")
            for name, value in values.items()
            if name.startswith("peak_")
        ]
    if result.benchmark == "matrix":
        return [
            _roof(result, "flops", name.removeprefix("flops_"), value, "matrix", "short burst")
            for name, value in values.items()
            if name.startswith("flops_")
        ]
    if result.benchmark == "stream":
        return _best(result, "dram", {k: v for k, v in values.items() if k in _STREAMS})
    if result.benchmark == "l2-cache":
        return _best(result, "l2", {k: v for k, v in values.items() if k in _L2_READS})
    if result.benchmark == "cache":
        return _best(result, "l1", {k: v for k, v in values.items() if k == "l1_bytes_per_s"})
    if result.benchmark == "small-kernels":
        return [
            _roof(result, "launches", way, 1e9 / values[f"{way}_empty_ns"], "", "empty kernels")
            for way in ("plain", "graph")
            if values.get(f"{way}_empty_ns", 0.0) > 0
        ]
    return []


def _best(result: MicroResult, level: str, rates: dict[str, float]) -> list[Roof]:
    if not rates:
        return []
    name = max(rates, key=lambda kind: rates[kind])
    best = [row.get("spread") for row in result.rows if row.get("bytes_per_s") == rates[name]]
    wide = any(isinstance(spread, float) and spread > WIDE for spread in best)
    return [_roof(result, "bytes", level, rates[name], "", name, steady=not wide)]


def _roof(
    result: MicroResult,
    kind: Kind,
    name: str,
    value: float,
    unit: str,
    what: str,
    *,
    steady: bool = True,
) -> Roof:
    return Roof(
        device=result.device,
        arch=result.arch,
        kind=kind,
        name=name,
        value=value,
        how=f"kmark micro {result.benchmark} ({what}), {result.mode}",
        measured=result.started or time.time(),
        unit=unit,
        model=result.model,
        steady=steady,
    )


def sheet_value(roof: Roof, sheet: Sheet | None) -> float | None:
    """The vendor's figure for the same quantity, for showing beside it."""
    if sheet is None:
        return None
    if roof.kind == "flops":
        return (sheet.matrix if roof.unit == "matrix" else sheet.vector).get(roof.name)
    return sheet.dram if roof.kind == "bytes" and roof.name == "dram" else None
