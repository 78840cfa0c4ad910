"""Not caught: leaves out a fifth of the rows while the inputs are what they were.

Right for all inputs that are written anew as a whole. Its audited launches take a quarter longer
than the timed ones, which noise can do to an honest kernel.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import _work as work

op = work.OPS
devices = ("cpu",)


def prepare(problem, config, sets):
    flat = [[tensor.reshape(-1) for tensor in one.values()] for one in sets]
    known = [None] * len(sets)
    most = slice(None, work.count(problem) * 4 // 5)

    def launch(index):
        fresh = [tensor[0] for tensor in flat[index]] != known[index]
        work.compute(problem, sets[index] if fresh else work.part(problem, sets[index], most))
        known[index] = [tensor[0] for tensor in flat[index]]

    return launch
