"""Cases of one problem measured by turns; each that fails, or all if the worker is
lost, are measured alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.result import Case, Result, ResultSet, Run, Status
from kernelmark.core.timing import Timer, Timing
from kernelmark.devices.cpu import kind as cpu_kind
from kernelmark.devices.fake import kind
from kernelmark.measure.protocol import Pause, Steps, _BlockLoop
from kernelmark.ops import parse
from kernelmark.report.results import result_rows
from kernelmark.runners.events import CaseFinished, CaseStarted, Event
from kernelmark.runners.execute import execute_in_turns
from kernelmark.runners.local import (
    MOST_INTERLEAVED,
    SPREAD_S,
    Dispatch,
    LocalRunner,
    is_interleaved,
)

PROBLEM = parse("gemm m=8 n=8 k=8 a=f32 b=f32 c=f32")
QUICK = Timing(max_s=0.02, warmup_s=0.0, allocations=3, max_allocations=3)


def case(m: int = 8, **config: str | float) -> Case:
    problem = parse(f"gemm m={m} n=8 k=8 a=f32 b=f32 c=f32")
    return Case(problem=problem, backend="fake", timing=QUICK, config=config)


def run(*cases: Case, interleave: str = "yes") -> list[Event]:
    return list(LocalRunner(["fake"], jobs=0, interleave=interleave).run(cases))  # type: ignore[arg-type]


def finished(events: list[Event]) -> list[Result]:
    return [event.result for event in events if isinstance(event, CaseFinished)]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Pause, int]]:
    """Every pause that is made, with the number of its loop."""
    loops: list[_BlockLoop] = []
    pauses: list[tuple[Pause, int]] = []
    pause = _BlockLoop._pause

    def noted(self: _BlockLoop, at: Pause) -> Steps[None]:
        if self not in loops:
            loops.append(self)
        pauses.append((at, loops.index(self)))
        return pause(self, at)

    monkeypatch.setattr(_BlockLoop, "_pause", noted)
    return pauses


def test_samples_alternate_forwards_and_backwards(pauses: list[tuple[Pause, int]]) -> None:
    cases = [case(time_us=500.0), case(time_us=500.0, seed=1)]
    results = execute_in_turns(cases, kind.open(0), lambda phase: None)
    assert [r.status for r in results] == [Status.OK, Status.OK]
    assert results[0].started == results[1].started
    assert [dict(r.case.config) for r in results] == [dict(c.config) for c in cases]
    turns = pauses[2 : pauses.index((Pause.TIMED, 0))]
    assert pauses[:2] == [(Pause.READY, 0), (Pause.READY, 1)]
    assert turns[:4] == [(Pause.TURN, 0), (Pause.TURN, 1), (Pause.TURN, 1), (Pause.TURN, 0)]
    timed = 0  # both are set up again only once both are timed
    for at, _ in pauses:
        timed += at is Pause.TIMED
        assert at is not Pause.READY or timed % 2 == 0


def test_a_failure_of_one_does_not_end_the_others() -> None:
    cases = [case(behaviour="raise"), case(), case(behaviour="wrong")]
    results = execute_in_turns(cases, kind.open(0), lambda phase: None)
    assert [r.status for r in results] == [Status.RUNTIME_ERROR, Status.OK, Status.WRONG]


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [("raise", Status.RUNTIME_ERROR), ("crash", Status.CRASHED), ("wrong", Status.WRONG)],
)
def test_every_case_gets_its_own_result(behaviour: str, status: Status) -> None:
    cases = [case(), case(behaviour=behaviour), case(time_us=1000.0), case(m=4)]
    events = run(*cases)
    results = {result.case.id: result for result in finished(events)}
    assert len(finished(events)) == len(results) == len(cases)
    statuses = [results[each.id].status for each in cases]
    assert statuses == [Status.OK, status, Status.OK, Status.OK]
    together = results[cases[0].id].started == results[cases[2].id].started
    assert together is (status is not Status.CRASHED)
    assert results[cases[0].id].started != results[cases[3].id].started
    begun = [event.case.id for event in events if isinstance(event, CaseStarted)]
    assert set(begun) == results.keys()


def test_no_more_than_fit_a_process_are_measured_together() -> None:
    cases = [case(time_us=1000.0 * (1 + number)) for number in range(MOST_INTERLEAVED + 2)]
    started = [result.started for result in finished(run(*cases))]
    assert len(set(started)) == 2
    assert len({r.started for r in finished(run(*cases, interleave="no"))}) == len(cases)


def test_vs_best_pairs_the_blocks() -> None:
    results = finished(run(case(time_us=1000.0), case(time_us=1200.0)))

    def drifting(result: Result) -> Result:
        """The same blocks on a device that becomes slower from block to block."""
        measurement = result.measurement
        assert measurement is not None
        blocks = tuple(
            dataclasses.replace(b, samples_s=tuple(s * 2**n for s in b.samples_s))
            for n, b in enumerate(measurement.blocks)
        )
        return dataclasses.replace(
            result, measurement=dataclasses.replace(measurement, blocks=blocks, high_s=1.0)
        )

    both = tuple(map(drifting, results))
    environment = Environment(devices=(kind.infos()[0],))
    rows = result_rows(
        ResultSet(run=Run(id="r", started=1.0, environment=environment), results=both)
    )
    assert [row.tied for row in rows] == [False, False]
    assert rows[1].times_best == pytest.approx(1.2, rel=0.05)


def test_which_cases_are_interleaved() -> None:
    gpu = DeviceInfo(name="cuda:0", kind="cuda", model="a GPU", arch="sm_90")
    cpu = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x86_64")
    large = Case(problem=parse("gemm m=4096 n=4096 k=4096 dtype=bf16"), backend="torch")
    several = dataclasses.replace(large, timing=Timing(processes=2))
    profiled = dataclasses.replace(large, timing=Timing(timer=Timer.PROFILER))
    assert is_interleaved(large, gpu, "auto")
    assert is_interleaved(large, cpu, "auto")
    assert not is_interleaved(large, cpu, "no")
    assert not is_interleaved(case(), gpu, "auto")
    assert is_interleaved(large, cpu, "yes")
    assert not is_interleaved(large, gpu, "no")
    assert not is_interleaved(several, gpu, "yes")
    assert not is_interleaved(profiled, gpu, "yes")


def small(m: int, **timing: Any) -> Case:
    problem = parse(f"gemm m={m} n=8 k=8 a=f32 b=f32 c=f32")
    return Case(
        problem=problem, backend="numpy", timing=dataclasses.replace(QUICK, threads=1, **timing)
    )


def test_on_a_cpu_whole_blocks_alternate(pauses: list[tuple[Pause, int]]) -> None:
    device = cpu_kind.open(0, 1)
    try:
        results = execute_in_turns([small(8), small(9)], device, lambda phase: None)
    finally:
        device.close()
    assert [r.status for r in results] == [Status.OK, Status.OK]
    timed = [number for at, number in pauses if at is Pause.TIMED]
    assert timed[:6] == [0, 1, 0, 1, 0, 1]
    assert (Pause.TURN, 0) not in pauses
    assert pauses.count((Pause.BETWEEN, 1)) == timed.count(1) - 1


def companions(*cases: Case, mode: str = "auto", expected_s: float = 1.0) -> list[int]:
    """The rows of the cases that a CPU measures by turns with the first."""
    (device,) = pool = [SimpleNamespace(info=cpu_kind.infos()[0])]
    dispatch = Dispatch(cases, SimpleNamespace(devices=pool), mode)  # type: ignore[arg-type]
    for task in dispatch._queue:
        task.expected_s = expected_s
    found = dispatch._companions(device, dispatch._queue[0])  # type: ignore[arg-type]
    return [task.case.problem.dims["m"] for task in found]


def test_on_a_cpu_cases_of_one_timing_are_measured_together_for_seconds() -> None:
    cases = [small(m) for m in range(1, 50)]
    assert companions(*cases, expected_s=8.0) == [2, 3]
    assert len(companions(*cases, expected_s=0.1)) == 31
    assert companions(*cases, expected_s=SPREAD_S) == []
    assert companions(*cases, mode="no") == []
    assert companions(small(1), small(2, seed=5), small(3)) == [3]
    assert companions(small(1, processes=2), small(2, processes=2)) == []
    assert companions(small(1), small(1), small(2), mode="yes") == [1]
