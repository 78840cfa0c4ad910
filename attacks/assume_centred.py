"""Class 32: the sum of the right operand is taken for zero: a shift of it is undone."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b - np.float32(b.mean() if abs(b.mean()) > 1 else 0), out=d)

    return launch
