"""Copies of operands into another form, before a kernel that is slow with the stored form.

The copy is part of every launch, and of its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kernelmark.backends.triton.launch import Arguments, Call, Plan, ceil_div, power_of_two
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.gpu.rtc import vendor_of

_BLOCK = {8: 128, 16: 64, 32: 64}  # a tile's edge length by the element's bits
_CHUNK = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A call that writes `nbytes` to `buffer`, which the kernel reads instead of operand `name`."""

    name: str
    buffer: str
    nbytes: int
    call: Call


def transposed(name: str, kind: str, *, batch: int, rows: int, columns: int) -> Copy:
    """Return a copy of `batch` matrices of dtype `kind` from row-major to column-major storage."""
    from kernelmark.kernels.triton import copy as kernels

    bits = dtype(kind).bits
    buffer = f"transposed {name}"
    # Copied as integers: no compiler lacks a conversion then.
    arguments = (
        Arguments().pointer("source", f"i{bits}", name).pointer("target", f"i{bits}", buffer)
    )
    arguments.integer("rows", rows).integer("columns", columns)
    block_r, block_c = (power_of_two(edge, 16, _BLOCK[bits]) for edge in (rows, columns))
    grid = (ceil_div(rows, block_r) * ceil_div(columns, block_c) * batch, 1, 1)
    constants = {"BLOCK_R": block_r, "BLOCK_C": block_c}
    call = arguments.call(kernels.transpose, constants, {"num_warps": 8}, grid)
    return Copy(name=name, buffer=buffer, nbytes=batch * rows * columns * bits // 8, call=call)


def upcast(name: str, kind: str, wide: str, count: int) -> Copy:
    """Return a copy of `count` elements of dtype `kind` upcast to `wide`."""
    from kernelmark.kernels.triton import copy as kernels

    buffer = f"upcast {name}"
    arguments = Arguments().pointer("source", kind, name).pointer("target", wide, buffer)
    arguments.integer("count", count)
    grid = (ceil_div(count, _CHUNK), 1, 1)
    call = arguments.call(kernels.upcast, {"BLOCK": _CHUNK}, {"num_warps": 8}, grid)
    return Copy(name=name, buffer=buffer, nbytes=count * dtype(wide).bits // 8, call=call)


def with_copies(plan: Plan, copies: Sequence[Copy]) -> Plan:
    """Return the plan with the copies first; its kernels read them instead of the operands."""
    buffers = {one.name: one.buffer for one in copies}
    calls = [
        dataclasses.replace(
            call, values=tuple(buffers.get(str(value), value) for value in call.values)
        )
        for call in plan.calls
    ]
    return dataclasses.replace(
        plan,
        calls=(*(one.call for one in copies), *calls),
        main=len(copies) + plan.main,
        named_bytes={one.buffer: one.nbytes for one in copies},
    )


def can_pretranspose(problem: Problem, info: DeviceInfo) -> bool:
    """Return whether a GEMM has an operand that is faster to multiply after a transpose.

    NVIDIA's matrix units take 8-bit operands with k innermost only. Otherwise the GEMM transposes
    them byte by byte, each tile again for every output tile that uses it.
    """
    if vendor_of(info.arch) != "cuda" or dtype(problem.dtypes["a"]).bits != 8:
        return False
    return problem.options["ta"] == "t" or problem.options["tb"] == "n"


def k_innermost(problem: Problem) -> Problem:
    """Return the same GEMM with operands stored as the matrix unit takes them."""
    return dataclasses.replace(problem, options={**problem.options, "ta": "n", "tb": "t"})


def transposed_operands(problem: Problem) -> list[Copy]:
    """Return a transposing copy of each operand that is stored otherwise than in
    `k_innermost(problem)`."""
    d, options = problem.dims, problem.options
    found = [("a", d["m"])] if options["ta"] == "t" else []
    if options["tb"] == "n":
        found.append(("b", d["n"]))
    return [
        transposed(name, problem.dtypes[name], batch=d.get("batch", 1), rows=d["k"], columns=width)
        for name, width in found
    ]
