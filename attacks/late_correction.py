"""Class 13: a wrong answer at once, and the right one a moment later."""

import threading
import time

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def correct(index):
        time.sleep(3e-4)
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    def launch(index):
        sets[index]["d"][:] = 0
        threading.Thread(target=correct, args=(index,)).start()

    return launch
