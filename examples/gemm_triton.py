"""A GEMM of your own on a GPU: a plain Triton kernel.

    kmark run -d cuda:0 -b examples/gemm_triton.py,torch -o gemm -a m=1024 -a n=1024 -a k=1024 \
        -a tb=t --dtype bf16
"""

from __future__ import annotations

import triton
import triton.language as tl

op = "gemm"
devices = ("cuda", "hip")
space = {
    "block_m": [64, 128, 256],
    "block_n": [64, 128, 256],
    "block_k": [32, 64],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}
DEFAULT = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}


@triton.jit
def gemm(
    a,
    b,
    d,
    m,
    n,
    k,
    a_row,
    a_column,
    b_row,
    b_column,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of D, summed in float32."""
    columns_of_tiles = tl.cdiv(n, BLOCK_N)
    rows = tl.program_id(0) // columns_of_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % columns_of_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + steps
        left = tl.load(
            a + rows[:, None] * a_row + inner[None, :] * a_column,
            mask=(rows[:, None] < m) & (inner[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + inner[:, None] * b_row + columns[None, :] * b_column,
            mask=(inner[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    place = d + rows[:, None] * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(place, total.to(d.dtype.element_ty), mask=inside)


def supports(problem):
    """None, or one sentence on why not."""
    if problem.dtypes["a"] not in ("f16", "bf16") or problem.dtypes["acc"] != "f32":
        return "this example multiplies f16 and bf16 and sums in f32"
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    if max(m * k, k * n, m * n) >= 2**31:
        return "this example counts elements with 32 bits"
    options = problem.options
    if options["alpha"] != 1 or options["beta"] != 0 or options["bias"]:
        return "this example multiplies and nothing else: no alpha, beta or bias"
    return None


def prepare(problem, config, sets):
    """A function that launches; the first call compiles, before anything is timed."""
    chosen = {**DEFAULT, **config}
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    a_strides = (1, m) if problem.options["ta"] == "t" else (k, 1)
    b_strides = (1, k) if problem.options["tb"] == "t" else (n, 1)
    grid = (triton.cdiv(m, chosen["block_m"]) * triton.cdiv(n, chosen["block_n"]),)

    def launch(index):
        tensors = sets[index]
        gemm[grid](
            tensors["a"],
            tensors["b"],
            tensors["d"],
            m,
            n,
            k,
            *a_strides,
            *b_strides,
            BLOCK_M=chosen["block_m"],
            BLOCK_N=chosen["block_n"],
            BLOCK_K=chosen["block_k"],
            num_warps=chosen["num_warps"],
            num_stages=chosen["num_stages"],
        )

    return launch
