"""Class 39: the BLAS of NumPy, sold as a kernel of one's own."""

import numpy as np

op = "gemm"
forbids_libraries = True


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)

    return launch
