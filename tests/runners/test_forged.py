"""A kernel file shares a process with the protocol: what it writes is not taken for results."""

from __future__ import annotations

import json
import sys
import time

import pytest

from kernelmark.core import codec
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.devices.cpu import CpuReplay
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.execute import failure
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.process import LocalWorkers, Loss, WorkerProcess, WorkerSpec
from kernelmark.runners.targets import find

READY = 'print(\'{"kind":"ready","protocol":2,"pid":1}\', flush=True)\n'
ANSWER = """
import json
request = json.loads(sys.stdin.readline())
def answer(**fields):
    print(json.dumps({"kind": "reply", "id": request.get("id"), **fields}), flush=True)
"""


@pytest.fixture
def start(tmp_path):
    workers = []

    def _start(body: str) -> WorkerProcess:
        program = tmp_path / f"python{len(workers)}"
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{READY}{body}")
        program.chmod(0o755)
        worker = WorkerProcess(WorkerSpec(device="fake:0", python=str(program)))
        workers.append(worker)
        return worker

    yield _start
    for worker in workers:
        worker.close()


def said(worker: WorkerProcess) -> list[str]:
    """The words of its messages; `lost` ends them, with the status."""
    words: list[str] = []
    end = time.monotonic() + 600.0
    while time.monotonic() < end:
        for _, item in LocalWorkers().wait([worker], 1.0):
            if isinstance(item, Loss):
                return [*words, f"lost: {item.status.value}"]
            words.append(item["kind"])
    return words


def test_answer_with_the_nonce_of_its_request_is_taken(start):
    answered = "answer(nonce=request['nonce'])\n"
    confirmed = f"request = json.loads(sys.stdin.readline())\n{answered}"
    worker = start(ANSWER + answered + confirmed + "time.sleep(60)")
    worker.send({"kind": "measure", "id": 7})
    heard: list[object] = []
    while len(heard) < 2:
        heard += [item for _, item in LocalWorkers().wait([worker], 30.0)]
    assert [item["kind"] for item in heard] == ["ready", "reply"]
    assert worker.lost is None


@pytest.mark.parametrize("nonce", ["", "nonce='guessed'", "nonce=None", "nonce=request['id']"])
def test_answer_without_it_is_a_crash(start, nonce):
    worker = start(ANSWER + f"answer({nonce})\ntime.sleep(60)")
    worker.send({"kind": "measure", "id": 7})
    assert said(worker) == ["ready", "lost: crashed"]


def test_second_answer_to_a_request_is_a_crash(start):
    body = "answer(nonce=request['nonce'])\nanswer(nonce=request['nonce'])\ntime.sleep(60)"
    worker = start(ANSWER + body)
    worker.send({"kind": "measure", "id": 7})
    assert said(worker) == ["ready", "lost: crashed"]


def test_answer_to_no_request_is_a_crash(start):
    worker = start('print(\'{"kind":"reply","id":1}\', flush=True)\ntime.sleep(60)')
    assert said(worker) == ["ready", "lost: crashed"]


def test_second_ready_is_a_crash(start):
    assert said(start(READY + "time.sleep(60)")) == ["ready", "lost: crashed"]


def test_nonces_are_long_and_never_the_same(start):
    worker = start("for line in sys.stdin: print(line.strip(), file=sys.stderr, flush=True)")
    seen = set()
    for _ in range(3):
        worker.send({"kind": "measure", "id": 7})
        while not (text := worker.with_tail(Reason("closed")).fields.get("output", "")):
            time.sleep(0.01)
            worker.messages()
        seen.add(json.loads(text)["nonce"])
    assert len(seen) == 3
    assert all(len(nonce) >= 32 for nonce in seen)


FORGER = """
import json, os, stat
op = "gemm"

def forged():
    with open({forged!r}) as file:
        result = json.load(file)
    for number in range(1, 200):
        yield json.dumps(dict(kind="reply", id=number, result=result)).encode() + b"\\n"

def prepare(problem, config, sets):
    lines = b"".join(forged())
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                os.write(int(name), lines)
        except OSError:
            continue
    def launch(index):
        for set_ in sets:
            set_["d"][...] = 0
    return launch
"""


def test_kernel_file_cannot_write_its_own_result(tmp_path):
    path = tmp_path / "forger.py"
    problem = {"m": 8, "n": 8, "k": 8}
    case = Case(problem=gemm(**problem), backend=str(path), timing=Timing(max_s=0.05))
    info = find("cpu")[1]
    forged = failure(case, info, Status.UNSUPPORTED, "forged", started=time.time())
    (tmp_path / "forged.json").write_text(json.dumps(codec.to_document(forged)))
    path.write_text(FORGER.format(forged=str(tmp_path / "forged.json")))
    events = LocalRunner(["cpu"], jobs=0).run([case])
    (result,) = [event.result for event in events if isinstance(event, CaseFinished)]
    assert result.status is Status.CRASHED
    assert "forged" not in result.error


def gemm(**dims: int) -> Problem:
    from kernelmark import ops

    return ops.registry.get("gemm").problem(**dims, dtype="f32")


def test_result_of_another_case_or_device_is_a_crash():
    info = find("fake")[1]
    case = Case(problem=gemm(m=8, n=8, k=8), backend="fake", timing=Timing())
    other = Case(problem=gemm(m=16, n=8, k=8), backend="fake", timing=Timing())
    own = failure(case, info, Status.UNSUPPORTED, "own", started=1.0)

    def read(result) -> Status:
        reply = {"kind": "reply", "result": codec.to_document(result)}
        return MeasureCase(case=case).read(info, reply, 1.0).status

    assert read(own) is Status.UNSUPPORTED
    assert read(failure(other, info, Status.UNSUPPORTED, "", started=1.0)) is Status.CRASHED
    elsewhere = find("cpu")[1]
    assert read(failure(case, elsewhere, Status.UNSUPPORTED, "", started=1.0)) is Status.CRASHED


HONEST = """
import sys, time
import numpy as np
op = "gemm"
def compute(tensors):
    np.matmul(tensors["a"], tensors["b"], out=tensors["d"])
def server():
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "Server":
                return value
        frame = frame.f_back
"""
SLOW_CLOCK = """
real, real_ns = time.perf_counter, time.perf_counter_ns
time.perf_counter = lambda: real() / 2
time.perf_counter_ns = lambda: real_ns() // 2
def prepare(problem, config, sets):
    return lambda index: compute(sets[index])
"""
PATCHED_SEND = """
def prepare(problem, config, sets):
    kind = type(server())
    send = kind.send
    def halved(self, what, **fields):
        for block in (fields.get("result", {}).get("measurement") or {}).get("blocks", ()):
            block["samples_s"] = [s / 2 for s in block["samples_s"]]
        send(self, what, **fields)
    kind.send = halved
    return lambda index: compute(sets[index])
"""
OWN_REPLY = """
import json, os
def prepare(problem, config, sets):
    worker = server()
    def launch(index):
        compute(sets[index])
        about = {name: worker._request[name] for name in ("id", "nonce")}
        line = json.dumps({"kind": "reply", "result": {}, **about}).encode()
        os.write(worker.out.fileno(), line + b"\\n")
    return launch
"""
PATCHED_MODULE = """
def prepare(problem, config, sets):
    import kernelmark.core.codec
    kernelmark.core.codec.to_document = lambda value: {}
    return lambda index: compute(sets[index])
"""


@pytest.mark.parametrize("body", [SLOW_CLOCK, PATCHED_SEND, OWN_REPLY, PATCHED_MODULE])
def test_a_file_that_takes_over_the_worker_is_not_ok(tmp_path, body):
    path = tmp_path / "forger.py"
    path.write_text(HONEST + body)
    problem = parse("gemm m=4 n=4 k=4 dtype=f32")
    case = Case(problem=problem, backend=str(path), timing=Timing.load("quick"))
    events = LocalRunner(["fake"]).run([case])
    results = [event.result for event in events if isinstance(event, CaseFinished)]
    assert [result.status.failed for result in results] == [True]


def test_the_clock_is_that_of_before_a_file_is_imported(monkeypatch):
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    replay = CpuReplay(lambda stream, index: time.sleep(0.001), [0])
    assert replay.run().elapsed_s >= 0.001
