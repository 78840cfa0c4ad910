"""Class 44: memory without end."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    kept = []

    def launch(index):
        while True:
            kept.append(np.empty(1 << 32, np.uint8))

    return launch
