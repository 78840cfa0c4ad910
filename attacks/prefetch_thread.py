"""Class 18: a thread reads the inputs of all sets without end, so that launches find them in the
cache that the judge has evicted."""

import threading

import numpy as np

op = "gemm"
problem = "gemm m=1 n=256 k=512 dtype=f32"
work = 1


def prepare(problem, config, sets):
    def read_all():
        while True:
            for tensors in sets:
                tensors["b"].ravel()[::16].sum()

    threading.Thread(target=read_all, daemon=True).start()

    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
