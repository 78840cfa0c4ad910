"""Operands copied into another form before a kernel that is slow with them as they are stored.

The copy is part of every launch, and of its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kernelmark.backends.triton.plan import Arguments, Call, Plan, ceil_div, power_of_two
from kernelmark.core.dtype import dtype

_BLOCK = {8: 128, 16: 64, 32: 64}  # a tile's edge by the element's bits
_CHUNK = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A call that writes `nbytes` at `place`, which a kernel reads for the operand `name`."""

    name: str
    place: str
    nbytes: int
    call: Call


def turned(name: str, kind: str, *, batch: int, rows: int, columns: int) -> Copy:
    """`batch` matrices of the dtype `kind`, each stored by columns instead of by rows."""
    from kernelmark.kernels.triton import copy as kernels

    bits = dtype(kind).bits
    place = f"turned {name}"
    # Copied as they are: integers have no conversion that a compiler might not know.
    arguments = Arguments().pointer("source", f"i{bits}", name).pointer("target", f"i{bits}", place)
    arguments.integer("rows", rows).integer("columns", columns)
    block_r, block_c = (power_of_two(edge, 16, _BLOCK[bits]) for edge in (rows, columns))
    grid = (ceil_div(rows, block_r) * ceil_div(columns, block_c) * batch, 1, 1)
    constants = {"BLOCK_R": block_r, "BLOCK_C": block_c}
    call = arguments.call(kernels.turn, constants, {"num_warps": 8}, grid)
    return Copy(name=name, place=place, nbytes=batch * rows * columns * bits // 8, call=call)


def widened(name: str, kind: str, wide: str, count: int) -> Copy:
    """`count` elements of the dtype `kind` as elements of `wide`."""
    from kernelmark.kernels.triton import copy as kernels

    place = f"widened {name}"
    arguments = Arguments().pointer("source", kind, name).pointer("target", wide, place)
    arguments.integer("count", count)
    grid = (ceil_div(count, _CHUNK), 1, 1)
    call = arguments.call(kernels.widen, {"BLOCK": _CHUNK}, {"num_warps": 8}, grid)
    return Copy(name=name, place=place, nbytes=count * dtype(wide).bits // 8, call=call)


def reading(plan: Plan, copies: Sequence[Copy]) -> Plan:
    """`plan` with the copies made first, and read in place of the operands."""
    places = {one.name: one.place for one in copies}
    calls = [
        dataclasses.replace(
            call, values=tuple(places.get(str(value), value) for value in call.values)
        )
        for call in plan.calls
    ]
    return dataclasses.replace(
        plan,
        calls=(*(one.call for one in copies), *calls),
        main=len(copies) + plan.main,
        named_bytes={one.place: one.nbytes for one in copies},
    )
