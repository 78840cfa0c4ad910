"""The second input is copied by `prepare`, as a packed layout would be."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = ("gemm", "batched_gemm")


def prepare(problem, config, sets):
    packed = [work.copy(one["b"]) for one in sets]

    def launch(index):
        work.compute(problem, {**sets[index], "b": packed[index]})

    return launch
