"""Tuning folders on the fake device, and what a killed run must leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core.result import config_key
from kernelmark.tune import journal, results
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import Acceptance, Budget, TunePlan, plan_text
from kernelmark.tune.results import Choice, Outcome
from kernelmark.workloads.workload import Call, Workload, write

_KMARK = "from kernelmark.cli.main import main; main()"


def fake_plans(
    count: int,
    *,
    evaluations: int = 12,
    strategy: str = "random",
    rounds: int = 6,
    finalists: int = 2,
) -> list[TunePlan]:
    """Plans for small GEMMs of growing size."""
    return [
        TunePlan(
            name=f"SSS_NN_{i}",
            problem=ops.parse(f"gemm m={8 * (i + 1)} n={24 - i} k=16 dtype=f32"),
            backend="fake",
            reference_backend="fake",
            arch="fake",
            strategy=strategy,
            budget=Budget(evaluations=evaluations),
            acceptance=Acceptance(rounds=rounds, finalists=finalists),
            count=10 * (i + 1),
            share=1 / count,
        )
        for i in range(count)
    ]


def make_outcome(ratio: float = 2.0, **changes: Any) -> Outcome:
    """A kept winner on the fake device, `ratio` times as fast as the reference."""
    fields = {
        "name": "SSS_NN_0",
        "problem": ops.parse("gemm m=8 n=8 k=8 dtype=f32"),
        "device": "fake",
        "arch": "fake",
        "reference": Choice(backend="fake", median_s=20e-6, worst=0.5),
        "tuned": Choice(backend="fake", median_s=20e-6 / ratio, worst=0.1),
        "ratio": ratio,
        "low": 0.95 * ratio,
        "high": 1.05 * ratio,
        "kept": True,
        "reason": "faster",
    }
    return Outcome(**{**fields, **changes})


def make_header(**changes: Any) -> journal.Header:
    """The header of a journal of the fake device."""
    fields = {
        "plan": "p",
        "space": "s",
        "problem": "gemm",
        "backend": "fake",
        "version": "1",
        "kernelmark_version": "0",
        "arch": "fake",
        "model": "a script",
        "device": "fake",
        "pool": 2,
        "refill": 1,
    }
    return journal.Header(**{**fields, **changes})


def make_folder(place: Path, plans: Sequence[TunePlan]) -> TuningFolder:
    """A tuning folder with these plans and a workload of their problems."""
    folder = TuningFolder.make(place)
    calls = tuple(Call(problem=plan.problem, count=plan.count) for plan in plans)
    write(folder.workload, Workload(name=place.name, calls=calls))
    folder.plans.mkdir(exist_ok=True)
    for plan in plans:
        folder.plan(plan.name).write_text(plan_text(plan), encoding="utf-8")
    return folder


def start(
    folder: TuningFolder, *words: str, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`kmark tune run` on a folder, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _KMARK, "tune", "run", str(folder.path), *words],
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_after(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill a run at once after `seconds`; False when it had ended before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        time.sleep(0.005)
    ended = process.poll() is not None
    if not ended:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    return not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a finished folder holds: winners by plan, every search evaluation with how often it was
    made, how they ended, and the outcomes."""

    winners: Mapping[str, str]
    evaluated: Mapping[tuple[str, str, str], int]
    statuses: Mapping[str, int]
    outcomes: tuple[Outcome, ...]

    @property
    def twice(self) -> list[tuple[str, str, str]]:
        return [key for key, count in self.evaluated.items() if count > 1]


def left(folder: TuningFolder) -> Left:
    """Read it from the journals and results, as anybody could."""
    evaluated: Counter[tuple[str, str, str]] = Counter()
    statuses: Counter[str] = Counter()
    winners = {}
    for name in folder.names():
        _, trials, outcome = journal.read_journal(folder.journal(name))
        for trial in trials:
            # A final round that was cut off is timed again whole: its halves would be no pair.
            if not trial.step.startswith("final"):
                evaluated[name, config_key(trial.config) + trial.problem, trial.step] += 1
                statuses[trial.status.value] += 1
        if outcome is not None:
            winners[name] = config_key(outcome.tuned.config)
    return Left(
        winners=winners, evaluated=evaluated, statuses=statuses, outcomes=results.read(folder)
    )
