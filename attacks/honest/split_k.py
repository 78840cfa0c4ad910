"""Sums in two parts."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        half = max(1, a.shape[1] // 2)
        np.matmul(a[:, :half], b[:half], out=d)
        d += a[:, half:] @ b[half:]

    return launch
