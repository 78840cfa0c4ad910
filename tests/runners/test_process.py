"""The parent's view of a worker, with small programs in the worker's place."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import kernelmark
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.runners import process as process_module
from kernelmark.runners.process import LocalWorkers, Loss, WorkerProcess, WorkerSpec
from kernelmark.runners.protocol import OUT_OF_MEMORY_EXIT

wait = LocalWorkers().wait
READY = 'print(\'{"kind":"ready","protocol":2,"pid":1}\', flush=True)\n'
# The same, then a request is read; `nonce` is the member that an answer to it carries.
ASKED = f"""{READY}
import json
nonce = '"nonce":' + json.dumps(json.loads(sys.stdin.readline())["nonce"])
"""
CONFIRMED = """
nonce = '"nonce":' + json.dumps(json.loads(sys.stdin.readline())["nonce"])
print('{"kind":"reply",%s}' % nonce, flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Start a Python program as if it were an interpreter with our worker in it."""
    workers = []

    def _start(body: str, **spec: object) -> WorkerProcess:
        program = tmp_path / f"python{len(workers)}"
        program.write_text(f"#!{sys.executable}\nimport os, sys, time, signal\n{body}")
        program.chmod(0o755)
        worker = WorkerProcess(WorkerSpec(device="fake:0", python=str(program), **spec))
        workers.append(worker)
        if body.startswith(ASKED):
            worker.send({"kind": "measure"})
        return worker

    yield _start
    for worker in workers:
        worker.close()


def heard(worker: WorkerProcess, within_s: float = 600.0) -> list[object]:
    """Everything until the worker is lost."""
    items: list[object] = []
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        items += [item for _, item in wait([worker], 0.2)]
        if items and isinstance(items[-1], Loss):
            return items
    raise AssertionError(f"not lost within {within_s} s, heard {items}")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, within_s: float = 600.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_messages_arrive_in_order_also_in_pieces(start):
    worker = start(
        ASKED + 'sys.stdout.write(\'{"kind":"pha\'); sys.stdout.flush(); time.sleep(0.2)\n'
        'print(\'se",%s}\\n{"kind":"reply",%s}\' % (nonce, nonce), flush=True)\n' + CONFIRMED
    )
    items = heard(worker)
    assert [i["kind"] for i in items[:-1]] == ["ready", "phase", "reply"]
    assert worker.ready


FLOOD = "data = b'x' * 65536\nwhile True: os.write({}, data)\n"


def test_worker_that_never_stops_writing_does_not_hold_the_parent(start, monkeypatch):
    worker = start("time.sleep(600)")
    left = iter(range(1000))
    with monkeypatch.context() as patched:
        patched.setattr(process_module.os, "read", lambda _, size: b"x" * (size + 0 * next(left)))
        assert worker.messages() == []
    assert next(left, None) is not None


def test_line_without_an_end_is_a_crash(start, monkeypatch):
    monkeypatch.setattr(process_module, "_MAX_LINE_BYTES", 1 << 20)
    ready, lost = heard(start(READY + FLOOD.format(1)))
    assert ready["kind"] == "ready"
    assert lost.status is Status.CRASHED


def test_exit_code_and_standard_error_are_told(start):
    worker = start(READY + "print('what went wrong', file=sys.stderr); sys.exit(7)")
    loss = heard(worker)[-1]
    assert loss.status is Status.CRASHED
    assert (loss.error.code, loss.error.fields["exit_code"]) == ("worker-exited", 7)
    assert loss.error.endswith("\nwhat went wrong")


def test_the_last_words_begin_with_a_whole_line(start):
    lines = 'sys.stderr.write("".join(f"<line {n} of many>\\n" for n in range(1000)))\n'
    worker = start(READY + lines + "sys.stderr.flush()\nsys.exit(3)")
    first = heard(worker)[-1].error.splitlines()[1]
    assert first.startswith("<line ")
    assert first.endswith(" of many>")


@pytest.mark.parametrize(("number", "code"), [(9, "worker-killed"), (11, "worker-signalled")])
def test_a_signal_is_named(start, number, code):
    loss = heard(start(READY + f"os.kill(os.getpid(), {number})"))[-1]
    assert loss.status is Status.CRASHED
    assert (loss.error.code, loss.error.fields["signal"]) == (code, number)


def test_a_kill_by_the_kernel_for_memory_is_out_of_memory(start, monkeypatch):
    counts = iter([4, 5, 5, 5])
    monkeypatch.setattr(process_module, "oom_kills", lambda: next(counts))
    loss = heard(start(READY + "os.kill(os.getpid(), 9)"))[-1]
    assert loss.status is Status.OUT_OF_MEMORY
    assert loss.error.code == "worker-out-of-memory"


def test_a_failed_allocation_in_native_code_is_out_of_memory(start):
    body = "print('terminate called after throwing std::bad_alloc', file=sys.stderr); os.abort()"
    assert heard(start(READY + body))[-1].status is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (f"sys.exit({OUT_OF_MEMORY_EXIT})", Status.OUT_OF_MEMORY),
        ("print('std::bad_alloc, and on it goes', file=sys.stderr); sys.exit(1)", Status.CRASHED),
        ("print('Cannot allocate memory', file=sys.stderr); os.abort()", Status.CRASHED),
    ],
)
def test_lack_of_memory_is_taken_from_codes(start, end, status):
    assert heard(start(READY + end))[-1].status is status


def test_garbage_after_ready_ends_the_worker(start):
    worker = start(READY + "print('Welcome to libfoo', flush=True); time.sleep(1000)")
    loss = heard(worker)[-1]
    assert loss.status is Status.CRASHED
    assert loss.error
    assert not running(worker.pid)


def test_a_greeting_before_ready_is_let_pass(start):
    worker = start("print('module loaded: gcc/13', flush=True)\n" + READY)
    items = heard(worker)
    assert items[0]["kind"] == "ready"


def test_another_protocol_is_a_clear_sentence(start):
    worker = start('print(\'{"kind":"ready","protocol":99}\', flush=True); time.sleep(1000)')
    loss = heard(worker)[-1]
    assert "99" in loss.error
    assert not worker.ready


def test_a_worker_that_sends_failed_is_lost_with_its_error(start):
    worker = start('print(\'{"kind":"failed","error":"no such GPU"}\', flush=True)')
    error = heard(worker)[-1].error
    assert "no such GPU" in error


def test_kill_takes_the_children_too(start):
    worker = start(
        ASKED + "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        'print(\'{"kind":"phase","pid":%d,%s}\' % (child.pid, nonce), flush=True)\n'
        "time.sleep(1000)\n"
    )
    items: list[object] = []
    wait_until(lambda: items.extend(i for _, i in wait([worker], 0.2)) or len(items) >= 2)
    child = items[1]["pid"]
    assert running(child)
    worker.kill()
    wait_until(lambda: not running(child))
    assert not running(worker.pid)


def test_a_closed_standard_error_does_not_make_the_parent_spin(start):
    worker = start(
        ASKED
        + 'os.close(2); print(\'{"kind":"phase",%s}\' % nonce, flush=True); time.sleep(1000)\n'
    )
    items: list[object] = []
    wait_until(lambda: items.extend(i for _, i in wait([worker], 0.2)) or len(items) >= 2)
    rounds = []
    for _ in range(5):  # the end of standard error may be seen in the first of them
        begin = time.monotonic()
        wait([worker], 0.2)
        rounds.append(time.monotonic() - begin)
    assert min(rounds[1:]) >= 0.19, "it waits for a message"


def test_stop_lets_it_end_by_itself(start, tmp_path):
    mark = tmp_path / "ended"
    worker = start(READY + f"sys.stdin.readline(); open({str(mark)!r}, 'w').close()")
    wait_until(lambda: wait([worker], 0.2) or worker.ready)
    worker.stop()
    assert mark.exists()


def test_a_foreign_interpreter_gets_kernelmark_and_nothing_beside_it(start):
    worker = start(
        "print(os.environ['PYTHONPATH'], os.environ['MY'], *sys.argv[1:], file=sys.stderr)",
        variables={"MY": "value", "PYTHONPATH": ":/somewhere:"},
    )
    path, mine, safe, file, module, *_ = heard(worker)[-1].error.splitlines()[-1].split(" ")
    assert (mine, path, safe) == ("value", "/somewhere", "-P")
    assert Path(file).parents[1] == Path(kernelmark.__file__).parent
    assert module == "kernelmark.runners.worker"


def test_hanging_python_code_shows_its_stack(start):
    worker = start(
        ASKED + "import faulthandler; faulthandler.register(signal.SIGUSR1)\n"
        'def the_culprit():\n    print(\'{"kind":"phase",%s}\' % nonce, flush=True); '
        "time.sleep(1000)\n"
        "the_culprit()"
    )
    items: list[object] = []
    wait_until(lambda: items.extend(i for _, i in wait([worker], 0.2)) or len(items) >= 2)
    worker.dump_stacks()
    assert "the_culprit" in worker.with_tail(Reason("closed"))
