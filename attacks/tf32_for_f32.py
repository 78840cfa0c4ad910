"""Class 35: inputs have ten bits, as a matrix unit would take them."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def cut(x):
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(cut(a), cut(b), out=d)

    return launch
