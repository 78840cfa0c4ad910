"""`kmark` called in this process, with a store and a cache of its own."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelmark.cli.app import report_error
from kernelmark.cli.main import main
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark_dev.raising import tells

FAKE = (
    *("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32"),
    *("-a", "m=[8,16]", "-a", "n=8", "-a", "k=8", "--config", "time_us=20.0"),
    *("--max-s", "0.05", "--warmup-s", "0.01"),
    *("--jobs", "0"),  # a worker to compile ahead starts as long as all the rest takes
)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    reason: Reason = NO_REASON  # of the error that ended it


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELMARK_LOCKS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def _workers_here(workers_here):
    """No process for a scripted case."""


@pytest.fixture
def no_store_yet(tmp_path, monkeypatch):
    """As on a new machine: nobody names a store, and the user's own one is still to be made."""
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def kmark(capsys):
    reasons = []

    def recorded(error: BaseException, words: Sequence[str], **options: bool) -> int:
        reasons.append(error.message if isinstance(error, KernelmarkError) else NO_REASON)
        return report_error(error, words, **options)

    def call(*words: str) -> Ended:
        capsys.readouterr()
        reasons.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kernelmark.cli.app.report_error", recorded)
            with pytest.raises(SystemExit) as ended:
                main(words)
        captured = capsys.readouterr()
        return Ended(ended.value.code or 0, captured.out, captured.err, *reasons)

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
    """A call that ends with one sentence and a hint on stderr, and nothing else. They have the text
    of these values; if a `reason` is given, they are fields of the error or of the root of it."""

    def call(*words: str, code: int = 2, reason: str = "", **values: object) -> Ended:
        ended = kmark(*words)
        lines = ended.err.splitlines()
        assert ended.code == code, ended
        assert ended.out == ""
        assert len(lines) == 2, ended.err
        assert lines[0].startswith("kmark: ")
        assert lines[1].startswith("hint: ")
        assert "Traceback" not in ended.err
        if not reason:
            assert tells(ended.err, **values)
        else:
            found = ended.reason if ended.reason.code == reason else ended.reason.root
            fields = {name: found.fields.get(name) for name in values}
            assert (found.code, fields) == (reason, values)
        return ended

    return call


@pytest.fixture(scope="session")
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


_KERNEL = """
import numpy as np


def inputs(rows=64, dtype="f32"):
    return {{"x": ((rows, 64), dtype)}}


def reference(x):
    return np.tanh(x)


def prepare(problem, config, sets):
    def launch(index):
        for _ in range({repeat}):  # version {version}
            np.tanh(sets[index]["x"], out=sets[index]["out"])

    return launch
"""


@pytest.fixture
def kernel_repo(tmp_path):
    """Makes a git repository whose commits have a kernel that repeats its work so many times; its
    file. In one process an op has one file: each repository's has a name of its own."""

    def make(*repeats: int) -> Path:
        folder = tmp_path / "repo"
        folder.mkdir()
        kernel = folder / f"kernel_{uuid.uuid4().hex[:8]}.py"

        def git(*words: str) -> None:
            named = ("-c", "user.name=a", "-c", "user.email=a@example.com")
            subprocess.run(["git", "-C", str(folder), *named, *words], check=True)

        git("init", "-q", "-b", "main")
        for version, repeat in enumerate(repeats):
            text = _KERNEL.format(repeat=repeat, version=version)
            kernel.write_text(text)
            git("add", "-A")
            git("commit", "-qm", f"Version {version}")
        return kernel

    return make
