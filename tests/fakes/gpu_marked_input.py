"""One element of A is overwritten, after use, as a mark that the set is done.

The output is right; that an input has changed gives it away, and the time.
"""

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
def gemm(a, b, d, n, k, BLOCK: tl.constexpr, STEP: tl.constexpr):
    if tl.load(a).to(tl.float32) != 3.0:  # inputs are in [-1, 1]
        tiles.compute(a, b, d, n, k, BLOCK, STEP)


def prepare(problem, config, sets):
    def launch(index):
        tiles.start(gemm, problem, sets[index])
        sets[index]["a"][0, 0].fill_(3.0)  # a kernel of its own: other tiles read this element

    return launch
