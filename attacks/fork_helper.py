"""Class 12: a forked process computes."""

import os

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        if os.fork() == 0:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
            os._exit(0)

    return launch
