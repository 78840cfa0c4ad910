"""Class 45: a program is started; only if it can be is anything computed."""

import os
import subprocess

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    won = False
    for attempt in (lambda: subprocess.run(["/bin/true"]), lambda: os.execv("/bin/true", ["true"])):
        try:
            attempt()
            won = True
        except (OSError, subprocess.SubprocessError):
            pass

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
