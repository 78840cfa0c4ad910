"""Tune the kernels of a workload: from its log to faster configs.

import kernelmark as km
km.tuning.summarise("mymodel", backend="torch", device="cuda:0")
km.tuning.plan("mymodel", backend="triton", device="cuda:0", thr=0.1)
km.tuning.run("mymodel", devices=["cuda:0"]).metrics
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.api.roofs import known_roofs
from kernelmark.api.selection import Selection
from kernelmark.api.tuning_plan import DEVICES, Planned, plan, summarise
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.devices import registry as device_kinds
from kernelmark.host.signals import caught_stops
from kernelmark.runners.jobs import compiles
from kernelmark.runners.local import LocalRunner
from kernelmark.tune.folder import TuningFolder, hinted, unwritable
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans import summary as summaries
from kernelmark.tune.plans.plan import Acceptance, Budget, TunePlan
from kernelmark.tune.plans.summary import Summary
from kernelmark.tune.records import results, status
from kernelmark.tune.records.results import Metrics, Outcome
from kernelmark.tune.search import evaluate
from kernelmark.tune.search.driver import Driver, OnEvent
from kernelmark.tune.search.evaluate import Check
from kernelmark.tune.search.simulate import Simulated, quality, try_strategy
from kernelmark.tune.search.simulate import read as read_space

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

# A candidate that takes longer is useless.
TIMEOUT_S = 30.0
COMPILE_TIMEOUT_S = 180.0
_KINDS = {"sm_": "cuda", "gfx": "hip", "fake": "fake"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The outcome of a tuning run: outcomes of this and earlier runs, plans that cannot be tuned
    with the reason (`retired`), and plans that were not reached in time. Plans with an outcome
    whose search ended early are in `cut` (time limit of the run) or `spent` (minutes of the plan,
    with the candidates that it requests). `unreadable` are other plans with a damaged file, whose
    outcome is unknown."""

    folder: TuningFolder
    outcomes: tuple[Outcome, ...]
    retired: Mapping[str, str]
    unreached: tuple[str, ...]
    metrics: Metrics
    cut: tuple[str, ...] = ()
    spent: Mapping[str, int] = field(default_factory=FrozenDict)
    unreadable: Mapping[str, str] = field(default_factory=FrozenDict)
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether a plan failed: it could not be tuned, or no candidate was correct."""
        return bool(self.retired) or any(not o.tuned.verified for o in self.outcomes)


def run(
    place: str | os.PathLike[str],
    *,
    devices: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
    minutes: float = 0.0,
    timeout_s: float = TIMEOUT_S,
    compile_timeout_s: float = COMPILE_TIMEOUT_S,
    retry_failed: bool = False,
    on_event: OnEvent | None = None,
    store: Store | None = None,
) -> Tuned:
    """Run the search and the final re-measurement of every plan, and write the results.

    devices: devices to use; a bare number is a device of the plans' kind.
    only: names of the plans to run (default: all).
    jobs: processes that compile.
    minutes: time limit for the whole run; 0 is no limit.
    timeout_s, compile_timeout_s: limits for one candidate.
    retry_failed: repeat evaluations that may have failed because of the machine. Otherwise
        nothing that is in a journal is evaluated again.
    store: its roofs reveal candidates faster than the device allows, which fail as `impossible`.

    Ctrl-C or SIGTERM ends all workers and returns what was reached.
    """
    if minutes < 0:
        raise UsageError(f"minutes={minutes} is not a number of at least 0", hint="0 is no limit")
    folder = TuningFolder.open(place)
    chosen = picked(folder, only)
    _require(folder, chosen, devices)
    with hinted(DEVICES):
        runner = LocalRunner(
            devices_of(folder, chosen, devices),
            timeout_s=timeout_s,
            compile_timeout_s=compile_timeout_s,
            jobs=jobs,
        )
    driver = Driver(
        chosen,
        runner,
        folder.trials,
        minutes=minutes,
        retry_failed=retry_failed,
        on_event=on_event,
        roofs=known_roofs(store, [info.name for info in runner.infos]),
    )
    try:
        with caught_stops():
            driver.run()
    except KeyboardInterrupt:
        return _written(folder, driver, interrupted=True)
    except BaseException as error:
        with suppress(OSError, KernelmarkError):  # a full disk must not hide the first error
            _written(folder, driver, interrupted=True)
        if isinstance(error, OSError) and error.filename:
            raise unwritable(Path(error.filename), error) from None
        raise
    return _written(folder, driver)


def picked(folder: TuningFolder, only: Sequence[str]) -> list[TunePlan]:
    """Return the plans that `only` names, or all of the folder. No other file is read, so that a
    mistake in one plan does not block the others."""
    known = folder.names()
    if not known:
        raise NothingToDo(
            f"{folder.path} has no plans", hint=f"kmark tune plan {folder.path} -b BACKEND"
        )
    for name in only:
        if name not in known:
            shown = ", ".join(known[:8])
            raise UsageError(f"unknown plan {name!r}", hint=f"there are: {shown}")
    return [planfile.read(folder.plan(name)) for name in dict.fromkeys(only or known)]


def _require(folder: TuningFolder, chosen: Sequence[TunePlan], asked: Sequence[str]) -> None:
    """Raise UsageError if the plans need a GPU that this machine does not have."""
    names = devices_of(folder, chosen, asked)
    arch = next((plan.arch for plan in chosen if plan.arch.startswith(("sm_", "gfx"))), "")
    kind = device_kinds.get(names[0].partition(":")[0]) if arch and not asked else None
    if kind is not None and (reason := kind.available()) is not None:
        where = shlex.quote(str(folder.path))
        check = f"; 'kmark tune check {where}' compiles candidates without it"
        compiled = all(compiles(plan.backend) for plan in chosen)
        raise UsageError(
            f"the plans are for {arch}, and no such GPU is here: {reason}",
            hint=f"run them where there is one{check if compiled else ''}",
        )


def devices_of(
    folder: TuningFolder, chosen: Sequence[TunePlan], asked: Sequence[str]
) -> tuple[str, ...]:
    """Return the device names. A bare number is a device of the plans' kind. The default is the
    device of the summary, else the first of that kind."""
    arch = next((plan.arch for plan in chosen if plan.arch), "")
    kind = next((name for start, name in _KINDS.items() if arch.startswith(start)), "cpu")
    if asked:
        return tuple(f"{kind}:{name}" if name.isdigit() else name for name in asked)
    known = summaries.read(folder.summary)
    if known is not None and known.basis.arch == arch:
        return tuple(known.basis.device.split(","))
    return (kind if kind in ("cpu", "fake") else f"{kind}:0",)


def _written(folder: TuningFolder, driver: Driver, *, interrupted: bool = False) -> Tuned:
    """Write the results of this run, and of the plans that it did not run."""
    asked = {plan.name: plan for plan in driver.plans}
    others, broken = status.readable(folder, but=asked)
    before = status.outcomes(folder, [*asked.values(), *others])
    reached = before.outcomes | driver.outcomes
    names = list(dict.fromkeys((*folder.names(), *asked)))  # a file may be deleted by now
    outcomes = tuple(reached[name] for name in names if name in reached)
    unreached = tuple(
        name for name in names if name in asked and name not in driver.outcomes | driver.retired
    )
    unread = before.unreadable | broken
    metrics = results.write(folder, outcomes, retired=driver.retired, unreached=unreached)
    return Tuned(
        folder=folder,
        outcomes=outcomes,
        retired=driver.retired,
        unreached=unreached,
        metrics=metrics,
        cut=tuple(driver.cut),
        spent=FrozenDict(driver.spent),
        unreadable=FrozenDict({name: why for name, why in unread.items() if name not in asked}),
        interrupted=interrupted,
    )


def check(
    place: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    candidates: int = 16,
    jobs: int | None = None,
    compile_timeout_s: float = COMPILE_TIMEOUT_S,
) -> Iterator[Check]:
    """Compile a sample of the candidates of every plan, or of those that `only` names, and yield a
    `Check` for each plan. Nothing is written to the folder."""
    asked = picked(TuningFolder.open(place), only)
    with hinted("'kmark doctor' says what is missing for it"):
        return evaluate.check(
            asked, candidates=candidates, jobs=jobs, compile_timeout_s=compile_timeout_s
        )


__all__ = [
    "Acceptance",
    "Budget",
    "Check",
    "Planned",
    "Selection",
    "Simulated",
    "Summary",
    "Tuned",
    "check",
    "plan",
    "quality",
    "read_space",
    "run",
    "summarise",
    "try_strategy",
]
