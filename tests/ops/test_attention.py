"""attention: shorthands, kinds of use, exact pairs, layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.attention import kind, pairs, scale

attention = ops.registry.get("attention")


def problem(**given):
    return attention.problem(**{"heads": 2, "seq": 16, "dim": 8, "dtype": "bf16"} | given)


def test_shorthands_fill_in_only_what_is_not_given():
    found = problem(heads=8, heads_kv=2, seq=64, seq_q=1, dim=128, dim_v=64)
    assert dict(found.dims) == {
        "batch": 1, "heads_q": 8, "heads_kv": 2, "seq_q": 1, "seq_kv": 64,
        "dim_qk": 128, "dim_v": 64,
    }  # fmt: skip
    bare = attention.problem(heads_q=8, seq_q=4, seq_kv=4, dim_qk=32, dtype="f16")
    assert (bare.dims["heads_kv"], bare.dims["dim_v"]) == (8, 32)


@pytest.mark.parametrize(
    ("dtype", "o", "acc"),
    [("f64", "f64", "f64"), ("f32", "f32", "f32"), ("f16", "f16", "f32"), ("bf16", "bf16", "f32"),
     ("f8e4m3", "bf16", "f32"), ("f8e5m2fnuz", "bf16", "f32")],
)  # fmt: skip
def test_output_and_accumulator_follow_from_the_input(dtype, o, acc):
    assert dict(problem(dtype=dtype).dtypes) == {"q": dtype, "kv": dtype, "o": o, "acc": acc}


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "name"),
    [(1, 512, "decode"), (1, 1, "decode"), (64, 64, "prefill"), (8, 64, "extend"),
     (64, 8, "cross")],
)  # fmt: skip
def test_kinds(seq_q, seq_kv, name):
    assert kind(problem(seq_q=seq_q, seq_kv=seq_kv)) == name


@given(st.integers(1, 40), st.integers(0, 40), st.booleans())
def test_pairs_are_counted_not_halved(queries, more, causal):
    found = problem(seq_q=queries, seq_kv=queries + more, causal=causal)
    mask = np.tri(queries, queries + more, more) if causal else np.ones((queries, queries + more))
    assert pairs(found) == int(mask.sum())
    assert attention.flops(found) == 2 * pairs(found) * 2 * (8 + 8)


def test_costs_by_hand():
    one = problem(seq_q=1, seq_kv=512, causal=True)  # sees every key
    assert attention.flops(one) == attention.flops(problem(seq_q=1, seq_kv=512))
    shared = problem(heads_q=8, heads_kv=2, o="f32")  # read once
    assert attention.bytes(shared) == 2 * (8 + 2 + 2) * 16 * 8 + 4 * 8 * 16 * 8


def test_scale():
    assert (scale(problem(dim=64)), scale(problem(scale=2))) == (0.125, 2.0)
    assert problem(scale=2).key.endswith("causal=no scale=2.0 layout=bhsd")
    assert problem().key.endswith("causal=no scale=auto layout=bhsd")


def test_layouts_hold_the_same_answer():
    """With one batch and one head both layouts are the same memory."""
    one, other = (problem(heads=1, layout=layout, causal=True) for layout in ("bhsd", "bshd"))
    where = np.arange(attention.output(one).count)
    found = [
        attention.reference(p, Inputs(attention.tensors(p), 1, 0), where).value
        for p in (one, other)
    ]
    np.testing.assert_array_equal(*found)
    assert attention.tensors(problem(layout="bshd"))[0].shape == (1, 16, 2, 8)
