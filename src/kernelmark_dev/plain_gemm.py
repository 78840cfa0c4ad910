"""A GEMM as Triton's tutorials teach it, to compare what the compiler makes of our kernels."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from kernelmark.backends.triton.configs import ceil_div, compiler_options, gemm_sizes
from kernelmark.backends.triton.launch import Arguments, KernelPlan
from kernelmark.core.problem import Problem
from kernelmark.core.result import ConfigValue


@triton.jit
def plain_gemm(
    a,
    b,
    d,
    m,
    n,
    k,
    a_row,
    a_k,
    b_k,
    b_column,
    ACC: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute D = op(A) · op(B), with a mask along k."""
    across = tl.cdiv(n, BLOCK_N)
    rows = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_at = a + (rows % m)[:, None] * a_row + ks[None, :] * a_k
    b_at = b + ks[:, None] * b_k + (columns % n)[None, :] * b_column
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = tl.load(a_at, mask=ks[None, :] < left, other=ZERO)
        y = tl.load(b_at, mask=ks[:, None] < left, other=ZERO)
        acc = tl.dot(x, y, acc, out_dtype=ACC)
        a_at += BLOCK_K * a_k
        b_at += BLOCK_K * b_k
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    at = d + rows[:, None] * n + columns[None, :]
    tl.store(at, acc.to(d.dtype.element_ty), mask=inside)


def plain_plan(problem: Problem, config: Mapping[str, ConfigValue]) -> KernelPlan:
    """Return the launch of `plain_gemm` for a GEMM, with the tile and the compiler options of a
    config."""
    _, m, n, k = gemm_sizes(problem)
    a, b, c = (problem.dtypes[name] for name in "abc")
    a_row, a_k = (1, m) if problem.options["ta"] == "t" else (k, 1)
    b_k, b_column = (1, k) if problem.options["tb"] == "t" else (n, 1)
    arguments = Arguments().tensors(a=a, b=b, d=c)
    arguments.integers(m=m, n=n, k=k, a_row=a_row, a_k=a_k, b_k=b_k, b_column=b_column)
    blocks = {f"BLOCK_{x.upper()}": int(config[f"block_{x}"]) for x in "mnk"}
    integers = problem.dtypes["acc"] == "i32"
    kind = {"ACC": tl.int32, "ZERO": 0} if integers else {"ACC": tl.float32, "ZERO": 0.0}
    tiles = ceil_div(m, blocks["BLOCK_M"]) * ceil_div(n, blocks["BLOCK_N"])
    call = arguments.call(plain_gemm, {**blocks, **kind}, compiler_options(config), (tiles, 1, 1))
    # As Triton's launcher marks tensors of less than 2 GiB.
    return KernelPlan(calls=(call,)).with_ranges({})
