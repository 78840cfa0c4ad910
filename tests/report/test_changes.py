"""The one answer to a comparison, and the order in which changes are listed."""

from __future__ import annotations

import re

import pytest

from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.changes import Change, answer, comment, movers_table, ranked, total_text
from kernelmark_dev.raising import tells


def change(status: str, base=1e-5, head=1e-5, **more) -> Change:
    ratio = head / base if base and head else None
    bounds = {"low": ratio * 0.99, "high": ratio * 1.01, "level": 0.99} if ratio else {}
    given = {"problem": "gemm m=8", "backend": "numpy", "reason": NO_REASON, **bounds, **more}
    return Change(status=VerdictStatus(status), base=base, head=head, ratio=ratio, **given)


SAME = change("same")
SLOW = change("slower", head=1.2e-5, problem="gemm m=16")
SLOWER_BY_LESS = change("slower", base=1e-6, head=2e-6, problem="gemm m=1")
BROKEN = change("broken", head=None, reason=Reason("crashed: it fell", "failed"))


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        ([], []),
        ([change("ignored")], []),
        ([change("new", base=None)], [1]),
        ([SAME, SAME], [2]),
        ([SAME, change("faster", head=5e-6)], [2, 1]),
        ([SAME, change("gone", head=None)], [2, 1]),
        ([SAME, SAME, change("unsure")], [3, 1]),
        ([SAME, change("unsure"), change("unsure")], [2, 3]),
        ([SAME, SLOW], [1, 2]),
        ([SAME, SLOW, BROKEN], [1, 3, 1]),
        ([change("slower", head=2e-5, held="moved")], [1, 1]),
        ([change("slower", head=2e-5, held="moved"), BROKEN], [1, 2]),
    ],
)
def test_the_answer_counts(rows, numbers):
    found = [int(number) for number in re.findall(r"(?<![\w.=])\d+(?![\w.])", answer(rows))]
    assert found[: len(numbers) or None] == numbers


def test_the_answer_names_the_kernel_that_costs_the_most_time_not_the_largest_ratio():
    found = answer([SLOWER_BY_LESS, SLOW])
    assert tells(found, problem="gemm m=16", base="10", head="12")


def test_the_answer_names_what_is_undecided():
    for rows in ([SAME, SAME, change("unsure", problem="gemm m=64")], [change("unsure")]):
        assert tells(answer(rows), problem=rows[-1].problem, backend="numpy")
    many = answer([change("unsure", problem=f"gemm m={m}") for m in range(9)])
    assert tells(many, 6)
    assert "gemm m=8" not in many


def test_a_regression_of_an_earlier_night_is_a_reminder():
    known = change("slower", head=1.2e-5, problem="gemm m=16", since="night-3")
    gone_wrong = change("broken", head=None, problem="gemm m=2", since="night-4")
    assert tells(answer([SAME, known]), problem="gemm m=16", since="night-3")
    assert answer([SAME, known]) != answer([SAME, SLOW])
    both = answer([SAME, SLOWER_BY_LESS, known, gone_wrong])
    assert both.startswith(str(answer([SAME, SAME, SAME, SLOWER_BY_LESS])))
    assert tells(answer([SAME, known, gone_wrong]), problem="gemm m=2", since="night-4")


def test_a_rule_without_an_interval_claims_no_confidence():
    bare = change("slower", head=2e-5, low=None, high=None, level=0.0)
    assert "99 % confidence" in answer([SLOW])
    assert "confidence" not in answer([bare])


def test_movers_are_ranked_by_what_a_call_costs():
    faster = change("faster", head=1e-6)
    held = change("slower", head=9e-5, held="moved")
    rows = [SAME, held, faster, SLOWER_BY_LESS, SLOW, BROKEN]
    assert ranked(rows) == [BROKEN, SLOW, SLOWER_BY_LESS, faster, held]
    cells = movers_table(ranked(rows)).rows
    assert [row[-2] for row in cells[1:4]] == ["+2.000 µs", "+1.000 µs", "-9.000 µs"]


def test_the_sum_over_all_kernels():
    assert "20.00 µs → 22.00 µs (+10.0 %)" in total_text([SAME, SLOW, BROKEN])
    assert total_text([SLOW, BROKEN]) == ""


def test_a_comment_escapes_what_names_hold():
    text = comment([change("slower", head=2e-5, problem="<b>|x")])
    assert "<b>" not in text


def test_commands_in_a_comment_are_limited():
    rows = [change("slower", head=2e-5, again=f"kmark ab -p {i}") for i in range(30)]
    text = comment(rows, command="kmark ab -s all")
    assert text.count("kmark ab -p") == 10
    assert "# and 20 more" in text
