"""Class 32: inputs are taken for numbers of at most 1, and clipped in passing."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(np.clip(a, -1, 1), b, out=d)

    return launch
