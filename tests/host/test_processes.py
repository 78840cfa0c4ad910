"""Child processes and what they start, when this process ends or gives up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelmark.host.processes import run_child

# A driver whose real work is in another process, as that of a compiler.
DRIVER = 'sleep 1000 & echo $! > "$0"; wait'
RUNNING = """
import sys
from kernelmark.host.processes import run_child
run_child(["/bin/sh", "-c", sys.argv[1], sys.argv[2]])
"""
GUARDED = """
import os, subprocess, sys, time
from kernelmark.host.processes import guard_own_group
guard_own_group()
# Before the driver, whose file lets the test send the signal: Python drops a KeyboardInterrupt that
# is raised while it forks.
if os.fork() == 0:
    time.sleep(1000)
subprocess.Popen(["/bin/sh", "-c", sys.argv[1], sys.argv[2]])
time.sleep(1000)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def grandchild(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().strip())
    return int(file.read_text())


def test_output_and_exit_code_come_back():
    done = run_child(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], input=b"in")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"in", b"err\n")


def test_a_signal_is_the_exit_code():
    assert run_child(["/bin/sh", "-c", "kill -6 $$"]).returncode == -signal.SIGABRT


def test_without_input_it_finds_its_end():
    assert run_child(["cat"]).stdout == b""


def test_a_limit_ends_the_grandchild_too(tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["/bin/sh", "-c", DRIVER, str(file)], timeout_s=1.0)
    if file.exists():  # on a machine so busy that it was not even started, nothing is left either
        wait_until(lambda: not running(grandchild(file)))


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("program", [RUNNING, GUARDED])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_grandchild_ends_with_this_process(tmp_path, program, number):
    file = tmp_path / "pid"
    started = subprocess.Popen(
        [sys.executable, "-c", program, DRIVER, str(file)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    child = grandchild(file)
    assert running(child)
    os.kill(started.pid, number)
    started.wait()
    wait_until(lambda: not running(child))


def test_nothing_is_left_after_the_end():
    before = {link.name for link in Path("/proc/self/fd").iterdir()}
    for _ in range(3):
        run_child(["true"])
    assert {link.name for link in Path("/proc/self/fd").iterdir()} == before
