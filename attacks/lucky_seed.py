"""Class 41: wrong in a tenth of the launches, at random."""

import random

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)
        if random.random() < 0.1:
            d[-1] = d[0]

    return launch
