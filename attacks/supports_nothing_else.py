"""Class 38: `supports` is asked, and then forgotten: other sizes are accepted and left empty."""

import numpy as np

op = "gemm"


def supports(problem):
    return None


def prepare(problem, config, sets):
    announced = problem.dims["m"] == 64

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        if announced:
            np.matmul(a, b, out=d)
        else:
            d[:] = 0

    return launch
