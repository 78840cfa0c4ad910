"""The size of cases, and the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Case

# FLOPs that CPUs and GPUs do in the time of moving one byte, to within an order of magnitude.
# Affects only the order of cases, never a reported number.
_FLOPS_PER_BYTE = 10


def work(case: Case) -> float | None:
    """Return the size of a case in FLOPs, counting each byte moved as _FLOPS_PER_BYTE if that is
    more; None if unknown."""
    try:
        op = ops.registry.get(case.problem.op)
        flops, nbytes = op.flops(case.problem), op.bytes(case.problem)
    except (KernelmarkError, KeyError):
        return None
    return float(max(flops, _FLOPS_PER_BYTE * nbytes))


def order(cases: Sequence[Case], devices: int) -> list[Case]:
    """Order cases longest first if several devices share them, so that the devices finish at about
    the same time. Cases of equal thread count stay adjacent: another count needs another worker."""
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.timing.threads, []).append(case)
    if devices > 1:
        for group in groups.values():
            sizes = {id(case): work(case) for case in group}
            if all(size is not None for size in sizes.values()):
                group.sort(key=lambda c: -(sizes[id(c)] or 0.0) * c.timing.processes)
    return [case for group in groups.values() for case in group]
