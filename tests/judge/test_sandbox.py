"""The sandbox, tried out by a process in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TRIES = """
import json, os, socket, subprocess, sys, threading, time
import numpy
from kernelmark.judge.sandbox import Policy, enter, readable_folders

folder, outside, secret = sys.argv[1:4]
parent = os.getppid()
lacks = enter(Policy(readable=readable_folders([]), folder=folder, uid=int(sys.argv[4])))

def works(attempt):
    try:
        attempt()
        return True
    except (OSError, subprocess.SubprocessError, RuntimeError):
        return False

def thread():
    one = threading.Thread(target=time.time)
    one.start()
    one.join()

def child():
    if os.fork() == 0:
        os._exit(0)

print(json.dumps({
    "lacks": lacks,
    "write own": works(lambda: open(folder + "/own", "w").close()),
    "thread": works(thread),
    "compute": bool(numpy.ones((99, 99)).dot(numpy.ones((99, 99))).any()),
    "write": works(lambda: open(outside, "w").close()),
    "read": works(lambda: open(secret).close()),
    "socket": works(socket.socket),
    "fork": works(child),
    "run": works(lambda: subprocess.run(["/bin/true"])),
    "signal": works(lambda: os.kill(parent, 0)),
    "priority": works(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)),
    "file size": works(lambda: os.truncate(folder + "/own", 1 << 40)),
    "user": os.getuid(),
}))
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sandbox")
    own = folder / "own"
    own.mkdir()
    secret = folder / "secret"
    secret.write_text("secret")
    uid = 2_000_000_001 if os.geteuid() == 0 else 0
    if uid:
        os.chown(own, uid, uid)
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(own), str(folder / "made"), str(secret), str(uid)],
        capture_output=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def test_a_kernel_can_compute_with_threads_and_in_its_folder(tried):
    assert tried["compute"]
    assert tried["thread"]
    assert tried["write own"]


@pytest.mark.parametrize("what", ["write", "read"])
def test_files_of_others_are_out_of_reach(tried, what):
    if any("Landlock" in lack for lack in tried["lacks"]):
        pytest.skip("this kernel has no Landlock")
    assert not tried[what]


@pytest.mark.parametrize("what", ["socket", "fork", "run", "signal", "priority"])
def test_other_processes_and_networks_are_out_of_reach(tried, what):
    if any("seccomp" in lack for lack in tried["lacks"]):
        pytest.skip("this kernel has no seccomp")
    assert not tried[what]


def test_a_file_cannot_become_large(tried):
    assert not tried["file size"]


def test_what_is_left_of_root_is_said(tried):
    same_user = any("same user" in lack for lack in tried["lacks"])
    assert same_user == (tried["user"] == os.getuid())
