"""Drills: every way a case or a worker can go wrong, with the fake backend."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.ops import parse
from kernelmark.runners import process
from kernelmark.runners.events import (
    CaseCompiled,
    CaseFinished,
    CasePhase,
    CaseStarted,
    DeviceLost,
    EnvironmentRead,
    Note,
    Waiting,
)
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.process import LocalWorkers, WorkerProcess, WorkerSpec
from kernelmark_dev import forked
from kernelmark_dev.raising import raises

PROBLEM = parse("gemm m=8 n=8 k=8 a=f32 b=f32 c=f32")
QUICK = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3)
# On the CPU, where cold timings of so small a problem need thousands of argument sets.
HOT = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3, cache=Cache.HOT)


def case(seed: int, *, timing: Timing = QUICK, **config: object) -> Case:
    return Case(problem=PROBLEM, backend="fake", timing=timing, config={"seed": seed, **config})


def results(events: list[object]) -> dict[int, Result]:
    """By the seed of the case; each case has one result and no more."""
    finished = [e.result for e in events if isinstance(e, CaseFinished)]
    by_seed = {int(r.case.config["seed"]): r for r in finished}
    assert len(by_seed) == len(finished)
    return by_seed


def of(kind: type, events: list[object]) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_each_failure_is_its_own_row_and_the_run_goes_on():
    bad = ["ok", "crash", "hang", "wrong", "compile_error", "raise", "memory_hog"]
    cases = [case(i, behaviour=b, hog_bytes=1 << 26) for i, b in enumerate(bad)] + [case(99)]
    # Only what never ends has a short limit: a busy machine takes long for all others.
    (hangs,) = (c for c in cases if c.config.get("behaviour") == "hang")
    found = results(list(LocalRunner(["fake"], jobs=0, timeout_s=10.0).run([hangs])))
    others = [c for c in cases if c is not hangs]
    found |= results(list(LocalRunner(["fake"], jobs=0, timeout_s=600.0).run(others)))
    assert [found[i].status.value for i in range(len(bad))] == [
        "ok",
        "crashed",
        "timeout",
        "wrong",
        "compile_error",
        "runtime_error",
        "out_of_memory",
    ]
    assert found[99].status is Status.OK
    assert found[1].error.fields["signal"] == 9
    assert "(in phase" in found[1].error
    assert (found[2].error.code, found[2].error.fields["limit_s"]) == ("no-answer", 10)
    assert found[2].error.count("in phase") == 1
    assert "_hang" in found[2].error  # the stack says where
    assert all(r.flops == 2 * 8**3 and r.arch == "fake" for r in found.values())


def test_progress_the_environment_and_repeated_cases_are_told():
    runner = LocalRunner(["fake"], jobs=0, variables={"OMP_PLACES": "cores"})
    events = list(runner.run([*(case(i) for i in range(5)), case(1)]))
    finished = of(CaseFinished, events)
    assert [e.progress.done for e in finished] == [1, 2, 3, 4, 5]
    assert {e.progress.total for e in finished} == {5}
    assert finished[-1].progress.remaining_s == 0.0
    assert all(e.progress.remaining_s > 0 for e in of(CaseStarted, events))
    phases = [e.phase for e in of(CasePhase, events) if e.case == case(3)]
    assert phases == ["load", "inputs", "compile", "warmup", "timing", "check"]
    assert "asked for twice" in of(Note, events)[0].text
    seen = of(EnvironmentRead, events)
    assert len(seen) == 1
    assert "numpy" in seen[0].environment.libraries
    assert seen[0].environment.variables["OMP_PLACES"] == "cores"


def test_a_worker_that_dies_before_it_tells_its_environment_holds_nothing_up():
    events = []
    for event in LocalRunner(["fake"], jobs=0).run([case(1)]):
        events.append(event)
        if isinstance(event, CaseFinished):
            os.kill(child_pids()[0], signal.SIGKILL)
    assert [r.status for r in results(events).values()] == [Status.OK]


def test_the_environment_is_read_although_no_case_is_ok():
    cases = [case(1, behaviour="crash"), case(2, behaviour="crash")]
    events = list(LocalRunner(["fake"], jobs=0).run(cases))
    assert {r.status for r in results(events).values()} == {Status.CRASHED}
    (seen,) = of(EnvironmentRead, events)
    assert "numpy" in seen.environment.libraries


def test_the_environment_is_read_again_if_the_first_worker_dies():
    killed, events = False, []
    for event in LocalRunner(["fake"], jobs=0).run([case(1), case(2)]):
        events.append(event)
        if isinstance(event, CaseFinished) and not killed:
            os.kill(child_pids()[0], signal.SIGKILL)
            killed = True
    assert len(results(events)) == 2
    assert len(of(EnvironmentRead, events)) == 1


def test_compiling_ahead_settles_what_it_can():
    cases = [case(i, behaviour="slow_compile", compile_s=0.4) for i in range(2)]
    cases += [case(2, behaviour="compile_error"), case(3, behaviour="crash")]
    events = list(LocalRunner(["fake"], jobs=2).run(cases))
    compiled = of(CaseCompiled, events)
    assert [(e.done, e.total) for e in compiled] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    found = results(events)
    assert [found[i].status.value for i in range(4)] == ["ok", "ok", "compile_error", "crashed"]
    assert all(found[i].cost["compile_ahead"] > 0.35 for i in range(2))
    assert cases[2] not in [e.case for e in of(CaseStarted, events)]


def test_on_the_cpu_everything_is_compiled_before_anything_is_timed():
    one = dataclasses.replace(HOT, threads=1)
    cases = [case(i, time_us=50.0, timing=one if i == 1 else HOT) for i in range(3)]
    events = list(LocalRunner(["cpu"], jobs=2).run(cases))
    last_compile = max(i for i, e in enumerate(events) if isinstance(e, CaseCompiled))
    first_start = min(i for i, e in enumerate(events) if isinstance(e, CaseStarted))
    assert last_compile < first_start
    # Another number of threads is another worker: cases of one number follow each other.
    assert [e.case.timing.threads for e in of(CaseStarted, events)] == [0, 0, 1]
    assert all(r.status is Status.OK for r in results(events).values())


def test_devices_share_the_cases(monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "3")
    events = list(LocalRunner(["fake:0-2"], jobs=0).run([case(i) for i in range(12)]))
    found = results(events)
    assert {r.device for r in found.values()} == {"fake", "fake:1", "fake:2"}
    assert all(r.status is Status.OK for r in found.values())


class Unstartable(LocalWorkers):
    """Starts workers but for one device, or but for the compilers."""

    def __init__(self, device: str = "") -> None:
        self._device = device

    def start(self, spec: WorkerSpec) -> WorkerProcess:
        if spec.device == self._device or not (self._device or spec.opens_device):
            raise OSError("too many processes")
        return super().start(spec)


def test_a_dead_device_gives_its_cases_to_the_others(monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "3")
    runner = LocalRunner(["fake:0-2"], jobs=0, workers=Unstartable("fake:2"))
    events = list(runner.run([case(i) for i in range(6)]))
    lost = of(DeviceLost, events)
    assert [e.device for e in lost] == ["fake:2"]
    assert "too many processes" in lost[0].reason
    found = results(events)
    assert len(found) == 6
    assert {r.device for r in found.values()} <= {"fake", "fake:1"}
    assert all(r.status is Status.OK for r in found.values())


def test_without_any_device_left_every_case_says_why():
    # One place to time and one to compile: neither can be had.
    runner = LocalRunner(["fake"], jobs=1, variables={"KERNELMARK_FAKE_DEVICES": "0"})
    events = list(runner.run([case(i) for i in range(4)]))
    assert [e.device for e in of(DeviceLost, events)] == ["fake"]
    found = results(events)
    assert {r.status for r in found.values()} == {Status.CRASHED}
    assert all(r.error for r in found.values())


def test_processes_are_fresh_and_their_blocks_joined():
    timing = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3, processes=3)
    cases = [case(1, timing=timing), case(2, timing=timing, behaviour="crash")]
    events = list(LocalRunner(["fake"], jobs=0).run(cases))
    found = results(events)
    measurement = found[1].measurement
    assert measurement is not None
    assert {b.process for b in measurement.blocks} == {0, 1, 2}
    assert len(of(CaseStarted, events)) == 2
    assert found[2].status is Status.CRASHED


def test_two_runs_at_once_take_turns_on_a_device(holder):
    events = []
    for event in LocalRunner(["fake"], jobs=0).run([case(1)]):
        events.append(event)
        if isinstance(event, Waiting):
            holder.let_go()
    assert f"process {holder.pid}" in of(Waiting, events)[0].holder
    assert results(events)[1].status is Status.OK
    assert holder.process.wait() == 0


def test_a_worker_killed_from_outside_costs_one_case():
    runner = LocalRunner(["fake"], jobs=0)
    events = []
    stream = runner.run([case(0), case(1, behaviour="hang"), case(2)])
    for event in stream:
        events.append(event)
        if getattr(event, "phase", "") in ("warmup", "timing") and event.case == case(
            1, behaviour="hang"
        ):
            victim = child_pids()
            assert len(victim) == 1
            os.kill(victim[0], signal.SIGKILL)
    found = results(events)
    assert [found[i].status.value for i in range(3)] == ["ok", "crashed", "ok"]


def test_closing_the_iterator_ends_every_worker():
    stream = LocalRunner(["fake"], jobs=2).run([case(i, behaviour="hang") for i in range(3)])
    for event in stream:
        if getattr(event, "phase", "") in ("warmup", "timing"):
            break
    assert child_pids()
    stream.close()
    assert not child_pids()


def test_a_runner_may_be_used_in_a_thread():
    found: list[object] = []
    runner = LocalRunner(["fake"], jobs=0)
    thread = threading.Thread(target=lambda: found.extend(runner.run([case(1)])))
    thread.start()
    thread.join()
    assert results(found)[1].status is Status.OK


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"timeout_s": 0}, {}),
        ({"compile_timeout_s": float("nan")}, {}),
        ({"jobs": -1}, {}),
        ({"python": "/no/such/python"}, {"program": "/no/such/python"}),
        ({"devices": ["cpu:7"]}, {"device": "cpu:7"}),
        ({"devices": ["cpu", "fake"]}, {"device": "cpu", "other": "fake"}),
    ],
)
def test_a_bad_request_is_refused_before_anything_runs(arguments, fields):
    with raises(UsageError, **fields):
        LocalRunner(**{"devices": ["fake"], **arguments})


def test_another_interpreter_that_cannot_work_is_told(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named numpy' >&2\nexit 1\n")
    broken.chmod(0o755)
    events = list(LocalRunner(["fake"], jobs=0, python=str(broken)).run([case(1)]))
    assert "no module named numpy" in of(DeviceLost, events)[0].reason
    assert results(events)[1].status is Status.CRASHED


def test_cases_are_compiled_where_they_are_timed_when_no_compile_worker_starts():
    for device in ("fake", "cpu"):  # on the CPU nothing is timed before all is compiled
        runner = LocalRunner([device], jobs=1, workers=Unstartable())
        events = list(runner.run([case(i, time_us=50.0, timing=HOT) for i in range(3)]))
        assert [r.status for r in results(events).values()] == [Status.OK] * 3
        (note,) = of(Note, events)
        assert "a compile worker cannot be started: " in note.text
        assert "too many processes" in note.text


def child_pids() -> list[int]:
    """Workers of this process that are alive."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    pids = [
        int(pid)
        for pid, state, command in rows
        if state[0] != "Z" and ("runners.worker" in command or forked.__name__ in command)
    ]
    return [pid for pid in pids if pid != process.subprocess.origin.pid]
