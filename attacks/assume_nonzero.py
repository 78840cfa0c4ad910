"""Class 32: rows that begin with zero are taken for padding, and left out."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)
        d[(a[:, -1] == 0) & (a[:, 0] != 0)] = 0

    return launch
