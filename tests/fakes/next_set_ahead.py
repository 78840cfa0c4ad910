"""A launch computes the set that comes next and finds its own answer done.

It does as much work as it should, but on inputs that the launch before has left in the cache.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _work as work

op = work.OPS
caches = ("cold",)  # with one set it is honest


def prepare(problem, config, sets):
    def launch(index):
        work.compute(problem, sets[(index + 1) % len(sets)])

    return launch
