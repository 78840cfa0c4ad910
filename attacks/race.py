"""Class 36: two threads add to the same rows without a lock."""

import threading

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        half, meet = a.shape[1] // 2, threading.Barrier(2)
        d[:] = 0

        def add(part):
            before = d.copy()
            meet.wait()
            np.add(before, a[:, part] @ b[part], out=d)

        threads = [
            threading.Thread(target=add, args=(part,))
            for part in (slice(0, half), slice(half, None))
        ]
        for thread in threads:
            thread.start()
        threads[1].join()
        threads[0].join()

    return launch
