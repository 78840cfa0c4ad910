"""Layer norm of rows without parameters: the trusted definition for attacks on it."""

import numpy as np


def inputs(rows=8, cols=64, dtype="f32"):
    return {"x": ((rows, cols), dtype)}


def reference(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)


def prepare(problem, config, sets):
    def launch(index):
        x, out = sets[index]["x"], sets[index]["out"]
        np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
        out /= np.sqrt((out * out).mean(axis=-1, keepdims=True) + np.float32(1e-6))

    return launch
