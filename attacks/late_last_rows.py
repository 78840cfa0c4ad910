"""Class 13: the last rows are written after the launch has returned."""

import threading

import numpy as np

op = "gemm"
work = 1


def prepare(problem, config, sets):
    wake, queue = threading.Event(), []

    def work():
        while True:
            wake.wait()
            wake.clear()
            while queue:
                a, b, d = (sets[queue[-1]][name] for name in "abd")
                np.matmul(a[-8:], b, out=d[-8:])
                queue.pop()

    threading.Thread(target=work, daemon=True).start()

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        np.matmul(a[:-8], b, out=d[:-8])
        queue.append(index)
        wake.set()

    return launch
