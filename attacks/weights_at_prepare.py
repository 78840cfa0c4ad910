"""Class 4: the right operand is preprocessed before the clock starts."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    weights = [tensors["b"].copy() for tensors in sets]

    def launch(index):
        np.matmul(sets[index]["a"], weights[index], out=sets[index]["d"])

    return launch
