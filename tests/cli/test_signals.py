"""Every signal that asks for the end ends a command like Ctrl-C, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import RunState
from kernelmark.stores import open_store

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_GEMM = ("-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "n=8", "-a", "k=8")
COMMANDS = {
    "run": ("run", *_GEMM, "-a", "m=[8:4096:+8]", "--max-s", "0.2"),
    "ab": ("ab", "--env", "a", "--env", "b", *_GEMM, "-a", "m=[8:4096:+8]", "--max-s", "0.2"),
    "micro": ("micro", "--full", "instructions", "latency"),
}
MARK = "KERNELMARK_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment, ended ones aside."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            dead = (place / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
            if not dead and f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def stored_states() -> list[RunState]:
    """The states of the runs in the default store, which a command may be about to create."""
    try:
        with open_store(os.environ["KERNELMARK_STORE"], readonly=True) as store:
            return [run.state for run in store.runs()]
    except KernelmarkError:
        return []


def wait_until(condition, within_s: float = 600.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def start(default_signals, tmp_path):
    begun: list[subprocess.Popen[bytes]] = []

    def call(*words: str, **more: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, MARK: str(tmp_path)}
        null = subprocess.DEVNULL
        command = [sys.executable, "-m", "kernelmark", *words]
        process = subprocess.Popen(command, env=environment, stdout=null, stderr=null, **more)
        begun.append(process)
        return process

    yield call
    for process in begun:
        process.kill()
        process.wait()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


@pytest.mark.parametrize(
    ("name", "number"), [("run", signal.SIGHUP), ("ab", signal.SIGQUIT), ("micro", signal.SIGTERM)]
)
def test_while_it_measures(start, tmp_path, name, number):
    process = start(*COMMANDS[name])
    wait_until(lambda: len(marked(str(tmp_path))) >= 3)  # a worker with its guard is at work
    process.send_signal(number)
    assert process.wait(timeout=600) == 130
    wait_until(lambda: not marked(str(tmp_path)))


@pytest.mark.parametrize("number", STOPS)
def test_as_soon_as_it_begins(start, number):
    process = start(*COMMANDS["run"])
    wait_until(lambda: catches(process.pid, signal.SIGQUIT) or process.poll() is not None)
    process.send_signal(number)
    assert process.wait(timeout=600) == 130


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_left_when_it_is_killed(start, tmp_path, name):
    process = start(*COMMANDS[name])
    wait_until(lambda: len(marked(str(tmp_path))) >= 3)
    process.kill()
    process.wait()
    wait_until(lambda: not marked(str(tmp_path)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_from_the_start_stays_so(start, tmp_path, number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = start(*COMMANDS["run"])
    finally:
        signal.signal(number, before)
    wait_until(lambda: stored_states())
    assert not catches(process.pid, number)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 130
    assert stored_states() == [RunState.INTERRUPTED]


@pytest.mark.usefixtures("default_signals")
def test_python_does_not_take_a_handled_interruption_for_an_unhandled_one():
    # As in dataclasses: what leaves a text that is executed marks the whole process.
    program = (
        "import sys; from kernelmark.cli import main as m; sys.argv = ['kmark', '--version']\n"
        "m._open_streams = lambda: exec('raise KeyboardInterrupt')\n"
        "m.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == 130


IN_A_FINALISER = """
class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(1000):  # the handler is called in here, where nothing can be raised
            pass

def lose():
    Dying()
    time.sleep(60)
"""
AS_ANOTHER_ERROR = """
def lose():
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as error:
        raise SyntaxError("cannot load a module") from error
"""
# As compiled modules do, and those that try an import and have something else.
IN_AN_IMPORT = """
def lose():
    import swallowing
"""
WHILE_HANDLERS_ARE_SET = """
set_handler = signal.signal

def set_and_signal(number, handler):
    set_handler(number, handler)
    if number == signal.SIGTERM:
        signal.raise_signal(number)

signal.signal = set_and_signal

def lose():
    time.sleep(60)
"""


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(
    "loss", [IN_A_FINALISER, AS_ANOTHER_ERROR, IN_AN_IMPORT, WHILE_HANDLERS_ARE_SET]
)
def test_a_signal_is_not_lost_where_nothing_can_be_raised(loss, tmp_path):
    (tmp_path / "swallowing.py").write_text(
        "import signal, time\n"
        "try:\n    signal.raise_signal(signal.SIGTERM)\nexcept BaseException:\n    pass\n"
        "time.sleep(60)\n"
    )
    program = (
        "import signal, sys, time; from kernelmark.cli import main as m\n"
        f"sys.argv = ['kmark', '--version']; sys.path.append({str(tmp_path)!r})\n"
        f"{loss}\nm._open_streams = lose\nm.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == 130
    assert b"unexpected" not in ended.stderr
