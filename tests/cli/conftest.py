"""`kmark` called in this process, with a store and a cache of its own."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kernelmark.cli.main import main

FAKE = (
    *("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32"),
    *("-a", "m=[8,16]", "-a", "n=8", "-a", "k=8", "--config", "time_us=20.0"),
    *("--max-s", "0.05", "--warmup-s", "0.01"),
)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELMARK_LOCKS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def kmark(capsys):
    def call(*words: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        captured = capsys.readouterr()
        return Ended(ended.value.code or 0, captured.out, captured.err)

    return call


@pytest.fixture
def stopped(default_signals):
    """A `kmark` in a process of its own that gets a signal once a line says `until`: what it tells
    after that. It ends as an interrupted one must."""

    def call(words: Sequence[str], until: str, number: signal.Signals) -> str:
        started = subprocess.Popen(
            [sys.executable, "-m", "kernelmark", *words],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert started.stderr is not None
        seen = [started.stderr.readline()]
        while seen[-1] and until not in seen[-1]:
            seen.append(started.stderr.readline())
        started.send_signal(number)
        rest = started.communicate(timeout=600)[1]
        assert started.returncode == 130, "".join(seen) + rest
        return rest

    return call


@pytest.fixture
def refused(kmark):
    """A call that ends with one sentence and a hint on stderr, and nothing else."""

    def call(*words: str, code: int = 2) -> Ended:
        ended = kmark(*words)
        lines = ended.err.splitlines()
        assert ended.code == code, ended
        assert ended.out == ""
        assert len(lines) == 2, ended.err
        assert lines[0].startswith("kmark: ")
        assert lines[1].startswith("hint: ")
        assert "Traceback" not in ended.err
        return ended

    return call


@pytest.fixture
def fake_words():
    """A request that takes a second and whose times are scripted."""
    return FAKE


@pytest.fixture(scope="session")
def run_once(tmp_path_factory):
    """A store with one run of FAKE, labelled mine, and what the run printed."""
    folder = tmp_path_factory.mktemp("once")
    store, out = folder / "store.sqlite", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("KERNELMARK_CACHE", str(folder / "cache"))
        with pytest.raises(SystemExit):
            main((*FAKE, "--quiet", "--label", "mine", "--store", str(store)))
    return store, out.getvalue()


@pytest.fixture
def stored(run_once, tmp_path):
    """That run in this test's own store; what it printed."""
    shutil.copy(run_once[0], tmp_path / "store.sqlite")
    return run_once[1]
