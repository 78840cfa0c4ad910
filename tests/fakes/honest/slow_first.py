"""Its first launch takes long, as one that compiles."""

import time

import numpy as np

op = ("gemm",)


def prepare(problem, config, sets):
    compiled = False

    def launch(index):
        nonlocal compiled
        if not compiled:
            time.sleep(0.02)
            compiled = True
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
