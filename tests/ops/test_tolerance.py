"""Tolerances against simulated kernels: correct ones pass with room that is neither nothing nor
everything, and planted errors are caught at the positions that are checked."""

import math

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.core.dtype import dtype
from kernelmark.numerics.floats import decode, encode
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import accumulation, trend


class Checked:
    """A problem with its inputs as arrays, its answer everywhere, and what is allowed."""

    def __init__(self, text, seed=1):
        self.problem = ops.parse(text)
        self.op = ops.registry.get(self.problem.op)
        specs = self.op.tensors(self.problem)
        inputs = Inputs(specs, seed, 0)
        self.arrays = {
            s.name: inputs.take(s.name, np.arange(s.count)).reshape(s.shape) for s in specs[:-1]
        }
        self.out = specs[-1]
        found = self.op.reference(self.problem, inputs, np.arange(self.out.count))
        tolerance = self.op.tolerance(self.problem)
        self.value = found.value
        self.allowed = (
            tolerance.per_magnitude * found.magnitude
            + tolerance.per_value * np.abs(found.value)
            + tolerance.absolute
        )

    def worst(self, output, everywhere=True):
        """Largest error in units of what is allowed; of the checked positions or of all."""
        error = np.abs(rounded(output, self.out.dtype).ravel() - self.value) / self.allowed
        where = slice(None) if everywhere else self.op.positions(self.problem, 1)
        return np.nan_to_num(error[where], nan=np.inf).max()

    def catches(self, output):
        return self.worst(output, everywhere=False) > 1


def rounded(values, name):
    return decode(encode(np.asarray(values, np.float64), name), name)


def one_by_one(a, b, kind):
    """The worst order there is: term after term, product and sum each rounded."""
    a, b = a.astype(kind), b.astype(kind)
    total = np.zeros((a.shape[0], b.shape[1]), kind)
    for t in range(a.shape[1]):
        total += a[:, t, None] * b[t]
    return total.astype(np.float64)


def matrix_unit(a, b, digits, group):
    """A unit that aligns `group` products with the accumulator and cuts off after `digits`."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for t in range(0, a.shape[1], group):
        terms = a[:, t : t + group].T[:, :, None] * b[t : t + group, None, :]
        largest = np.maximum(np.abs(total), np.abs(terms).max(axis=0))
        step = np.ldexp(1.0, np.frexp(largest)[1] - digits)
        total = (np.trunc(total / step) + np.trunc(terms / step).sum(axis=0)) * step
        fraction, exponent = np.frexp(total)
        total = np.ldexp(np.trunc(np.ldexp(fraction, digits)), exponent - digits)
    return total


KERNELS = {
    "f32 one by one": ("dtype=f32", lambda a, b: one_by_one(a, b, np.float32)),
    "f16 one by one": ("dtype=f16 acc=f16", lambda a, b: one_by_one(a, b, np.float16)),
    "f16 by a library": ("dtype=f16", lambda a, b: a.astype(np.float32) @ b.astype(np.float32)),
    "bf16 by a cutting unit": ("dtype=bf16 c=f32", lambda a, b: matrix_unit(a, b, 24, 4)),
    "bf16 rounded": ("dtype=bf16", lambda a, b: matrix_unit(a, b, 24, 16)),
    "f8 by a unit of 14 digits": ("dtype=f8e4m3 c=f32", lambda a, b: matrix_unit(a, b, 14, 32)),
    "f8 rounded to f8": ("dtype=f8e5m2 c=f8e5m2", lambda a, b: matrix_unit(a, b, 14, 32)),
}


@pytest.mark.parametrize("k", [1, 2, 7, 40, 300, 3000])
@pytest.mark.parametrize("name", KERNELS)
def test_correct_products_pass_with_sensible_room(name, k):
    dtypes, kernel = KERNELS[name]
    checked = Checked(f"gemm m=48 n=48 k={k} {dtypes}", seed=k)
    worst = checked.worst(kernel(checked.arrays["a"], checked.arrays["b"]))
    assert worst <= 1
    assert k < 3 or worst > 1e-3


def test_integers_are_exact():
    checked = Checked("gemm m=20 n=20 k=5000 dtype=i8")
    assert (checked.allowed == 0).all()
    exact = checked.arrays["a"] @ checked.arrays["b"]
    assert np.array_equal(exact.ravel(), checked.value)


@pytest.mark.parametrize("dtypes", ["dtype=f32", "dtype=bf16", "dtype=f16 c=f32"])
@pytest.mark.parametrize("k", [64, 1000])
def test_errors_planted_in_a_product_are_caught(dtypes, k):
    checked = Checked(f"gemm m=96 n=80 k={k} {dtypes} beta=1.0 bias=yes")
    a, b, c, bias = (checked.arrays[name] for name in ("a", "b", "c", "bias"))
    right = a @ b + c + bias
    assert not checked.catches(right)
    swapped = right.copy()
    swapped[[3, 0]] = swapped[[0, 3]]
    for wrong in (
        a[:, 1:] @ b[1:] + c + bias,  # one term is missing
        a[:, :-1] @ b[:-1] + c + bias,
        a @ b + bias,
        a @ b + c,
        a @ b + c + np.roll(bias, 1),
        1.01 * (a @ b) + c + bias,
        right * np.where(np.arange(80) == 79, -1, 1),  # the last column only
        swapped,
    ):
        assert checked.catches(wrong)


def test_a_missing_term_is_caught_in_a_long_sum():
    checked = Checked("gemm m=32 n=32 k=50000 dtype=f32")
    a, b = checked.arrays["a"], checked.arrays["b"]
    assert checked.worst(one_by_one(a, b, np.float32)) < 1
    assert checked.catches(a[:, 1:] @ b[1:])


def test_a_sum_with_a_trend_is_allowed_for():
    """Inputs that happen to line up give sums of squares, whose partial sums only grow."""
    rng = np.random.default_rng(1)
    for terms in (10, 1000, 20000):
        a = rng.uniform(0, 1, (64, terms)).astype(np.float32).astype(np.float64)
        b = rng.uniform(0, 1, (terms, 64)).astype(np.float32).astype(np.float64)
        exact = a @ b
        error = np.abs(one_by_one(a, b, np.float32) - exact)
        kind = dtype("f32")
        allowed = (accumulation(terms, kind, kind) + trend(terms, kind, kind)) * exact
        assert 1e-3 < (error / allowed).max() < 1


def test_bounds_never_exceed_the_certain_ones():
    for name in ("f64", "f32", "f16"):
        kind = dtype(name)
        acc = kind if kind.bits > 16 else dtype("f32")
        for terms in (1, 2, 5, 100, 10**6):
            certain = terms * (acc.unit_roundoff + 2 * 2.0**-24 * (kind.bits == 16))
            assert 0 < accumulation(terms, kind, acc) <= certain


def flash(problem, arrays, *, stretch=1.0, shift=0, rotate=0, scaled_q=False, skip=0):
    """Flash attention in f32 with weights rounded to the input dtype; the rest are faults."""
    d, single = problem.dims, np.float32
    share = d["heads_q"] // d["heads_kv"]
    k, v = (np.roll(np.repeat(arrays[n], share, axis=1), rotate, axis=1) for n in "kv")
    given = problem.options["scale"]
    factor = single(stretch * (d["dim_qk"] ** -0.5 if given == "auto" else given))
    q = arrays["q"].astype(single)
    if scaled_q:
        q, factor = rounded(q * factor, problem.dtypes["q"]).astype(single), single(1)
    top = np.full(q.shape[:3], -np.inf, single)
    divisor, total = np.zeros_like(top), np.zeros((*q.shape[:3], d["dim_v"]), single)
    for start in range(skip, d["seq_kv"], 64):
        scores = q @ k[:, :, start : start + 64].astype(single).swapaxes(2, 3) * factor
        if problem.options["causal"]:
            column = np.arange(start, start + scores.shape[3])
            last = np.arange(d["seq_q"])[:, None] + d["seq_kv"] - d["seq_q"] + shift
            scores = np.where(column <= last, scores, single(-np.inf))
        new = np.maximum(top, scores.max(axis=3))
        safe = np.where(np.isinf(new), single(0), new)
        weights, shrink = np.exp(scores - safe[..., None]), np.exp(top - safe)
        divisor = divisor * shrink + weights.sum(axis=3)
        coarse = rounded(weights, problem.dtypes["kv"]).astype(single)
        total = total * shrink[..., None] + coarse @ v[:, :, start : start + 64].astype(single)
        top = new
    with np.errstate(invalid="ignore"):
        return total / divisor[..., None]


SHAPES = [
    "heads=4 heads_kv=2 seq=80 dim=32 causal=yes",
    "heads=4 heads_kv=1 seq_q=1 seq_kv=1500 dim=64",
    "heads=2 seq_q=60 seq_kv=900 dim=64 dim_v=32 causal=yes",
    "heads=1 seq_q=70 seq_kv=300 dim=64 scale=1.5",
    "heads=1 seq_q=70 seq_kv=300 dim=64 scale=0.001",
]


@pytest.mark.parametrize("dtypes", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2fnuz"])
@pytest.mark.parametrize("shape", SHAPES)
def test_correct_attention_passes_with_sensible_room(shape, dtypes):
    checked = Checked(f"attention {shape} dtype={dtypes}")
    for scaled_q in (False, True):
        worst = checked.worst(flash(checked.problem, checked.arrays, scaled_q=scaled_q))
        assert 1e-3 < worst <= 1


@pytest.mark.parametrize(
    ("dtypes", "stretch"), [("f32", 1.001), ("f32", 1.01), ("f16", 1.01), ("bf16", 1.1)]
)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_wrong_scale_is_caught(shape, dtypes, stretch):
    checked = Checked(f"attention {shape} dtype={dtypes}")
    assert checked.catches(flash(checked.problem, checked.arrays, stretch=stretch))


@pytest.mark.parametrize("dtypes", ["f32", "f16", "bf16"])
def test_a_wrong_mask_head_or_key_is_caught(dtypes):
    for shape in (SHAPES[0], SHAPES[2]):
        checked = Checked(f"attention {shape} dtype={dtypes}")
        for fault in ({"shift": 1}, {"shift": -1}, {"rotate": 1}, {"skip": 1}):
            assert checked.catches(flash(checked.problem, checked.arrays, **fault)), fault


@pytest.mark.parametrize("dtypes", ["f8e4m3", "f8e5m2"])
def test_gross_errors_are_caught_even_in_8_bits(dtypes):
    checked = Checked(f"attention {SHAPES[0]} dtype={dtypes}")
    for fault in ({"shift": 1}, {"shift": -1}, {"rotate": 1}, {"skip": 16}):
        assert checked.catches(flash(checked.problem, checked.arrays, **fault)), fault


def image_to_columns(problem, x):
    """(n·p·q, c·r·s) for one group and layout nchw."""
    d = problem.dims
    x = np.pad(x, ((0, 0), (0, 0), (d["pad_h"],) * 2, (d["pad_w"],) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, (d["r"], d["s"]), (2, 3))
    windows = windows[:, :, :: d["stride_h"], :: d["stride_w"]]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, d["c"] * d["r"] * d["s"])


@pytest.mark.parametrize("dtypes", ["f32", "f16", "bf16"])
def test_convolutions(dtypes):
    checked = Checked(f"conv n=2 c=20 h=12 w=11 k=24 r=3 s=3 pad=1 stride_w=2 dtype={dtypes}")
    columns = image_to_columns(checked.problem, checked.arrays["x"])
    filters = checked.arrays["w"].reshape(24, -1)

    def image(product):
        n, k, p, q = checked.out.shape
        return product.reshape(n, p, q, k).transpose(0, 3, 1, 2)

    right = image(one_by_one(columns, filters.T, np.float32))
    assert 1e-3 < checked.worst(right) <= 1
    flipped = filters.reshape(24, 20, 9)[:, :, ::-1].reshape(24, -1)
    for wrong in (
        image(columns[:, 1:] @ filters[:, 1:].T),
        image(columns @ flipped.T),
        np.roll(right, 1, axis=3),
        np.roll(right, 1, axis=1),
        right * 1.01,
    ):
        assert checked.catches(wrong)


def test_why_names_the_figures():
    op = ops.registry.get("gemm")
    why = op.tolerance(op.problem(m=4, n=4, k=4096, dtype="bf16")).why
    assert "4096 products of bf16 summed in f32" in why
    assert f"{2.0**-8:.2g}" in why
    assert math.isfinite(op.tolerance(op.problem(m=4, n=4, k=2**30, dtype="f8e4m3")).per_value)
