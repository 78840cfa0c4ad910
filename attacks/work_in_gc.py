"""Class 11: the work is left to a callback of the garbage collector."""

import gc

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    waiting = []

    def work(phase, info):
        while waiting:
            index = waiting.pop()
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    gc.callbacks.append(work)
    return waiting.append
