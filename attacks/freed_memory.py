"""Class 7: the output is what freshly allocated memory happens to hold."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        if index % 7 == 0:
            np.matmul(a, b, out=d)
        else:
            d[:] = np.empty_like(d)

    return launch
