"""Writes its output twice."""

import numpy as np

op = ("gemm",)


def prepare(problem, config, sets):
    def launch(index):
        for _ in range(2):
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
