"""Secret inputs: every rewrite has values of its own, which follow from the key alone."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.core.tensor import GivenValues, TensorSpec
from kernelmark.judge import values
from kernelmark.judge.values import (
    FAMILIES,
    UNIFORM,
    SecretInputs,
    Values,
    families_of,
    family_of,
    inputs_of,
    pack_bits,
)
from kernelmark.numerics.floats import decode, encode
from kernelmark.ops._own import given_spec

KEY = bytes(range(16))


def spec(dtype: str = "f32", shape: tuple[int, ...] = (8, 12), name: str = "a") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype)


def values_of(number: int, tensor: TensorSpec, key: bytes = KEY) -> np.ndarray:
    return decode(Values(key).bits(tensor, number), tensor.dtype)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "f8e4m3", "i8", "f4e2m1"])
def test_values_fill_the_range_and_differ_by_number_name_and_key(dtype):
    low, high = (-8, 7) if dtype == "i8" else (-1.0, 1.0)
    tensor = TensorSpec(name="a", shape=(64, 64), dtype=dtype, low=low, high=high)
    first = values_of(2, tensor)
    assert first.min() >= low
    assert first.max() <= high
    assert abs(first.mean() - (low + high) / 2) < 0.1 * (high - low)
    assert np.array_equal(first, values_of(2, tensor))
    other_name = TensorSpec(name="b", shape=(64, 64), dtype=dtype, low=low, high=high)
    for other in (values_of(3, tensor), values_of(2, other_name), values_of(2, tensor, KEY[::-1])):
        assert np.count_nonzero(other != first) > first.size / 4


def test_an_order_of_calls_does_not_change_values():
    values, tensor = Values(KEY), spec(shape=(5,))
    first = values.bits(tensor, 7)
    values.bits(tensor, 8)
    assert np.array_equal(values.bits(tensor, 7), first)


def test_numbers_are_never_used_twice_and_keep_their_family():
    values = Values(KEY)
    numbers = [values.next_number(family) for family in (*FAMILIES, *FAMILIES)]
    assert len(set(numbers)) == len(numbers)
    assert [family_of(number) for number in numbers] == [*FAMILIES, *FAMILIES]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != UNIFORM])
def test_a_family_is_what_its_name_says(family):
    tensor = spec(shape=(2, 6, 6))
    number = Values(KEY).next_number(family)
    got = inputs_of([tensor], KEY, number)["a"]
    first = got[0]
    holds = {
        "zeros": not got.any(),
        "identity": np.array_equal(got, [np.eye(6)] * 2),
        "triangular": not np.triu(first, 1).any() and np.diag(first).all(),
        "sorted": (np.diff(got.ravel()) >= 0).all(),
        "rank-one": np.linalg.matrix_rank(first, tol=1e-5) == 1,
        "times-10": 1 < np.abs(got).max() <= 10,
        "plus-5": got.min() >= 4,
        "large": np.abs(got).max() > 2**18,
        "denormal": 0 < np.abs(got).max() < 2**-126,
    }
    assert holds[family]


def test_families_change_no_scales_integers_and_given_values():
    tensors = [
        TensorSpec(name="scale", shape=(4,), dtype="f32", low=0.5, high=2.0),
        TensorSpec(name="index", shape=(4,), dtype="i32", low=0, high=9),
        given_spec("mask", np.ones((4,), np.float32)),
    ]
    assert families_of(tensors, is_contraction=True) == []
    number = Values(KEY).next_number("zeros")
    assert inputs_of(tensors, KEY, number)["scale"].min() >= 0.5


def test_given_values_are_rotated_by_rows_and_may_be_more_than_the_tensor():
    pool = np.arange(60, dtype=np.float32)
    given = GivenValues(pool.view(np.uint32), row=6)
    tensor = TensorSpec(name="table", shape=(4, 6), dtype="f32", given=given)
    starts = {float(values_of(number, tensor)[0]) for number in range(40)}
    assert len(starts) > 5
    assert all(start % 6 == 0 for start in starts)
    kept = TensorSpec(
        name="table",
        shape=(7,),
        dtype="f32",
        given=GivenValues(pool.view(np.uint32), rotates=False),
    )
    assert np.array_equal(values_of(9, kept), pool[:7])


def test_references_read_secret_inputs_like_any_others():
    problem = ops.parse("gemm m=5 n=7 k=9 dtype=f32")
    op = ops.registry.get("gemm")
    inputs = SecretInputs(op.tensors(problem), Values(KEY), 4)
    where = np.arange(35)
    expected = (inputs.whole("a") @ inputs.whole("b")).ravel()
    assert np.allclose(op.reference(problem, inputs, where).value, expected)


def test_four_bit_values_are_packed_two_to_a_byte():
    tensor = spec("f4e2m1", (5,))
    bits = Values(KEY).bits(tensor, 2)
    packed = pack_bits(tensor, bits)
    assert packed.size == 3
    assert [packed[i // 2] >> (4 * (i % 2)) & 15 for i in range(5)] == bits.tolist()


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i8", "f4e2m1"])
@pytest.mark.parametrize("family", [UNIFORM, "large"])
def test_what_is_written_is_what_is_computed_again(dtype, family):
    low, high = (-3, 5) if dtype == "i8" else (-2.0, 2.0)
    tensor = TensorSpec(name="a", shape=(5, 7), dtype=dtype, low=low, high=high)
    writer, memory = Values(KEY), np.zeros(tensor.nbytes, np.uint8)
    for number in (writer.next_number(family), writer.next_number(family)):
        writer.write(tensor, number, memory)
        assert np.array_equal(memory, pack_bits(tensor, Values(KEY).bits(tensor, number)).ravel())


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "denormal"])
def test_a_table_gives_the_values_that_a_family_computes(family):
    tensor = TensorSpec(name="a", shape=(3, 6, 5), dtype="bf16")
    number = Values(KEY).next_number(family)
    bits = values._uniform(tensor, Values(KEY)._random("a", number))
    uniform = decode(bits, "bf16").reshape(tensor.shape)
    expected = decode(encode(FAMILIES[family](uniform).ravel(), "bf16"), "bf16")
    assert np.array_equal(values_of(number, tensor), expected)
