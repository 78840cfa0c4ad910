"""Class 44: a file that fills the disk; only if it can get large is anything computed."""

import tempfile

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    won = False
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.seek(1 << 30)
            file.write(b"\0")
            file.flush()
            won = True
    except OSError:
        pass

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
