"""A workload's file: what is written is read, what is edited wrongly is told with its row."""

import csv

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.workloads.workload import BLAS_FIELDS, Call, Workload, read, write
from kernelmark_dev.raising import raises

GEMM = ops.registry.get("gemm").problem(m=5, n=48, k=32, dtype="bf16", tb="t")
GEMM_1 = "gemm m=1 n=1 k=1 dtype=f32"
paths = st.text(st.characters(blacklist_characters="\0"), min_size=1, max_size=9)
values = st.text(st.characters(blacklist_categories=("Cc",)), min_size=1, max_size=9)
words = st.from_regex(r"[A-Za-z_]{1,8}", fullmatch=True)
problems = st.builds(
    lambda m, dtype, ta: ops.registry.get("gemm").problem(m=m, n=8, k=8, dtype=dtype, ta=ta),
    st.integers(1, 2**31 - 1),
    st.sampled_from(["f32", "bf16", "i8"]),
    st.sampled_from("nt"),
) | st.builds(
    lambda seq: ops.registry.get("attention").problem(heads=2, seq=seq, dim=64, dtype="f16"),
    st.integers(1, 4096),
)
calls = st.builds(
    Call,
    problem=problems,
    count=st.integers(1, 10**17),
    blas=st.dictionaries(st.sampled_from(BLAS_FIELDS) | st.just("another"), values, max_size=4).map(
        FrozenDict
    ),
    lost=st.lists(words, max_size=3, unique=True).map(tuple),
    sources=st.lists(paths, max_size=3).map(tuple),
)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(calls, max_size=6))
def test_what_is_written_is_read(tmp_path, some):
    path = tmp_path / "workload.csv"
    workload = Workload(name=tmp_path.name, calls=tuple(some))
    write(path, workload)
    assert read(path) == workload


def test_columns_are_in_order_and_there_are_no_comments(tmp_path):
    path = tmp_path / "workload.csv"
    first = Call(problem=GEMM, blas=FrozenDict({"transB": "N", "m": "48"}), sources=("a;b", "c\\"))
    second = Call(problem=GEMM, count=3, blas=FrozenDict({"transA": "T"}), lost=("lda", "scaleA"))
    write(path, Workload(name="x", calls=(first, second)))
    rows = list(csv.reader(path.open()))
    assert rows[0] == ["problem", "count", "transA", "transB", "m", "lost", "sources"]
    assert rows[1] == [GEMM.key, "1", "", "N", "48", "", "a\\;b;c\\\\"]
    assert rows[2] == [GEMM.key, "3", "T", "", "", "lda scaleA", ""]


def test_a_file_by_hand_needs_two_columns(tmp_path):
    path = tmp_path / "workload.csv"
    path.write_bytes(b"\xef\xbb\xbfcount,problem\r\n 7 ,gemm m=5 n=48 k=32 dtype=bf16 tb=t\r\n\r\n")
    assert read(path).calls == (Call(problem=GEMM, count=7),)


@pytest.mark.parametrize(
    ("text", "row", "fields"),
    [
        ("", None, {"column": "problem"}),
        ("problem,calls\n", None, {"column": "count"}),
        ("problem,count,lda,lda\n", None, {}),
        (f"problem,count\n{GEMM_1},0\n", 2, {"given": "0"}),
        (f"problem,count\n{GEMM_1},1.5\n", 2, {"given": "1.5"}),
        ("problem,count\ngemm m=0 n=1 k=1 dtype=f32,1\n", 2, {"given": "m=0"}),
        ("problem,count\ngem m=1,1\n", 2, {"what": "op", "name": "gem"}),
        (f"problem,count\n{GEMM_1}\n", 2, {"cells": 1, "columns": 2}),
    ],
)
def test_a_mistake_is_told_with_its_row(tmp_path, text, row, fields):
    path = tmp_path / "workload.csv"
    path.write_text(text)
    where = f"{path}: row {row}" if row else path
    with raises(UsageError, where=where, **fields):
        read(path)


def test_a_file_that_is_not_there_and_a_place_that_is_none(tmp_path):
    with raises(UsageError, file=str(tmp_path / "none.csv")):
        read(tmp_path / "none.csv")
    path = tmp_path / "none" / "workload.csv"
    with raises(UsageError, file=str(path)):
        write(path, Workload(name="x", calls=()))
