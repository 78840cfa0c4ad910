"""The answer of a run in a sentence."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
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


def geomean(line):
    """The code and the fields of the second half of an answer over several problems."""
    found = line.root.fields["geomean"]
    return found.code, found.fields


def test_two_rows_are_a_ratio(told):
    (line,) = told((64, "one", 2e-3), (64, "two", 1e-3))
    assert line.code == "answer-ratio"
    assert (line.fields["first"], line.fields["second"]) == ("two", "one")
    assert line.fields["ratio"] == pytest.approx(2.0)
    assert line.fields["width"] == pytest.approx(2 * 0.02 * 2**0.5)


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
    assert line.code == "answer-wins"
    found = {name: line.fields[name] for name in ("first", "wins", "second", "second_wins")}
    assert found == {"first": "a", "wins": 4, "second": "b", "second_wins": 1}
    assert line.fields["problems"] == 5
    assert geomean(line)[1]["shared"] == 4


@pytest.mark.parametrize(
    ("careful", "code", "names", "but"),
    [
        (1.01, "answer-tie", ("a", ("b",)), False),
        (2.0, "answer-ratio", ("a", "b"), False),
        (0.5, "answer-ratio", ("b", "a"), True),
    ],
)
def test_a_single_problem_in_common_is_no_geomean(told, careful, code, names, but):
    cases = [(m, "a", 1.0) for m in (1, 2, 3)]
    (line,) = told(*cases, (1, "b", careful), (2, "c", 9.0), (3, "d", 9.0))
    assert line.fields["first"] == "a"
    found, fields = geomean(line)
    assert (found, fields["but"]) == ("shared-one", but)
    cause = fields["cause"]
    assert cause.code == code
    assert (cause.fields["first"], cause.fields.get("second") or cause.fields["others"]) == names


def test_the_rival_is_the_fastest_of_those_that_measured_most(told):
    cases = [(1, "careful", 1.01), (1, "numpy", 1.0), (1, "torch", 1.17), (1, "slow", 3.0)]
    (line,) = told(*cases, (2, "numpy", 1.0), (2, "torch", 1.15), (2, "slow", 3.0))
    found = [line.fields[name] for name in ("first", "wins", "second", "problems", "ties")]
    assert found == ["numpy", 1, "torch", 2, 1]
    code, fields = geomean(line)
    assert (code, fields["shared"]) == ("geomean", 0)
    assert fields["mean"] == pytest.approx((1.17 * 1.15) ** 0.5)


def test_of_backends_that_win_nothing_the_one_that_measured_most_is_first(told):
    cases = [(1, "careful", 1.0), *((m, name, 1.01) for m in (1, 2) for name in ("numpy", "x"))]
    (line,) = told(*cases)
    assert line.code == "answer-no-wins"
    assert {geomean(line)[1][name] for name in ("first", "second")} == {"numpy", "x"}


@pytest.mark.parametrize(
    ("slow", "width", "code"),
    [(1.01, 0.02, "answer-tie"), (1.3, 0.14, "answer-tie"), (1.4, 0.14, "answer-ratio")],
)
def test_a_tie_in_the_table_is_one_in_the_sentence(told, slow, width, code):
    (line,) = told((64, "one", slow * 1e-3), (64, "two", 1e-3), width=width)
    assert line.code == code
    if code == "answer-tie":
        assert (line.fields["first"], line.fields["others"]) == ("two", ("one",))


def test_all_that_do_not_differ_from_the_best_are_named(told):
    cases = [(64, "torch", 1.03e-3), (64, "mine", 1.01e-3), (64, "numpy", 1e-3), (64, "x", 2e-3)]
    (line,) = told(*cases)
    assert line.code == "answer-tie"
    assert (line.fields["first"], line.fields["others"]) == ("numpy", ("mine", "torch"))
    assert line.fields["ratio"] == pytest.approx(1.03)
    for name in ("numpy", "mine", "torch"):
        assert name in line


def test_a_ratio_of_noise_is_not_a_number(told):
    (line,) = told((64, "one", 1e-3), (64, "two", 1e-3), width=0.9)
    assert line.code == "answer-noisy"


def test_many_problems_are_a_geomean_with_its_interval(told):
    cases = [(m, "one", 1e-6 * m) for m in SIZES]
    cases += [(m, "two", 1e-6 * m / f) for m, f in zip(SIZES, (2, 2, 4, 0.5), strict=True)]
    (line,) = told(*cases)
    found = [line.fields[name] for name in ("wins", "problems", "second_wins", "ties")]
    assert found == [3, 4, 1, 0]
    code, fields = geomean(line)
    assert code == "geomean-open"
    assert fields["mean"] == pytest.approx(8**0.25)
    assert fields["low"] < 1 < fields["mean"] < fields["high"]
    assert (fields["level"], fields["first"], fields["second"]) == (0.95, "two", "one")


@pytest.mark.parametrize(
    ("factors", "code", "but"),
    [
        ((0.9, 1.1, 0.98, 1.1), "geomean-open", False),
        ((2.0, 2.1, 2.2, 2.0), "geomean", False),
        ((1.1, 1.1, 0.7), "geomean-open", False),
        ((1.1, 1.1, 1.1, *[0.1] * 2, *[0.995] * 9), "geomean-open", False),
        ((1.1, 1.1, *[0.97] * 40), "geomean", True),
    ],
)
def test_a_mean_whose_interval_contains_1_is_no_contrast(told, factors, code, but):
    """a is `factor` times as fast as b; differences of 3 % are within the noise."""
    cases = [(m, "b", 1e-3) for m, _ in enumerate(factors, 1)]
    cases += [(m, "a", 1e-3 / factor) for m, factor in enumerate(factors, 1)]
    (line,) = told(*cases)
    assert line.fields["first"] == "a"
    found, fields = geomean(line)
    assert (found, bool(fields.get("but"))) == (code, but)
    assert (found == "geomean-open") == ("low" in fields and fields["low"] <= 1 <= fields["high"])


def test_the_third_backend_is_not_named(told):
    cases = [(m, name, t * m) for m in (1, 2, 3) for name, t in (("a", 3), ("b", 1), ("c", 2))]
    (line,) = told(*cases)
    assert (line.fields["first"], line.fields["wins"], line.fields["second"]) == ("b", 3, "c")
    assert " a " not in line


def test_ties_are_nobodys_wins(told):
    cases = [(m, n, t) for m in (1, 2) for n, t in (("a", 1.01e-3), ("b", 1e-3))]
    (line,) = told(*cases)
    assert (line.code, line.fields["problems"]) == ("answer-no-wins", 2)
    assert geomean(line)[1]["mean"] == pytest.approx(1.01)
    (line,) = told(*cases, (3, "a", 2.0), (3, "b", 1.0))
    assert [line.fields[name] for name in ("wins", "problems", "ties")] == [1, 3, 2]


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
    assert (line.code, line.fields["problems"]) == ("answer-of", 1)
    assert told_of(line, "left_out") == [("answer-unranked", 2, True)]
    assert line.root.code == "answer-ratio"
    (line,) = answer(rows(make_set(*made[2:]), []))
    assert told_of(line) == [("answer-unranked", 2, True)]
    skipped = [
        make_result(problems[0], backend="a"),
        make_result(problems[0], backend="b", status=Status.SKIPPED),
    ]
    (line,) = answer(rows(make_set(*skipped), []))
    assert told_of(line) == [("answer-unranked", 1, False)]


def test_one_backend_has_no_rival(told):
    assert told((64, "one", 1e-3), (128, "one", 2e-3)) == []
    assert told() == []


@pytest.fixture
def ended(make_result, make_set):
    """The answer for (problem size, backend, time or status) rows."""

    def made(*cases):
        results = []
        for m, backend, end in cases:
            problem = f"gemm m={m} n=64 k=64 dtype=f32"
            how = {"status": end} if isinstance(end, Status) else {"median_s": end}
            results.append(make_result(problem, backend=backend, **how))
        return answer(rows(make_set(*results), []))

    return made


def told_of(line, field="findings"):
    return [(one.code, *list(one.fields.values())) for one in line.fields[field]]


def test_a_wrong_kernel_is_named(ended):
    (line,) = ended((1, "memo", Status.WRONG), (1, "numpy", 1e-3))
    assert told_of(line)[0] == ("answer-failed", "memo", "wrong", 1, 0)
    assert told_of(line)[1] == ("answer-alone", "numpy", 1e-3)
    (line,) = ended((1, "memo", Status.WRONG), (1, "numpy", 1e-3), (1, "torch", 2e-3))
    assert [code for code, *_ in told_of(line)] == ["answer-failed", "answer-ratio"]
    (line,) = ended((1, "memo", Status.WRONG), (1, "numpy", Status.IMPOSSIBLE))
    assert [found[:3] for found in told_of(line)] == [
        ("answer-failed", "memo", "wrong"),
        ("answer-failed", "numpy", "impossible"),
    ]
    assert ended((1, "memo", Status.WRONG)) == []


def test_of_several_problems_those_that_failed_are_counted(ended):
    cases = [(m, "numpy", 1e-3) for m in (1, 2, 3)]
    wrong = [(m, "memo", Status.WRONG) for m in (1, 2)]
    first, second = ended(*cases, *wrong, (3, "memo", 2e-3))
    assert told_of(first) == [("answer-failed", "memo", "wrong", 2, 3)]
    assert (second.root.code, second.fields["problems"]) == ("answer-ratio", 1)
    first, second = ended(*cases, *wrong, (3, "memo", Status.UNSUPPORTED))
    assert told_of(first) == [("answer-failed", "memo", "wrong", 2, 3)]
    assert told_of(second) == [("answer-only", 1, "numpy")]
    (line,) = ended(*cases, *wrong, (3, "memo", Status.CRASHED))
    assert [found[1:] for found in told_of(line)] == [
        ("memo", "wrong", 2, 3),
        ("memo", "crashed", 1, 3),
    ]
    more = [(m, "torch", 2e-3) for m in (1, 2, 3)]
    first, second = ended(*cases, *wrong, (3, "memo", 3e-3), *more)
    assert (second.code, second.fields["wins"], second.fields["problems"]) == ("answer-wins", 3, 3)


def test_a_backend_that_does_not_support_the_problem_is_named(ended):
    lacks, fast = (1, "careful", Status.UNSUPPORTED), (1, "numpy", 1e-3)
    (line,) = ended(lacks, fast)
    assert told_of(line) == [
        ("answer-unsupported", ("careful",), True),
        ("answer-alone", "numpy", 1e-3),
    ]
    (line,) = ended(lacks, fast, (1, "memo", Status.WRONG))
    codes = ["answer-failed", "answer-unsupported", "answer-alone"]
    assert [code for code, *_ in told_of(line)] == codes
    more = [(1, name, Status.UNSUPPORTED) for name in "abcd"]
    (line,) = ended(lacks, *more)
    assert told_of(line) == [("answer-unsupported", ("careful", "a", "b", "2 more"), False)]
    (line,) = ended(lacks, fast, (1, "torch", 2e-3))
    assert line.code == "answer-ratio"
    assert ended(lacks) == []


def test_problems_that_one_backend_supports_are_counted(ended):
    cases = [(m, "numpy", 1e-3) for m in (1, 2, 3)]
    lacks = [(m, "careful", Status.UNSUPPORTED) for m in (2, 3, 4)]
    none = (4, "numpy", Status.UNSUPPORTED)
    (line,) = ended(*cases, *lacks, none, (1, "careful", 2e-3))
    assert (line.code, line.root.code) == ("answer-of", "answer-ratio")
    left_out = [("answer-only", 2, "numpy"), ("answer-no-support", 1)]
    assert told_of(line, "left_out") == left_out
    (line,) = ended(*cases[1:], *lacks, none)
    assert told_of(line) == left_out


@pytest.mark.parametrize("status", [status for status in Status if status.failed])
def test_every_failure_has_words(ended, status):
    (line,) = ended((1, "memo", status), (1, "numpy", 1e-3))
    assert line.fields["findings"][0].fields["status"] == status.value
    assert line.startswith("memo ")
    assert "_" not in line


def test_the_furthest_from_its_roof_is_named(told):
    roofs = [("flops", "f32", 1e11), ("bytes", "dram", 1e10)]
    lines = told((64, "one", 1e-3), (512, "one", 1e-3), roofs=roofs)
    assert "m=64" in lines[-1]


def test_no_row_is_furthest_from_its_roof_if_the_table_shows_no_difference(told):
    roofs = [("flops", "f32", 1e11), ("bytes", "dram", 1e10)]
    (line,) = told((512, "one", 1.0e-3), (512, "two", 1.001e-3), roofs=roofs)
    assert line.code == "answer-tie"
    lines = told((512, "one", 1.0e-3), (512, "two", 1.2e-3), roofs=roofs)
    assert [line.code for line in lines] == ["answer-ratio", "answer-furthest"]
    assert lines[-1].fields["backend"] == "two"
