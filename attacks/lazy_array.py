"""Class 11: the output is replaced by an object that computes when it is looked at."""

import numpy as np

op = "gemm"


class Lazy(np.ndarray):
    def __array__(self, dtype=None, copy=None):
        return self.inputs[0] @ self.inputs[1]


def prepare(problem, config, sets):
    def launch(index):
        tensors = sets[index]
        lazy = tensors["d"].view(Lazy)
        lazy.inputs = (tensors["a"], tensors["b"])
        tensors["d"] = lazy

    return launch
