"""Where outputs are checked: corners, tile edges, everywhere; and at what cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import POSITIONS, axis, contract, grid, rng_for, sides

LARGE = [
    "gemm m=8192 n=8192 k=8192 dtype=bf16",
    "gemm m=1 n=128256 k=16384 dtype=bf16 tb=t",
    "gemm m=16 n=16 k=1048576 dtype=f16 ta=t",
    "gemm m=2000000000 n=1 k=3 dtype=i8",
    "batched_gemm batch=1000 m=4096 n=128 k=4096 dtype=f16",
    "attention batch=16 heads=128 heads_kv=8 seq=8192 dim=128 dtype=bf16 causal=yes",
    "attention batch=64 heads=64 heads_kv=8 seq_q=1 seq_kv=131072 dim=128 dtype=f16 layout=bshd",
    "attention heads=24 seq_q=100000 seq_kv=77 dim=64 dtype=f8e4m3",
    "conv n=128 c=2048 h=64 w=64 k=2048 r=3 s=3 pad=1 dtype=f16 layout=nhwc",
    "conv n=32 c=960 h=112 w=112 k=960 r=5 s=5 pad=2 groups=960 dtype=f32",
    "conv n=1 c=1 h=4000 w=4000 k=1 r=1 s=1 dtype=i8",
    "moe m=8192 n=768 k=2048 e=128 top_k=8 dtype=bf16",
    "moe m=200 n=24 k=7168 e=256 top_k=8 dtype=f16",
]


@given(st.integers(1, 2**31 - 1), st.integers(2, 64), st.integers(0, 2**32))
def test_an_axis_has_its_ends_and_as_many_as_asked_for(length, count, seed):
    found = axis(length, count, rng_for(seed))
    assert found.dtype == np.int64
    assert len(found) == min(length, count)
    assert (np.diff(found) > 0).all()
    assert (found[0], found[-1]) == (0, length - 1)


def test_an_axis_has_tile_edges_and_others():
    edges = {t + d for t in (16, 32, 64, 128, 256, 768, 896, 960, 992) for d in (-1, 0)} | {0, 999}
    found = set(axis(1000, 32, rng_for(1)).tolist())
    assert 8 <= len(found & edges) <= 24


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 2**20), st.integers(1, 4))
def test_sides_stay_inside_their_budgets(rows, cols, terms, groups):
    row_count, col_count = sides(rows, cols, terms, groups)
    assert 1 <= row_count <= rows
    assert 1 <= col_count <= cols
    assert row_count * col_count * groups <= POSITIONS
    assert row_count >= min(rows, 4)
    assert col_count >= min(cols, 4)
    assert (row_count + col_count) * terms * groups <= max(2**20, 8 * groups * terms)


def test_grid_is_every_combination():
    shape, axes = (3, 4, 5), (np.array([0, 2]), np.array([1]), np.array([0, 4]))
    expected = [np.ravel_multi_index((i, 1, k), shape) for i in (0, 2) for k in (0, 4)]
    assert grid(shape, axes).tolist() == expected


@pytest.mark.parametrize("key", LARGE)
def test_large_problems_are_checked_at_their_corners_and_cheaply(key):
    problem = ops.parse(key)
    op = ops.registry.get(problem.op)
    where = op.positions(problem, 7)
    count = op.output(problem).count
    assert (np.diff(where) > 0).all()
    assert 1 < len(where) <= POSITIONS
    assert where[0] >= 0
    assert where[-1] < count
    if problem.op in ("gemm", "conv"):
        assert {0, count - 1} <= set(where.tolist())

    class Counting(Inputs):
        taken = 0

        def take(self, name, where):
            Counting.taken += where.size
            return super().take(name, where)

    inputs = Counting(op.tensors(problem), 1, 0)
    found = op.reference(problem, inputs, where)
    assert np.isfinite(found.value).all()
    # 10 ns each: at most a few tens of milliseconds, but for the longest single rows
    assert Counting.taken <= max(2**22, 9 * _shortest(problem))


def _shortest(problem):
    """Elements that even one row and one column need."""
    d = problem.dims
    return d["seq_kv"] * (d["dim_qk"] + 16) if problem.op == "attention" else d.get("k", 0)


@pytest.mark.parametrize("key", LARGE)
def test_a_seed_decides_where(key):
    problem = ops.parse(key)
    op = ops.registry.get(problem.op)
    assert np.array_equal(op.positions(problem, 3), op.positions(problem, 3))
    assert not np.array_equal(op.positions(problem, 3), op.positions(problem, 4))


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 99))
def test_sums_at_scattered_positions(count, terms, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(3, 50, terms)), rng.normal(size=(3, terms, 40))
    where = (rng.integers(0, 3, count), rng.integers(0, 50, count), rng.integers(0, 40, count))
    value, magnitude = contract(
        where, terms, lambda g, i, t: a[g][i, t], lambda g, j, t: b[g][t, j]
    )
    np.testing.assert_allclose(value, (a @ b)[where], atol=1e-12)
    np.testing.assert_allclose(magnitude, (np.abs(a) @ np.abs(b))[where], atol=1e-12)


def test_many_scattered_positions_are_split_and_long_sums_chunked():
    terms = 500
    a = np.random.default_rng(1).normal(size=(2200, terms))
    b = np.random.default_rng(2).normal(size=(terms, 2000))
    row, col = np.arange(2200), np.arange(2200) % 2000
    value, _ = contract(
        (row * 0, row, col), terms, lambda g, i, t: a[i, t], lambda g, j, t: b[t, j]
    )
    np.testing.assert_allclose(value, (a * b.T[col]).sum(axis=1), atol=1e-9)
