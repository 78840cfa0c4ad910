"""Lock files: exclusive timing on a device, and whether the process of a run is alive."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import platform
import pwd
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.result import Run, RunState
from kernelmark.gpu import telemetry
from kernelmark.runners import locks
from kernelmark.runners.locks import describe_others, hold_lock, lock_path

INFO = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
HOLD = """
import sys
from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.locks import hold_lock
info = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
with hold_lock(info, lambda who: None, shared=sys.argv[1] == "shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Start a process that holds the lock until its stdin is closed; it has it when this
    returns."""
    processes = []

    def _start(mode: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield _start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def is_held() -> bool:
    with lock_path(INFO).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_second_waits_for_the_first_and_is_told_who_it_is(holder):
    process = holder("alone")
    told: list[str] = []

    def let_go(who: str) -> None:
        told.append(who)
        assert is_held()
        process.stdin.close()

    with hold_lock(INFO, let_go):
        assert process.wait() == 0  # nobody else has it now
    (who,) = told
    user = pwd.getpwuid(os.getuid()).pw_name
    assert who.startswith(f"process {process.pid} of {user} (-c ")


def test_compilations_share_and_keep_timing_out(holder):
    process = holder("shared")
    told: list[str] = []
    with hold_lock(INFO, told.append, shared=True):
        assert told == []

    def let_go(who: str) -> None:
        told.append(who)
        process.stdin.close()

    with hold_lock(INFO, let_go):
        assert len(told) == 1


def test_a_device_is_known_by_its_uuid_under_any_name():
    one = DeviceInfo(name="cuda:0", kind="cuda", model="", arch="sm_90", uuid="GPU-1/2")
    two = DeviceInfo(name="cuda:7", kind="cuda", model="", arch="sm_90", uuid="GPU-1/2")
    assert lock_path(one) == lock_path(two)
    assert "/" not in lock_path(one).name


def test_the_cache_folder_of_a_user_does_not_matter(monkeypatch, tmp_path):
    before = lock_path(INFO)
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lock_path(INFO) == before
    monkeypatch.delenv("KERNELMARK_LOCKS")
    assert lock_path(INFO).parent == Path("/tmp")


def test_other_users_can_open_the_file_and_nobody_can_change_it():
    before = os.umask(0o077)
    try:
        with hold_lock(INFO, lambda who: None):
            mode = lock_path(INFO).stat().st_mode
    finally:
        os.umask(before)
    assert stat.S_IMODE(mode) == 0o644


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "no folder", "unreadable"])
def test_what_somebody_put_in_its_place_is_left_alone(tmp_path, monkeypatch, kind):
    target, path = tmp_path / "target", lock_path(INFO)
    target.write_text("mine")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "no folder":
        monkeypatch.setenv("KERNELMARK_LOCKS", str(target))
    else:
        path.touch(mode=0)
    told: list[str] = []
    with hold_lock(INFO, told.append):
        assert told == []
    assert target.read_text() == "mine"
    assert list(tmp_path.glob("target*")) == [target]


def test_a_file_that_was_tidied_away_while_it_was_waited_for_is_made_again(holder):
    process, path = holder("alone"), lock_path(INFO)

    def tidy(who: str) -> None:
        path.unlink()
        process.stdin.close()

    with hold_lock(INFO, tidy):
        assert is_held()


FORK = """
import os, sys
from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.locks import hold_lock
info = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
with hold_lock(info, lambda who: None):
    if not os.fork():
        sys.stdin.read()
        os._exit(0)
print("released", flush=True)
os.wait()
"""


def test_a_forked_child_does_not_keep_the_lock():
    with subprocess.Popen(
        [sys.executable, "-c", FORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"released\n"
        assert not is_held()


def test_programs_on_a_gpu_that_do_not_wait_are_named(monkeypatch):
    gpu = DeviceInfo(name="cuda:0", kind="cuda", model="", arch="sm_90", uuid="0" * 32)
    mine, parent, gone = os.getpid(), os.getppid(), 2**22 + 1
    monkeypatch.setattr(telemetry, "compute_processes", lambda uuid: (mine, parent, gone))
    told = describe_others(gpu)
    assert f"process {parent} of " in told
    assert told.endswith(f"process {gone}"), "of another container: nothing else is known"
    assert str(mine) not in told
    assert describe_others(INFO) == ""


HOLD_RUN = """
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
    child = subprocess.Popen([sys.executable, "-c", HOLD_RUN], stdout=subprocess.PIPE, text=True)
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
        [sys.executable, "-c", HOLD_RUN.replace("time.sleep(1000)", "import os; os._exit(1)")],
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


def test_a_program_keeps_the_lock_it_was_started_with(tmp_path: Path) -> None:
    """Also for what it starts, and kernelmark in it does not wait for itself."""
    inside = (
        "import os; from kernelmark.devices.cpu import kind; from kernelmark.runners import locks\n"
        "with locks.hold_lock(kind.infos()[0], lambda holder: os._exit(9)): os._exit(5)"
    )
    env = {**os.environ, "KERNELMARK_LOCKS": str(tmp_path)}
    kmark = [sys.executable, "-m", "kernelmark", "lock", "--"]
    assert subprocess.run([*kmark, sys.executable, "-c", inside], env=env).returncode == 5
    program = subprocess.Popen(
        [*kmark, "sh", "-c", "echo held; read line"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        (path,) = tmp_path.iterdir()
        with path.open() as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            program.communicate(b"\n", timeout=60)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
