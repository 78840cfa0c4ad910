"""Class 33: one inner tile of 8 × 8 is what the tile beside it is."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)
        d[24:32, 40:48] = d[24:32, 32:40]

    return launch
