"""Whose trials a folder holds: one folder tunes one backend on one architecture, and what was found
for another is nobody's result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import suppress

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.tune import journal, planfile
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.outcome import Outcome
from kernelmark.tune.plan import TunePlan


def check(folder: TuningFolder, backend: str, arch: str) -> None:
    """Refuse to plan for a backend or architecture that is not that of the folder."""
    elsewhere = f"take another folder, with a copy of {folder.workload}"
    for found in _planned(folder):
        if found != backend:
            raise UsageError(
                f"{folder.path} has plans for {found}, not for {backend}",
                hint=f"{elsewhere}; or move its plans, trials and results away",
            )
    for path in sorted(folder.trials.glob("*.jsonl")):
        header = journal.header(path)
        if header is not None and (header.backend, header.arch) != (backend, arch):
            there = f"{header.backend} on {header.arch}"
            before = "give -d or --arch as before, or " if header.backend == backend else ""
            raise UsageError(
                f"{path} has trials of {there}, not of {backend} on {arch}",
                hint=f"{before}{elsewhere}; or move its trials and results away",
            )


def _planned(folder: TuningFolder) -> list[str]:
    """Backends of the plans that are there; a file that cannot be read may be written anew."""
    found = []
    for name in folder.names():
        with suppress(KernelmarkError):
            found.append(planfile.read(folder.plan(name)).backend)
    return found


def outcomes(folder: TuningFolder, plans: Iterable[TunePlan]) -> dict[str, Outcome]:
    """What the journals of these plans have come to, by name."""
    found = {}
    for plan in plans:
        path = folder.journal(plan.name)
        with suppress(KernelmarkError, OSError):  # a journal that cannot be read has no outcome
            outcome = journal.read(path)[2]
            if outcome is not None and is_own(outcome, plan):
                found[plan.name] = weighed(outcome, plan)
    return found


def is_own(outcome: Outcome, plan: TunePlan) -> bool:
    """Whether an outcome is of what the plan tunes today."""
    return (outcome.tuned.backend, outcome.problem) == (plan.backend, plan.problem)


def weighed(outcome: Outcome, plan: TunePlan) -> Outcome:
    """With the calls and the share that the plan has by now: a later summary knows them better."""
    return dataclasses.replace(outcome, count=plan.count, share=plan.share, blas=plan.blas)
