"""How close a result is to its roofline.

The shortest possible time of a problem is the larger of flops / compute roof and bytes / memory
roof; the fraction is that time over the measured one. It is not clamped: above 1, either the op
overcounts the required work or traffic, or the roof was measured under load, and both must be
visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.metric import Roof
from kernelmark.core.result import Result
from kernelmark.core.timing import Cache
from kernelmark.runners.impossible import Bound, threads_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Measured speed as a fraction of the attainable speed, and the roof that limits it."""

    value: float
    bound: Bound
    roof: Roof


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roofs:
    """The roofs for results of one device, thread count and dtype; None where unknown."""

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
    """Return the fraction of the roof that limits this result; None if no matching roof is known.

    A hot problem that fits the last-level cache is not memory-bound, and an op without FLOPs is not
    compute-bound. A float dtype without a measured roof is compared only with memory, and only if
    the problem is memory-bound even at the f32 compute roof: hardware for the narrower dtype can
    only raise the compute roof.

    `known` caches the roofs that were found, for more results with the same `roofs`.
    """
    if result.measurement is None:
        return None
    found = _roofs(result, roofs, info, {} if known is None else known)
    compute = found.compute if result.flops else None
    memory = found.memory if result.bytes and not _stays_in_cache(result, info) else None
    if compute is None and result.flops:
        if memory is None or found.f32 is None or not _is_narrow_float(_dtype(result)):
            return None
        if _least_s(result, memory) < _least_s(result, found.f32):
            return None
    bounds = [roof for roof in (compute, memory) if roof is not None]
    if not bounds:
        return None
    roof = max(bounds, key=lambda r: _least_s(result, r))
    return Share(
        value=_least_s(result, roof) / result.measurement.median_s,
        bound="compute" if roof.kind == "flops" else "memory",
        roof=roof,
    )


def _roofs(result: Result, roofs: Sequence[Roof], info: DeviceInfo | None, known: Known) -> _Roofs:
    kind, dtype = result.device.partition(":")[0], _dtype(result)
    key = (kind, result.arch, threads_of(result, info), dtype)
    if key not in known:
        fitting = [
            roof
            for roof in roofs
            if (roof.device.partition(":")[0], roof.arch) == key[:2] and roof.threads in (0, key[2])
        ]
        known[key] = _Roofs(
            compute=_newest(r for r in fitting if r.kind == "flops" and r.name == dtype),
            memory=_newest(r for r in fitting if r.kind == "bytes" and r.name == "dram"),
            f32=_newest(r for r in fitting if r.kind == "flops" and r.name == "f32"),
        )
    return known[key]


def _newest(roofs: Iterable[Roof]) -> Roof | None:
    """Return the newest roof, preferring matrix units, which good kernels use."""
    return max(roofs, key=lambda r: (r.unit == "matrix", r.measured), default=None)


def _dtype(result: Result) -> str:
    """Return the dtype of the first input, which the multiplications read."""
    return next(iter(result.case.problem.dtypes.values()), "")


def _is_narrow_float(name: str) -> bool:
    return name in DTYPES and DTYPES[name].kind == "float" and DTYPES[name].bits < 32


def _stays_in_cache(result: Result, info: DeviceInfo | None) -> bool:
    if result.case.timing.cache is not Cache.HOT:
        return False
    return info is None or result.bytes <= info.cache_bytes


def _least_s(result: Result, roof: Roof) -> float:
    return (result.flops if roof.kind == "flops" else result.bytes) / roof.value
