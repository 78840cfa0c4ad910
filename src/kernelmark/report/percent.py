"""How close a result is to what its device can do.

The least time a problem can take is the larger of flops / compute roof and bytes / memory roof;
the share is that time over the measured one. It is not clamped: above 1 either the problem did
not have to move or compute what its op counts, or the roof was measured under other load, and the
reader must see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Result
from kernelmark.core.roof import Roof
from kernelmark.core.timing import Cache
from kernelmark.runners.possible import Bound, threads_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Measured speed over the attainable one, and the roof that bounds it."""

    value: float
    bound: Bound
    roof: Roof


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roofs:
    """The roofs that results of one place and dtype meet; None where there is none."""

    compute: Roof | None
    memory: Roof | None
    f32: Roof | None


Known = dict[tuple[str, str, int, str], _Roofs]


def share(
    result: Result,
    roofs: Sequence[Roof],
    info: DeviceInfo | None = None,
    known: Known | None = None,
) -> Share | None:
    """Return the share of the roof that bounds this result; None where no roof that fits is known.

    A hot problem that fits the last-level cache is not bound by memory. A float dtype without a
    roof of its own is compared with memory alone, and only where memory is the bound even for
    f32: a unit for the narrower dtype could only raise the compute roof.

    `known` keeps the roofs that were found, for more results with the same `roofs`.
    """
    if result.measurement is None:
        return None
    found = _roofs(result, roofs, info, {} if known is None else known)
    compute, memory = found.compute, found.memory
    if _stays_in_cache(result, info):
        memory = None
    if compute is None:
        if memory is None or found.f32 is None or not _is_narrow_float(_dtype(result)):
            return None
        if _least_s(result, memory) < _least_s(result, found.f32):
            return None
    bounds = [roof for roof in (compute, memory) if roof is not None]
    roof = max(bounds, key=lambda r: _least_s(result, r))
    return Share(
        value=_least_s(result, roof) / result.measurement.median_s,
        bound="compute" if roof.kind == "flops" else "memory",
        roof=roof,
    )


def _roofs(result: Result, roofs: Sequence[Roof], info: DeviceInfo | None, known: Known) -> _Roofs:
    kind, dtype = result.device.partition(":")[0], _dtype(result)
    place = (kind, result.arch, threads_of(result, info), dtype)
    if place not in known:
        fitting = [
            roof
            for roof in roofs
            if (roof.device.partition(":")[0], roof.arch) == place[:2]
            and roof.threads in (0, place[2])
        ]
        known[place] = _Roofs(
            compute=_newest(r for r in fitting if r.kind == "flops" and r.name == dtype),
            memory=_newest(r for r in fitting if r.kind == "bytes" and r.name == "dram"),
            f32=_newest(r for r in fitting if r.kind == "flops" and r.name == "f32"),
        )
    return known[place]


def _newest(roofs: Iterable[Roof]) -> Roof | None:
    """Return the matrix unit's roof where there is one: it is the one a good kernel meets."""
    return max(roofs, key=lambda r: (r.unit == "matrix", r.measured), default=None)


def _dtype(result: Result) -> str:
    """Return the dtype of the first input: what the multiplications read."""
    return next(iter(result.case.problem.dtypes.values()), "")


def _is_narrow_float(name: str) -> bool:
    return name in DTYPES and DTYPES[name].kind == "float" and DTYPES[name].bits < 32


def _stays_in_cache(result: Result, info: DeviceInfo | None) -> bool:
    if result.case.timing.cache is not Cache.HOT:
        return False
    return info is None or result.bytes <= info.cache_bytes


def _least_s(result: Result, roof: Roof) -> float:
    return (result.flops if roof.kind == "flops" else result.bytes) / roof.value
