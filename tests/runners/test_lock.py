from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.lock import held, lock_path

INFO = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
HOLD = """
import sys
from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.lock import held
info = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
with held(info, lambda who: None, shared=sys.argv[1] == "shared"):
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

    with held(INFO, let_go):
        assert process.wait() == 0  # nobody else has it now
    assert told == [f"process {process.pid}"]


def test_nobody_waits_for_the_dead(holder):
    process = holder("alone")
    process.kill()
    process.wait()
    told: list[str] = []
    with held(INFO, told.append):
        assert told == []


def test_compilations_share_and_keep_timing_out(holder):
    process = holder("shared")
    told: list[str] = []
    with held(INFO, told.append, shared=True):
        assert told == []

    def let_go(who: str) -> None:
        told.append(who)
        process.stdin.close()

    with held(INFO, let_go):
        assert len(told) == 1


def test_devices_do_not_wait_for_each_other(holder):
    holder("alone")
    other = DeviceInfo(name="fake:4", kind="fake", model="", arch="fake", index=4)
    told: list[str] = []
    with held(other, told.append):
        assert told == []


def test_a_device_is_known_by_its_uuid_under_any_name():
    one = DeviceInfo(name="cuda:0", kind="cuda", model="", arch="sm_90", uuid="GPU-1/2")
    two = DeviceInfo(name="cuda:7", kind="cuda", model="", arch="sm_90", uuid="GPU-1/2")
    assert lock_path(one) == lock_path(two)
    assert "/" not in lock_path(one).name


def test_without_a_writable_folder_measuring_goes_on(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("KERNELMARK_CACHE", str(blocked))
    entered = False
    with held(INFO, lambda who: None):
        entered = True
    assert entered


def test_the_lock_is_free_again_after_an_exception():
    with pytest.raises(ZeroDivisionError), held(INFO, lambda who: None):
        raise ZeroDivisionError
    told: list[str] = []
    with held(INFO, told.append):
        assert told == []
    assert lock_path(INFO).read_text() == f"{os.getpid()}\n"
