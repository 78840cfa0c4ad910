"""What is shown of series."""

from __future__ import annotations

import json
import shlex

import pytest

from kernelmark.compare.history import story
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Mode, Run
from kernelmark.core.timing import Cache, Timing
from kernelmark.report import history as report
from kernelmark_dev.results import make_history, make_point


def flagged(made, last=2e-3, device="cpu", key=""):
    """A series of this result's case, or of another problem, whose tenth run is another time."""
    name = made.series.replace(made.case.problem.key, key) if key else made.series
    times = [*[1e-3] * 9, last]
    return story(
        [make_point(t, series=name, run_id=f"r{i}", device=device) for i, t in enumerate(times)]
    )


def test_trend():
    """Bars, then the range that they are drawn over."""
    found = report.trend([make_point(1.0), make_point(2.0), make_point(None), make_point(1.0)])
    assert found == "▁█×▁ 1.000 s to 2.000 s"
    assert report.trend([make_point(1.0), make_point(1.001)]).split()[0] in ("▄▄", "▄▅")
    assert report.trend([make_point(None)]) == "×"
    bars, *ends = report.trend([make_point(1.0)] * 99).split()
    assert (len(bars), ends) == (20, ["1.000", "s"])


def test_parts_of_a_series(make_result):
    made = make_result(
        backend="triton", config={"tile": 64, "note": "a | b"}, timing=Timing(cache=Cache.HOT)
    )
    points = [make_point(1e-3, series=made.series, run_id=f"r{i}") for i in range(9)]
    points.append(make_point(2e-3, series=made.series, run_id="r9"))
    found = story(points)
    known = report.parts(found)
    assert known["problem"] == "gemm m=512 n=512 k=512 dtype=f32"
    assert known["backend"] == "triton [note=a | b tile=64]"
    assert known["arch"] == "aarch64"
    assert isinstance(made.case, Case)
    (command,) = report.confirmations(make_history(), [found])
    assert "-d cuda:1" in command
    assert "--config tile=64" in command
    assert command.endswith("--cache hot")


def keyed(m):
    return f"gemm m={m} n=8 k=8 dtype=f32"


def test_one_command_confirms_all_problems_that_are_measured_alike(make_result):
    alarms = [flagged(make_result(keyed(m)), last=m * 1e-3) for m in (2, 4, 3)]
    alarms.append(flagged(make_result(keyed(2), config={"tile": 8})))
    alarms.append(flagged(make_result(keyed(2)), device="cuda:0"))
    commands = report.confirmations(make_history(), alarms)
    problems = " ".join(f"-p {shlex.quote(keyed(m))}" for m in (4, 3, 2))
    assert len(commands) == 3
    assert commands[0].endswith(f" {problems} -b numpy")
    assert commands[0].startswith("kmark ab --env before=PYTHON --env after=PYTHON -p")


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        (
            [("variable OMP_NUM_THREADS", "4", "1")],
            "kmark ab --env before --env after --set before:OMP_NUM_THREADS=4 "
            "--set after:OMP_NUM_THREADS=1 -p",
        ),
        (
            [("variable X", "", "a b")],
            "env -u X kmark ab --env before --env after --set 'after:X=a b' -p",
        ),
        (
            [("library torch", "1", "2"), ("variable X", "1", "2")],
            "kmark ab --env before=PYTHON --env after=PYTHON --set before:X=1 --set after:X=2 -p",
        ),
        ([("library torch", "1", "2")], "kmark ab --env before=PYTHON --env after=PYTHON -p"),
    ],
)
def test_variables_that_changed_are_set(make_result, changes, beginning):
    found = make_history(changes={("r8", "r9"): tuple(changes)})
    (command,) = report.confirmations(found, [flagged(make_result(keyed(2)))])
    assert command.startswith(beginning)


def test_the_series_of_a_problem_follow_each_other():
    def short(m, backend):
        return story([make_point(1e-3, series=f"gemm m={m} | {backend} | {{}} | t | x")] * 3)

    shown = [short(2, "a"), short(1, "a"), short(2, "b"), short(1, "b")]
    rows = report.table(make_history(), shown).rows
    assert [row[:2] for row in rows] == [
        ("gemm m=2", "a"),
        ("gemm m=2", "b"),
        ("gemm m=1", "a"),
        ("gemm m=1", "b"),
    ]


@pytest.mark.parametrize(("runs", "said"), [(20, False), (21, True)])
def test_a_trend_of_the_newest_points_only_says_so(runs, said):
    table = report.table(
        make_history(), [story([make_point(1e-3, run_id=f"r{i}") for i in range(runs)])]
    )
    (name,) = (column.name for column in table.columns if column.name.startswith("trend"))
    assert ("20" in name) is said


def test_columns_without_a_value_are_left_out(make_result):
    young = story([make_point(1e-3), make_point(1e-3, run_id="s")])
    found = flagged(make_result())
    names = [
        [c.name for c in report.table(make_history(), rows).columns] for rows in ([young], [found])
    ]
    assert "against level" not in names[0]
    assert "last step" not in names[0]
    assert "against level" in names[1]
    assert all(len(row) == len(names[0]) for row in report.table(make_history(), [young]).rows)


def test_a_multimodal_point_is_shown_by_its_median_and_drawn_by_its_mean():
    modes = (Mode(value_s=1.0, share=0.5), Mode(value_s=4.0, share=0.5))
    points = [make_point(1.0, run_id="a", modes=modes), make_point(4.0, run_id="b", modes=modes)]
    assert report.trend(points) == report.trend([make_point(2.0), make_point(2.0)])
    found = story(points)
    table = report.table(make_history(), [found])
    cells = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert cells["newest"] == "4.000 s", "as kmark show prints it"
    assert cells["state"].endswith("multimodal")
    document = report.document(make_history(), [found])["series"][0]["points"]
    assert [point["modes"] for point in document] == [[[1.0, 0.5], [4.0, 0.5]]] * 2
    assert json.loads(report.records([found])[0]["modes"]) == [[1.0, 0.5], [4.0, 0.5]]


def test_a_multimodal_point_that_is_not_its_median_is_noted():
    modes = (Mode(value_s=1.0, share=0.5), Mode(value_s=4.0, share=0.5))
    two = story([make_point(2.0, run_id="a"), make_point(4.0, run_id="b", modes=modes)])
    near = story([make_point(2.0, run_id="a"), make_point(2.001, run_id="b", modes=modes)])

    def notes(*stories, shown=None):
        run = Run(id="b", started=1.0, environment=Environment())
        return report.notes(make_history(*stories, runs=(run,)), shown)

    assert len(notes(two)) == len(notes(near)) + 1
    assert not notes(story([make_point(2.0), make_point(4.0)]))
    assert notes(two, near, shown=[two]) == notes(two)
    assert notes(two, near, shown=[near]) == notes(near)


def slower(name, backend, ratio):
    times = [*[1e-3] * 9, 1e-3 * ratio]
    key = f"gemm m={name} | {backend} | {{}} | t | x"
    return story(
        [make_point(t, series=key, run_id=f"r{i}", started=i) for i, t in enumerate(times)]
    )


def test_alarms_are_grouped_by_cause_and_sorted_by_harm():
    changes = (("commit", "a" * 40, "b" * 40), ("library triton", "3.9.0", "3.9.1"))
    found = make_history(changes={("r8", "r9"): changes})
    alarms = [slower(1, "triton", 0.9), slower(2, "triton", 1.05), slower(3, "triton", 1.17)]
    lines = report.alarm_lines(found, alarms, alarms)
    assert lines[0].startswith("triton 3.9.0 → 3.9.1; commit aaaaaaaaaa → bbbbbbbbbb: 2 kernels")
    assert [line.split()[1] for line in lines[1:3]] == ["m=3", "m=2"]
    assert lines[3].startswith("faster")
    assert "a" * 11 not in "".join(lines)
    ordered = report.by_worry(alarms)
    assert [one.screen.ratio > 1 for one in ordered] == [True, True, False]


def test_an_open_regression_has_a_command_that_accepts_it():
    alarms = [slower(1, "a", 0.9), slower(2, "a", 1.17)]
    (command,) = report.acceptances(alarms)
    words = shlex.split(command)
    assert words[words.index("--accept") + 1] == report.series_id(alarms[1])
