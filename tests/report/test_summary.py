"""The answer of a run, and in how many problems each backend is fastest."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from kernelmark import ops
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.report.page import Part, markdown_page
from kernelmark.report.results import result_rows
from kernelmark.report.summary import answer, category_names, lessons, wins_table

SIZES = (64, 128, 256, 512)


@pytest.fixture
def answer_of(make_result, make_set, make_roof):
    """The answer for (problem size, backend, time or status) rows; with roofs if given."""

    def make(*cases, roofs=(), width=0.02):
        results = []
        for m, backend, end in cases:
            problem = f"gemm m={m} n=64 k=64 dtype=f32"
            if isinstance(end, Status):
                results.append(make_result(problem, backend=backend, status=end))
                continue
            one = make_result(problem, backend=backend, median_s=end)
            ends = {"low_s": end * (1 - width), "high_s": end * (1 + width)}
            measured = dataclasses.replace(one.measurement, **ends)
            results.append(dataclasses.replace(one, measurement=measured))
        return answer(result_rows(make_set(*results), [make_roof(*roof) for roof in roofs]))

    return make


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(
    ("slow", "width"), [(2.0, 0.02), (1.0224, 0.009), (1.889, 0.012), (51.0, 0.02), (2, 1e-5)]
)
def test_two_rows_are_a_ratio_with_as_many_decimals_as_its_width(answer_of, slow, width):
    (line,) = answer_of((64, "slow", slow * 1e-3), (64, "fast", 1e-3), width=width)
    assert line.startswith("fast ran ")
    assert line.endswith(" as fast as slow")
    ratio, plus_minus = re.findall(r"\d+(?:\.\d+)?", line)
    assert len(ratio.partition(".")[2]) == len(plus_minus.partition(".")[2])
    assert float(ratio) == pytest.approx(slow, rel=width / 10, abs=6e-4)
    half = slow * math.hypot(width, width)
    assert float(plus_minus) == pytest.approx(half, rel=0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("slow", "width", "tied"), [(1.01, 0.02, True), (1.3, 0.14, True), (1.4, 0.14, False)]
)
def test_a_tie_in_the_table_is_one_in_the_sentence(answer_of, slow, width, tied):
    (line,) = answer_of((64, "one", slow * 1e-3), (64, "two", 1e-3), width=width)
    assert line.startswith("two does not differ from one" if tied else "two ran ")


def test_all_that_do_not_differ_from_the_best_are_named(answer_of):
    cases = [(64, "torch", 1.03e-3), (64, "mine", 1.01e-3), (64, "numpy", 1e-3), (64, "x", 2e-3)]
    (line,) = answer_of(*cases)
    assert line.startswith("numpy does not differ from mine and torch")
    assert numbers(line) == [1.03]


def test_a_ratio_of_noise_is_not_a_number(answer_of):
    (line,) = answer_of((64, "one", 1e-3), (64, "two", 1e-3), width=0.9)
    assert "noisy" in line


def test_the_runner_up_and_the_problems_in_common_are_counted(answer_of):
    cases = [(m, name, t * m) for m in (1, 2, 3) for name, t in (("a", 1), ("b", 2))]
    cases += [(4, "a", 2.0), (4, "b", 1.0), (5, "a", 1.0), (5, "c", 9.0)]
    (line,) = answer_of(*cases)
    assert line.startswith("a is fastest in 4 of 5 problems, b in 1; ")
    assert "of 4 that both measured" in line


@pytest.mark.parametrize("careful", [1.01, 2.0, 0.5])
def test_a_single_problem_in_common_has_no_interval(answer_of, careful):
    cases = [(m, "a", 1.0) for m in (1, 2, 3)]
    (line,) = answer_of(*cases, (1, "b", careful), (2, "c", 9.0), (3, "d", 9.0))
    assert line.startswith("a is fastest in ")
    assert "of 1 that both measured" in line
    assert f"{careful:.2f} ×" in line
    assert "interval" not in line
    assert ("but " in line) == (careful < 1)


def test_the_rival_is_the_fastest_of_those_that_measured_most(answer_of):
    cases = [(1, "careful", 1.01), (1, "numpy", 1.0), (1, "torch", 1.17), (1, "slow", 3.0)]
    (line,) = answer_of(*cases, (2, "numpy", 1.0), (2, "torch", 1.15), (2, "slow", 3.0))
    assert line.startswith("numpy is fastest in 1 of 2 problems (1 within the noise)")
    assert f"numpy is {(1.17 * 1.15) ** 0.5:.2f} × as fast as torch" in line


def test_of_backends_that_win_nothing_the_one_that_measured_most_is_first(answer_of):
    cases = [(1, "careful", 1.0), *((m, name, 1.01) for m in (1, 2) for name in ("numpy", "x"))]
    (line,) = answer_of(*cases)
    assert line.startswith("no backend is fastest")
    assert "careful" not in line


def test_many_problems_are_a_geomean_with_its_interval(answer_of):
    cases = [(m, "one", 1e-6 * m) for m in SIZES]
    cases += [(m, "two", 1e-6 * m / f) for m, f in zip(SIZES, (2, 2, 4, 0.5), strict=True)]
    (line,) = answer_of(*cases)
    assert line.startswith("two is fastest in 3 of 4 problems, one in 1; ")
    mean, level, low, high = numbers(line.partition(";")[2])
    assert (mean, level) == (pytest.approx(8**0.25, abs=0.005), 95)
    assert low < 1 < mean < high


@pytest.mark.parametrize(
    ("factors", "is_open", "but"),
    [
        ((0.9, 1.1, 0.98, 1.1), True, False),
        ((2.0, 2.1, 2.2, 2.0), False, False),
        ((1.1, 1.1, 0.7), True, False),
        ((1.1, 1.1, 1.1, *[0.1] * 2, *[0.995] * 9), True, False),
        ((1.1, 1.1, *[0.97] * 40), False, True),
    ],
)
def test_a_mean_whose_interval_contains_1_is_no_contrast(answer_of, factors, is_open, but):
    """a is `factor` times as fast as b; differences of 3 % are within the noise."""
    cases = [(m, "b", 1e-3) for m, _ in enumerate(factors, 1)]
    cases += [(m, "a", 1e-3 / factor) for m, factor in enumerate(factors, 1)]
    (line,) = answer_of(*cases)
    assert line.startswith("a is fastest")
    *_, low, high = numbers(line)
    assert (low <= 1 <= high) == is_open
    assert (" a does not clearly differ from b" in line) == is_open
    assert ("; but " in line) == but


def test_ties_are_nobodys_wins(answer_of):
    cases = [(m, n, t) for m in (1, 2) for n, t in (("a", 1.01e-3), ("b", 1e-3))]
    (line,) = answer_of(*cases)
    assert line.startswith("no backend is fastest beyond the noise in any of 2 problems; ")
    assert "1.01 ×" in line
    (line,) = answer_of(*cases, (3, "a", 2.0), (3, "b", 1.0))
    assert line.startswith("b is fastest in 1 of 3 problems (2 within the noise); ")


def test_problems_that_are_not_ranked_are_counted(make_result, make_set):
    problems = [f"gemm m={m} n=64 k=64 dtype=f32" for m in (1, 2, 3)]
    results = [make_result(problems[0], backend=b, median_s=t) for b, t in (("a", 2), ("b", 1))]
    few = Reason("few blocks", "few-blocks", blocks=1, wanted=4)
    for problem in problems[1:]:
        for name in ("a", "b"):
            one = make_result(problem, backend=name, median_s=1.0)
            measured = dataclasses.replace(one.measurement, warnings=(few,))
            results.append(dataclasses.replace(one, measurement=measured))
    (line,) = answer(result_rows(make_set(*results)))
    assert line.startswith("b ran ")
    assert line.endswith("; 2 problems not ranked")
    (line,) = answer(result_rows(make_set(*results[2:])))
    assert line.startswith("2 problems not ranked")


def test_times_without_an_interval_are_no_tie(make_result, make_set):
    results = [make_result(backend=name, median_s=s) for name, s in (("a", 1.0), ("b", 1.1))]
    bare = dataclasses.replace(results[1].measurement, low_s=0.0, high_s=math.inf)
    results[1] = dataclasses.replace(results[1], measurement=bare)
    rows = result_rows(make_set(*results))
    assert [row.tied for row in rows] == [False, None]
    (line,) = answer(rows)
    assert line.startswith("1 problem not ranked")
    assert wins_table(rows) is None


def test_one_backend_has_no_rival(answer_of):
    assert answer_of((64, "one", 1e-3), (128, "one", 2e-3)) == []
    assert answer_of((64, "one", Status.WRONG)) == []
    assert answer_of() == []


def test_a_wrong_kernel_is_named(answer_of):
    assert answer_of((1, "memo", Status.WRONG), (1, "numpy", 1e-3)) == ["memo is wrong"]
    lines = answer_of((1, "memo", Status.WRONG), (1, "numpy", 1e-3), (1, "torch", 2e-3))
    assert [line.split()[0] for line in lines] == ["memo", "numpy"]
    (line,) = answer_of((1, "memo", Status.WRONG), (1, "numpy", Status.IMPOSSIBLE))
    assert line == "memo is wrong; numpy is impossibly fast"


def test_of_several_problems_those_that_failed_are_counted(answer_of):
    cases = [(m, "numpy", 1e-3) for m in (1, 2, 3)]
    wrong = [(m, "memo", Status.WRONG) for m in (1, 2)]
    first, second = answer_of(*cases, *wrong, (3, "memo", 2e-3))
    assert first == "memo is wrong in 2 of 3 problems"
    assert second.startswith("numpy ran ")
    first, second = answer_of(*cases, *wrong, (3, "memo", Status.UNSUPPORTED))
    assert second.startswith("1 problem not ranked")
    (line,) = answer_of(*cases, *wrong, (3, "memo", Status.CRASHED))
    assert line == "memo is wrong in 2 of 3 problems; memo crashed in 1 of 3 problems"
    more = [(m, "torch", 2e-3) for m in (1, 2, 3)]
    first, second = answer_of(*cases, *wrong, (3, "memo", 3e-3), *more)
    assert second.startswith("numpy is fastest in 3 of 3 problems")


@pytest.mark.parametrize("status", [status for status in Status if status.failed])
def test_every_failure_has_words(answer_of, status):
    (first,) = answer_of((1, "memo", status), (1, "numpy", 1e-3))
    assert first.startswith("memo ")
    assert "_" not in first


def test_the_furthest_from_its_roof_is_named_if_the_table_shows_a_difference(answer_of):
    roofs = [("flops", "f32", 1e11), ("bytes", "dram", 1e10)]
    *_, last = answer_of((64, "one", 1e-3), (512, "one", 1e-3), roofs=roofs)
    assert "m=64" in last
    assert len(answer_of((512, "one", 1.0e-3), (512, "two", 1.001e-3), roofs=roofs)) == 1
    _, last = answer_of((512, "one", 1.0e-3), (512, "two", 1.2e-3), roofs=roofs)
    assert "by two" in last


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


def found(make_set, *results):
    return wins_table(result_rows(make_set(*results)))


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
    lines = {row[2]: row[3:6] for row in wins_table(result_rows(made)).rows}
    assert lines == {"iree": ("2", "1", "1"), "torch": ("2", "0", "1"), "numpy": ("1", "0", "0")}
    assert answer(result_rows(made))[0].startswith("iree is fastest in 1 of 2 problems")


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
    page = markdown_page([Part(results=results, rows=result_rows(results))], "title")
    assert "| gemm | square | iree | 1 | 1 | 0 | 100 % |" in " ".join(page.split())


def test_the_demo_learns_nothing_from_times_that_are_not_ranked(make_result, make_set, make_roof):
    def rows(*warnings):
        made = [
            make_result(f"gemm m={m} n=64 k=64 dtype=f32", backend=name, median_s=time_s)
            for m in (64, 128)
            for name, time_s in (("fast", 1e-3), ("slow", 2e-3))
        ]
        made = [
            dataclasses.replace(
                one, measurement=dataclasses.replace(one.measurement, warnings=warnings)
            )
            for one in made
        ]
        return result_rows(make_set(*made), [make_roof("flops", "f32", 1e9)])

    doubt = Reason("few blocks", "few-blocks", blocks=1, wanted=4)
    assert any("fast" in text for text in lessons(rows()))
    told = lessons(rows(doubt))
    assert told
    assert not any("fast" in text or "slow" in text for text in told)
