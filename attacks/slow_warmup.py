"""Class 17: the first launches work, and later ones, which are timed, leave rows out."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    count = [0]

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        count[0] += 1
        rows = len(d) if count[0] < 60 else len(d) // 2
        np.matmul(a[:rows], b, out=d[:rows])

    return launch
