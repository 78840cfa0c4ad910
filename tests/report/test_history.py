"""What is shown of series."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass

import pytest

from kernelmark.compare.history import History, story
from kernelmark.compare.verdicts import Audit
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Mode, Run, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.report import history as report


@dataclass(frozen=True)
class Point:
    median_s: float | None
    low_s: float | None = None
    high_s: float | None = None
    series: str = "gemm m=8 | a | {} | t | x"
    run_id: str = "r"
    started: float = 0.0
    fingerprint: str = ""
    device: str = "cuda:1"
    modes: tuple[Mode, ...] = ()
    doubt: None = None
    metric: str = ""
    value: float | None = None
    unit: str = ""
    better: str = "lower"

    @property
    def status(self) -> Status:
        return Status.OK if self.median_s else Status.TIMEOUT


def history(**changes):
    """What was found in no series, with these changes of the environment by (before, after)."""
    return History(
        stories=(),
        runs=(),
        changes=changes.get("changes", {}),
        moved=(),
        marked={},
        watched=True,
        audit=Audit(compared=0, alarms=0),
        baseline_name="",
        baseline={},
    )


def flagged(made, last=2e-3, device="cpu", key=""):
    """A series of this result's case, or of another problem, whose tenth run is another time."""
    name = made.series.replace(made.case.problem.key, key) if key else made.series
    times = [*[1e-3] * 9, last]
    return story(
        [Point(t, series=name, run_id=f"r{i}", device=device) for i, t in enumerate(times)]
    )


def test_trend():
    """Bars, then the range that they are drawn over."""
    found = report.trend([Point(1.0), Point(2.0), Point(None), Point(1.0)])
    assert found == "▁█×▁ 1.000 s to 2.000 s"
    assert report.trend([Point(1.0), Point(1.001)]).split()[0] in ("▄▄", "▄▅")
    assert report.trend([Point(None)]) == "×"
    bars, *ends = report.trend([Point(1.0)] * 99).split()
    assert (len(bars), ends) == (20, ["1.000", "s"])


def test_parts_of_a_series(make_result):
    made = make_result(
        backend="triton", config={"tile": 64, "note": "a | b"}, timing=Timing(cache=Cache.HOT)
    )
    points = [Point(1e-3, series=made.series, run_id=f"r{i}") for i in range(9)]
    points.append(Point(2e-3, series=made.series, run_id="r9"))
    found = story(points)
    known = report.parts(found)
    assert known["problem"] == "gemm m=512 n=512 k=512 dtype=f32"
    assert known["backend"] == "triton [note=a | b tile=64]"
    assert known["arch"] == "aarch64"
    assert isinstance(made.case, Case)
    (command,) = report.confirmations(history(), [found])
    assert "-d cuda:1" in command
    assert "--config tile=64" in command
    assert command.endswith("--cache hot")


def keyed(m):
    return f"gemm m={m} n=8 k=8 dtype=f32"


def test_one_command_confirms_all_problems_that_are_measured_alike(make_result):
    alarms = [flagged(make_result(keyed(m)), last=m * 1e-3) for m in (2, 4, 3)]
    alarms.append(flagged(make_result(keyed(2), config={"tile": 8})))
    alarms.append(flagged(make_result(keyed(2)), device="cuda:0"))
    commands = report.confirmations(history(), alarms)
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
    found = history(changes={("r8", "r9"): tuple(changes)})
    (command,) = report.confirmations(found, [flagged(make_result(keyed(2)))])
    assert command.startswith(beginning)


def test_the_series_of_a_problem_follow_each_other():
    def short(m, backend):
        return story([Point(1e-3, series=f"gemm m={m} | {backend} | {{}} | t | x")] * 3)

    shown = [short(2, "a"), short(1, "a"), short(2, "b"), short(1, "b")]
    rows = report.table(history(), shown).rows
    assert [row[:2] for row in rows] == [
        ("gemm m=2", "a"),
        ("gemm m=2", "b"),
        ("gemm m=1", "a"),
        ("gemm m=1", "b"),
    ]


@pytest.mark.parametrize(("runs", "said"), [(20, False), (21, True)])
def test_a_trend_of_the_newest_points_only_says_so(runs, said):
    table = report.table(history(), [story([Point(1e-3, run_id=f"r{i}") for i in range(runs)])])
    (name,) = (column.name for column in table.columns if column.name.startswith("trend"))
    assert ("20" in name) is said


def test_columns_without_a_value_are_left_out(make_result):
    young = story([Point(1e-3), Point(1e-3, run_id="s")])
    found = flagged(make_result())
    names = [[c.name for c in report.table(history(), rows).columns] for rows in ([young], [found])]
    assert "against level" not in names[0]
    assert "last step" not in names[0]
    assert "against level" in names[1]
    assert all(len(row) == len(names[0]) for row in report.table(history(), [young]).rows)


def test_a_multimodal_point_is_shown_by_its_mean():
    modes = (Mode(value_s=1.0, share=0.5), Mode(value_s=4.0, share=0.5))
    points = [Point(1.0, run_id="a", modes=modes), Point(4.0, run_id="b", modes=modes)]
    assert report.trend(points) == report.trend([Point(2.0), Point(2.0)])
    found = story(points)
    table = report.table(history(), [found])
    cells = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert cells["newest"] == "2.000 s"
    assert cells["state"].endswith("multimodal")
    document = report.document(history(), [found])["series"][0]["points"]
    assert [point["modes"] for point in document] == [[[1.0, 0.5], [4.0, 0.5]]] * 2
    assert json.loads(report.records([found])[0]["modes"]) == [[1.0, 0.5], [4.0, 0.5]]


def test_a_multimodal_point_that_is_not_its_median_is_noted():
    modes = (Mode(value_s=1.0, share=0.5), Mode(value_s=4.0, share=0.5))
    two = story([Point(2.0, run_id="a"), Point(4.0, run_id="b", modes=modes)])
    near = story([Point(2.0, run_id="a"), Point(2.001, run_id="b", modes=modes)])

    def notes(*stories, shown=None):
        run = Run(id="b", started=1.0, environment=Environment())
        return report.notes(dataclasses.replace(history(), stories=stories, runs=(run,)), shown)

    assert len(notes(two)) == len(notes(near)) + 1
    assert not notes(story([Point(2.0), Point(4.0)]))
    assert notes(two, near, shown=[two]) == notes(two)
    assert notes(two, near, shown=[near]) == notes(near)
