"""One call of NumPy."""

import numpy as np

op = ("gemm", "batched_gemm")


def supports(problem):
    plain = problem.options["alpha"] == 1 and problem.options["beta"] == 0
    return None if plain and not problem.options.get("bias") else "no alpha, beta or bias"


def prepare(problem, config, sets):
    ta, tb = problem.options["ta"] == "t", problem.options["tb"] == "t"

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b, out=d)

    return launch
