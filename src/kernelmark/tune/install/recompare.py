"""Recompare: repeat the final between reference and tuned config.

The search is not repeated: the tuned config is the only finalist.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelmark import backends, devices
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Pool
from kernelmark.tune.plans.plan import Acceptance, TunePlan
from kernelmark.tune.records.journal import Journal, Trial
from kernelmark.tune.records.outcome import Outcome
from kernelmark.tune.search.evaluate import Work, trial_of
from kernelmark.tune.search.finals import finals


def recompare(
    outcomes: Sequence[Outcome],
    *,
    acceptance: Callable[[str], Acceptance] = lambda name: Acceptance(),
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Repeat the final of each outcome, on its device or another of its architecture. Raise
    UsageError before timing if one cannot run here. An outcome whose kernel has another name now is
    not kept."""
    runners = check_here(outcomes)
    decided = []
    for device, runner in runners.items():
        with runner.pool() as pool:
            for outcome in (tuned for tuned in outcomes if tuned.device == device):
                again = _repeat(outcome, pool, acceptance(outcome.name))
                on_outcome(again)
                decided.append(again)
    return decided


def check_here(outcomes: Sequence[Outcome]) -> dict[str, LocalRunner]:
    """Return a runner for each device of the outcomes; raise UsageError if an outcome cannot run
    on this machine."""
    runners = {o.device: LocalRunner([device_of(o)]) for o in outcomes}
    for outcome in outcomes:
        _check_one(outcome, runners[outcome.device].infos[0])
    return runners


def device_of(outcome: Outcome) -> str:
    """Return the device of an outcome; if it is missing, one of the same architecture."""
    kind = devices.registry.get(outcome.device.partition(":")[0])
    infos = kind.infos() if kind.available() is None else []
    alike = [info.name for info in infos if info.arch == outcome.arch]
    if alike and outcome.device not in [info.name for info in infos]:
        return alike[0]
    return outcome.device


def _check_one(outcome: Outcome, info: DeviceInfo) -> None:
    if info.arch != outcome.arch:
        raise UsageError(
            Reason("tuned-on-another-arch", device=info.name, arch=info.arch, tuned=outcome.arch)
        )
    for choice in (outcome.tuned, outcome.reference):
        backend = backends.find(choice.backend)
        reason = backend.available() or backend.supports(outcome.problem, info)
        if reason is not None:
            raise UsageError(reason)


def _repeat(outcome: Outcome, pool: Pool, acceptance: Acceptance) -> Outcome:
    plan = TunePlan(
        name=outcome.name,
        problem=outcome.problem,
        backend=outcome.tuned.backend,
        reference_backend=outcome.reference.backend,
        reference_config=outcome.reference.config,
        acceptance=dataclasses.replace(acceptance, finalists=1),
        count=outcome.count,
        share=outcome.share,
        blas=outcome.blas,
    )
    finalist = Trial(
        config=outcome.tuned.config,
        step="full",
        status=Status.OK,
        seconds=math.inf,  # the earlier time must not count as a search time of this machine
    )
    with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
        journal = Journal(Path(temporary) / f"{outcome.name}.jsonl")
        try:
            work = finals(plan, pool.devices[0].info, journal, [finalist], outcome.evaluations)
            again = _measure(work, plan, pool, journal)
        finally:
            journal.close()
    if replaced(outcome, again):
        was, now = outcome.tuned.kernel.name, again.tuned.kernel.name
        reason = Reason("another-kernel", now=now, was=was)
        return dataclasses.replace(again, kept=False, reason=reason)
    return again


def replaced(outcome: Outcome, again: Outcome) -> bool:
    """Return whether the kernel has another name now than when it was tuned."""
    was, now = outcome.tuned.kernel.name, again.tuned.kernel.name
    return bool(was and now and was != now)


def _measure(work: Work[Outcome], plan: TunePlan, pool: Pool, journal: Journal) -> Outcome:
    (device,) = pool.devices
    while True:
        try:
            asked = next(work)
        except StopIteration as stop:
            done: Outcome = stop.value
            return done
        for request in asked.requests:
            result = pool.call(MeasureCase(case=request.case, process=request.process))
            if device.lost:
                raise KernelmarkError(
                    Reason("device-unusable", device=device.info.name, cause=device.lost)
                )
            journal.record(trial_of(request, result, plan))
