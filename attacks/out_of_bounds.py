"""Class 37: a few bytes beyond the output are written."""

import ctypes

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a, b, out=d)
        ctypes.memset(d.ctypes.data + d.nbytes, 0, 32)

    return launch
