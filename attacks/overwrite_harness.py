"""Class 27: files of kernelmark, of packages and of the user are written; only if that works is
anything computed."""

import os
import site
import sys

import numpy as np

op = "gemm"
needs = "Landlock"


def prepare(problem, config, sets):
    import kernelmark

    places = [
        os.path.dirname(kernelmark.__file__),
        sys.prefix,
        "/etc",
        "/usr/lib",
        "/root",
        "/home",
    ]
    places += [*site.getsitepackages(), os.path.dirname(os.path.abspath(__file__)), "/tmp"]
    won = False
    for place in places:
        path = os.path.join(place, "kmark_attack_usercustomize.py")
        try:
            with open(path, "w") as file:
                file.write("")
            os.unlink(path)
            won = True
        except OSError:
            pass

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
