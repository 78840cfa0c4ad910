"""Class 10: launches only fill a queue, which a thread works off."""

import queue
import threading
import time

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    waiting = queue.SimpleQueue()

    def work():
        while True:
            index = waiting.get()
            time.sleep(1e-4)
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    threading.Thread(target=work, daemon=True).start()
    return waiting.put
