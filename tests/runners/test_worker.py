"""The worker as a process: what goes in and out of its pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.host.processes import own_command
from kernelmark.ops import parse
from kernelmark.runners.protocol import OUT_OF_MEMORY_EXIT
from kernelmark.runners.worker import LoadedCode

COMMAND = own_command("kernelmark.runners.worker", "--device", "fake")
PROBLEM = parse("gemm m=8 n=8 k=8 a=f32 b=f32 c=f32")
QUICK = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3)


def case(**config: object) -> Case:
    return Case(problem=PROBLEM, backend="fake", timing=QUICK, config=config)


def request(word: str, number: int = 1, **fields: object) -> dict[str, object]:
    return {"kind": word, "id": number, **fields}


def measure(number: int = 1, **config: object) -> dict[str, object]:
    return request("measure", number, process=0, case=codec.to_document(case(**config)))


def talk(*requests: object, command: list[str] = COMMAND) -> tuple[list[dict], str]:
    lines = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in requests)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=600)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_case_is_measured_and_its_phases_are_told():
    said, _ = talk(measure(7))
    assert said[0]["kind"] == "ready"
    assert said[0]["protocol"] == 2
    phases = [m["phase"] for m in said if m["kind"] == "phase"]
    assert phases[0] == "load"
    assert {"inputs", "compile", "timing", "check"} <= set(phases)
    assert {m["id"] for m in said[1:]} == {7}
    result = codec.from_document(said[-1]["result"], Result)
    assert result.status is Status.OK
    assert result.case == case()
    assert result.measurement is not None
    assert result.flops > 0
    assert (result.device, result.arch) == ("fake", "fake")


def test_failures_are_results_and_the_worker_goes_on():
    said, _ = talk(
        measure(1, behaviour="raise"),
        measure(2, behaviour="oom"),
        measure(3, behaviour="compile_error"),
        measure(4, behaviour="wrong"),
        measure(5, behaviour="no such thing"),
        measure(6, behaviour="memory_hog", hog_bytes=1 << 26),
        measure(7),
    )
    results = [codec.from_document(m["result"], Result) for m in said if "result" in m]
    assert [r.status.value for r in results] == [
        "runtime_error",
        "out_of_memory",
        "compile_error",
        "wrong",
        "unsupported",
        "out_of_memory",
        "ok",
    ]
    assert all(r.error and r.flops and r.cost["total"] > 0 for r in results[:-1])
    assert "fake.py:" in results[0].error
    assert results[3].measurement is not None


def test_compile_and_environment():
    said, _ = talk(
        request("compile", 1, case=codec.to_document(case())),
        request("compile", 2, case=codec.to_document(case(behaviour="compile_error"))),
        request("environment", 3, backends=["fake", "numpy"]),
        request("stop", 4),
        command=[*COMMAND, "--leave-device"],
    )
    compiled = [m for m in said if "seconds" in m]
    assert [(m["id"], m["status"]) for m in compiled] == [(1, "ok"), (2, "compile_error")]
    seen = codec.from_document(said[-1]["environment"], Environment)
    assert "numpy" in seen.libraries


def test_prints_of_libraries_do_not_reach_the_protocol(tmp_path):
    # A module that Python imports on start stands for a library that prints at exit and by C.
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, os, sys\n"
        "def chat():\n"
        "    import time\n"
        "    for _ in range(40):\n"
        "        time.sleep(0.02)\n"
        "        if 'kernelmark.runners.locks' in sys.modules:\n"
        "            print('chatty library'); sys.stdout.flush(); os.write(1, b'from C\\n')\n"
        "threading.Thread(target=chat, daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        COMMAND,
        input=json.dumps(measure(time_us=3000.0)) + "\n",
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path},
    )
    words = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert words[-1] == "reply"


@pytest.mark.parametrize(
    "line", ["rubbish\n", '{"kind":"dance"}\n', '{"kind":"measure","id":1}\n', "[]\n"]
)
def test_a_bad_request_is_told_and_ends_the_worker(line):
    said, errors = talk(line)
    assert said[-1]["kind"] == "failed"
    assert said[-1]["error"]
    assert "Traceback" not in errors


@pytest.mark.usefixtures("default_signals")
def test_it_ignores_ctrl_c():
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(json.dumps(measure()) + "\n", timeout=600)
    assert json.loads(out.splitlines()[-1])["kind"] == "reply"


def test_it_dies_with_its_parent_even_while_it_hangs(tmp_path):
    mark = tmp_path / "pid"
    code = (
        "import os, sys, time\n"
        "from kernelmark.runners.process import LocalWorkers, WorkerProcess, WorkerSpec\n"
        "worker = WorkerProcess(WorkerSpec(device='fake'))\n"
        f"worker.send({measure(behaviour='hang')!r})\n"
        "seen = ''\n"
        "while seen not in ('warmup', 'timing'):\n"
        "    for _, message in LocalWorkers().wait([worker], 10): seen = message.get('phase', '')\n"
        f"open({str(mark)!r}, 'w').write(str(worker.pid))\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 600
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    pid = int(mark.read_text())
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_its_memory_can_be_capped(monkeypatch):
    # A thread pool for many cores would fill the space before the case does.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    said, _ = talk(
        measure(behaviour="memory_hog", hog_bytes=1 << 50),
        command=[*COMMAND, "--memory-bytes", str(1 << 30)],
    )
    assert said[-1]["result"]["status"] == "out_of_memory"


def test_it_needs_numpy_and_nothing_else():
    heavy = ("scipy", "sqlalchemy", "typer", "rich", "yaml", "ml_dtypes", "torch", "triton", "iree")
    code = (
        "import sys\n"
        f"heavy = {heavy!r}\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in heavy: raise ImportError(name + ' is not here')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from kernelmark.runners.worker import main\n"
        "code = main(['--device', 'cpu', '--threads', '1'])\n"
        "assert not [m for m in heavy if m in sys.modules]\n"
        "sys.exit(code)\n"
    )
    document = codec.to_document(Case(problem=PROBLEM, backend="numpy", timing=QUICK))
    said, errors = talk(request("measure", case=document), command=[sys.executable, "-c", code])
    assert said[-1]["result"]["status"] == "ok", errors


def test_a_worker_without_memory_for_its_reply_ends_with_a_code_of_its_own(tmp_path):
    (tmp_path / "greedy.py").write_text("def fill(server, request):\n    return bytes(2**62)\n")
    done = subprocess.run(
        COMMAND,
        input=json.dumps(request("call", function="greedy:fill")) + "\n",
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert done.returncode == OUT_OF_MEMORY_EXIT


def replace_code(module):
    module.median.__code__ = module.mean.__code__


@pytest.mark.parametrize(
    "replace",
    [
        lambda module: setattr(module, "median", module.mean),
        lambda module: delattr(module, "median"),
        replace_code,
        lambda module: setattr(module.Block, "time", lambda self: 0.0),
        lambda module: sys.modules.update({module.__name__: types.ModuleType("other")}),
    ],
)
def test_every_way_to_replace_loaded_code_is_found(monkeypatch, replace):
    module = types.ModuleType("kernelmark.example")
    source = "def median(): pass\ndef mean(): pass\nclass Block:\n    def time(self): pass\n"
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = LoadedCode()
    assert code.replaced() == ""
    replace(module)
    assert code.replaced().startswith("kernelmark.example")
