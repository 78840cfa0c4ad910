"""Recompare: reference and tuned once more, in turns, by the final that tuned configs go through.

The search is not repeated: the tuned config is the only finalist.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelmark import backends, devices
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import BRIEF, Reason, format_reason
from kernelmark.core.result import Result, Status
from kernelmark.runners.lane import (
    Failure,
    Lane,
    Phase,
    failed_result,
    gather_items,
    harmless,
    measure_request,
    read_result,
    threads_of,
)
from kernelmark.runners.local import LocalRunner
from kernelmark.tune.evaluate import Request, Work, trial_of
from kernelmark.tune.finals import finals
from kernelmark.tune.journal import Journal, Trial
from kernelmark.tune.outcome import Outcome
from kernelmark.tune.plan import Acceptance, TunePlan


def recompare(
    outcomes: Sequence[Outcome],
    *,
    acceptance: Callable[[str], Acceptance] = lambda name: Acceptance(),
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Each outcome decided anew on its own device, or another of its architecture. If one of them
    cannot run here, that is an error before any is timed; a kernel of another name is not kept."""
    runners = check_here(outcomes)
    found = []
    for device, runner in runners.items():
        lane = runner.lane(runner.infos[0].name)
        try:
            for outcome in (one for one in outcomes if one.device == device):
                again = _again(outcome, lane, acceptance(outcome.name))
                on_outcome(again)
                found.append(again)
        finally:
            lane.close()
    return found


def check_here(outcomes: Sequence[Outcome]) -> dict[str, LocalRunner]:
    """A runner for each device of the outcomes; what cannot run on this machine is an error."""
    runners = {o.device: LocalRunner([_device_of(o)]) for o in outcomes}
    for outcome in outcomes:
        _check_one(outcome, runners[outcome.device].infos[0])
    return runners


def _device_of(outcome: Outcome) -> str:
    """The device it was tuned on, or one like it where there are fewer now."""
    kind = devices.registry.get(outcome.device.partition(":")[0])
    infos = kind.infos() if kind.available() is None else []
    alike = [info.name for info in infos if info.arch == outcome.arch]
    if alike and outcome.device not in [info.name for info in infos]:
        return alike[0]
    return outcome.device


def _check_one(outcome: Outcome, info: DeviceInfo) -> None:
    if info.arch != outcome.arch:
        raise UsageError(f"{info.name} is {info.arch} here, and {outcome.arch} was tuned")
    for choice in (outcome.tuned, outcome.reference):
        backend = backends.find(choice.backend)
        reason = backend.available() or backend.supports(outcome.problem, info)
        if reason is not None:
            raise UsageError(reason)


def _again(outcome: Outcome, lane: Lane, asked: Acceptance) -> Outcome:
    plan = TunePlan(
        name=outcome.name,
        problem=outcome.problem,
        backend=outcome.tuned.backend,
        reference_backend=outcome.reference.backend,
        reference_config=outcome.reference.config,
        acceptance=dataclasses.replace(asked, finalists=1),
        count=outcome.count,
        share=outcome.share,
        blas=outcome.blas,
    )
    finalist = Trial(
        config=outcome.tuned.config,
        step="full",
        status=Status.OK,
        seconds=math.inf,  # its time of another day, or device, says nothing of this machine now
    )
    with tempfile.TemporaryDirectory(prefix="kmark-") as place:
        journal = Journal(Path(place) / f"{outcome.name}.jsonl")
        try:
            work = finals(plan, lane.info, journal, [finalist], outcome.evaluations)
            again = _played(work, plan, lane, journal)
        finally:
            journal.close()
    if replaced(outcome, again):
        was, now = outcome.tuned.kernel.name, again.tuned.kernel.name
        reason = Reason("another-kernel", now=now, was=was)
        return dataclasses.replace(again, kept=False, reason=reason)
    return again


def replaced(outcome: Outcome, again: Outcome) -> bool:
    """Whether another kernel runs now than the one that was tuned, as far as names tell."""
    was, now = outcome.tuned.kernel.name, again.tuned.kernel.name
    return bool(was and now and was != now)


def _played(work: Work[Outcome], plan: TunePlan, lane: Lane, journal: Journal) -> Outcome:
    while True:
        try:
            asked = next(work)
        except StopIteration as stop:
            done: Outcome = stop.value
            return done
        for request in asked.requests:
            journal.record(trial_of(request, _measured(request, lane), plan))


def _measured(request: Request, lane: Lane) -> Result:
    case, started = request.case, time.time()
    items = lane.give(measure_request(case, request.process), threads=threads_of(case, lane.info))
    while True:
        for item in items:
            if isinstance(item, Phase):
                continue
            if isinstance(item, Failure):
                if not item.started:
                    last = format_reason(item.error, BRIEF)
                    raise KernelmarkError(f"{lane.info.name}: no worker can be started: {last}")
                result = failed_result(case, lane.info, item, started)
            else:
                result = read_result(case, lane.info, item.message, started)
            if not harmless(result):
                lane.retire()
            return result
        items = [item for _, item in gather_items([lane])]
