"""Class 45: files of the user, of the system and of other processes are read; only if one can be
is anything computed."""

import os

import numpy as np

op = "gemm"
needs = "Landlock"


def prepare(problem, config, sets):
    parent = os.getppid()
    places = ["/etc/shadow", "/etc/passwd", "/root/.bashrc", "/root/.ssh", "/home"]
    places += [f"/proc/{parent}/environ", f"/proc/{parent}/maps", f"/proc/{parent}/cmdline"]
    won = False
    for place in places:
        try:
            os.listdir(place) if os.path.isdir(place) else open(place, "rb").read(1)
            won = True
        except OSError:
            pass

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
