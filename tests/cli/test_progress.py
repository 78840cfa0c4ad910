"""The seconds of a command's cases, which its start is the rest of."""

from __future__ import annotations

from kernelmark.cli.progress import CaseClock
from kernelmark.core.result import Case, Result, Status
from kernelmark.ops import parse
from kernelmark.runners.events import CaseCompiled, CaseFinished, CaseStarted, Note, Progress
from kernelmark.runners.forecast import Means

CASE = Case(problem=parse("gemm m=8 n=8 k=8 dtype=f32"), backend="fake")
PROGRESS = Progress(done=0, total=1, remaining_s=0.0)
STARTED = CaseStarted(case=CASE, device="fake", progress=PROGRESS)
FINISHED = CaseFinished(
    result=Result(case=CASE, device="fake", status=Status.OK), progress=PROGRESS
)
COMPILED = CaseCompiled(
    case=CASE, status=Status.OK, seconds=2.0, done=1, total=1, progress=PROGRESS
)


def seconds(*events: tuple[float, object]) -> float:
    times, told = iter([at for at, _ in events]), []
    clock = CaseClock(told.append, lambda: next(times))
    for _, event in events:
        clock(event)
    assert told == [event for _, event in events]
    return clock.seconds


def test_cases_take_from_the_first_to_the_end_of_the_last():
    rest = (99.0, Note(text="the worker ends"))
    assert seconds((1.0, STARTED), (3.0, FINISHED), (4.0, STARTED), (9.0, FINISHED), rest) == 8.0
    assert seconds((5.0, COMPILED), (6.0, STARTED), (9.0, FINISHED), rest) == 6.0
    assert seconds(rest) == 0.0


def test_a_run_learns_all_that_it_takes_besides_its_cases(kmark, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kernelmark.cli.measure.run.command_age_s", lambda: 1000.0)
    words = ("-o", "gemm", "-a", "m=8", "-a", "n=8", "-a", "k=8", "--dtype", "f32", "-b", "fake")
    assert kmark("run", *words, "-d", "fake", "--timing", "quick").code == 0
    learnt = Means.of_machine().get("start/run")
    assert learnt is not None
    assert 900.0 < learnt < 1000.0
