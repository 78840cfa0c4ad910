"""Class 29: inputs are replaced by ones whose answer is known."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        a.flags.writeable = True
        a[:] = 0
        d[:] = 0

    return launch
