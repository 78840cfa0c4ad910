import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.workloads import suites
from kernelmark.workloads.select import expand, matching, sample, stratum
from kernelmark_dev.raising import raises

MIXED = [
    *suites.load("demo").problems,
    *suites.load("gemm-llama-skinny").problems[::7],
    *suites.load("conv-resnet").problems,
    *suites.load("attention-llm").problems[::5],
]
PLACE = {problem: place for place, problem in enumerate(MIXED)}
STRATA = {stratum(p) for p in MIXED}


@given(limit=st.integers(1, len(MIXED) + 5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_sample_is_exact_ordered_and_repeatable(limit, seed):
    chosen = sample(MIXED, limit, seed)
    assert len(chosen) == min(limit, len(MIXED))
    places = [PLACE[p] for p in chosen]
    assert places == sorted(set(places))
    assert chosen == sample(MIXED, limit, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_stratum_is_there_if_the_limit_allows(seed):
    assert {stratum(p) for p in sample(MIXED, len(STRATA), seed)} == STRATA
    assert {stratum(p) for p in sample(MIXED, len(STRATA) + 20, seed)} == STRATA
    assert len({stratum(p) for p in sample(MIXED, len(STRATA) - 1, seed)}) == len(STRATA) - 1
    assert {p.op for p in sample(MIXED, 4, seed)} == {p.op for p in MIXED}
    assert sample(MIXED, 30, seed) != sample(MIXED, 30, seed + 1)


def test_strata_differ_by_op_dtype_and_size():
    found = expand("gemm", ["m=[64,65,512]", "n=64", "k=64"], ["f32", "f16"])
    assert stratum(found[0]) == stratum(found[1])
    assert len({stratum(p) for p in found}) == 4


def test_shares_follow_the_size_of_a_stratum():
    many = expand("gemm", ["m=[1024:1923]", "n=1024", "k=1024"], ["f32"])
    few = expand("gemm", ["m=[1024:1123]", "n=1024", "k=1024"], ["f16"])
    chosen = sample(many + few, 100, 1)
    assert abs(sum(p.dtypes["a"] == "f32" for p in chosen) - 90) <= 2


def test_a_problem_that_leaves_does_not_change_the_other_strata():
    whole = sample(MIXED, len(STRATA), 1)
    gone = whole[0]
    without = [p for p in MIXED if p != gone]
    again = sample(without, len({stratum(p) for p in without}), 1)
    assert [p for p in again if stratum(p) != stratum(gone)] == whole[1:]


def test_a_sample_of_no_problems_is_empty_and_a_limit_of_none_is_refused():
    assert sample([], 5, 1) == []
    with raises(UsageError, limit=0):
        sample(MIXED, 0, 1)


def test_matching_searches_the_key():
    assert {p.op for p in matching(MIXED, "^conv ")} == {"conv"}
    assert all(p.dims["n"] == 8 for p in matching(MIXED, r"^gemm .*\bn=8\b"))
    assert matching(MIXED, "no such thing") == []
    with raises(UsageError, pattern="m=("):
        matching(MIXED, "m=(")
