"""Problem keys: canonical text that parses back, and refusals in one sentence."""

import contextlib
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelmark.core.dtype import DTYPES
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem, parse_key, parse_value
from kernelmark_dev.raising import raises

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,8}", fullmatch=True)
options = st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | words


def is_plain_word(value):
    reserved = {"yes", "no", "inf", "nan", "infinity", "true"}
    return not isinstance(value, str) or not (value in DTYPES or value.lower() in reserved)


@st.composite
def problems(draw):
    used = draw(st.lists(names, unique=True, max_size=9))
    first, second = sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    return Problem(
        op=draw(names),
        dims={n: draw(st.integers(-(10**30), 10**30)) for n in used[:first]},
        dtypes={n: draw(st.sampled_from(sorted(DTYPES))) for n in used[first:second]},
        options={n: draw(options.filter(is_plain_word)) for n in used[second:]},
    )


@given(problems())
def test_key_parses_back(problem):
    again = parse_key(problem.key)
    assert again == problem
    assert again.key == problem.key
    assert hash(again) == hash(problem)
    assert again.dims == problem.dims
    assert again.dtypes == problem.dtypes
    assert again.options == problem.options


@given(st.text(max_size=60))
@example("gemm m=" + "9" * 5000)
@example("gemm m=1e999")
@example("gemm x=١")
@example("gemm m=\x00")
def test_any_text_is_a_problem_or_refused(text):
    with contextlib.suppress(ProblemError):
        problem = parse_key(text)
        assert parse_key(problem.key) == problem


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-3", -3), ("0", 0), ("yes", True), ("no", False), ("1.0", 1.0), ("1e3", 1000.0),
     ("nchw", "nchw"), ("f32", "f32"), ("-0.0", -0.0), ("01", 1.0)],
)  # fmt: skip
def test_the_form_of_a_value_tells_its_kind(text, value):
    found = parse_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("gemm m", {"word": "m"}),
        ("gemm m=", {"word": "m="}),
        ("gemm =4", {"name": ""}),
        ("gemm M=4", {"name": "M"}),
        ("Gemm m=4", {"name": "Gemm"}),
        ("gemm m=4 m=5", {"name": "m"}),
        ("gemm m=4 m=f32", {"name": "m"}),
        ("gemm x=inf", {"name": "x", "value": math.inf}),
        ("gemm x=nan", {"name": "x"}),
        ("gemm x=a=b", {"name": "x", "given": "'a=b'"}),
        ("gemm x=True", {"name": "x", "value": "True"}),
    ],
)
def test_refused_texts(text, fields):
    with raises(ProblemError, **fields):
        parse_key(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": {"m": 1.0}},
        {"dims": {"m": True}},
        {"dims": {"m": 1}, "dtypes": {"m": "f32"}},
        {"dtypes": {"a": "f31"}},
        {"options": {"x": "two words"}},
        {"options": {"x": "f32"}},
        {"options": {"x": "Nan"}},
        {"options": {"x": 5}},
        {"options": {"x": float("inf")}},
        {"options": {"9": "x"}},
        {"op": "a b"},
    ],
)
def test_what_would_not_parse_back_cannot_be_made(fields):
    with pytest.raises(ProblemError):
        Problem(**{"op": "gemm", "dims": {}, "dtypes": {}} | fields)


def test_order_is_part_of_the_key_but_problems_are_values():
    one = Problem(op="gemm", dims={"m": 1, "n": 2}, dtypes={})
    assert one.key == "gemm m=1 n=2"
    assert one == Problem(op="gemm", dims={"m": 1, "n": 2}, dtypes={})
    assert one != "gemm m=1 n=2"
    with pytest.raises(AttributeError):
        one.op = "conv"
