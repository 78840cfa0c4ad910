"""Operands of 8 bits whose k is not innermost, turned in memory before they are multiplied.

NVIDIA's matrix units take 8-bit operands with k innermost only. Any other way round the product
turns them byte by byte, each tile again for every tile of the result that it is part of.
"""

from __future__ import annotations

import dataclasses

from kernelmark.backends.triton._copy import Copy, turned
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.gpu.rtc import vendor_of


def turnable(problem: Problem, info: DeviceInfo) -> bool:
    """Whether there is an operand that the matrix unit wants the other way round."""
    if vendor_of(info.arch) != "cuda" or dtype(problem.dtypes["a"]).bits != 8:
        return False
    return problem.options["ta"] == "t" or problem.options["tb"] == "n"


def k_innermost(problem: Problem) -> Problem:
    """The same product of operands that are stored as the matrix unit wants them."""
    return dataclasses.replace(problem, options={**problem.options, "ta": "n", "tb": "t"})


def copies(problem: Problem) -> list[Copy]:
    """Each operand that is stored otherwise than in `k_innermost(problem)`, turned."""
    d, options = problem.dims, problem.options
    found = [("a", d["m"])] if options["ta"] == "t" else []
    if options["tb"] == "n":
        found.append(("b", d["n"]))
    return [
        turned(name, problem.dtypes[name], batch=d.get("batch", 1), rows=d["k"], columns=width)
        for name, width in found
    ]
