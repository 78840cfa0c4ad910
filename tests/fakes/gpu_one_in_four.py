"""Every fourth launch of a set computes, by a counter on the device for each tile."""

import sys
from pathlib import Path

import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parent))
import _tiles as tiles

op = ("gemm",)
devices = ("cuda", "hip")
supports = tiles.supports


@triton.jit
def gemm(a, b, d, n, k, counts, BLOCK: tl.constexpr, STEP: tl.constexpr):
    launches = tl.load(counts + tl.program_id(0))
    tl.debug_barrier()  # all warps have to read the same number
    tl.store(counts + tl.program_id(0), launches + 1)
    if launches % 4 == 0:
        tiles.compute(a, b, d, n, k, BLOCK, STEP)


def prepare(problem, config, sets):
    import torch

    where, count = sets[0]["d"].device, tiles.count(problem)
    counts = [torch.zeros(count, dtype=torch.int32, device=where) for _ in sets]
    return lambda index: tiles.start(gemm, problem, sets[index], counts[index])
