"""The progress bar of one line: which of its parts are cut on a narrow terminal."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.cli.output import progress_bar
from kernelmark.cli.progress import Drawn
from kernelmark.core.result import Case, Result, Status
from kernelmark.ops import parse
from kernelmark.runners.events import (
    CaseCompiled,
    CaseFinished,
    CasePhase,
    CaseStarted,
    Note,
    Progress,
    Waiting,
)

CASE = Case(problem=parse("batched_gemm batch=64 m=4096 n=4096 k=4096 dtype=bf16"), backend="fake")
LOOK = "next look in about 12 s, at most 40 s left"


@pytest.fixture
def bar_of(monkeypatch):
    """A bar on a terminal of so many columns, not started."""

    def make(columns: int):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        return progress_bar()

    return make


def drawn(bar) -> str:
    """The only line that the bar draws."""
    with bar.console.capture() as captured:
        bar.console.print(bar.get_renderable())
    (line,) = captured.get().splitlines()
    assert len(line) <= bar.console.width
    return line.rstrip()


@pytest.mark.parametrize("columns", [44, 50, 60, 80, 100, 200])
def test_the_time_left_is_never_cut(bar_of, columns):
    bar = bar_of(columns)
    bar.add_task(f"round 1: {CASE.problem}", total=32, completed=16.5, left=LOOK)
    line = drawn(bar)
    assert LOOK in line
    assert ("16/32" in line) == (columns > 44)
    assert line.count("━") == (6 if columns > 60 else 0)
    assert (str(CASE.problem) in line) == (columns == 200)


def test_the_bar_of_a_run_has_the_time_left_while_it_compiles(bar_of):
    bar = bar_of(80)
    tell, progress = Drawn(bar, 9), Progress(done=0, total=9, remaining_s=16.0)
    compiled = CaseCompiled(
        case=CASE, status=Status.OK, seconds=2.0, done=3, total=9, progress=progress
    )
    tell(compiled)
    line = drawn(bar)
    assert "0/9 about 16 s left compiling 3/9: " in line
    tell(CaseStarted(case=CASE, device="fake", progress=progress))
    assert "about 16 s left batched_gemm" in drawn(bar)


def test_lines_over_the_bar_are_folded_as_other_messages(bar_of):
    bar = bar_of(80)
    tell = Drawn(bar, 9)
    holder = "process 12 (kmark run -b numpy -o gemm -a m=4096 -a n=4096 -a k=4096 --dtype f32)"
    for event in (Waiting(device="cpu", holder=holder), Note(text="roofs: 12 s of [work] " * 6)):
        with bar.console.capture() as captured:
            tell(event)
        first, *rest = captured.get().splitlines()
        assert rest
        for line in (first, *rest):
            assert len(line) <= 80
            assert line == line.rstrip()
        assert all(line.startswith("  ") for line in rest)


GEMM = Case(problem=parse("gemm m=4096 n=4096 k=4096 dtype=bf16"), backend="./mykernel.py")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_backend_and_the_phase_survive_a_cut(bar_of, columns):
    bar = bar_of(columns)
    tell, progress = Drawn(bar, 6), Progress(done=2, total=6, remaining_s=12.0)
    tell(CaseStarted(case=GEMM, device="cpu", progress=progress))
    assert "gemm" in drawn(bar)
    tell(CasePhase(case=GEMM, device="cpu", phase="timing"))
    line = drawn(bar)
    assert line.endswith(" by ./mykernel.py: timing") == (columns > 60)
    assert "gemm m=4096" in line
    assert ("dtype=bf16" in line) == (columns == 120)


def test_at_the_end_nothing_starts(bar_of):
    bar = bar_of(80)
    tell = Drawn(bar, 2)
    for done, ends_with in ((1, "starting"), (2, "left")):
        progress = Progress(done=done - 1, total=2, remaining_s=0.0)
        tell(CaseStarted(case=GEMM, device="cpu", progress=progress))
        result = Result(case=GEMM, device="cpu", status=Status.OK)
        tell(CaseFinished(result=result, progress=dataclasses.replace(progress, done=done)))
        assert drawn(bar).endswith(ends_with)
