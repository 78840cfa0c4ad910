"""Layer norm, by its variance."""

import numpy as np

op = "../problems/layernorm.py"


def prepare(problem, config, sets):
    def launch(index):
        x, out = sets[index]["x"], sets[index]["out"]
        np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
        out *= np.float32(1) / np.sqrt(np.var(x, axis=-1, keepdims=True) + np.float32(1e-6))

    return launch
