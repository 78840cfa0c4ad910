"""Every op of the registry keeps the contract."""

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.ops.batched_gemm_quant import group_rounded
from kernelmark.testing import OpContract


class Products(OpContract):
    """What the two matrix products share."""

    def dense(self, problem, arrays):
        a, b = arrays["a"], arrays["b"]
        if problem.options["ta"] == "t":
            a = np.swapaxes(a, -1, -2)
        if problem.options["tb"] == "t":
            b = np.swapaxes(b, -1, -2)
        d = problem.options["alpha"] * (a @ b)
        if problem.options["beta"] != 0:
            d = d + problem.options["beta"] * arrays["c"]
        if problem.options["bias"]:
            d = d + arrays["bias"]
        if problem.dtypes["c"] == "f8e4m3":
            d = np.clip(d, -448, 448)
        return d

    def count_flops(self, problem):
        sizes = [range(size) for size in problem.dims.values()]
        return sum(2 for _ in itertools.product(*sizes))


class TestGemm(Products):
    op = ops.registry.get("gemm")
    examples = (
        {"m": 1, "n": 1, "k": 1, "dtype": "f64"},
        {"m": 7, "n": 5, "k": 33, "dtype": "f32"},
        {"m": 17, "n": 40, "k": 9, "dtype": "f16", "ta": "t"},
        {"m": 17, "n": 40, "k": 9, "dtype": "f16", "acc": "f16", "tb": "t", "bias": True},
        {"m": 3, "n": 70, "k": 64, "dtype": "bf16", "ta": "t", "tb": "t", "alpha": -0.5},
        {"m": 20, "n": 1, "k": 50, "dtype": "bf16", "c": "f32", "beta": 2.0, "bias": True},
        {"m": 9, "n": 9, "k": 100, "dtype": "i8", "alpha": 2, "beta": -3, "bias": "yes"},
        {"m": 9, "n": 9, "k": 100, "a": "f8e4m3", "b": "f8e5m2"},
        {"m": 9, "n": 9, "k": 100, "dtype": "f8e4m3", "c": "f8e4m3", "alpha": 99.0},
        {"m": 9, "n": 9, "k": 100, "a": "f8e4m3fnuz", "b": "f8e5m2fnuz", "c": "f32"},
    )
    refused = (
        {"m": 4, "n": 4, "dtype": "f32"},
        {"m": 4, "n": 4, "k": 4},
        {"m": 0, "n": 4, "k": 4, "dtype": "f32"},
        {"m": 4, "n": 4, "k": 4, "dtype": 32},
        {"m": 4, "n": 4, "k": 4, "dtype": "i32"},
        {"m": 4, "n": 4, "k": 4, "dtype": "tf32"},
        {"m": 4, "n": 4, "k": 4, "dtype": "f4e2m1"},
        {"m": 4, "n": 4, "k": 4, "a": "f32", "b": "f16"},
        {"m": 4, "n": 4, "k": 4, "a": "f8e4m3", "b": "f8e4m3fnuz"},
        {"m": 4, "n": 4, "k": 4, "dtype": "bf16", "acc": "bf16"},
        {"m": 4, "n": 4, "k": 4, "dtype": "bf16", "c": "f16"},
        {"m": 4, "n": 4, "k": 4, "dtype": "f16", "acc": "f16", "c": "f32"},
        {"m": 4, "n": 4, "k": 4, "dtype": "i8", "c": "f32"},
        {"m": 4, "n": 4, "k": 4, "dtype": "i8", "alpha": 0.5},
        {"m": 4, "n": 4, "k": 4, "dtype": "i8", "beta": 1.5},
        {"m": 4, "n": 4, "k": 4, "dtype": "i8", "alpha": 2.0**30},
        {"m": 4, "n": 4, "k": 4, "dtype": "f16", "alpha": 1e6},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "alpha": 0},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "alpha": float("inf")},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "beta": float("nan")},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "beta": 10**400},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "beta": "big"},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "ta": "x"},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "tb": 1},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "bias": 1},
        {"m": 2**21, "n": 2**21, "k": 4, "dtype": "f32"},
        {"m": 4, "n": 4, "k": 4, "dtype": "f32", "batch": 2},
    )


class TestBatchedGemm(Products):
    op = ops.registry.get("batched_gemm")
    examples = (
        {"batch": 1, "m": 3, "n": 4, "k": 5, "dtype": "f32"},
        {"batch": 7, "m": 3, "n": 4, "k": 5, "dtype": "f32", "ta": "t", "bias": True},
        {"batch": 5, "m": 30, "n": 4, "k": 21, "dtype": "bf16", "tb": "t", "beta": 1.0},
        {"batch": 6, "m": 3, "n": 40, "k": 11, "dtype": "i8"},
        {"batch": 3, "m": 8, "n": 8, "k": 40, "a": "f8e5m2", "b": "f8e4m3", "c": "f16"},
    )
    refused = (
        {"m": 4, "n": 4, "k": 4, "dtype": "f32"},
        {"batch": 0, "m": 4, "n": 4, "k": 4, "dtype": "f32"},
        {"batch": 2**20, "m": 2**10, "n": 4, "k": 2**10, "dtype": "f32"},
    )


class TestAttention(OpContract):
    op = ops.registry.get("attention")
    examples = (
        {"heads": 1, "seq": 1, "dim": 1, "dtype": "f64"},
        {"batch": 2, "heads": 3, "seq": 20, "dim": 8, "dtype": "f32"},
        {"batch": 2, "heads_q": 4, "heads_kv": 2, "seq": 20, "dim": 8, "dtype": "f16",
         "causal": True},
        {"heads_q": 6, "heads_kv": 1, "seq_q": 1, "seq_kv": 37, "dim": 16, "dtype": "bf16"},
        {"heads": 2, "seq_q": 5, "seq_kv": 37, "dim_qk": 24, "dim_v": 16, "dtype": "bf16",
         "causal": "yes", "layout": "bshd", "batch": 3, "o": "f32"},
        {"heads": 2, "seq_q": 30, "seq_kv": 7, "dim": 16, "dtype": "f8e4m3", "scale": 0.5},
        {"heads": 2, "seq": 9, "dim": 16, "dtype": "f8e5m2fnuz", "o": "f16", "scale": 1},
        {"heads": 2, "seq": 9, "dim": 16, "q": "bf16", "kv": "f8e4m3", "layout": "bshd"},
    )  # fmt: skip
    refused = (
        {"heads": 2, "seq": 9, "dtype": "f16"},
        {"heads": 2, "seq_q": 9, "dim": 8, "dtype": "f16"},
        {"heads": 2, "seq": 9, "dim": 8},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "i8"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "o": "bf16"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "acc": "f16"},
        {"heads": 2, "seq": 9, "dim": 8, "q": "f16", "kv": "bf16"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f8e4m3", "o": "f8e4m3"},
        {"heads_q": 6, "heads_kv": 4, "seq": 9, "dim": 8, "dtype": "f16"},
        {"heads": 2, "seq_q": 9, "seq_kv": 8, "dim": 8, "dtype": "f16", "causal": True},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "causal": "maybe"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "scale": "big"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "scale": 0},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "scale": -1.0},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "scale": 99},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "casual": True},
        {"heads": 1, "seq_q": 4, "dim": 8, "dtype": "f16"},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "scale": 1000.0},
        {"heads": 2, "seq": 9, "dim": 8, "dtype": "f16", "layout": "sbhd"},
        {"heads": 2, "seq": 0, "dim": 8, "dtype": "f16"},
    )

    def dense(self, problem, arrays):
        d = problem.dims
        bshd = problem.options["layout"] == "bshd"
        q, k, v = (np.swapaxes(arrays[n], 1, 2) if bshd else arrays[n] for n in "qkv")
        scale = problem.options["scale"]
        scale = d["dim_qk"] ** -0.5 if scale == "auto" else scale
        out = np.empty((d["batch"], d["heads_q"], d["seq_q"], d["dim_v"]))
        for b, h, i in itertools.product(*map(range, out.shape[:3])):
            kv = h // (d["heads_q"] // d["heads_kv"])
            keys = d["seq_kv"] - d["seq_q"] + i + 1 if problem.options["causal"] else d["seq_kv"]
            weights = np.exp(scale * k[b, kv, :keys] @ q[b, h, i])
            out[b, h, i] = weights @ v[b, kv, :keys] / weights.sum()
        return np.swapaxes(out, 1, 2) if bshd else out

    def count_flops(self, problem):
        d = problem.dims
        seen = np.ones((d["seq_q"], d["seq_kv"]))
        if problem.options["causal"]:
            seen = np.tril(seen, d["seq_kv"] - d["seq_q"])
        return d["batch"] * d["heads_q"] * int(seen.sum()) * 2 * (d["dim_qk"] + d["dim_v"])


class TestConv(OpContract):
    op = ops.registry.get("conv")
    examples = (
        {"n": 1, "c": 1, "h": 1, "w": 1, "k": 1, "r": 1, "s": 1, "dtype": "f64"},
        {"n": 2, "c": 3, "h": 9, "w": 7, "k": 4, "r": 3, "s": 3, "dtype": "f32"},
        {"n": 2, "c": 3, "h": 9, "w": 7, "k": 4, "r": 3, "s": 2, "dtype": "f16", "pad": 1},
        {"n": 1, "c": 4, "h": 9, "w": 7, "k": 6, "r": 3, "s": 3, "dtype": "bf16", "groups": 2,
         "stride": 2, "pad_h": 2, "layout": "nhwc"},
        {"n": 3, "c": 5, "h": 6, "w": 6, "k": 10, "r": 2, "s": 3, "dtype": "i8", "groups": 5,
         "dilation": 2, "pad": 3, "stride_w": 3},
        {"n": 3, "c": 5, "h": 6, "w": 8, "k": 2, "r": 2, "s": 3, "x": "i8", "layout": "nhwc",
         "dilation_h": 2},
        {"n": 1, "c": 8, "h": 4, "w": 4, "k": 8, "r": 3, "s": 3, "dtype": "f16", "y": "f32",
         "groups": 8, "pad": 1},
    )  # fmt: skip
    refused = (
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "dtype": "f32"},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 1},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 5, "s": 1, "dtype": "f32"},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 3, "dilation": 2, "dtype": "f32"},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 1, "dtype": "f4e2m1"},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 1, "dtype": "i8", "y": "i8"},
        {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 1, "dtype": "f32", "acc": "f16"},
        {"n": 1, "c": 3, "h": 4, "w": 4, "k": 4, "r": 1, "s": 1, "dtype": "f32", "groups": 2},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "f32", "groups": 2},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "f32", "stride": 0},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "f32", "pad": -1},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "f32",
         "layout": "nwhc"},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "f32", "kernel": 3},
        {"n": 1, "c": 4, "h": 4, "w": 4, "k": 3, "r": 1, "s": 1, "dtype": "i8", "y": "f32"},
    )  # fmt: skip

    def dense(self, problem, arrays):
        return self._each_output(problem, arrays)[0]

    def count_flops(self, problem):
        return self._each_output(problem, None)[1]

    def _each_output(self, problem, arrays):
        d, nhwc = problem.dims, problem.options["layout"] == "nhwc"
        shape = self.op.output(problem).shape
        n, p, q, k = shape if nhwc else (shape[0], shape[2], shape[3], shape[1])
        depth, flops = d["c"] // d["groups"], 0
        y = np.zeros((n, k, p, q))
        x = w = None
        if arrays is not None:
            x = np.moveaxis(arrays["x"], 3, 1) if nhwc else arrays["x"]
            w = np.moveaxis(arrays["w"], 3, 1) if nhwc else arrays["w"]
            x = np.pad(x, ((0, 0), (0, 0), (d["pad_h"],) * 2, (d["pad_w"],) * 2))
        for f, i, j, r, s in itertools.product(*map(range, (k, p, q, d["r"], d["s"]))):
            flops += 2 * n * depth
            if x is not None:
                first = f // (k // d["groups"]) * depth
                row = i * d["stride_h"] + r * d["dilation_h"]
                col = j * d["stride_w"] + s * d["dilation_w"]
                y[:, f, i, j] += x[:, first : first + depth, row, col] @ w[f, :, r, s]
        return np.moveaxis(y, 1, 3) if nhwc else y, flops


class TestMoe(OpContract):
    op = ops.registry.get("moe")
    refused = (
        {"m": 4, "n": 4, "k": 4, "e": 4, "top_k": 2},
        {"m": 4, "n": 4, "k": 4, "e": 4, "top_k": 5, "dtype": "f16"},
        {"m": 4, "n": 4, "k": 4, "e": 2**20, "top_k": 2, "dtype": "f16"},
        {"m": 4, "n": 4, "k": 4, "e": 4, "top_k": 2, "dtype": "i8"},
        {"m": 4, "n": 4, "k": 4, "e": 4, "top_k": 2, "dtype": "bf16", "acc": "bf16"},
        {"m": 4, "n": 16, "k": 32, "e": 4, "top_k": 2, "dtype": "bf16", "w_order": "tiled"},
        {"m": 4, "n": 32, "k": 32, "e": 4, "top_k": 2, "dtype": "f32", "w_order": "tiled"},
        {"m": 4, "n": 32, "k": 32, "e": 4, "top_k": 2, "dtype": "bf16", "w_order": "columns"},
    )

    def dense(self, problem, arrays):
        n = problem.dims["n"]
        out = np.zeros_like(arrays["x"])
        scale = problem.options.get("scale", "none")
        if scale != "none":
            arrays |= {name: self.scaled(arrays, name, scale) for name in ("w1", "w2")}
            group = 128 if scale == "block" else problem.dims["k"]
            arrays["x"] = group_rounded(arrays["x"], group, problem.dtypes["w"])
        if "w_order" in problem.options:
            arrays |= {name: self.untiled(arrays[name]) for name in ("w1", "w2")}
        for t, slot in np.ndindex(arrays["ids"].shape):
            expert = int(arrays["ids"][t, slot])
            both = arrays["w1"][expert] @ arrays["x"][t]
            gate, up = both[:n], both[n:]
            h = gate / (1 + np.exp(-gate)) * up
            out[t] += arrays["weights"][t, slot] * (arrays["w2"][expert] @ h)
        return out

    @staticmethod
    def scaled(arrays, name, scale):
        factors, weights = arrays[f"{name}_scale"], arrays[name]
        if scale == "block":
            return weights * np.kron(factors, np.ones((128, 128)))
        return weights * factors.reshape(*factors.shape, *[1] * (3 - factors.ndim))

    @staticmethod
    def untiled(weights):
        """Tiles of 16 rows by 32 columns, of which 8 columns of each row are consecutive."""
        rows = np.empty_like(weights)
        for expert, row, column in np.ndindex(weights.shape):
            tile = row // 16 * (weights.shape[2] // 32) + column // 32
            at = (tile * 4 + column % 32 // 8) * 128 + row % 16 * 8 + column % 8
            rows[expert, row, column] = weights[expert].flat[at]
        return rows

    def count_flops(self, problem):
        d = problem.dims
        one = sum(2 for _ in np.ndindex(2 * d["n"], d["k"])) + 2 * d["k"] * d["n"]
        return one * d["m"] * d["top_k"]


class TestGroupedGemm(OpContract):
    op = ops.registry.get("grouped_gemm")
    refused = (
        {"m": 4, "n": 4, "k": 4, "e": 4},
        {"m": 4, "n": 4, "k": 4, "e": 2**20, "dtype": "f16"},
        {"m": 4, "n": 4, "k": 4, "e": 4, "dtype": "i8"},
        {"m": 4, "n": 4, "k": 4, "e": 4, "dtype": "bf16", "acc": "bf16"},
        {"m": 4, "n": 4, "k": 4, "e": 4, "dtype": "bf16", "split": "uneven"},
    )

    def dense(self, problem, arrays):
        out, start = np.zeros((problem.dims["m"], problem.dims["n"])), 0
        for group, end in enumerate(arrays["ends"].astype(int)):
            out[start:end] = arrays["x"][start:end] @ arrays["w"][group].T
            start = end
        assert start == problem.dims["m"]
        return out


class TestCopy(OpContract):
    op = ops.registry.get("copy")
    examples = (
        {"n": 1, "dtype": "f32"},
        {"n": 77, "dtype": "f64"},
        {"n": 5000, "dtype": "bf16"},
        {"n": 300, "x": "i8"},
        {"n": 300, "dtype": "f8e4m3fnuz"},
    )
    refused = (
        {"dtype": "f32"},
        {"n": 8},
        {"n": 0, "dtype": "f32"},
        {"n": 8, "dtype": "i32"},
        {"n": 8, "dtype": "f4e2m1"},
        {"n": 8, "dtype": "f32", "m": 8},
    )

    def dense(self, problem, arrays):
        return arrays["x"]

    def count_flops(self, problem):
        return 0


@functools.cache
def ops_with_contract():
    texts = (path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    return set(re.findall(r'\n    op = ops\.registry\.get\("(\w+)"\)\n', "".join(texts)))


# By name: `-k NAME` of a new op selects its case too.
@pytest.mark.parametrize("name", ops.registry.names())
def test_every_op_has_a_contract(name):
    assert name in ops_with_contract(), (
        f"write tests/contract/test_{name}.py, a subclass of OpContract with the line"
        f' op = ops.registry.get("{name}"): CONTRIBUTING.md, An op'
    )
