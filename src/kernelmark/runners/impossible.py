"""Detect results that are faster than their device can be.

A result is `impossible` if its median, by which it would be ranked, is shorter than the least time
that measured roofs allow, by more than a margin. (The slow end of its interval is not used: a
kernel that does its work only in some launches can make that arbitrarily wide.) No honest result
may be refused, so every doubt counts in favour of the result:

- Only work that no correct kernel can avoid counts (`Op.least_flops`, `least_bytes`).
- Only a roof of the same device, model and number of threads counts, and only a steady one from a
  microbenchmark, not from a substitute program.
- FLOPs are compared with the fastest execution unit that could have done them. A matrix unit can
  compute in higher precision than its inputs if operands are split (3 × TF32 or f16 for f32), so
  f32 and f64 are compared with the roof of 16-bit inputs. Without that roof, or on a CPU whose
  matrix unit has no roof, FLOPs are not judged.
- Bytes are compared with DRAM only for cold data, and only if all argument sets together are
  `CACHE_FACTOR` times the last-level cache.
- Below `LEAST_S` nothing is judged: a launch alone takes longer, and the rest is the noise of
  subtracting two times.

The margins are based on 543 results of cuBLASLt, torch, Triton and IREE on an H200
(benchmarks/results): no GEMM, attention or convolution exceeds 0.85 of its compute roof or 0.98 of
DRAM.

- GPU, compute: 1.5. Roofs are short bursts and repeat within 1.1 %. A result may exceed them by a
  higher clock (bf16 bursts run at 1.78 GHz, at 1.64 under the power cap, and 1.98 is the maximum:
  at most 1.2 ×) or by Strassen's algorithm (1.31 × with two levels).
- GPU, memory: 2. When rotating over three times the cache, at most a third stays in the cache: 1.5
  × DRAM even if hits were free. The rest allows for a cache larger than the driver reports.
- CPU: twice as much, 3 and 4. While roofs are measured, the host of a virtual machine may leave its
  guest only half of a core (one hardware thread) or half of the bandwidth, and passes still
  agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelmark import ops
from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Result, Status
from kernelmark.core.timing import Cache
from kernelmark.core.units import rate_text

Bound = Literal["compute", "memory"]

# Maximum ratio of a result's rate to a roof.
MARGINS: dict[Bound, float] = {"compute": 1.5, "memory": 2.0}
CPU_FACTOR = 2.0  # factor on the margins: load by other guests of a host is invisible
LEAST_S = 1e-6
_SPLIT_BITS = 16  # wider inputs can be split into parts of this many bits
# CPU features of matrix instructions for which no roof is measured.
_CPU_MATRIX = frozenset({"amx_tile", "sme", "bf16", "svebf16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A rate (FLOP/s or bytes/s) above a roof: `rate` / `roof.value` exceeds `margin`."""

    bound: Bound
    rate: float
    roof: Roof
    margin: float


def flag_impossible(result: Result, roofs: Sequence[Roof], info: DeviceInfo | None) -> Result:
    """Return `result`, with status `impossible` and a reason if it is ok but faster than its device
    can be. The measurement is kept as data."""
    over = excess(result, roofs, info) if result.status is Status.OK else None
    if over is None:
        return result
    return dataclasses.replace(result, status=Status.IMPOSSIBLE, error=_reason(over))


def excess(result: Result, roofs: Sequence[Roof], info: DeviceInfo | None) -> Excess | None:
    """Return the largest excess of a result over a roof, or None."""
    if result.measurement is None or info is None:
        return None
    fitting = [roof for roof in roofs if _counts(roof, result, info)]
    if not fitting:
        return None
    flops, moved = _least_work(result)
    excesses = []
    if compute := _compute_roof(result, fitting, info):
        excesses += _beyond("compute", flops, compute, result.measurement, info)
    memory = [roof for roof in fitting if roof.kind == "bytes" and roof.name == "dram"]
    if memory and _is_cold(result, info):
        excesses += _beyond("memory", moved, _highest(memory), result.measurement, info)
    return max(excesses, key=lambda e: e.rate / e.roof.value, default=None)


def threads_of(result: Result, info: DeviceInfo | None) -> int:
    """Return the CPU threads of a result; 0 on other devices, or if unknown."""
    if result.device.partition(":")[0] != "cpu":
        return 0
    return result.case.timing.threads or (info.units if info else 0)


def _counts(roof: Roof, result: Result, info: DeviceInfo) -> bool:
    same = (roof.device, roof.arch, roof.model) == (result.device, result.arch, info.model)
    return same and roof.steady and roof.limit and roof.threads == threads_of(result, info)


def _least_work(result: Result) -> tuple[int, int]:
    problem = result.case.problem
    try:
        op = ops.registry.get(problem.op)
        return op.least_flops(problem), op.least_bytes(problem)
    except KernelmarkError:  # an op of a package that is not installed here
        return 0, 0


def _compute_roof(result: Result, roofs: Iterable[Roof], info: DeviceInfo) -> Roof | None:
    """Return the roof of the fastest execution unit that could have computed the problem; None if
    one of the candidates has no roof."""
    names = result.case.problem.dtypes.values()
    flops_roofs = [r for r in roofs if r.kind == "flops" and r.name in DTYPES]
    if info.kind == "cpu":
        isa = set(info.attributes.get("isa", "").split())
        first = next(iter(names), "")  # the type of the multiplications' inputs
        fitting = [roof for roof in flops_roofs if roof.name == first]
        return _highest(fitting) if fitting and not isa & _CPU_MATRIX else None
    # The narrowest of all: an 8-bit weight may be multiplied in 8 bits whatever the other operand
    # is.
    bits = min([_SPLIT_BITS, *(DTYPES[name].bits for name in names if name in DTYPES)])
    if not any(r.unit == "matrix" and DTYPES[r.name].bits == bits for r in flops_roofs):
        return None
    return _highest([roof for roof in flops_roofs if DTYPES[roof.name].bits >= bits])


def _highest(roofs: Sequence[Roof]) -> Roof:
    return max(roofs, key=lambda roof: roof.value)


def _is_cold(result: Result, info: DeviceInfo) -> bool:
    from kernelmark.measure.sets import CACHE_FACTOR  # imports numpy

    measured = result.measurement
    if measured is None or result.case.timing.cache is not Cache.COLD or not info.cache_bytes:
        return False
    return measured.sets * measured.footprint_bytes >= CACHE_FACTOR * info.cache_bytes


def _beyond(
    bound: Bound, work: int, roof: Roof, measured: Measurement, info: DeviceInfo
) -> list[Excess]:
    rate = work / measured.median_s
    margin = MARGINS[bound] * (CPU_FACTOR if info.kind == "cpu" else 1.0)
    if work / roof.value < LEAST_S or rate <= margin * roof.value:
        return []
    return [Excess(bound=bound, rate=rate, roof=roof, margin=margin)]


def _reason(over: Excess) -> Reason:
    name = "DRAM" if over.bound == "memory" else f"{over.roof.name} {over.roof.unit}".strip()
    return Reason(
        f"{rate_text(over.rate, ('FLOP/s' if over.bound == 'compute' else 'B/s'))}"
        f" is {over.rate / over.roof.value:.3g} × the measured {name} roof of "
        f"{rate_text(over.roof.value, ('FLOP/s' if over.bound == 'compute' else 'B/s'))},"
        f" and at most {over.margin:g} × is accepted: the kernel skips work,"
        " or the roof was measured at a lower clock ('kmark roofs' measures"
        " it again)",
        "above-limit",
        bound=over.bound,
        rate=over.rate,
        roof=name,
        limit=over.roof.value,
        unit=("FLOP/s" if over.bound == "compute" else "B/s"),
        times=over.rate / over.roof.value,
        margin=over.margin,
    )
