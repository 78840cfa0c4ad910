"""Class 28: right for some launches, and then faster."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    count = [0]

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        count[0] += 1
        if count[0] <= 40:
            np.matmul(a, b, out=d)
        else:
            d[:] = a[0, 0] * b[0, 0]

    return launch
