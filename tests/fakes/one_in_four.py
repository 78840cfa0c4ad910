"""Every fourth launch of a set computes, by a counter on the host."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS


def prepare(problem, config, sets):
    visits = [0] * len(sets)

    def launch(index):
        if visits[index] % 4 == 0:
            work.compute(problem, sets[index])
        visits[index] += 1

    return launch
