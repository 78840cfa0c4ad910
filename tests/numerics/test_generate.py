"""The input generator: reproducible, uniform, the same for every reader."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.dtype import DTYPES
from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.generate import POOL, Inputs, hash32, offset, pool_bits, pool_values


def spec(**changes):
    return TensorSpec(**{"name": "a", "shape": (1000, 3000), "dtype": "f32"} | changes)


def test_hash_is_what_devices_compute():
    """Known answers, by Python integers: a device's generator must give the same."""

    def plain(index, seed):
        h = (index * 0x9E3779B1 + seed) & 0xFFFFFFFF
        h ^= h >> 16
        h = (h * 0x85EBCA6B) & 0xFFFFFFFF
        h ^= h >> 13
        h = (h * 0xC2B2AE35) & 0xFFFFFFFF
        return h ^ (h >> 16)

    indices = [0, 1, 2, 1000, POOL - 1, 2**32 - 1]
    for seed in (0, 1, 2**32 - 1, 2**40 + 7):
        found = hash32(np.array(indices, np.uint32), seed)
        assert found.tolist() == [plain(i, seed & 0xFFFFFFFF) for i in indices]


def test_pool_is_prime():
    assert all(POOL % divisor for divisor in range(2, int(POOL**0.5) + 1))


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"f8e8m0", "i32", "f4e2m1"}))
def test_values_are_uniform_and_inside_their_bounds(name):
    low, high = (-128.0, 127.0) if name == "i8" else (-1.0, 1.0)
    values = pool_values(name, low, high, 1)
    assert len(values) == POOL
    width = high - low
    assert low <= values.min() < low + 1e-4 * width
    assert high - 1e-4 * width < values.max() <= high
    assert abs(values.mean() - (low + high) / 2) < 2e-3 * width
    assert abs(values.var() / (width**2 / 12) - 1) < 0.02
    assert (np.diff(values) != 0).mean() > 0.9, "neighbours differ"


def test_neighbours_are_not_correlated():
    values = pool_values("f32", -1.0, 1.0, 1)
    for lag in (1, 2, 16, 64, 1024, 4096):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / POOL**0.5


def test_seed_and_name_and_set_change_the_values():
    base = offset(spec(), 1, 0)
    assert offset(spec(), 2, 0) != base
    assert offset(spec(), 1, 1) != base
    assert offset(spec(name="b"), 1, 0) != base
    assert not np.array_equal(pool_bits("f32", -1.0, 1.0, 1), pool_bits("f32", -1.0, 1.0, 2))


def test_pools_cannot_be_written():
    for pool in (pool_bits("f32", -1.0, 1.0, 1), pool_values("f32", -1.0, 1.0, 1)):
        with pytest.raises(ValueError, match="read-only"):
            pool[0] = 0


@settings(deadline=None, max_examples=50)
@given(
    where=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    seed=st.sampled_from([0, 1]),
    index=st.integers(0, 50),
)
def test_take_is_the_definition(where, seed, index):
    inputs = Inputs((spec(),), seed, index)
    pool = pool_values("f32", -1.0, 1.0, seed)
    start = offset(spec(), seed, index)
    expected = [pool[(start + i) % POOL] for i in where]
    assert inputs.take("a", np.array(where, np.int64)).tolist() == expected


def test_take_keeps_the_shape_and_knows_only_inputs():
    out = TensorSpec(name="d", shape=(4,), dtype="f32", role="out")
    inputs = Inputs((spec(), out), 1, 0)
    assert inputs.take("a", np.zeros((2, 3), np.int64)).shape == (2, 3)
    with pytest.raises(KeyError):
        inputs.take("d", np.zeros(1, np.int64))


@pytest.mark.parametrize("count", [1, 1000, POOL])
def test_runs_are_what_take_gives(count):
    spec = TensorSpec(name="b", shape=(7, POOL), dtype="bf16")
    inputs = Inputs((spec,), 3, 5)
    starts = np.array([0, POOL - 3, 2 * POOL + 11, 6 * POOL], np.int64)
    expected = inputs.take("b", starts[:, None] + np.arange(count))
    assert np.array_equal(inputs.runs("b", starts, count), expected)
