"""Class 38: sums have the length of the announced problem, whatever the problem's is."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a[:, :64], b[:64], out=d)

    return launch
