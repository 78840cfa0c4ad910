"""A launch computes half of the output, by turns; the other half is the last launch's.

Two launches of a set make its output whole, so only a set that was launched once shows it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS


def prepare(problem, config, sets):
    half = work.count(problem) // 2
    halves = (slice(None, half), slice(half, None))
    visits = [0] * len(sets)

    def launch(index):
        which = halves[visits[index] % 2]
        visits[index] += 1
        work.compute(problem, work.part(problem, sets[index], which))

    return launch
