"""Class 36: sums start from what the memory of a scratch array happens to hold."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    scratch = np.zeros((problem.dims["m"], problem.dims["n"]), np.float32)

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)
        d += scratch[: len(d)]
        scratch[:1] = d[:1] * np.float32(1e-3)

    return launch
