"""Not caught: the file slows down the clock that its launches are timed by.

Whatever runs in the process of a check can change the check. Only a measurement from outside, or
reading the file, catches it; far below the hardware's limits the time is `impossible`.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import _work as work

op = work.OPS
devices = ("cpu",)
FACTOR = 10


def prepare(problem, config, sets):
    if time.perf_counter_ns.__name__ != "slowed_ns":
        true_ns = time.perf_counter_ns

        def slowed_ns():
            return true_ns() // FACTOR

        time.perf_counter_ns = slowed_ns
    return lambda index: work.compute(problem, sets[index])
