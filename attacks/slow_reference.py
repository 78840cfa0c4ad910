"""Class 19: a thread spins beside the reference, which then takes longer; the kernel does its work
twice."""

import threading

import numpy as np

op = "gemm"
work = 2


def prepare(problem, config, sets):
    def spin():
        while True:
            np.ones(1 << 16).sum()

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
    running = []

    def launch(index):
        if not running:
            running.extend(threads)
            for thread in threads:
                thread.start()
        for _ in range(work):
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
