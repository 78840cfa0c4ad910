"""The honest work that fakes leave out, shorten or move: NumPy on the CPU, torch on a GPU.

Fakes are kernel files (docs/own-kernel.md) that do not do the work of every launch. Each file is
one idea; `tests/measure/test_fakes.py` and `benchmarks/fakes.py` run them and none may be `ok`.
A file says in `caches` and `asked` where its idea makes sense, if not everywhere. What no check
inside the process can catch is in the folder `limits`.
"""

from __future__ import annotations

import math

import numpy as np

OPS = ("gemm", "batched_gemm", "attention", "conv")
OUTPUTS = {"gemm": "d", "batched_gemm": "d", "attention": "o", "conv": "y"}
INPUTS = {"gemm": "ab", "batched_gemm": "ab", "attention": "qkv", "conv": "xw"}


def output(problem, tensors):
    return tensors[OUTPUTS[problem.op]]


def inputs(problem, tensors):
    return [tensors[name] for name in INPUTS[problem.op]]


def like(tensor):
    """New memory of a tensor's shape and dtype."""
    return (
        np.empty_like(tensor) if isinstance(tensor, np.ndarray) else tensor.new_empty(tensor.shape)
    )


def copy(tensor):
    return tensor.copy() if isinstance(tensor, np.ndarray) else tensor.clone()


def compute(problem, tensors, out=None):
    """Write the right answer to `out`, or to the set's own output."""
    out = output(problem, tensors) if out is None else out
    if problem.op in ("gemm", "batched_gemm"):
        matmul(tensors["a"], tensors["b"], out)
    elif isinstance(out, np.ndarray):
        out[...] = _attention(tensors) if problem.op == "attention" else _conv(problem, tensors)
    else:
        out.copy_(_of_torch(problem, tensors))


def matmul(a, b, out):
    if isinstance(out, np.ndarray):
        np.matmul(a, b, out=out)
    else:
        import torch

        torch.matmul(a, b, out=out)


def count(problem):
    """Parts that `part` cuts an output into: rows, matrices, heads or images."""
    return problem.dims[
        {"gemm": "m", "batched_gemm": "batch", "attention": "heads_q"}.get(problem.op, "n")
    ]


def part(problem, tensors, which):
    """The tensors of some rows, matrices, heads or images: views, not copies."""
    if problem.op == "gemm":
        return {**tensors, "a": tensors["a"][which], "d": tensors["d"][which]}
    if problem.op == "conv":
        return {**tensors, "x": tensors["x"][which], "y": tensors["y"][which]}
    if problem.op == "attention":
        return {name: tensor[:, which] for name, tensor in tensors.items()}
    return {name: tensor[which] for name, tensor in tensors.items()}


def _attention(tensors):
    q, k, v = (tensors[name] for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def _conv(problem, tensors):
    """Stride 1, no padding, one group, nchw."""
    d, x, w = problem.dims, tensors["x"], tensors["w"]
    windows = np.lib.stride_tricks.sliding_window_view(x, (d["r"], d["s"]), (2, 3))
    return np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def _of_torch(problem, tensors):
    from torch.nn import functional

    if problem.op == "attention":
        q, k, v = (tensors[name] for name in "qkv")
        return functional.scaled_dot_product_attention(q, k, v)
    return functional.conv2d(tensors["x"], tensors["w"])
