"""gemm_epilogue keeps the contract; its activations, scales and checks are what it says."""

import math

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.numerics.floats import decode, encode
from kernelmark.ops.gemm_epilogue import ACTIVATIONS, scale_place
from kernelmark.testing import OpContract
from kernelmark.testing.ops import arrays_of, inputs_of

OP = ops.registry.get("gemm_epilogue")
PLAIN = {"m": 8, "n": 8, "k": 64}


def one(x, act):
    """An activation of one number, by the textbook."""
    if act == "gelu":
        return 0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    return {"none": x, "relu": x if x > 0 else 0.0, "silu": x / (1 + math.exp(-x))}[act]


def untiled(scales, lines, blocks):
    """Scales of 128x4 tiles as rows, by cuBLASLt's own description of a tile."""
    tiles = scales.reshape(-(-lines // 128), -(-blocks // 4), 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-(-lines // 128) * 128, -1)[:lines, :blocks]


def dense(problem, arrays, act=None):
    dims, options = problem.dims, problem.options
    a, b = arrays["a"], arrays["b"]
    if options["scale"] == "mx":
        for name, lines in (("a", dims["m"]), ("b", dims["n"])):
            scales = arrays[f"{name}_scale"]
            if options["scale_layout"] == "swizzle_32_4_4":
                scales = untiled(scales, lines, dims["k"] // 32)
            arrays = {**arrays, name: arrays[name] * np.repeat(scales, 32, axis=1)}
        a, b = arrays["a"], arrays["b"]
    if options["scale"] == "block":
        rows = np.repeat(arrays["b_scale"], 128, axis=0)[: dims["n"]]
        a = a * np.repeat(arrays["a_scale"], 128, axis=1)
        b = b * np.repeat(rows, 128, axis=1)
    d = (a.T if options["ta"] == "t" else a) @ (b.T if options["tb"] == "t" else b)
    if options["scale"] == "tensor":
        d = d * arrays["a_scale"][0] * arrays["b_scale"][0]
    if options["scale"] == "row":
        d = arrays["a_scale"][:, None] * d * arrays["b_scale"][None, :]
    if options["bias"]:
        d = d + arrays["bias"]
    d = np.vectorize(one)(d, act or options["act"])
    if "d_scale" in arrays:
        top = {"f8e4m3": 448, "f8e4m3fnuz": 240}.get(problem.dtypes["c"], 57344)
        d = np.clip(d * arrays["d_scale"][0], -top, top)
    return d


class TestGemmEpilogue(OpContract):
    op = ops.registry.get("gemm_epilogue")
    refused = (
        {**PLAIN, "dtype": "f64"},
        {**PLAIN, "dtype": "i8"},
        {**PLAIN, "dtype": "f16", "act": "tanh"},
        {**PLAIN, "dtype": "f16", "scale": "tensor"},
        {**PLAIN, "dtype": "f16", "acc": "f16"},
        {**PLAIN, "dtype": "f8e4m3", "c": "f8e4m3"},
        {**PLAIN, "dtype": "f8e4m3", "c": "f8e4m3fnuz", "scale": "tensor"},
        {**PLAIN, "dtype": "f8e4m3fnuz", "scale": "mx"},
        {**PLAIN, "dtype": "f8e4m3", "c": "f8e4m3", "scale": "mx"},
        {**PLAIN, "dtype": "f8e4m3", "c": "f8e4m3", "scale": "row"},
        {**PLAIN, "dtype": "f16", "scale": "row"},
        {**PLAIN, "dtype": "f8e4m3", "scale": "block"},  # k=64
        {**PLAIN, "dtype": "f8e4m3", "scale": "block", "k": 128, "tb": "n"},
        {**PLAIN, "dtype": "f4e2m1"},
        {**PLAIN, "dtype": "f4e2m1", "scale": "mx", "tb": "n"},
        {**PLAIN, "dtype": "f4e2m1", "scale": "mx", "ta": "t"},
        {**PLAIN, "dtype": "f4e2m1", "scale": "mx", "k": 48},
        {**PLAIN, "dtype": "f16", "scale_layout": "linear"},
        {**PLAIN, "dtype": "f16", "bias_type": "f16"},
        {**PLAIN, "dtype": "f16", "bias": True, "bias_type": "bf16"},
    )

    def dense(self, problem, arrays):
        return dense(problem, arrays)

    def count_flops(self, problem):
        return 2 * sum(1 for _ in np.ndindex(*problem.dims.values()))


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_steepest_slope_is_the_largest(act):
    x = np.linspace(-8, 8, 100_001)
    slopes = np.abs(np.diff(ACTIVATIONS[act].apply(x)) / np.diff(x))
    assert 0.99 * ACTIVATIONS[act].steepest < slopes.max() <= ACTIVATIONS[act].steepest + 1e-9


@pytest.mark.parametrize("lines", [1, 128, 200])
@pytest.mark.parametrize("k", [32, 128, 416])
def test_tiles_have_a_place_for_every_scale(lines, k):
    problem = OP.problem(
        m=lines, n=1, k=k, dtype="f4e2m1", scale="mx", scale_layout="swizzle_32_4_4"
    )
    line, block = np.mgrid[:lines, : k // 32]
    where = scale_place(problem, line, block)
    count = next(spec.count for spec in OP.tensors(problem) if spec.name == "a_scale")
    assert len(np.unique(where)) == where.size
    assert where.max() < count
    np.testing.assert_array_equal(untiled(np.arange(count), lines, k // 32), where)


def is_right(problem, got, seed=1):
    """Whether all elements are within the tolerance."""
    right = OP.reference(problem, inputs_of(OP, problem, seed), np.arange(got.size))
    allowed = OP.tolerance(problem)
    limit = allowed.per_magnitude * right.magnitude + allowed.absolute
    limit += allowed.per_value * np.abs(right.value)
    return bool((np.abs(got.ravel() - right.value) <= limit).all())


def rounded(values, kind):
    return decode(encode(values, kind), kind)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f8e4m3"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_an_epilogue_of_its_own_may_round_twice(dtype, act):
    problem = OP.problem(m=64, n=64, k=512, dtype=dtype, act=act, bias=True)
    arrays, c = arrays_of(OP, problem), problem.dtypes["c"]
    product = rounded(dense(problem, {**arrays, "bias": 0.0}, "none"), c)
    assert is_right(problem, rounded(np.vectorize(one)(product + arrays["bias"], act), c))


@pytest.mark.parametrize(
    "rest",
    [
        {"dtype": "f32", "act": "gelu", "bias": True},
        {"dtype": "bf16", "act": "gelu"},
        {"dtype": "f16", "act": "silu", "bias": True},
        {"dtype": "f8e4m3", "act": "relu", "scale": "tensor", "bias": True},
        {"dtype": "f8e4m3", "c": "f8e4m3", "scale": "tensor"},
        {"dtype": "f8e4m3", "act": "silu", "scale": "mx"},
        {
            "dtype": "f4e2m1",
            "act": "gelu",
            "scale": "mx",
            "scale_layout": "swizzle_32_4_4",
            "bias": True,
        },
    ],
    ids=lambda rest: " ".join(f"{name}={value}" for name, value in rest.items()),
)
def test_what_leaves_a_part_out_is_wrong(rest):
    problem = OP.problem(m=64, n=64, k=512, **rest)
    arrays = arrays_of(OP, problem)
    assert is_right(problem, rounded(dense(problem, arrays), problem.dtypes["c"]))
    for name in arrays.keys() & {"bias", "a_scale", "b_scale", "d_scale"}:
        other = np.zeros_like(arrays[name]) if name == "bias" else np.ones_like(arrays[name])
        assert not is_right(problem, dense(problem, arrays | {name: other})), name
    for act in ACTIVATIONS.keys() - {problem.options["act"]}:
        assert not is_right(problem, dense(problem, arrays, act)), act


@pytest.mark.parametrize("k", [1, 16, 64, 4096])
@pytest.mark.parametrize("c", ["bf16", "f8e4m3"])
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 50), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_kernel_that_ignores_a_factor_fails_with_every_seed(k, c, seeds):
    problem = OP.problem(
        m=16, n=16, k=k, dtype="f8e4m3", c=c, act="gelu", bias=True, scale="tensor"
    )
    for seed in seeds:
        arrays = {
            spec.name: inputs_of(OP, problem, seed).whole(spec.name)
            for spec in OP.tensors(problem)
            if spec.role == "in"
        }
        assert is_right(problem, rounded(dense(problem, arrays), c), seed)
        for name in arrays.keys() & {"a_scale", "b_scale", "d_scale"}:
            wrong = dense(problem, arrays | {name: np.ones(1)})
            assert not is_right(problem, rounded(wrong, c), seed), (name, seed)


def test_gelu_by_erf_is_another_function():
    problem = OP.problem(m=64, n=64, k=512, dtype="f32", act="gelu")
    x = dense(problem, arrays_of(OP, problem), "none")
    by_erf = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))(x)
    assert not is_right(problem, by_erf)


@pytest.mark.parametrize("key", OP.examples)
def test_a_tenth_of_the_output_is_not_enough(key):
    """Positions that each check draws anew: right at all of them by chance once in 10^9."""
    problem = ops.parse(key)
    where = OP.scattered(problem, np.random.default_rng(1))
    assert OP.contraction(problem) is None
    assert 0.1 ** len(where) < 1e-9
