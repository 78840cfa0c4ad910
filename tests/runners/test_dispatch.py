"""Second votes of several devices, and the order of cases."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished, CaseStarted, DeviceLost, Event, Note
from kernelmark.runners.forecast import work
from kernelmark.runners.local import LocalRunner, order

# A kernel file takes no time on the fake clock: more seconds are tens of thousands of launches.
QUICK = Timing(max_s=0.002, warmup_s=0.0, max_allocations=3)
KERNEL = """
import os, sys, time
import numpy as np
from pathlib import Path

op, devices, tensors = "gemm", ("fake",), "numpy"
DEVICE = sys.argv[sys.argv.index("--device") + 1]
FOLDER = Path(__file__).parent


def prepare(problem, config, sets):
    tries = FOLDER / f"tries-{problem.dims['m']}"
    with tries.open("a") as file:
        file.write(DEVICE + "\\n")

    def launch(index):
        TROUBLE
        arguments = sets[index]
        np.matmul(arguments["a"], arguments["b"], out=arguments["d"])

    return launch


def note_failure(m):
    part = FOLDER / f"part-{m}"
    part.write_text(str(os.getpid()))
    part.rename(FOLDER / f"failed-{m}")


def wait_for_failures(*sizes):
    '''Wait until these have failed and the parent has received it: it has ended the workers.'''
    for m in sizes:
        path = FOLDER / f"failed-{m}"
        while not path.exists() or Path("/proc", path.read_text()).exists():
            time.sleep(0.02)
"""
# fake:1 is sick. It is doubted for m = 4 and 2, and meanwhile asked about m = 3, where it hangs.
BUSY_WHEN_GIVEN_UP = """
        m = problem.dims["m"]
        if DEVICE == "fake:1":
            if m == 3:
                time.sleep(1000)
            note_failure(m)
            raise RuntimeError("uncorrectable memory error")
        if m in (5, 3):
            wait_for_failures(m - 1)
        if m == 3:
            raise RuntimeError("no such shape")
"""
# fake:2 is sick. It gets m = 6 of 8 first, and the others wait for it until it has failed twice,
# save for what it failed: it is to be given up by its failures, not by who is faster.
SICK = """
        m = problem.dims["m"]
        if DEVICE == "fake:2":
            note_failure(m)
            FAILURE
        while not (FOLDER / f"failed-{m}").exists():
            failed = [int(path.name.removeprefix("failed-")) for path in FOLDER.glob("failed-*")]
            if len(failed) >= (1 if m > 6 else 2):
                wait_for_failures(*failed)
                break
            time.sleep(0.02)
"""
# An interpreter under which the second worker of DEVICE does not start, or none from then on.
INTERPRETER = """#!/bin/sh
case "$*" in *"--device DEVICE "*)
    echo . >> "$(dirname "$0")/starts"
    starts=$(wc -l < "$(dirname "$0")/starts")
    if [ "$starts" TEST 2 ]; then echo "it fell off the bus" >&2; exit 1; fi ;;
esac
exec PYTHON "$@"
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs products of m = 1, 2 … by a kernel with `trouble` in it, on three devices."""
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "3")

    def made(
        trouble: str, count: int = 8, devices: str = "fake:0-2", processes: int = 1, **more
    ) -> list[Event]:
        timing = dataclasses.replace(QUICK, processes=processes)
        path = tmp_path / "kernel.py"
        path.write_text(KERNEL.replace("TROUBLE", trouble))
        cases = [
            Case(
                problem=parse(f"gemm m={m} n=8 k=8 a=f32 b=f32 c=f32"),
                backend=str(path),
                timing=timing,
            )
            for m in range(1, count + 1)
        ]
        return list(LocalRunner([devices], jobs=0, **more).run(cases))

    return made


def statuses(events: list[Event]) -> list[Status]:
    found = [e.result for e in events if isinstance(e, CaseFinished)]
    assert len({r.case.id for r in found}) == len(found)
    return [r.status for r in found]


def tries(tmp_path: Path, m: int) -> list[str]:
    return sorted(set((tmp_path / f"tries-{m}").read_text().split()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure", ["raise RuntimeError('uncorrectable memory error')", "os._exit(139)"]
)
def test_a_sick_device_is_given_up_and_spoils_no_case(run, failure):
    events = run(SICK.replace("FAILURE", failure))
    assert statuses(events) == [Status.OK] * 8
    lost = [e for e in events if isinstance(e, DeviceLost)]
    assert [e.device for e in lost] == ["fake:2"]
    assert "2 cases in a row" in lost[0].reason
    devices = {e.result.device for e in events if isinstance(e, CaseFinished)}
    assert devices == {"fake", "fake:1"}


def test_a_case_that_dies_with_its_worker_once_is_measured_elsewhere(run, tmp_path):
    once = tmp_path / "once"
    events = run(f"if DEVICE == 'fake:1' and not Path({str(once)!r}).exists():\n"
                 f"            Path({str(once)!r}).touch(); os._exit(1)")  # fmt: skip
    assert statuses(events) == [Status.OK] * 8
    assert not [e for e in events if isinstance(e, DeviceLost)]
    notes = [e.text for e in events if isinstance(e, Note)]
    assert len(notes) == 1
    assert "failed on fake:1" in notes[0]


def test_a_case_that_fails_everywhere_is_a_failure_and_no_device_is_blamed(run, tmp_path):
    events = run("raise RuntimeError('no such shape')", count=7)
    assert statuses(events) == [Status.RUNTIME_ERROR] * 7
    assert not [e for e in events if isinstance(e, DeviceLost | Note)]
    asked = [m for m in range(1, 8) if len(tries(tmp_path, m)) > 1]
    assert 3 <= len(asked) < 7  # after some, this kernel's failures are believed


def test_one_device_asks_nobody(run, tmp_path):
    events = run("raise RuntimeError('no')", count=2, devices="fake")
    assert statuses(events) == [Status.RUNTIME_ERROR] * 2
    assert tries(tmp_path, 1) == ["fake"]


def test_a_failure_counts_when_the_device_to_ask_cannot_be_opened(run):
    trouble = "raise RuntimeError('no')"
    events = run(trouble, 3, "fake:0-1", variables={"KERNELMARK_FAKE_DEVICES": "1"})
    assert statuses(events) == [Status.RUNTIME_ERROR] * 3
    assert [e.device for e in events if isinstance(e, DeviceLost)] == ["fake:1"]


def test_what_a_device_was_doing_when_it_was_given_up_gets_a_result(run):
    events = run(BUSY_WHEN_GIVEN_UP, 5, "fake:0-1")
    assert [e.device for e in events if isinstance(e, DeviceLost)] == ["fake:1"]
    found = {
        e.result.case.problem.dims["m"]: e.result for e in events if isinstance(e, CaseFinished)
    }
    assert statuses(events).count(Status.OK) == 4
    assert found[3].status is Status.RUNTIME_ERROR
    assert "no such shape" in found[3].error


def interpreter(folder: Path, device: str, test: str) -> str:
    path = folder / "python"
    text = INTERPRETER.replace("DEVICE", device).replace("TEST", test)
    path.write_text(text.replace("PYTHON", sys.executable))
    path.chmod(0o755)
    return str(path)


def starts(events: list[Event], m: int) -> list[str]:
    told = [e for e in events if isinstance(e, CaseStarted)]
    return [e.device for e in told if e.case.problem.dims["m"] == m]


def test_the_processes_of_one_result_are_of_one_device(run, tmp_path):
    python = interpreter(tmp_path, "fake:1", "-ge")
    events = run("pass", 2, "fake:0-1", processes=3, python=python)
    assert statuses(events) == [Status.OK] * 2
    assert [e.device for e in events if isinstance(e, DeviceLost)] == ["fake:1"]
    assert (starts(events, 2), starts(events, 1)) == (["fake"], ["fake:1", "fake"])
    for event in events:
        if isinstance(event, CaseFinished):
            assert event.result.device == "fake"
            assert {b.process for b in event.result.measurement.blocks} == {0, 1, 2}


def test_a_worker_that_does_not_start_once_costs_no_process_that_is_done(run, tmp_path):
    python = interpreter(tmp_path, "fake", "-eq")
    events = run("pass", 1, "fake", processes=3, python=python)
    assert statuses(events) == [Status.OK]
    assert starts(events, 1) == ["fake"]
    assert (tmp_path / "starts").read_text().count(".") == 4


def gemm(size: int, **timing: int) -> Case:
    problem = parse(f"gemm m={size} n={size} k={size} a=f32 b=f32 c=f32")
    return Case(problem=problem, backend="numpy", timing=Timing(**timing))


def test_longest_first_on_several_devices_and_as_given_on_one():
    small, large, middle = gemm(64), gemm(1024), gemm(256)
    assert order([small, large, middle], 2) == [large, middle, small]
    assert order([small, large, middle], 1) == [small, large, middle]


def test_cases_of_one_thread_count_stay_together():
    cases = [gemm(64, threads=1), gemm(64, threads=2), gemm(32, threads=1)]
    assert [case.timing.threads for case in order(cases, 1)] == [1, 1, 2]


def test_replication_counts_as_length():
    once, thrice = gemm(300), gemm(256, processes=3)
    assert order([once, thrice], 2) == [thrice, once]


def test_unknown_sizes_keep_the_order():
    strange = Case(problem=Problem(op="strange", dims={"m": 1}, dtypes={}), backend="x")
    assert work(strange) is None
    assert order([gemm(64), strange, gemm(1024)], 4) == [gemm(64), strange, gemm(1024)]
