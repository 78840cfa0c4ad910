"""It takes sixteen times as long after a pause, as if threads had to be woken."""

import time

import numpy as np

op = ("gemm",)
PAUSE_S = 30e-6


def prepare(problem, config, sets):
    last_s = 0.0

    def launch(index):
        nonlocal last_s
        rested = time.perf_counter() - last_s > PAUSE_S
        for _ in range(16 if rested else 1):
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
        last_s = time.perf_counter()

    return launch
