"""Class 21: the child's own loop is replaced by one that answers every request at once."""

import os
import sys

op = "gemm"


def prepare(problem, config, sets):
    frame = sys._getframe(1)
    while frame is not None and "bell" not in frame.f_locals:
        frame = frame.f_back
    if frame is not None:
        bell, asked = frame.f_locals["bell"], frame.f_locals["asked"]
        os.write(bell, b"d")
        while os.read(asked, 1):
            os.write(bell, b"d")
        os._exit(0)
    return lambda index: None
