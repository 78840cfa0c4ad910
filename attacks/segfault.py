"""Class 44: a launch that ends its process by a wrong address."""

import ctypes

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        ctypes.memset(8, 0, 8)

    return launch
