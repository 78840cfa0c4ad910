"""batched_gemm_quant keeps the contract; its quantising is checked against plain loops."""

import math

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.numerics.floats import decode, encode
from kernelmark.ops.batched_gemm_quant import SCHEMES, group_rounded
from kernelmark.testing import OpContract

TOP = {"f8e4m3": 448.0, "f8e4m3fnuz": 240.0, "i8": 127.0}


def grouped(row, group, to):
    """One row, quantised element by element in f32."""
    out = np.empty(len(row))
    for start in range(0, len(row), group):
        part = row[start : start + group].astype(np.float32)
        scale = np.float32(max(np.abs(part).max(), np.float32(1e-10))) / np.float32(TOP[to])
        inverse = np.float32(1) / scale
        for i, x in enumerate(part):
            y = float(np.float32(x * inverse))
            out[start + i] = decode(encode(np.array([y]), to), to)[0] * float(scale)
    return out


def mx(row):
    out = np.empty(len(row))
    for start in range(0, len(row), 32):
        part = row[start : start + 32]
        fraction, exponent = math.frexp(np.abs(part).max())
        unit = 2.0 ** (exponent - 1 + (fraction >= 0.875) - 2)
        out[start : start + 32] = decode(encode(part / unit, "f4e2m1"), "f4e2m1") * unit
    return out


class TestBatchedGemmQuant(OpContract):
    op = ops.registry.get("batched_gemm_quant")
    examples = (
        {"batch": 2, "m": 5, "n": 7, "k": 33, "scheme": "a8w8"},
        {"batch": 3, "m": 5, "n": 7, "k": 33, "scheme": "a8w8", "bias": True, "dtype": "f16",
         "a_order": "mbk", "c_order": "mbn"},
        {"batch": 2, "m": 5, "n": 7, "k": 300, "scheme": "a8w8_group"},
        {"batch": 2, "m": 5, "n": 7, "k": 70, "scheme": "a8w8_group", "group": 32, "b": "i8",
         "bias": True, "a_order": "mbk"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8_group", "b": "f8e4m3fnuz",
         "a": "f16", "c_order": "mbn"},
        {"batch": 2, "m": 5, "n": 7, "k": 96, "scheme": "a16wfp4", "a_order": "mbk"},
        {"batch": 2, "m": 5, "n": 7, "k": 96, "scheme": "a16wfp4", "c_order": "mbn", "c": "f16"},
        {"batch": 3, "m": 5, "n": 7, "k": 64, "scheme": "afp4wfp4", "a_order": "mbk",
         "c_order": "mbn"},
    )  # fmt: skip
    refused = (
        {"batch": 2, "m": 5, "n": 7, "k": 33, "scheme": "a4w4"},
        {"batch": 2, "m": 5, "n": 7, "k": 33, "scheme": "afp4wfp4"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "afp4wfp4", "bias": True},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8", "group": 64},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8_group", "group": 48},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8_group", "group": 1024},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8", "a": "bf16"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8", "c": "f32"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a16wfp4", "b": "f8e4m3"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8", "dtype": "f32"},
        {"batch": 2, "m": 5, "n": 7, "k": 64, "scheme": "a8w8", "a_order": "kbm"},
    )

    def dense(self, problem, arrays):
        options = problem.options
        a, b = arrays["a"], arrays["b"]
        if options["a_order"] == "mbk":
            a = np.swapaxes(a, 0, 1)
        scale_a = arrays.get("a_scale")
        if scale_a is not None and options["a_order"] == "mbk":
            scale_a = np.swapaxes(scale_a, 0, 1)
        scheme = options["scheme"]
        if scheme == "a8w8":
            d = np.einsum("bmk,bnk->bmn", a, b) * scale_a[:, :, None] * arrays["b_scale"][:, None]
        elif scheme == "a8w8_group":
            to = problem.dtypes["b"]
            a = np.apply_along_axis(grouped, -1, a, problem.dims["group"], to)
            d = np.einsum("bmk,bnk->bmn", a, b) * arrays["b_scale"][0]
        else:
            b = b * np.repeat(arrays["b_scale"], 32, axis=-1)
            if scheme == "a16wfp4":
                a = np.apply_along_axis(mx, -1, a)
            else:
                a = a * np.repeat(scale_a, 32, axis=-1)
            d = np.einsum("bmk,bnk->bmn", a, b)
        if options["bias"]:
            d = d + arrays["bias"][:, None, :]
        return np.swapaxes(d, 0, 1) if options["c_order"] == "mbn" else d

    def count_flops(self, problem):
        return 2 * sum(1 for _ in np.ndindex(*(problem.dims[x] for x in ("batch", "m", "n", "k"))))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_kernel_that_leaves_out_the_scales_is_wrong(scheme):
    op = ops.registry.get("batched_gemm_quant")
    problem = op.problem(batch=2, m=8, n=8, k=128, scheme=scheme)
    specs = {spec.name: spec for spec in op.tensors(problem)}
    assert "b_scale" in specs
    assert specs["b_scale"].low > 0
    assert 1 not in (specs["b_scale"].low, specs["b_scale"].low + specs["b_scale"].high)


def test_a_product_without_quantising_a_is_wrong():
    """Unquantised A differs by far more than the tolerance: the check sees a skipped step."""
    from kernelmark.testing.ops import arrays_of, inputs_of

    op = ops.registry.get("batched_gemm_quant")
    for scheme in ("a8w8_group", "a16wfp4"):
        problem = op.problem(batch=1, m=8, n=64, k=512, scheme=scheme)
        arrays = arrays_of(op, problem)
        b = arrays["b"]
        if scheme == "a16wfp4":
            b = b * np.repeat(arrays["b_scale"], 32, axis=-1)
            factor = 1.0
        else:
            factor = arrays["b_scale"][0]
        lazy = (factor * np.einsum("bmk,bnk->bmn", arrays["a"], b)).ravel()
        right = op.reference(problem, inputs_of(op, problem), np.arange(lazy.size))
        allowed = op.tolerance(problem)
        limit = allowed.per_magnitude * right.magnitude + allowed.absolute
        limit += allowed.per_value * np.abs(right.value)
        assert (np.abs(lazy - right.value) > limit).any(), scheme


def test_a_group_of_zeros_stays_zero():
    assert not group_rounded(np.zeros((2, 64)), 32, "f8e4m3").any()
