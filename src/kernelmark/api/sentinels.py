"""Sentinels: problems that should never change, measured beside a suite. If they move, the machine
did."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark import backends as backend_folder
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Run
from kernelmark.core.timing import Timing
from kernelmark.workloads import suites

SENTINELS = "sentinels"
# What is asked first is least likely to be under test.
_FIRST = {"cpu": ("numpy",), "cuda": ("rtc", "cublaslt"), "hip": ("rtc",)}


def sentinel_keys(name_or_path: str = SENTINELS) -> list[str]:
    """Keys of the problems of a suite of sentinels; an empty name is none."""
    if not name_or_path:
        return []
    return [problem.key for problem in suites.load(name_or_path).problems]


def companions(chosen: Sequence[str], info: DeviceInfo, timing: Timing) -> list[Case]:
    """Return each sentinel by one backend: NumPy on a CPU; on a GPU our own kernel, its vendor's
    library, else the first of the `chosen` backends that can. None on a device that is not real."""
    found = []
    for problem in suites.load(SENTINELS).problems if info.kind in _FIRST else ():
        # A file of the user's own is what is under test.
        others = [name for name in chosen if name in backend_folder.registry]
        able = (name for name in (*_FIRST[info.kind], *others) if _can(name, problem, info))
        name = next(able, None)
        if name is not None:
            found.append(Case(problem=problem, backend=name, timing=timing))
    return found


def beside_suite(run: Run) -> frozenset[str]:
    """Keys of the sentinels of a run that has them beside other suites."""
    named = run.suite.split(",")
    return frozenset(sentinel_keys()) if SENTINELS in named and len(named) > 1 else frozenset()


def _can(name: str, problem: Problem, info: DeviceInfo) -> bool:
    try:
        backend = backend_folder.find(name)
        lacking = backend.available() or backend.missing_on(info.kind)
        return not lacking and backend.supports(problem, info) is None
    except KernelmarkError:
        return False
