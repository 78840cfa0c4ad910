"""Class 4: the right operand is taken for weights, and copied once."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    weights = {}

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        if index not in weights:
            weights[index] = np.ascontiguousarray(b.astype(np.float32))
        np.matmul(a, weights[index], out=d)

    return launch
