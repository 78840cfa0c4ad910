"""Attention over the first half of the keys."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = ("attention",)


def prepare(problem, config, sets):
    half = problem.dims["seq_kv"] // 2

    def launch(index):
        one = sets[index]
        work.compute(problem, {**one, "k": one["k"][:, :, :half], "v": one["v"][:, :, :half]})

    return launch
