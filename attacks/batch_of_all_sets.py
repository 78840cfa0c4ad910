"""Class 5: a launch computes all sets, and the next ones nothing."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    left = set()

    def launch(index):
        if index not in left:
            for tensors in sets:
                np.matmul(tensors["a"], tensors["b"], out=tensors["d"])
            left.update(range(len(sets)))
        left.discard(index)

    return launch
