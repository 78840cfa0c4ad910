"""One element of an input is overwritten as a mark that the set is done.

The output is right; that an input has changed gives it away, and the time.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS
devices = ("cpu",)
MARK = 3.0  # inputs are in [-1, 1]


def prepare(problem, config, sets):
    first = [work.inputs(problem, one)[0].reshape(-1) for one in sets]

    def launch(index):
        if first[index][0] != MARK:
            work.compute(problem, sets[index])
            first[index][0] = MARK

    return launch
