"""The answer of a run in a sentence."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kernelmark.core.reason import Reason
from kernelmark.report.answer import answer
from kernelmark.report.tables import rows

SIZES = (64, 128, 256, 512)


@pytest.fixture
def told(make_result, make_set, make_roof):
    """The answer for (problem size, backend, time) rows; with roofs if asked for."""

    def made(*cases, roofs=(), width=0.02):
        results = []
        for m, backend, median_s in cases:
            one = make_result(f"gemm m={m} n=64 k=64 dtype=f32", backend=backend, median_s=median_s)
            low, high = median_s * (1 - width), median_s * (1 + width)
            measured = dataclasses.replace(one.measurement, low_s=low, high_s=high)
            results.append(dataclasses.replace(one, measurement=measured))
        return answer(rows(make_set(*results), [make_roof(*roof) for roof in roofs]))

    return made


def numbers(text):
    return [float(word) for word in re.findall(r"\d+(?:\.\d+)?", text)]


def test_two_rows_are_a_ratio(told):
    (line,) = told((64, "one", 2e-3), (64, "two", 1e-3))
    assert line.startswith("two ")
    ratio, width = numbers(line)
    assert ratio == 2.0
    assert width == pytest.approx(2 * 0.02 * 2**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("slow", "width"), [(1.0224, 0.009), (1.889, 0.012), (51.0, 0.02), (2, 1e-5)]
)
def test_a_ratio_has_as_many_decimals_as_its_width(told, slow, width):
    (line,) = told((64, "one", slow * 1e-3), (64, "two", 1e-3), width=width)
    ratio, plus_minus = re.findall(r"\d+(?:\.\d+)?", line)
    assert len(ratio.partition(".")[2]) == len(plus_minus.partition(".")[2])
    assert float(ratio) == pytest.approx(slow, rel=width / 10, abs=6e-4)
    assert float(plus_minus) > 0


def test_the_runner_up_and_the_problems_in_common_are_counted(told):
    cases = [(m, name, t * m) for m in (1, 2, 3) for name, t in (("a", 1), ("b", 2))]
    cases += [(4, "a", 2.0), (4, "b", 1.0), (5, "a", 1.0), (5, "c", 9.0)]
    (line,) = told(*cases)
    assert re.findall(r"(\w+) (?:is fastest )?in (\d)", line)[:2] == [("a", "4"), ("b", "1")]
    assert numbers(line)[:3] == [4, 5, 1]
    assert numbers(line)[4] == 4


def test_what_does_not_differ_is_not_ranked(told):
    (line,) = told((64, "one", 1.01e-3), (64, "two", 1e-3))
    assert "noise" in line


def test_a_tie_in_the_table_is_one_in_the_sentence(told):
    (line,) = told((64, "one", 1.3e-3), (64, "two", 1e-3), width=0.14)
    assert "noise" in line
    (line,) = told((64, "one", 1.4e-3), (64, "two", 1e-3), width=0.14)
    assert "noise" not in line


def test_many_problems_are_a_geomean_with_its_interval(told):
    cases = [(m, "one", 1e-6 * m) for m in SIZES]
    cases += [(m, "two", 1e-6 * m / f) for m, f in zip(SIZES, (2, 2, 4, 0.5), strict=True)]
    (line,) = told(*cases)
    wins, of, others, mean, level, low, high = numbers(line)
    assert (wins, of, others, level) == (3, 4, 1, 95)
    assert mean == pytest.approx(8**0.25, rel=0.01)
    assert low < mean < high


def test_the_third_backend_is_not_named(told):
    cases = [(m, name, t * m) for m in (1, 2, 3) for name, t in (("a", 3), ("b", 1), ("c", 2))]
    (line,) = told(*cases)
    assert line.startswith("b is fastest in 3 of 3 problems")
    assert " of c " in line
    assert " a " not in line


def test_ties_are_nobodys_wins(told):
    (line,) = told(*[(m, n, t) for m in (1, 2) for n, t in (("a", 1.01e-3), ("b", 1e-3))])
    assert line.startswith("no backend ")
    assert numbers(line) == [2, 1.01]
    cases = [(m, n, t) for m in (1, 2) for n, t in (("a", 1.01e-3), ("b", 1e-3))]
    (line,) = told(*cases, (3, "a", 2.0), (3, "b", 1.0))
    assert numbers(line)[:3] == [1, 3, 2]


def test_a_backend_that_wins_more_often_and_is_slower_overall_is_not_praised(told):
    cases = [(m, n, t) for m in (1, 2) for n, t in (("often", 1.0), ("once", 1.1))]
    (line,) = told(*cases, (3, "often", 9.0), (3, "once", 1.0))
    assert line.startswith("often is fastest in 2 of 3 problems, once in 1, but ")
    assert numbers(line)[3] < 1


def test_problems_that_are_not_ranked_are_counted(make_result, make_set):
    problems = [f"gemm m={m} n=64 k=64 dtype=f32" for m in (1, 2, 3)]
    made = [make_result(problems[0], backend=name, median_s=t) for name, t in (("a", 2), ("b", 1))]
    few = Reason("few-blocks", blocks=1, wanted=4)
    for problem in problems[1:]:
        for name in ("a", "b"):
            one = make_result(problem, backend=name, median_s=1.0)
            measured = dataclasses.replace(one.measurement, warnings=(few,))
            made.append(dataclasses.replace(one, measurement=measured))
    (line,) = answer(rows(make_set(*made), []))
    assert numbers(line)[-2:] == [1, 2]
    (line,) = answer(rows(make_set(*made[2:]), []))
    assert numbers(line) == [2]


def test_one_backend_has_no_rival(told):
    assert told((64, "one", 1e-3), (128, "one", 2e-3)) == []
    assert told() == []


def test_the_furthest_from_its_roof_is_named(told):
    roofs = [("flops", "f32", 1e11), ("bytes", "dram", 1e10)]
    lines = told((64, "one", 1e-3), (512, "one", 1e-3), roofs=roofs)
    assert "m=64" in lines[-1]
