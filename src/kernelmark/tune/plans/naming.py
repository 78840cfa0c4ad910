"""Names of tuned problems: BBS_TN_0.

A GEMM is named <inputs><output><compute>_<transA><transB>_<n>, in the letters that BLAS libraries
use and in their column-major order, so that row-major `ta=n tb=t` (torch's Linear) is TN. Inputs
of two dtypes have both letters, A's first: F8B8. A batched GEMM is BATCHED_<name of its GEMM>, a
quantised one BATCHED_<scheme>_<output>. Other ops are named ATTN_BF16, CONV_F16. The counter n
starts at 0 for each type and layout, and follows the order of contribution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kernelmark.core.problem import Problem

_LETTERS = {
    "f64": "D",
    "f32": "S",
    "tf32": "X",
    "f16": "H",
    "bf16": "B",
    "f8e4m3": "F8",
    "f8e5m2": "B8",
    "f8e4m3fnuz": "F8N",
    "f8e5m2fnuz": "B8N",
    "f4e2m1": "F4",
    "i8": "I8",
    "i32": "I",
}
_SHORT = {"attention": "ATTN"}
_COUNTER = re.compile(r"(.+)_(\d+)\Z")


def stem(problem: Problem) -> str:
    """Return the name of a problem without its counter."""
    if problem.op == "gemm":
        return _gemm_name(problem)
    if problem.op == "batched_gemm":
        return f"BATCHED_{_gemm_name(problem)}"
    if problem.op == "batched_gemm_quant":
        scheme = str(problem.options["scheme"]).upper()
        return f"BATCHED_{scheme}_{_letter(problem.dtypes['c'])}"
    first = next(iter(problem.dtypes.values()), "")
    op = _SHORT.get(problem.op, problem.op.upper())
    return f"{op}_{first.upper()}" if first else op


def assign(problems: Iterable[Problem], given: Mapping[str, str]) -> dict[str, str]:
    """Return names by problem key: the one in `given`, else the stem with the next free counter.

    A name in `given` is not reused, even if `problems` lacks the problem that has it."""
    taken = {name: key for key, name in given.items()}
    following: dict[str, int] = {}
    for name in taken:
        if match := _COUNTER.match(name):
            following[match[1]] = max(following.get(match[1], 0), int(match[2]) + 1)
    names: dict[str, str] = {}
    for problem in problems:
        if problem.key in given:
            names[problem.key] = given[problem.key]
        elif problem.key not in names:
            kind = stem(problem)
            number = following.get(kind, 0)
            following[kind] = number + 1
            names[problem.key] = f"{kind}_{number}"
    return names


def _gemm_name(problem: Problem) -> str:
    types, options = problem.dtypes, problem.options
    # BLAS computes the transpose of our row-major GEMM: its A is our B.
    a, b = _letter(types["b"]), _letter(types["a"])
    inputs = a if a == b else a + b
    layout = "".join("N" if options[name] == "n" else "T" for name in ("tb", "ta"))
    return f"{inputs}{_letter(types['c'])}{_letter(types['acc'])}_{layout}"


def _letter(dtype: str) -> str:
    return _LETTERS.get(dtype, dtype.upper())
