"""Class 24: arrays of the output's shape, which may be the expected answer, are searched for."""

import gc

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        d = sets[index]["d"]
        for found in gc.get_objects():
            if isinstance(found, np.ndarray) and found.shape == d.shape and found is not d:
                d[:] = found
                return
        d[:] = 0

    return launch
