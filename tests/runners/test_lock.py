from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.lock import held, lock_path

INFO = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
HOLD = """
import sys, time
from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.lock import held
info = DeviceInfo(name="fake:3", kind="fake", model="", arch="fake", index=3)
with held(info, lambda who: None, shared=sys.argv[1] == "shared"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder():
    """Start a process that holds the lock for some seconds; it has it when this returns."""
    processes = []

    def _start(mode: str, seconds: float) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, mode, str(seconds)], stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield _start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_second_waits_for_the_first_and_is_told_who_it_is(holder):
    process = holder("alone", 0.7)
    told: list[str] = []
    start = time.monotonic()
    with held(INFO, told.append):
        waited = time.monotonic() - start
    assert told == [f"process {process.pid}"]
    assert waited > 0.3


def test_nobody_waits_for_the_dead(holder):
    process = holder("alone", 1000)
    process.kill()
    process.wait()
    start = time.monotonic()
    with held(INFO, lambda who: None):
        pass
    assert time.monotonic() - start < 1.0


def test_compilations_share_and_keep_timing_out(holder):
    holder("shared", 0.6)
    told: list[str] = []
    with held(INFO, told.append, shared=True):
        assert told == []
    with held(INFO, told.append):
        assert len(told) == 1


def test_devices_do_not_wait_for_each_other(holder):
    holder("alone", 1000)
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
