"""In how many problems each backend is fastest, by op and category."""

from __future__ import annotations

import pytest

from kernelmark import ops
from kernelmark.core.result import Status
from kernelmark.report.answer import answer
from kernelmark.report.page import Part, markdown_page
from kernelmark.report.tables import rows
from kernelmark.report.wins import category_names, wins_table


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("attention heads=2 seq=64 dim=32 dtype=f32", ("prefill",)),
        ("attention heads=2 seq_q=1 seq_kv=64 dim=32 dtype=f32", ("decode",)),
        ("attention heads=2 seq_q=16 seq_kv=64 dim=32 dtype=f32", ("extend",)),
        ("conv n=1 c=8 h=8 w=8 k=8 r=1 s=1 dtype=f32", ("pointwise",)),
        ("conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=f32", ("spatial",)),
        ("conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 stride=2 dtype=f32", ("strided",)),
        ("copy n=64 dtype=f32", ()),
    ],
)
def test_a_problem_has_the_categories_of_its_op(problem, names):
    assert category_names(ops.parse(problem)) == names


def test_a_square_gemm_is_square():
    assert "square" in category_names(ops.parse("gemm m=512 n=512 k=512 dtype=f32"))


def found(make_set, *results):
    return wins_table(rows(make_set(*results)))


def test_wins_are_counted_for_each_category(make_result, make_set):
    prefill, decode = (
        "attention heads=2 seq=64 dim=32 dtype=f32",
        "attention heads=2 seq_q=1 seq_kv=64 dim=32 dtype=f32",
    )
    table = found(
        make_set,
        make_result(prefill, backend="iree", median_s=1e-3),
        make_result(prefill, backend="torch", median_s=2e-3),
        make_result(decode, backend="iree", median_s=4e-3),
        make_result(decode, backend="torch", median_s=1e-3),
    )
    lines = {row[1:3]: row[3:] for row in table.rows}
    assert lines["all", "iree"] == ("2", "1", "0", "50 %", "0.71 ×")
    assert lines["prefill", "iree"] == ("1", "1", "0", "100 %", "2.00 ×")
    assert lines["decode", "iree"] == ("1", "0", "0", "0 %", "0.25 ×")
    assert lines["decode", "torch"] == ("1", "1", "0", "100 %", "4.00 ×")


def test_an_advantage_within_the_noise_is_a_tie(make_result, make_set):
    one, other = "copy n=64 dtype=f32", "copy n=128 dtype=f32"
    made = make_set(  # intervals of ±2 %
        make_result(one, backend="iree", median_s=1e-3),
        make_result(one, backend="torch", median_s=1.03e-3),
        make_result(one, backend="numpy", median_s=2e-3),
        make_result(other, backend="iree", median_s=1e-3),
        make_result(other, backend="torch", median_s=1.05e-3),
    )
    lines = {row[2]: row[3:6] for row in wins_table(rows(made)).rows}
    assert lines == {"iree": ("2", "1", "1"), "torch": ("2", "0", "1"), "numpy": ("1", "0", "0")}
    found = answer(rows(made))[0].fields
    assert (found["first"], found["wins"], found["problems"]) == ("iree", 1, 2)


def test_what_one_backend_alone_measured_is_no_win(make_result, make_set):
    one, other = "copy n=64 dtype=f32", "copy n=128 dtype=f32"
    assert found(make_set, make_result(one, backend="iree")) is None
    table = found(
        make_set,
        make_result(one, backend="iree", median_s=1e-3),
        make_result(one, backend="torch", median_s=2e-3),
        make_result(other, backend="iree", median_s=1e-3),
        make_result(other, backend="torch", status=Status.WRONG, median_s=1e-4),
    )
    assert {row[2:4] for row in table.rows} == {("iree", "1"), ("torch", "1")}


def test_a_report_has_the_table(make_result, make_set):
    results = make_set(make_result(backend="iree"), make_result(backend="torch", median_s=0.02))
    page = markdown_page([Part(results=results, rows=rows(results))], "title")
    assert "| gemm | square | iree | 1 | 1 | 0 | 100 % |" in " ".join(page.split())
