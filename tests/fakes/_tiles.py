"""The honest Triton GEMM that fakes on a GPU guard: one tile of D = A·B, summed in f32.

Without masks: m and n are multiples of BLOCK, k one of STEP.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128
STEP = 64


@triton.jit
def compute(a, b, d, n, k, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """The tile of D that this program stands for."""
    rows = tl.program_id(0) // (n // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(0) % (n // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    steps = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, STEP):
        left = tl.load(a + rows[:, None] * k + (start + steps)[None, :])
        right = tl.load(b + (start + steps)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(d + rows[:, None] * n + columns[None, :], total.to(d.dtype.element_ty))


def count(problem):
    """Tiles of D: programs to start."""
    return problem.dims["m"] // BLOCK * (problem.dims["n"] // BLOCK)


def supports(problem):
    d, options = problem.dims, problem.options
    if d["m"] % BLOCK or d["n"] % BLOCK or d["k"] % STEP:
        return f"sizes are multiples of {BLOCK} here, k of {STEP}"
    plain = options["ta"] == options["tb"] == "n" and options["alpha"] == 1
    return None if plain and options["beta"] == 0 and not options["bias"] else "a plain GEMM only"


def start(kernel, problem, tensors, *more):
    """Launch a guarded kernel over all tiles of one set."""
    d = problem.dims
    kernel[(count(problem),)](
        tensors["a"],
        tensors["b"],
        tensors["d"],
        d["n"],
        d["k"],
        *more,
        BLOCK=BLOCK,
        STEP=STEP,
        num_warps=8,
        num_stages=3,
    )
