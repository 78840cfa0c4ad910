"""Ctrl-C, and `kmark run --resume`."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.result import Run, RunState
from kernelmark.stores import open_store

_WAITING = """
import time
from pathlib import Path

import numpy as np

op, devices, tensors = "gemm", ("fake",), "numpy"
GO = Path(__file__).with_name("go")


def prepare(problem, config, sets):
    def launch(index):
        while problem.dims["m"] == 16 and not GO.exists():
            time.sleep(0.02)
        arguments = sets[index]
        np.matmul(arguments["a"], arguments["b"], out=arguments["d"])

    return launch
"""


def test_ctrl_c_keeps_everything_and_resume_finishes(kmark, stopped, tmp_path, monkeypatch):
    (tmp_path / "waiting.py").write_text(_WAITING)
    words = (
        *("run", "-b", str(tmp_path / "waiting.py"), "-d", "fake", "--dtype", "f32"),
        *("-a", "m=[8:24:8]", "-a", "n=8", "-a", "k=8", "--jobs", "0"),
        *("--max-s", "0.002", "--warmup-s", "0.0"),
    )
    rest = stopped(words, "] ok", signal.SIGINT)
    assert "everything so far is stored: kmark run --resume" in rest
    assert "Traceback" not in rest
    with open_store(tmp_path / "store.sqlite") as store:
        run = store.run("latest")
        before = {r.case.id: r for r in store.results(run.id)}
        assert run.state is RunState.INTERRUPTED
        assert len(before) == 1
    (tmp_path / "go").touch()
    ended = kmark("run", "--resume")
    assert ended.code == 0, ended.err
    assert "/2]" in ended.err
    with open_store(tmp_path / "store.sqlite") as store:
        after = {r.case.id: r for r in store.results(run.id)}
        assert store.run(run.id).state is RunState.DONE
    assert len(after) == 3
    assert all(after[case_id] == result for case_id, result in before.items())


def test_resume_keeps_the_choice_and_can_retry_failures(kmark, fake_words, refused):
    kmark(*fake_words, "--label", "mine", "--config", "behaviour=wrong")
    refused("run", "--resume", code=4)
    words = ("run", "--resume", "mine", "-o", "conv", "--cache", "hot")
    refused(*words, options=("--op", "--cache"), other="--resume")
    again = kmark("run", "--resume", "mine")
    assert again.code == 3
    assert "[1/" not in again.err
    retried = kmark("run", "--resume", "latest", "--retry-failed")
    assert retried.code == 3
    assert "[2/2] wrong" in retried.err
    assert kmark("list", "runs").out.count("mine") == 1


def store_run(place, name: str, argv: str, state: RunState = RunState.INTERRUPTED) -> None:
    with open_store(place) as store:
        store.add_run(
            Run(
                id=name,
                started=time.time(),
                environment=Environment(),
                argv=tuple(argv.split()),
                state=state,
            )
        )


def test_resume_takes_only_what_kmark_run_made(kmark, fake_words, refused, tmp_path):
    place = tmp_path / "store.sqlite"
    assert kmark(*fake_words, "--label", "mine").code == 0
    with open_store(place) as store:
        run = store.run("mine")
        store.update_run(dataclasses.replace(run, state=RunState.INTERRUPTED))
    store_run(place, "one-ab", "ab -b numpy --set head:X=1 -s smoke")
    store_run(place, "one-tune", "tune summarise work")
    store_run(place, "one-elsewhere", "run -s smoke", RunState.RUNNING)
    ended = kmark("run", "--resume")
    assert ended.code == 0, ended.err
    assert run.id in ended.err
    ended = refused("run", "--resume", "one-ab", command="ab")
    assert "kmark ab -b numpy --set head:X=1 -s smoke" in ended.err
    words = ("run", "--resume", "one-tune")
    refused(*words, run="one-tune", command="tune summarise")
    refused("run", "--resume", code=4)


def test_an_error_leaves_no_run_that_seems_to_go_on(kmark, fake_words, monkeypatch):
    def fail(self, event):
        raise RuntimeError("surprise")

    monkeypatch.setattr("kernelmark.report.summary.ProgressLines.__call__", fail)
    assert kmark(*fake_words).code == 2
    assert "interrupted" in kmark("list", "runs").out


def test_a_run_of_the_python_api_cannot_be_resumed(refused, tmp_path):
    import kernelmark as km

    timing = km.Timing(max_s=0.05)
    km.run("gemm", m=8, n=8, k=8, dtype="f32", device="fake", timing=timing, store=True, label="x")
    refused("run", "--resume", "x", command=None)


def test_ctrl_c_while_commands_are_loaded_is_one_sentence():
    program = (
        "import sys, builtins\nfrom kernelmark.cli.main import main\n"
        "assert 'typer' not in sys.modules\nreal = builtins.__import__\n"
        "def stop(name, *rest):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = stop\nmain(['list', 'suites'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"kmark: interrupted\n")


@pytest.mark.parametrize("command", ["run -s smoke -b numpy --roofs fresh", "roofs"])
def test_sigterm_while_roofs_are_measured_is_as_ctrl_c(stopped, command):
    """What a batch system sends first."""
    rest = stopped(command.split(), "measuring the roofs", signal.SIGTERM)
    assert rest.startswith("kmark: interrupted")
    assert len(rest.splitlines()) == 1


def test_a_command_leaves_signals_as_they_were(kmark):
    before = signal.getsignal(signal.SIGTERM)
    assert kmark("list", "ops").code == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_before_the_first_case(kmark, fake_words, tmp_path, monkeypatch):
    def interrupted(*rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelmark.api.roofs.RunRoofs.complete", interrupted)
    ended = kmark(*fake_words)
    assert ended.code == 130
    assert ended.err.strip() == "kmark: interrupted before the first case; nothing was stored"
    with open_store(tmp_path / "store.sqlite") as store:
        assert not list(store.runs(limit=1))


_OWN = """
def inputs(size=64):
    return {"x": ((size,), "f32")}

def reference(x):
    return x + 1

def prepare(problem, config, sets):
    def launch(index):
        sets[index]["out"][:] = sets[index]["x"] + ADDED
    return launch
"""


@pytest.mark.parametrize("op", ["plus", "plus_other"])
def test_a_run_of_own_files_is_resumed_from_another_folder(kmark, tmp_path, monkeypatch, op):
    """What a run named relative to its folder is what it goes on with, even if the folder of the
    resuming command has another file of that name."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (first / f"{op}.py").write_text(_OWN.replace("ADDED", "2"))
    short = 'preset = "quick"\nmax_s = 0.03\nwarmup_s = 0.0\ncache = "hot"\n'  # of few sets
    (first / "short.toml").write_text(short)
    (first / "all.toml").write_text(f'[[problems]]\nop = "{op}"\nsize = [8, 16]\n')
    if op == "plus_other":
        (second / f"{op}.py").write_text(_OWN.replace("ADDED", "3"))
    monkeypatch.chdir(first)
    words = ("-s", "./all.toml", "--timing", "short.toml", "--no-canaries", "--roofs", "none")
    assert kmark("run", "-b", f"./{op}.py", *words).code == 3
    (first / f"{op}.py").write_text(_OWN.replace("ADDED", "1"))
    monkeypatch.chdir(second)
    ended = kmark("run", "--resume", "--retry-failed", "--json", "out.json")
    assert ended.code == 0, ended.err
    assert (second / "out.json").is_file(), "outputs are of the folder that they are asked for in"
    with open_store(tmp_path / "store.sqlite") as store:
        (run,) = store.runs()
        assert [r.status.value for r in store.results(run.id)] == ["ok", "ok"]


def test_a_run_whose_folder_is_not_known_says_where_its_files_are_looked_for(
    kmark, refused, tmp_path, monkeypatch
):
    store_run(tmp_path / "store.sqlite", "elsewhere", "run -b ./gone.py")
    words = ("run", "--resume", "elsewhere")
    refused(*words, file="./gone.py")
