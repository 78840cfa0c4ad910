"""Rows that would read the same, and names that are too long for a terminal."""

from __future__ import annotations

from kernelmark.compare.history import story
from kernelmark.compare.rules.ratio import rule as ratio
from kernelmark.compare.verdicts import compare
from kernelmark.core.timing import Cache, Timing
from kernelmark.report import compare as compared
from kernelmark.report import history, tables
from kernelmark.report.apart import apart

USUAL, HOT = Timing().identity, Timing(cache=Cache.HOT, threads=1).identity


def column(table, name):
    place = [one.name for one in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_only_what_differs_among_rows_that_read_the_same():
    rows = [("a", "x"), ("a", "x"), ("a", "y")]
    assert apart(rows, [USUAL, HOT, HOT]) == [
        "cache=cold threads=all",
        "cache=hot threads=1",
        "",
    ]
    assert apart(rows[1:], [USUAL, HOT]) == ["", ""]
    assert apart([("a",)] * 2, [USUAL, USUAL]) == ["", ""]


def test_results_and_comparisons_have_the_column_where_they_need_it(make_result, make_set):
    both = [make_result(), make_result(timing=Timing(threads=1))]
    made = tables.results_table(tables.rows(make_set(*both)))
    assert sorted(column(made, "timing")) == ["threads=1", "threads=all"]
    assert "timing" not in [
        c.name for c in tables.results_table(tables.rows(make_set(both[1]))).columns
    ]
    found = compare(make_set(*both), make_set(*both), rule=ratio)
    assert column(compared.table(found.rows), "timing") == ["threads=all", "threads=1"]
    assert "timing" not in [c.name for c in compared.table(found.rows[:1]).columns]


def test_series_are_told_apart(make_result):
    class Point:
        run_id, started, median_s, status = "r", 0.0, 1.0, make_result().status
        low_s, high_s, modes, doubt, metric = None, None, (), None, ""

        def __init__(self, series):
            self.series = series

    stories = [story([Point(make_result(timing=Timing(threads=n)).series)]) for n in (0, 1)]
    assert list(history.timings(stories).values()) == ["threads=all", "threads=1"]
    assert list(history.timings(stories[:1]).values()) == [""]
