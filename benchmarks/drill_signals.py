"""Drill: signals at random moments of every command that takes long. It ends with the code for an
interruption, no process is left, and nothing that was stored is lost."""

from __future__ import annotations

import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from drill_seeds import TEXTS
from drilling import Facts, must
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import RunState
from kernelmark.stores import open_store
from kernelmark.tune.folder import TuningFolder
from kernelmark_dev.tuning import fake_plans, make_folder

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
INTERRUPTED = 130
GONE_S = 2.0  # by then no process that it started may be there
_GEMM = ("-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "n=8", "-a", "k=8")
_SHORT = ("--max-s", "0.05", "--warmup-s", "0.01", "-q")
MICRO = ("instructions", "latency", "cache")
# The longest moment after the start at which a signal comes: most come while it works.
COMMANDS: dict[str, tuple[tuple[str, ...], float]] = {
    "run": (("run", *_GEMM, "-a", "m=[8:4096:+8]", *_SHORT), 4.0),
    "ab": (("ab", "--env", "a", "--env", "b", *_GEMM, "-a", "m=[8:4096:+8]", *_SHORT), 5.0),
    "micro": (("micro", *MICRO, "--full"), 5.0),
    "tune": (("tune", "run", "FOLDER", "--timeout", "2", "-q"), 5.0),
    "import": (("import", "FILE"), 1.0),
}
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


def stored(where: Path) -> dict[tuple[str, str], RunState]:
    """Each stored case with the state of its run."""
    if not where.exists():
        return {}
    try:
        with open_store(str(where), readonly=True) as store:
            return {
                (run.id, result.case.id): run.state
                for run in store.runs()
                for result in store.results(run.id)
            }
    except KernelmarkError:  # it is being made just now
        return {}


def _evaluated(folder: TuningFolder | None) -> set[bytes]:
    """The whole lines in the journals of a tuning folder."""
    files = folder.trials.glob("*.jsonl") if folder is not None else ()
    lines = (line for file in files for line in file.read_bytes().splitlines(keepends=True))
    return {line for line in lines if line.endswith(b"\n")}


def one(name: str, number: signal.Signals, moment: float, warm: Path) -> tuple[str, str]:
    """Start a command, signal it after `moment` seconds: (how it ended, what was wrong). `warm` is
    a cache with compiled microbenchmarks, or most signals would find a compiler at work."""
    with tempfile.TemporaryDirectory() as text:
        place, folder = Path(text), None
        (place / "FILE-gemm.csv").write_text(TEXTS["times reference_csv"]["rocblas-gemm.csv"])
        if name == "tune":
            folder = make_folder(place / "FOLDER", fake_plans(3, evaluations=20))
        words = [
            str(place / {"FILE": "FILE-gemm.csv"}.get(word, word)) if word.isupper() else word
            for word in COMMANDS[name][0]
        ]
        if name == "micro":
            shutil.copytree(warm / "micro", place / "cache" / "micro")
        store = place / "store.sqlite"
        variables = {"KERNELMARK_STORE": str(store), "KERNELMARK_CACHE": str(place / "cache")}
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelmark", *words],
            env={**os.environ, **variables, _MARK: text},
            stdout=null,
            stderr=null,
            start_new_session=True,
        )
        while not catches(process.pid, signal.SIGHUP) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moment)
        before, tried = stored(store), _evaluated(folder)
        begin = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return "hung", f"{name}: {number.name} after {moment:.2f} s: did not end within 30 s"
        took = time.monotonic() - begin
        end = time.monotonic() + GONE_S
        while (rest := marked(text)) and time.monotonic() < end:
            time.sleep(0.05)
        wrong = _wrong(code, rest, before, stored(store)) or (
            "an evaluation was lost" if tried - _evaluated(folder) else ""
        )
        told = f"{name}: {number.name} after {moment:.2f} s: {wrong}" if wrong else ""
        return ("interrupted" if code == INTERRUPTED else "done") + f" {took:.1f}", told


def _wrong(
    code: int,
    rest: list[int],
    before: dict[tuple[str, str], RunState],
    after: dict[tuple[str, str], RunState],
) -> str:
    if code not in (INTERRUPTED, 0, 1, 3):  # the others: it was done already
        return f"exit code {code}"
    if rest:
        return f"{len(rest)} processes were left"
    if before.keys() - after.keys():
        return "a stored result was lost"
    if RunState.RUNNING in after.values():
        return "a run was left as running"
    return ""


def _all(asked: list[tuple[str, signal.Signals, float]]) -> list[tuple[str, str]]:
    with (
        tempfile.TemporaryDirectory() as warm,
        concurrent.futures.ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool,
    ):
        command = [sys.executable, "-m", "kernelmark", "micro", *MICRO, "--brief", "--no-store"]
        variables = {**os.environ, "KERNELMARK_CACHE": warm}
        subprocess.run(command, env=variables, check=True, capture_output=True)
        return list(pool.map(lambda given: one(*given, Path(warm)), asked))


def signals(count: int) -> Facts:
    """The signals in turn, at 50 moments of each command for a `count` of 100, at 4 for 20."""
    source = random.Random(1)
    each = max(4, count**2 // 200)
    asked = [
        (name, STOPS[i % len(STOPS)], source.uniform(0.0, longest))
        for name, (_, longest) in COMMANDS.items()
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
    must(not wrong, f"{len(wrong)} of {len(asked)}: {'; '.join(wrong[:5])}")
    longest = max(float(how.split()[1]) for how, _ in ended)
    return {
        "signals": len(asked),
        "commands": len(COMMANDS),
        **Counter(how.split()[0] for how, _ in ended),
        "longest_s": longest,
    }
