"""Class 11: the work is left to the end of the process."""

import atexit

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    waiting = []

    @atexit.register
    def work():
        for index in waiting:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return waiting.append
