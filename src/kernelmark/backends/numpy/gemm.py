"""gemm and batched_gemm with NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np

from kernelmark.backends.numpy.matmuls import MATMULS, Array, Plan, Step, matmul, types, workspace
from kernelmark.core.problem import Problem


def plan(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan D = alpha·op(A)·op(B) + beta·C + bias, each step in place in D."""
    multiply = MATMULS[types(problem)]
    options = problem.options
    scratch: Array | None = None
    if options["beta"] not in (0.0, 1.0):
        scratch = workspace(arrays[0]["d"].shape, arrays[0]["d"].dtype, free_bytes)
    launches: list[list[Step]] = []
    for held in arrays:
        a = held["a"].swapaxes(-1, -2) if options["ta"] == "t" else held["a"]
        b = held["b"].swapaxes(-1, -2) if options["tb"] == "t" else held["b"]
        d = held["d"]
        # partial of the ufunc itself: one Python call less in a small GEMM's time
        first = partial(np.matmul, a, b, d) if multiply is matmul else partial(multiply, a, b, d)
        launches.append([first, *_epilogue(problem, held, scratch)])
    called = "matmul" if multiply is matmul else "einsum"
    held_bytes = 0 if scratch is None else scratch.nbytes
    return Plan(name=f"numpy.{called}", launches=launches, workspace_bytes=held_bytes)


def _epilogue(problem: Problem, held: dict[str, Array], scratch: Array | None) -> list[Step]:
    d = held["d"]
    steps: list[Step] = []
    alpha, beta = (d.dtype.type(problem.options[name]) for name in ("alpha", "beta"))
    if alpha != 1:
        steps.append(partial(np.multiply, d, alpha, d))
    if scratch is not None:
        steps.append(partial(np.multiply, held["c"], beta, scratch))
        steps.append(partial(np.add, d, scratch, d))
    elif beta == 1:
        steps.append(partial(np.add, d, held["c"], d))
    if problem.options["bias"]:
        steps.append(partial(np.add, d, held["bias"], d))
    return steps
