"""Classes 5, 37: the outputs of all other sets are written as well."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        for tensors in sets[index:] + sets[:index]:
            np.matmul(tensors["a"], tensors["b"], out=tensors["d"])

    return launch
