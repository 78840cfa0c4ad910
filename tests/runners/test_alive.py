"""Whether a run's process is there: held, given back, killed, or nobody knows."""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
import subprocess
import sys

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.result import Run, RunState
from kernelmark.runners import locks

HOLD = """
import sys, time
from kernelmark.runners.locks import hold_run_locks
with hold_run_locks(["one"]):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run():
    return Run(id="one", started=1.0, environment=Environment(host=platform.node()))


def test_a_run_goes_on_while_it_is_held(run):
    with locks.hold_run_locks(["one", "two"]):
        assert locks.current_state(run) is RunState.RUNNING
        assert locks.current_state(dataclasses.replace(run, id="two")) is RunState.RUNNING
    # whoever ended properly has told the store; the lock says nothing then
    assert locks.current_state(run) is RunState.RUNNING


def test_one_that_ended_by_an_error_does_not_go_on(run):
    with pytest.raises(OSError, match="full"), locks.hold_run_locks(["one"]):
        raise OSError("full")
    assert locks.current_state(run) is RunState.INTERRUPTED


def test_a_killed_one_is_interrupted_and_can_go_on(run):
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert locks.current_state(run) is RunState.RUNNING
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert locks.current_state(run) is RunState.INTERRUPTED
    assert locks.current_state(run) is RunState.INTERRUPTED, "asking changes nothing"
    with locks.hold_run_locks(["one"]):
        assert locks.current_state(run) is RunState.RUNNING


def test_other_hosts_and_other_states_are_as_stored(run):
    child = subprocess.run(
        [sys.executable, "-c", HOLD.replace("time.sleep(1000)", "import os; os._exit(1)")],
        check=False,
        capture_output=True,
    )
    assert child.returncode == 1
    elsewhere = dataclasses.replace(run, environment=Environment(host="another"))
    done = dataclasses.replace(run, state=RunState.DONE)
    assert locks.current_state(run) is RunState.INTERRUPTED
    assert locks.current_state(elsewhere) is RunState.RUNNING
    assert locks.current_state(done) is RunState.DONE


def test_without_a_folder_it_goes_on(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "file"))
    with locks.hold_run_locks(["one"]):
        assert locks.current_state(run) is RunState.RUNNING
