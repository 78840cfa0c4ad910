"""Operands of 8 bits whose k is not innermost, turned in memory before they are multiplied.

NVIDIA's matrix units take 8-bit operands with k innermost only. Any other way round the product
turns them byte by byte, each tile again for every tile of the result that it is part of.
"""

from __future__ import annotations

import dataclasses

from kernelmark.backends.triton.plan import Arguments, Call, Plan, ceil_div, power_of_two
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.gpu.rtc import vendor_of

_BLOCK = 128


def turnable(problem: Problem, info: DeviceInfo) -> bool:
    """Whether there is an operand that the matrix unit wants the other way round."""
    if vendor_of(info.arch) != "cuda" or dtype(problem.dtypes["a"]).bits != 8:
        return False
    return bool(_wrong(problem))


def k_innermost(problem: Problem) -> Problem:
    """The same product of operands that are stored as the matrix unit wants them."""
    return dataclasses.replace(problem, options={**problem.options, "ta": "n", "tb": "t"})


def turned(problem: Problem, plan: Plan) -> Plan:
    """The plan for `problem`, given that of `k_innermost(problem)`."""
    dims = problem.dims
    places = {name: f"turned {name}" for name in _wrong(problem)}
    turns = tuple(_turn(problem, name, place) for name, place in places.items())
    width = {"a": dims["m"], "b": dims["n"]}
    sizes = {
        place: dims.get("batch", 1) * dims["k"] * width[name] for name, place in places.items()
    }
    calls = [
        dataclasses.replace(
            call, values=tuple(places.get(str(value), value) for value in call.values)
        )
        for call in plan.calls
    ]
    return dataclasses.replace(plan, calls=(*turns, *calls), turned_bytes=sizes)


def _wrong(problem: Problem) -> list[str]:
    options = problem.options
    return [
        name
        for name, stored in (("a", options["ta"] == "t"), ("b", options["tb"] == "n"))
        if stored
    ]


def _turn(problem: Problem, name: str, place: str) -> Call:
    from kernelmark.kernels.triton import gemm as kernels

    dims = problem.dims
    rows, columns = dims["k"], dims["m" if name == "a" else "n"]
    arguments = Arguments().pointer("source", "i8", name).pointer("target", "i8", place)
    arguments.integer("rows", rows).integer("columns", columns)
    block = power_of_two(max(rows, columns), 16, _BLOCK)
    tiles = ceil_div(rows, block) * ceil_div(columns, block)
    grid = (tiles, dims.get("batch", 1), 1)
    return arguments.call(kernels.turn, {"BLOCK": block}, {"num_warps": 8}, grid)
