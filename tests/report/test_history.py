"""What is shown of series."""

from __future__ import annotations

from dataclasses import dataclass

from kernelmark.compare.history import story
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.report import history as report


@dataclass(frozen=True)
class Point:
    median_s: float | None
    series: str = "gemm m=8 | a | {} | t | x"
    run_id: str = "r"
    started: float = 0.0
    fingerprint: str = ""
    device: str = "cuda:1"

    @property
    def status(self) -> Status:
        return Status.OK if self.median_s else Status.TIMEOUT


def test_trend():
    assert report.trend([Point(1.0), Point(2.0), Point(None), Point(1.0)]) == "▁█×▁"
    assert report.trend([Point(1.0), Point(1.001)]) in ("▄▄", "▄▅")
    assert report.trend([Point(None)]) == "×"
    assert len(report.trend([Point(1.0)] * 99)) == 20


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
    (command,) = report.confirmations([found])
    assert "-d cuda:1" in command
    assert "--config tile=64" in command
    assert command.endswith("--cache hot")


def test_changes_text():
    assert report.changes_text([("commit", "a", ""), ("os", "x", "y")]) == "commit a → –; os x → y"
    assert report.changes_text([("a", "1", "2")] * 5).endswith("and 2 more")
    assert report.changes_text([]) == "nothing that was recorded"
