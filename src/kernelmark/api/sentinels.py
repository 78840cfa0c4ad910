"""Canaries (the suite `sentinels`): problems that should never change, measured along with a suite.
If their times move, the machine changed."""

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
# Backends to try first: those least likely to be under test.
_FIRST = {"cpu": ("numpy",), "cuda": ("rtc", "cublaslt"), "hip": ("rtc",)}


def sentinel_keys(name_or_path: str = SENTINELS) -> list[str]:
    """Return the problem keys of a suite of canaries; none for an empty name."""
    if not name_or_path:
        return []
    return [problem.key for problem in suites.load(name_or_path).problems]


def companions(chosen: Sequence[str], info: DeviceInfo, timing: Timing) -> list[Case]:
    """Return a case for each canary, with one backend: NumPy on a CPU; on a GPU kernelmark's kernel
    or the vendor's library; else the first of the `chosen` backends that supports it. There are
    none for the fake device."""
    found = []
    for problem in suites.load(SENTINELS).problems if info.kind in _FIRST else ():
        # A kernel file of the user is what is under test.
        others = [name for name in chosen if name in backend_folder.registry]
        able = (name for name in (*_FIRST[info.kind], *others) if _can(name, problem, info))
        name = next(able, None)
        if name is not None:
            found.append(Case(problem=problem, backend=name, timing=timing))
    return found


def beside_suite(run: Run) -> frozenset[str]:
    """Return the problem keys of the canaries that were added to the suites of a run."""
    named = run.suite.split(",")
    return frozenset(sentinel_keys()) if SENTINELS in named and len(named) > 1 else frozenset()


def _can(name: str, problem: Problem, info: DeviceInfo) -> bool:
    try:
        backend = backend_folder.find(name)
        lacking = backend.available() or backend.missing_on(info.kind)
        return not lacking and backend.supports(problem, info) is None
    except KernelmarkError:
        return False
