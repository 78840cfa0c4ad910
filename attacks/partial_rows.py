"""Class 33: the last row is left out."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a[:-1], b, out=d[:-1])

    return launch
