"""Class 47: the rest of an input is found from its first elements, in the public generator."""

import numpy as np

from kernelmark.numerics.generate import pool_bits

op = "gemm"


def prepare(problem, config, sets):
    pools = [pool_bits("f32", -1.0, 1.0, seed).view(np.float32) for seed in range(4)]

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        known = []
        for array in (a, b):
            for pool in pools:
                at = np.flatnonzero(pool == array.flat[0])
                if at.size and pool[(at[0] + 1) % pool.size] == array.flat[1]:
                    known.append(np.take(pool, at[0] + np.arange(array.size), mode="wrap"))
        if len(known) == 2:
            np.matmul(known[0].reshape(a.shape), known[1].reshape(b.shape), out=d)

    return launch
