"""Drill: signals at random moments of every command that takes long, and kill -9 of them. It ends
with the code for an interruption, no process is left, nothing that was stored is lost, and the same
command goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drill_nights import GOOD_S, SLOW_S, Layout
from drill_seeds import TEXTS
from drill_stores import fill
from drilling import Facts, must
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Result, RunState
from kernelmark.stores import open_store
from kernelmark.stores.store import Scope
from kernelmark.tune.folder import TuningFolder
from kernelmark_dev.tuning import fake_plans, make_folder

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
INTERRUPTED = 130
GONE_S = 2.0  # by then no process that it started may be there
# A worker notices the end of a killed parent when it next looks, and a machine may be busy.
KILLED_GONE_S = 20.0
SIZE = ("-a", "n=8", "-a", "k=8", "--dtype", "f32")
_GEMM = ("-o", "gemm", "-d", "fake", "-b", "fake", *SIZE)
_OWN = ("-o", "gemm", "-d", "fake", "-b", "kernels/rms.py", *SIZE, "-a", "m=8", "-q")
_SHORT = ("--max-s", "0.05", "--warmup-s", "0.01", "-q")
MICRO = ("instructions", "latency", "cache")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the longest moment after its start at which a signal comes (most come while it
    works), and the command that goes on with it: the same, if none is named."""

    words: tuple[str, ...]
    longest_s: float
    next: tuple[str, ...] = ()


# Words in capitals are paths or a URL.
COMMANDS = {
    "run": Command(
        ("run", *_GEMM, "-a", "m=[8:1024:+8]", *_SHORT), 4.0, ("run", "--resume", "latest", "-q")
    ),
    "ab": Command(
        ("ab", "--env", "a", "--env", "b", *_GEMM, "-a", "m=[8:64:+8]", "--budget", "20", *_SHORT),
        5.0,
    ),
    "micro": Command(("micro", *MICRO, "--full"), 5.0, ("micro", *MICRO)),
    "tune": Command(("tune", "run", "FOLDER", "--timeout", "2", "-q"), 5.0),
    "import": Command(("import", "FILE"), 1.0),
    "gate": Command(("gate", "--base", "HEAD~1", "--head", "HEAD", *_OWN, "--budget", "30"), 6.0),
    "bisect": Command(("bisect", "--good", "HEAD~2", "--bad", "HEAD", *_OWN), 6.0),
    "nightly": Command(("nightly", "CONFIG", "-q"), 6.0),
    "push": Command(("push", "URL", "latest", "-q"), 2.0),
    "serve": Command(("serve", "--port", "0", "-q"), 3.0),
}
KILLED = ("run", "ab", "micro", "tune", "import", "gate", "nightly", "push")
_MARK = "KERNELMARK_DRILL_MARK"


def marked(mark: str) -> list[int]:
    """Living processes that have the mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            dead = (place / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
            if not dead and f"{_MARK}={mark}\0".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: before its first line no program can."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    mask = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def stored(where: Path) -> dict[tuple[str, str], tuple[RunState, Result]]:
    """Each stored case with the state of its run and its result."""
    if not where.exists():
        return {}
    try:
        with open_store(str(where), readonly=True) as store:
            return {
                (run.id, result.case.id): (run.state, result)
                for run in store.runs()
                for result in store.results(run.id)
            }
    except KernelmarkError:  # it is being made just now
        return {}


def _evaluated(folder: Path) -> set[bytes]:
    """The whole lines in the journals of a tuning folder."""
    files = TuningFolder(folder).trials.glob("*.jsonl") if folder.is_dir() else ()
    lines = (line for file in files for line in file.read_bytes().splitlines(keepends=True))
    return {line for line in lines if line.endswith(b"\n")}


class Trial:
    """A command in a folder of its own. `warm` has what takes long to make: a cache with compiled
    microbenchmarks, or most signals would find a compiler at work, and a repository."""

    def __init__(self, name: str, folder: Path, warm: Warm) -> None:
        self.name, self.command, self.mark = name, COMMANDS[name], str(folder)
        self.store, self.tuning = folder / "store.sqlite", folder / "FOLDER"
        self.work = folder
        self.paths = {"FOLDER": str(self.tuning), "URL": warm.url}
        if name == "tune":
            make_folder(self.tuning, fake_plans(3, evaluations=20))
        elif name == "micro":
            shutil.copytree(warm.cache / "micro", folder / "cache" / "micro")
        elif name == "import":
            self.paths["FILE"] = str(folder / "FILE-gemm.csv")
            (folder / "FILE-gemm.csv").write_text(TEXTS["times reference_csv"]["rocblas-gemm.csv"])
        elif name in ("push", "serve"):
            fill(self.store, runs=1, results=500, prefix=f"{folder.name}-")
        elif name in ("gate", "bisect", "nightly"):
            self.work = folder / "repository"
            shutil.copytree(warm.repository, self.work)
            self.paths["CONFIG"] = str(self.work / "nightly.toml")
        self.variables = {
            **os.environ,
            "KERNELMARK_STORE": str(self.store),
            "KERNELMARK_CACHE": str(folder / "cache"),
            "KERNELMARK_TOKEN": warm.token,
            "DRILL_WEBHOOK": "http://127.0.0.1:9/",
            _MARK: self.mark,
        }

    def start(self, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """Start a command, and wait until it has handlers for signals."""
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernelmark", *(self.paths.get(w, w) for w in words)],
            env=self.variables,
            cwd=self.work,
            stdout=null,
            stderr=null,
            start_new_session=True,
        )
        while not catches(process.pid, signal.SIGHUP) and process.poll() is None:
            time.sleep(0.001)
        return process

    def left(self, limit_s: float) -> int:
        """How many processes there still are after so many seconds."""
        end = time.monotonic() + limit_s
        while (rest := marked(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        return len(rest)


def one(name: str, number: signal.Signals, moment: float, warm: Warm) -> tuple[str, str]:
    """Start a command, signal it after `moment` seconds: (how it ended, what was wrong)."""
    with tempfile.TemporaryDirectory() as text:
        trial = Trial(name, Path(text), warm)
        process = trial.start(trial.command.words)
        time.sleep(moment)
        before, tried = stored(trial.store), _evaluated(trial.tuning)
        begin = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(timeout=60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return "hung", f"{name}: {number.name} after {moment:.2f} s: did not end within 60 s"
        took = time.monotonic() - begin
        is_kill = number is signal.SIGKILL
        rest = trial.left(KILLED_GONE_S if is_kill else GONE_S)
        wrong = _wrong(code, rest, before, stored(trial.store)) or (
            "an evaluation was lost" if tried - _evaluated(trial.tuning) else ""
        )
        if is_kill and not wrong:
            wrong = _goes_on(trial, before)
        how = "done" if code in ENDED else "interrupted"
        told = f"{name}: {number.name} after {moment:.2f} s: {wrong}" if wrong else ""
        return f"{how} {took:.1f}", told


def _goes_on(trial: Trial, before: Stored) -> str:
    """Run the command to its end, and return what is wrong in the store then."""
    if trial.name == "run" and not before:  # there may be no run yet
        return ""
    process = trial.start(trial.command.next or trial.command.words)
    try:
        code = process.wait(timeout=300.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return "the next command did not end within 300 s"
    if code not in ENDED:
        return f"the next command ended with {code}"
    after = stored(trial.store)
    if any(after.get(key, (None, None))[1] != result for key, (_, result) in before.items()):
        return "a stored result was changed"
    if not trial.store.exists():  # as of tune, which keeps a folder
        return ""
    with open_store(str(trial.store), readonly=True) as store:
        if problems := store.damage().problems:
            return f"the store is damaged: {problems[0]}"
    expected = {"run": 128, "import": 2, "push": 500}.get(trial.name)
    counts = Counter(run for run, _ in after)
    if expected is not None and set(counts.values()) != {expected}:
        return f"{dict(counts)} results instead of {expected}"
    return ""


# What commands end with that are not interrupted: gate and nightly find something, or nothing.
ENDED = (0, 1, 3, 4)
Stored = dict[tuple[str, str], tuple[RunState, Result]]


def _wrong(code: int, rest: int, before: Stored, after: Stored) -> str:
    if code not in (INTERRUPTED, -signal.SIGKILL, *ENDED):
        return f"exit code {code}"
    if rest:
        return f"{rest} processes were left"
    if before.keys() - after.keys():
        return "a stored result was lost"
    states = {state for state, _ in after.values()}
    if code != -signal.SIGKILL and RunState.RUNNING in states:
        return "a run was left as running"
    return ""


@dataclass(frozen=True, slots=True)
class Warm:
    """What trials share: a cache, a repository of three commits, and a dashboard."""

    cache: Path
    repository: Path
    url: str
    token: str


@contextlib.contextmanager
def _warm() -> Iterator[Warm]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        cache, repository, store = folder / "cache", folder / "repository", folder / "there.sqlite"
        kmark = [sys.executable, "-P", "-m", "kernelmark"]
        variables = {**os.environ, "KERNELMARK_CACHE": str(cache)}
        words = ["micro", *MICRO, "--brief", "--no-store"]
        subprocess.run([*kmark, *words], env=variables, check=True, capture_output=True)
        layout = Layout.make(repository, "in a subfolder")
        for number, seconds in enumerate((GOOD_S, GOOD_S, SLOW_S)):
            layout.commit(seconds, str(number))
        with open_store(store) as opened:
            token = opened.create_token("drill", Scope.WRITE)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen([*kmark, *_serve_words(port, store)], env=variables)
        try:
            yield Warm(cache, repository, f"http://127.0.0.1:{port}", token)
        finally:
            server.terminate()
            server.wait()
        with open_store(store, readonly=True) as opened:
            counts = {(len(list(opened.results(run.id))), run.state) for run in opened.runs()}
            # A push that was interrupted, and not repeated, leaves a run that is not complete.
            whole = {count for count, state in counts if state is not RunState.RUNNING}
            must(whole <= {500}, f"pushed runs of {counts} results")
            must(not opened.damage().problems, "the dashboard's store is damaged")


def _serve_words(port: int, store: Path) -> list[str]:
    return ["serve", "-q", "--port", str(port), "--store", str(store)]


def _all(asked: list[tuple[str, signal.Signals, float]]) -> list[tuple[str, str]]:
    with (
        _warm() as warm,
        # A command has a worker.
        concurrent.futures.ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)) // 2)) as pool,
    ):
        return list(pool.map(lambda given: one(*given, warm), asked))


def _drill(names: tuple[str, ...], numbers: tuple[signal.Signals, ...], each: int) -> Facts:
    source = random.Random(1)
    asked = [
        (name, numbers[i % len(numbers)], source.uniform(0.0, COMMANDS[name].longest_s))
        for name in names
        for i in range(each)
    ]
    source.shuffle(asked)
    # A background job begins with some of them ignored, and hands that on to what it starts.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPS}
    try:
        ended = _all(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    wrong = [text for _, text in ended if text]
    must(not wrong, f"{len(wrong)} of {len(asked)}: {'; '.join(wrong[:8])}")
    longest = max(float(how.split()[1]) for how, _ in ended)
    return {
        "sent": len(asked),
        "commands": len(names),
        **Counter(how.split()[0] for how, _ in ended),
        "longest_s": longest,
    }


def signals(count: int) -> Facts:
    """The signals in turn, at 25 moments of each command for a `count` of 100, at 4 for 20."""
    return _drill(tuple(COMMANDS), STOPS, max(4, count // 4))


def kills(count: int) -> Facts:
    """kill -9 at 26 moments of each command for a `count` of 100, at 4 for 20."""
    return _drill(KILLED, (signal.SIGKILL,), max(4, count * 26 // 100))
