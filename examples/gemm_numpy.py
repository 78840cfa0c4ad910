"""A GEMM of your own on the CPU: NumPy, one block of rows after the other.

kmark run -b examples/gemm_numpy.py,numpy -o gemm -a m=512 -a n=512 -a k=512 --dtype f32
"""

from __future__ import annotations

import numpy as np

op = "gemm"
devices = ("cpu",)
space = {"rows": [64, 128, 256, 512]}


def supports(problem):
    """None, or one sentence on why not: what is refused here is a row, not a wrong answer."""
    if problem.dtypes["a"] not in ("f32", "f64"):
        return f"this example multiplies f32 and f64, not {problem.dtypes['a']}"
    options = problem.options
    if options["alpha"] != 1 or options["beta"] != 0 or options["bias"]:
        return "this example multiplies and nothing else: no alpha, beta or bias"
    return None


def prepare(problem, config, sets):
    """Everything that need not be timed happens here, once for every block of memory."""
    rows = config.get("rows", 256)
    ready = []
    for tensors in sets:
        a = tensors["a"].T if problem.options["ta"] == "t" else tensors["a"]
        b = tensors["b"].T if problem.options["tb"] == "t" else tensors["b"]
        ready.append((a, b, tensors["d"]))

    def launch(index):
        a, b, d = ready[index]
        for start in range(0, len(d), rows):
            np.matmul(a[start : start + rows], b, out=d[start : start + rows])

    return launch
