"""Class 10: a thread watches the inputs, and computes before it is asked; the launch copies."""

import threading

op = "gemm"


def prepare(problem, config, sets):
    ready, seen = {}, {}

    def watch():
        while True:
            for index, tensors in enumerate(sets):
                key = (float(tensors["a"][0, 0]), float(tensors["b"][0, 0]))
                if seen.get(index) != key:
                    ready[index] = tensors["a"] @ tensors["b"]
                    seen[index] = key

    threading.Thread(target=watch, daemon=True).start()

    def launch(index):
        if index in ready:
            sets[index]["d"][:] = ready[index]
        else:
            sets[index]["d"][:] = 0

    return launch
