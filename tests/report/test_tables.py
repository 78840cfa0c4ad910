from __future__ import annotations

import dataclasses

import pytest

from kernelmark.api.results import Results
from kernelmark.cli.store import listing
from kernelmark.core.reason import TEXT, Reason
from kernelmark.core.result import Mode, Status
from kernelmark.core.timing import Timing
from kernelmark.report import ab, changes, compare, history, iree, results
from kernelmark.report.results import (
    MARK,
    rate,
    result_columns,
    result_records,
    result_rows,
    results_table,
    with_separator,
)
from kernelmark.report.summary import collect_warnings, find_failures
from kernelmark.report.tables import NONE, Column, html_table, markdown, text
from kernelmark.web.pages import runs
from kernelmark_dev.raising import tells
from kernelmark_dev.results import make_check


def test_rows_are_in_the_order_asked_for_those_of_a_problem_together(make_result, make_set):
    small = "gemm m=8 n=8 k=8 dtype=f32"
    results = make_set(
        make_result(backend="slow", median_s=0.03),
        make_result(backend="broken", median_s=None, status=Status.CRASHED, error="signal 9"),
        make_result(small, backend="fast", median_s=0.01),
        make_result(backend="fast", median_s=0.01),
    )
    made = result_rows(results)
    assert [row.backend for row in made] == ["slow", "broken", "fast", "fast"]
    assert [row.times_best for row in made] == [3.0, None, 1.0, None]
    assert [one.case.problem.dims["m"] for one in Results(results).best()] == [512, 8]


@pytest.mark.parametrize("status", [Status.WRONG, Status.IMPOSSIBLE])
def test_wrong_or_impossible_keeps_its_time_but_never_ranks(make_result, make_set, status):
    made = result_rows(
        make_set(
            make_result(backend="cheat", median_s=0.001, status=status),
            make_result(backend="a", median_s=0.01),
            make_result(backend="b", median_s=0.02),
        )
    )
    assert [row.times_best for row in made] == [None, 1.0, 2.0]
    cells = results_table(made).rows[0]
    assert "1.000 ms" in cells
    assert cells[-1] == status.value
    assert [failure.status for failure in find_failures(made)] == [status]
    assert not made[0].is_warned


def test_columns_appear_only_where_they_say_something(make_result, make_set):
    one = results_table(result_rows(make_set(make_result())))
    assert [c.name for c in one.columns] == [
        "problem",
        "backend",
        "median",
        "±",
        "rate",
        "of roof",
        "status",
    ]
    several = results_table(
        result_rows(make_set(make_result(), make_result(backend="torch", device="fake:1")))
    )
    names = [c.name for c in several.columns]
    assert "device" in names
    assert "vs best" in names


def test_every_cell_is_there(make_result, make_set, make_roof):
    roofs = [make_roof("flops", "f32", 80e9), make_roof("bytes", "dram", 50e9)]
    made = result_rows(make_set(make_result(median_s=0.01)), roofs)
    assert results_table(made).rows == (
        (
            "gemm m=512 n=512 k=512 dtype=f32",
            "numpy",
            "10.00 ms",
            "2.0 %",
            "26.84 GFLOP/s",
            "34 % compute",
            "ok",
        ),
    )


def test_memory_bound_shows_bytes(make_result, make_set, make_roof):
    roofs = [make_roof("flops", "f32", 80e9), make_roof("bytes", "dram", 50e9)]
    result = make_result("gemm m=1 n=2048 k=2048 dtype=f32", median_s=0.001)
    cells = results_table(result_rows(make_set(result), roofs)).rows[0]
    assert "16.79 GB/s" in cells
    assert "34 % memory" in cells


def test_above_the_roof_is_shown_and_explained(make_result, make_set, make_roof):
    made = result_rows(make_set(make_result()), [make_roof("flops", "f32", 1e9)])
    assert "2684 % compute" in results_table(made).rows[0]
    assert "above-roof" in [one.code for one in collect_warnings(made)]


def test_failures_are_grouped_with_commands(make_result, make_set):
    timing = Timing(threads=1)
    made = result_rows(
        make_set(
            make_result("gemm m=8 n=8 k=8 dtype=bf16", median_s=None, status=Status.UNSUPPORTED),
            make_result("gemm m=1 n=8 k=8 dtype=f32", median_s=None, status=Status.CRASHED),
            make_result(
                "gemm m=2 n=8 k=8 dtype=f32", median_s=None, status=Status.CRASHED, timing=timing
            ),
        )
    )
    crashed, unsupported = find_failures(made)
    assert (crashed.status, len(crashed.rows)) == (Status.CRASHED, 2)
    assert unsupported.status is Status.UNSUPPORTED
    assert crashed.commands()[1].endswith("--threads 1")


def test_a_wrong_result_is_explained_by_its_check(make_result, make_set):
    check = make_check(worst=9.0, detail="off by one")
    made = result_rows(make_set(make_result(status=Status.WRONG, check=check)))
    assert find_failures(made)[0].reason == "off by one"


def test_warnings_of_one_kind_are_told_once(make_result, make_set):
    results = [
        make_result(
            f"gemm m={m} n=8 k=8 dtype=f32",
            warnings=(Reason(f"{m}.5 cores", "other-load", load=m + 0.5),),
        )
        for m in (1, 3, 2)
    ]
    (told,) = collect_warnings(result_rows(make_set(*results)))
    assert (told.code, told.fields["load"]) == ("other-load", 3.5)
    assert tells(told, load=3.5, count=3)


def test_warnings_of_the_processes_of_one_result_are_one(make_result, make_set):
    some = tuple(Reason(f"{load} cores", "other-load", load=load) for load in (1.5, 3.5, 2.5))
    (told,) = collect_warnings(result_rows(make_set(make_result(warnings=some))))
    assert (told.code, told.fields["load"]) == ("other-load", 3.5)
    (told,) = collect_warnings(
        result_rows(
            make_set(
                make_result(warnings=some),
                make_result("gemm m=9 n=8 k=8 dtype=f32", warnings=some[:1]),
            )
        )
    )
    assert (told.code, told.fields["load"]) == ("other-load", 3.5)
    assert tells(told, load=3.5, count=2)


def test_of_many_warnings_without_a_code_some_are_told(make_result, make_set):
    results = [
        make_result(f"gemm m={m} n=8 k=8 dtype=f32", warnings=(f"load {m}",)) for m in range(1, 9)
    ]
    *some, more = collect_warnings(result_rows(make_set(*results)))
    assert {one.code for one in some} == {TEXT}
    assert len(some) == 5
    assert "3" in more


def moved(low, high):
    return Reason(f"{low} to {high}", "clock-moved", low_mhz=low, high_mhz=high)


def few(samples):
    return Reason(f"{samples} samples", "few-samples", max_s=2.0, samples=samples, wanted=5)


def throttled(count):
    return Reason(f"{count} blocks", "throttled", count=count, blocks=4, by=("power",))


@pytest.mark.parametrize(
    ("harmless", "worst"),
    [
        (moved(1391.0, 1482.0), moved(1284.0, 1475.0)),
        (few(4), few(1)),
        (throttled(2), throttled(4)),
    ],
)
def test_the_worst_warning_is_the_one_that_is_told(make_result, make_set, harmless, worst):
    for order in ((harmless, worst), (worst, harmless)):
        results = [
            make_result(f"gemm m={m} n=8 k=8 dtype=f32", warnings=(warning,))
            for m, warning in enumerate(order, 1)
        ]
        (told,) = collect_warnings(result_rows(make_set(*results)))
        assert (told.code, told.fields) == (worst.code, worst.fields)
        assert tells(told, worst, count=2)


def test_other_times_have_columns_only_where_a_row_has_them(make_result, make_set):
    plain = make_result(backend="plain")
    gpu = make_result(backend="gpu", median_s=1e-5)
    beside = dataclasses.replace(gpu.measurement, also={"hot_s": 8e-6, "host_s": 3e-5})
    gpu = dataclasses.replace(gpu, measurement=beside)
    table = results_table(result_rows(make_set(gpu, plain)))
    names = [column.name for column in table.columns]
    assert names[names.index("hot") :][:2] == ["hot", "eager"]
    assert not {"profiler", "at our clock"} & set(names)
    first = dict(zip(names, table.rows[0], strict=True))
    assert (first["hot"], first["eager"]) == ("8.000 µs", "30.00 µs")
    assert first["status"] == "ok, launch-bound"
    assert dict(zip(names, table.rows[1], strict=True))["eager"] == NONE
    alone = [c.name for c in results_table(result_rows(make_set(plain))).columns]
    assert "eager" not in alone


def test_a_ranking_within_the_noise_says_so(make_result, make_set):
    made = result_rows(
        make_set(
            make_result(backend="a", median_s=0.0100),
            make_result(backend="b", median_s=0.0101),
            make_result(backend="c", median_s=0.0200),
        )
    )
    assert [row.tied for row in made] == [False, True, False]
    column = [c.name for c in results_table(made).columns].index("vs best")
    shown = [row[column] for row in results_table(made).rows]
    assert shown == ["best", "≈ 1.01 ×", "2.00 ×"]


def test_a_wrong_kernel_says_nothing_about_the_roof(make_result, make_set, make_roof):
    roofs = [make_roof("flops", "f32", 1e9, unit="vector"), make_roof("bytes", "dram", 1e9)]
    fast = make_set(make_result(median_s=1e-6, status=Status.WRONG))
    assert all(one.code != "above-roof" for one in collect_warnings(result_rows(fast, roofs)))
    right = make_set(make_result(median_s=1e-6))
    assert any(one.code == "above-roof" for one in collect_warnings(result_rows(right, roofs)))


@pytest.mark.parametrize(
    ("status", "shown"), [(Status.WRONG, False), (Status.IMPOSSIBLE, True), (Status.OK, True)]
)
def test_a_wrong_kernel_has_no_percentage_of_its_roof(
    make_result, make_set, make_roof, status, shown
):
    made = result_rows(make_set(make_result(status=status)), [make_roof("flops", "f32", 1.0)])
    table = results_table(made)
    (cells,) = table.rows
    cell = cells[[column.name for column in table.columns].index("of roof")]
    assert (cell != NONE) == shown


@pytest.mark.parametrize(
    ("backends", "names"),
    [("a", ("a",)), ("abc", ("a", "b", "c")), ("aabcde", ("a", "b", "c", "2 more"))],
)
def test_a_failure_names_its_backends(make_result, make_set, backends, names):
    why = Reason.of("off by one")
    results = [
        make_result(f"gemm m={m} n=8 k=8 dtype=f32", backend=name, status=Status.WRONG, error=why)
        for m, name in enumerate(backends, 1)
    ]
    (found,) = find_failures(result_rows(make_set(*results)))
    assert found.backends == names
    assert f"({', '.join(names)})" in found.sentence


def test_a_failure_whose_reason_names_the_backend_does_not_repeat_it(make_result, make_set):
    why = Reason("op unsupported", "op-unsupported", backend="a", op="gemm", known=("conv",))
    one = make_result(backend="a", status=Status.UNSUPPORTED, median_s=None, error=why)
    (found,) = find_failures(result_rows(make_set(one)))
    assert found.backends == ()


def test_sentinels_come_last_under_a_line_of_their_own(make_result, make_set):
    results = make_set(
        make_result("gemm m=8 n=8 k=8 dtype=f32"), make_result("gemm m=1 n=8 k=8 dtype=f32")
    )
    key = results.results[1].case.problem.key
    made = result_rows(results, sentinels=[key])
    table = results_table(made)
    first = [row[0] for row in table.rows]
    assert [text.split()[:2] for text in first] == [["gemm", "m=8"], ["canaries:"], ["gemm", "m=1"]]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert len(with_separator(made)) == len(table.rows)


def test_nothing_is_a_rate_where_no_work_is_known(make_result, make_set):
    made = result_rows(make_set(make_result(flops=0, bytes=0)))
    assert rate(made[0]) == NONE


def test_results_with_a_warning_are_marked(make_result, make_set, make_roof):
    busy = make_result(backend="b", median_s=0.02, warnings=("other work used 2 cores",))
    made = result_rows(make_set(make_result(backend="a"), busy))
    table = results_table(made)
    place = [column.name for column in table.columns].index("±")
    assert [row[place] for row in table.rows] == ["2.0 %  ", "2.0 % !"]
    assert [row.is_warned for row in made] == [False, True]
    above = result_rows(make_set(make_result()), [make_roof("flops", "f32", 1e9)])
    assert results_table(above).rows[0][3].endswith(MARK)


def test_a_crash_is_one_line_and_says_that_there_is_more(make_result, make_set):
    def crash(m, address):
        error = Reason(f"exited\nCurrent thread {address}\n  File", "worker-exited", exit_code=6)
        return make_result(
            f"gemm m={m} n=8 k=8 dtype=f32", median_s=None, status=Status.CRASHED, error=error
        )

    (found,) = find_failures(result_rows(make_set(crash(1, "0x1"), crash(2, "0x2"))))
    assert found.reason.startswith("exited")
    assert "thread" not in found.reason
    assert (found.cut, len(found.rows)) == (True, 2)
    compiler = make_result(median_s=None, status=Status.COMPILE_ERROR, error="a\nb")
    (found,) = find_failures(result_rows(make_set(compiler)))
    assert (found.reason, found.cut) == ("a\nb", False)


def test_multimodal_rows_are_marked_and_told(make_result, make_set):
    modes = (Mode(value_s=35.2e-6, share=0.75), Mode(value_s=38.2e-6, share=0.25))
    plain = make_result(backend="a")
    measured = dataclasses.replace(plain.measurement, modes=modes)
    mixed = [make_result(backend=f"b{i}", measurement=measured) for i in range(7)]
    made = result_rows(make_set(plain, mixed[0]))
    assert [row.is_warned for row in made] == [row.backend == "b0" for row in made]
    (told,) = collect_warnings(made)
    assert "35.20 µs (75 %), 38.20 µs (25 %)" in told
    assert len(collect_warnings(result_rows(make_set(*mixed)))) == 6  # five of them, and the rest


def test_what_is_unreliable_is_shown_and_does_not_rank(make_result, make_set):
    few = Reason("few blocks", "few-blocks", blocks=2, wanted=3)
    results = make_set(
        make_result(backend="slow", median_s=0.03),
        make_result(backend="fast", median_s=0.02),
        make_result(backend="doubtful", median_s=0.01, warnings=(few,)),
    )
    made = {row.backend: row for row in result_rows(results)}
    assert {name: row.ranks for name, row in made.items()} == {
        "slow": True,
        "fast": True,
        "doubtful": False,
    }
    assert made["fast"].times_best == 1.0
    assert made["doubtful"].times_best is None
    assert made["doubtful"].timed
    assert Results(results).best() == [made["fast"].result]


def test_a_column_is_declared_once_for_every_output(make_result, make_set, monkeypatch):
    twice = Column(
        "twice_s",
        lambda row: 2 * row.measurement.median_s,
        "twice the time",
        "number",
        "s",
        title="twice",
    )
    for module in (results, runs):
        monkeypatch.setattr(module, "COLUMNS", (*results.COLUMNS, twice))
    made = result_rows(make_set(make_result(median_s=0.01)))
    for shown in (text, markdown, html_table):
        assert "20.00 ms" in shown(results_table(made))
    assert result_records(made)[0]["twice_s"] == 0.02
    assert "twice_s" in result_columns(made)
    assert {"key": "twice_s", "title": "twice", "kind": "time"} in runs._rows_table(made)["columns"]
    assert runs._result_row(made[0])["twice_s"] == 0.02


@pytest.mark.parametrize("module", [ab, changes, compare, history, iree, listing, results])
def test_no_column_is_declared_twice(module):
    declared = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, tuple) and value and all(isinstance(c, Column) for c in value)
    }
    assert declared
    for name, columns in declared.items():
        names = [column.name for column in columns if column.is_written]
        assert len(names) == len(set(names)), name
