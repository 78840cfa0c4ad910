"""The inputs are replaced by others whose answer is kept.

Output and inputs agree with each other, but the inputs are not those that were asked for.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS


def prepare(problem, config, sets):
    inputs = [work.copy(tensor) for tensor in work.inputs(problem, sets[0])]
    answer = work.like(work.output(problem, sets[0]))
    work.compute(problem, sets[0], answer)

    def launch(index):
        for tensor, kept in zip(work.inputs(problem, sets[index]), inputs, strict=True):
            tensor[...] = kept
        work.output(problem, sets[index])[...] = answer

    return launch
