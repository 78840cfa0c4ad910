import itertools
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.problem import parse_value
from kernelmark.workloads import select
from kernelmark.workloads.select import ProblemAxis, expand, parse
from kernelmark_dev.raising import raises

names = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=8).filter(
    lambda s: s[0] in string.ascii_lowercase
)
words = st.text(string.ascii_letters + string.digits + "_.:/-", min_size=1, max_size=10).filter(
    lambda s: s[0] in string.ascii_letters and isinstance(parse_value(s), str)
)
scalars = st.one_of(
    st.integers(-(10**12), 10**12),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)


@given(name=names, values=st.lists(scalars, min_size=1, max_size=6))
def test_an_axis_reads_back_as_written(name, values):
    axis = ProblemAxis(name=name, values=tuple(values))
    again = parse(axis.text)
    assert again == axis
    assert [type(v) for v in again.values] == [type(v) for v in values]


@given(st.text(max_size=40))
def test_any_text_is_an_axis_or_a_sentence(text):
    try:
        axis = parse(text)
    except UsageError:
        return
    assert parse(axis.text) == axis


@given(first=st.integers(-1000, 1000), count=st.integers(0, 50), step=st.integers(1, 40))
def test_a_range_has_both_ends_and_equal_steps(first, count, step):
    last = first + count * step
    assert parse(f"m=[{first}:{last}:{step}]").values == tuple(range(first, last + 1, step))
    assert parse(f"m=[{first}:{last}:+{step}]").values[-1] == last


@given(first=st.integers(1, 500), last=st.integers(1, 10**6), factor=st.integers(2, 10))
def test_a_geometric_range_multiplies_and_stays_inside(first, last, factor):
    if first > last:
        text = f"m=[{first}:{last}:*{factor}]"
        with raises(UsageError, axis=text):
            parse(text)
        return
    values = parse(f"m=[{first}:{last}:*{factor}]").values
    assert values[0] == first
    assert all(b == a * factor for a, b in itertools.pairwise(values))
    assert values[-1] <= last < values[-1] * factor


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("m=512", (512,)),
        ("m=[1024:8192:*2]", (1024, 2048, 4096, 8192)),
        ("m=[1:4]", (1, 2, 3, 4)),
        ("m=[0:100:50]", (0, 50, 100)),
        ("m=[1,2,4]", (1, 2, 4)),
        ("m=1,2", (1, 2)),
        ("m=[ 1 , 2 ]", (1, 2)),
        ("ta=n", ("n",)),
        ("ta=[n,t]", ("n", "t")),
        ("causal=yes", (True,)),
        ("causal=[no,yes]", (False, True)),
        ("alpha=0.5", (0.5,)),
        ("dtype=[f32,bf16]", ("f32", "bf16")),
    ],
)
def test_the_grammar(text, values):
    assert parse(text).values == values


@pytest.mark.parametrize(
    "text",
    [
        "m",
        "=5",
        "M=5",
        "m=",
        "m=[]",
        "m=[1,,2]",
        "m=[1,2",
        "m=1]",
        "m=1:16",
        "m=[1:2:3:4]",
        "m=[8:1]",
        "m=[1:8:0]",
        "m=[1:8:-1]",
        "m=[0:8:*2]",
        "m=[1:8:*1]",
        "m=[1.5:8]",
        "m=[a:b]",
        "m=nan",
        "m=[1,inf]",
        "m=?",
        "m=" + "9" * 5000,
        "m=[1:" + "9" * 5000 + "]",
    ],
)
def test_bad_axes_are_one_sentence_with_an_example(text):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "\n" not in caught.value.message
    assert "m=[1024:8192:*2]" in (caught.value.hint or "")


def test_products_go_in_order_with_the_last_axis_fastest():
    found = expand("gemm", ["m=[1,2,1]", "n=8", "k=[3,4]"], ["f32", "f16"])  # 1 counts once
    told = [(p.dtypes["a"], p.dims["m"], p.dims["k"]) for p in found]
    assert told == [(d, m, k) for d in ("f32", "f16") for m in (1, 2) for k in (3, 4)]
    axes = ["heads=2", "seq=[16,32]", "dim=16", "causal=[no,yes]", "dtype=[f16,bf16]"]
    found = expand("attention", axes)
    assert len(found) == 8
    assert {p.options["causal"] for p in found} == {True, False}


def test_the_same_axis_twice_is_refused():
    with raises(UsageError, what="axis", name="m"):
        expand("gemm", ["m=1", "m=2", "n=1", "k=1"], ["f32"])
    with pytest.raises(UsageError):
        expand("gemm", ["m=1", "n=1", "k=1", "dtype=f16"], ["f32"])


@pytest.mark.parametrize(
    "given",
    [
        ["m=[1:2000000]", "n=1", "k=1"],
        ["m=[1:101]", "n=[1:101]", "k=[1:101]"],
        ["m=[1:99999999999999999999]", "n=1", "k=1"],
    ],
)
def test_products_that_explode_are_refused_with_their_size(given):
    with pytest.raises(UsageError) as refused:
        expand("gemm", given, ["f32"])
    assert re.search(r"\d{7}|\d[ ,_]\d{3}[ ,_]\d{3}", refused.value.message)


def test_the_largest_product_allowed_is_not_refused():
    select.check_count(select.MAX_PROBLEMS, "m")
    with pytest.raises(UsageError):
        select.check_count(select.MAX_PROBLEMS + 1, "m")


@pytest.mark.parametrize("bad", ["m=0", "m=-1", "m=1099511627776", "m=0.5", "m=yes"])
def test_what_the_op_refuses_is_refused(bad):
    with pytest.raises(ProblemError):
        expand("gemm", [bad, "n=8", "k=8"], ["f32"])


def test_an_unknown_op_lists_the_known_ones():
    with pytest.raises(UsageError) as caught:
        expand("gem", ["m=1"])
    assert "gemm" in (caught.value.hint or "")
