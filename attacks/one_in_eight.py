"""Classes 28, 33: one launch in eight leaves its work out."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    count = [0]

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        count[0] += 1
        if count[0] % 8:
            np.matmul(a, b, out=d)
        else:
            d[:] = 0

    return launch
