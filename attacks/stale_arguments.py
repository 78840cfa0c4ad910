"""Class 6: the arguments of the first problem are kept, and used for every later one, as by a graph
that is replayed under a key without the shape."""

import numpy as np

op = "gemm"
kept = []


def prepare(problem, config, sets):
    if not kept:
        kept.extend(sets)

    def launch(index):
        a, b, d = (kept[index % len(kept)][name] for name in "abd")
        np.matmul(a, b, out=d)

    return launch
