"""Its first launches try blocks of rows and keep the fastest."""

import time

import numpy as np

op = ("gemm",)


def prepare(problem, config, sets):
    seconds = {}

    def compute(index, rows):
        a, b, d = (sets[index][name] for name in "abd")
        for start in range(0, len(d), rows):
            np.matmul(a[start : start + rows], b, out=d[start : start + rows])

    def launch(index):
        untried = [rows for rows in (32, 64, 128, 256) if rows not in seconds]
        rows = untried[0] if untried else min(seconds, key=seconds.get)
        start = time.perf_counter()
        compute(index, rows)
        if untried:
            seconds[rows] = time.perf_counter() - start

    return launch
