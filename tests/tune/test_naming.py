"""Names of tuned problems: types and layout in BLAS letters, and a counter that stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.tune.plans import assign, stem
from kernelmark.workloads.blas import fields_of


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("gemm m=8 n=16 k=32 dtype=bf16 tb=t", "BBS_TN"),  # torch's Linear
        ("gemm m=8 n=16 k=32 dtype=f16", "HHS_NN"),
        ("gemm m=8 n=16 k=32 dtype=f32 ta=t", "SSS_NT"),
        ("gemm m=8 n=16 k=32 dtype=f64 ta=t tb=t", "DDD_TT"),
        ("gemm m=8 n=16 k=32 dtype=i8", "I8II_NN"),
        ("gemm m=8 n=16 k=32 dtype=f8e4m3 c=bf16 tb=t", "F8BS_TN"),
        ("gemm m=8 n=16 k=32 dtype=f8e4m3fnuz c=bf16 tb=t", "F8NBS_TN"),
        # BLAS's A is our B
        ("gemm m=8 n=16 k=32 a=f8e5m2 b=f8e4m3 c=f16", "F8B8HS_NN"),
        ("batched_gemm batch=2 m=8 n=16 k=32 dtype=f16 tb=t", "BATCHED_HHS_TN"),
        ("batched_gemm_quant batch=2 m=8 n=16 k=32 scheme=a8w8", "BATCHED_A8W8_B"),
        ("attention heads_q=8 heads_kv=2 dim=64 seq_q=32 seq_kv=32 dtype=bf16", "ATTN_BF16"),
        ("conv n=2 c=8 h=14 w=14 k=8 r=3 s=3 pad=1 dtype=f16", "CONV_F16"),
    ],
)
def test_the_stem_says_types_and_layout(key, name):
    assert stem(ops.parse(key)) == name


@given(st.sampled_from("nt"), st.sampled_from("nt"))
def test_the_letters_are_those_of_the_blas_call(ta, tb):
    problem = ops.parse(f"gemm m=3 n=5 k=7 dtype=bf16 ta={ta} tb={tb}")
    fields = fields_of(problem)
    assert stem(problem) == f"BBS_{fields['transA']}{fields['transB']}"


def product(m, tb="t"):
    return ops.parse(f"gemm m={m} n=16 k=32 dtype=bf16 tb={tb}")


def test_the_counter_follows_the_order_and_begins_anew_for_each_kind():
    problems = [product(8), product(4, "n"), product(2), product(1, "n")]
    names = assign(problems, {})
    assert list(names.values()) == ["BBS_TN_0", "BBS_NN_0", "BBS_TN_1", "BBS_NN_1"]


def test_names_stay_when_problems_are_added():
    before = assign([product(8), product(4)], {})
    after = assign([product(1), product(4), product(8), product(2)], before)
    assert [after[product(m).key] for m in (8, 4, 1, 2)] == [f"BBS_TN_{i}" for i in range(4)]
    # One is not given again after its problem went.
    before = {product(8).key: "BBS_TN_4", product(4).key: "mine"}
    assert assign([product(2)], before) == {product(2).key: "BBS_TN_5"}


@given(st.lists(st.integers(1, 30)), st.lists(st.integers(1, 30)))
def test_no_two_problems_share_a_name(first, second):
    before = assign([product(m) for m in first], {})
    after = before | assign([product(m) for m in second], before)
    assert len(set(after.values())) == len(after) == len({*first, *second})
    assert {key: after[key] for key in before} == before
