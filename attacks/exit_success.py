"""Class 22: the process ends with success."""

import os

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        os._exit(0)

    return launch
