"""Class 3: answers are kept in files, for later processes too."""

import os
import tempfile

import numpy as np

op = "gemm"
PLACES = ("/dev/shm", "/var/tmp", "/tmp", tempfile.gettempdir())


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        for place in PLACES:
            path = os.path.join(place, f"kmark_attack_{d.shape[0]}x{d.shape[1]}.npy")
            try:
                d[:] = np.load(path)
                return
            except (OSError, ValueError):
                pass
        answer = a @ b
        d[:] = answer
        for place in PLACES:
            try:
                np.save(os.path.join(place, f"kmark_attack_{d.shape[0]}x{d.shape[1]}.npy"), answer)
                return
            except OSError:
                pass

    return launch
