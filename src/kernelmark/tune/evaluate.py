"""Evaluation of candidates at increasing fidelity.

A candidate is first compiled on the host; one that spills registers or exceeds the shared memory is
rejected without using the device. The others climb a ladder of timings: a short one for all, longer
ones for those close to the best. Every timed launch is checked, so a wrong candidate fails.

`check` only compiles a sample of a plan's candidates, and rejects them by the same rule, so a space
can be checked without its GPU.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import (
    Case,
    Config,
    KernelInfo,
    Measurement,
    Result,
    Space,
    Status,
    StopReason,
)
from kernelmark.core.timing import Timer, Timing
from kernelmark.core.units import bytes_text
from kernelmark.gpu.architectures import absent
from kernelmark.gpu.rtc import vendor_of
from kernelmark.runners import kernel_files
from kernelmark.runners.jobs import CompileCase, Compiled, compiles
from kernelmark.runners.local import compile_pool
from kernelmark.runners.pool import Pool
from kernelmark.tune.journal import COMPILE, Journal, Trial, now
from kernelmark.tune.plans import TunePlan, space_of
from kernelmark.tune.strategies.base import Points

# Spilled bytes per thread on an NVIDIA GPU. No candidate that spilled more has ever won.
MAX_SPILLED_BYTES = 256
# Largest fraction of the candidates that are timed at higher steps without being a new best.
CLIMBING = 1 / 3
# A candidate on a GPU whose first launch takes more than this many times the best time of its step
# is not timed further. First launches of GEMMs take up to a few percent longer than later ones,
# and no candidate improves by half.
CUTOFF = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """A fidelity. A candidate climbs to the next step only if its time is at most `within` times
    the best time of this step."""

    name: str
    timing: Timing
    within: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A case to be measured and recorded in a journal under the name of its step. Tensor addresses
    depend on `process`: candidates that are compared have the same one. One whose first launch
    takes more than `cutoff_s` is not timed further."""

    case: Case
    step: str
    process: int = 0
    cutoff_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRound:
    """Requests whose trials are all in the journal before the generator that yielded them resumes.
    `ahead` are cases to compile meanwhile. `together`: time the requests in this order with nothing
    in between."""

    requests: tuple[Request, ...]
    ahead: tuple[Case, ...] = ()
    together: bool = False


T = TypeVar("T")
Work = Generator[TrialRound, None, T]


STEPS = ("look", "short", "full")  # names of the steps of all devices, in order


def ladder(info: DeviceInfo) -> tuple[TrialStep, ...]:
    """Return the steps for a device. On a GPU, creating inputs takes as long as a short timing, so
    there is one short step; on a CPU, a slow candidate is dropped after a single launch."""
    if info.kind != "cpu":
        return (
            TrialStep(name="short", timing=_timing(0.008, 0.004, samples=3), within=1.06),
            TrialStep(name="full", timing=_timing(0.06, 0.02, blocks=3)),
        )
    timer = _cpu_timer(info)
    return (
        TrialStep(name="look", timing=_timing(0.02, 0.005, samples=1, timer=timer), within=1.3),
        TrialStep(name="short", timing=_timing(0.1, 0.03, samples=3, timer=timer), within=1.06),
        TrialStep(name="full", timing=_timing(0.4, 0.05, blocks=3, timer=timer)),
    )


def final_timing(info: DeviceInfo, seed: int) -> Timing:
    """Return the timing of one side in one round of a final, with the inputs of `seed`."""
    if info.kind != "cpu":
        timing = _timing(0.03, 0.01, blocks=2)
    else:
        timing = _timing(0.15, 0.03, blocks=2, timer=_cpu_timer(info))
    return dataclasses.replace(timing, seed=seed)


def uses_cpu_time(info: DeviceInfo) -> bool:
    """Return whether candidates are timed by CPU time: on a single core, CPU time excludes other
    processes."""
    return info.kind == "cpu" and info.units == 1


def _cpu_timer(info: DeviceInfo) -> Timer:
    return Timer.CPU if uses_cpu_time(info) else Timer.AUTO


def _timing(
    max_s: float, warmup_s: float, *, blocks: int = 1, samples: int = 5, timer: Timer = Timer.AUTO
) -> Timing:
    return Timing(
        timer=timer,
        allocations=blocks,
        max_allocations=blocks,
        min_samples=samples,
        min_sample_s=0.0003,
        max_s=max_s,
        warmup_s=warmup_s,
        target_rel_ci=1.0,
    )


def spilled_bytes(resources: Mapping[str, int]) -> int:
    """Return the spilled bytes per thread.

    AMD compilers count spill stores, not registers; the stack size, if reported, is exact."""
    return resources.get("stack_bytes", 4 * resources.get("spilled_registers", 0))


def static_reason(resources: Mapping[str, int], info: DeviceInfo) -> Reason | None:
    """Return why a compiled kernel need not be timed, from its resource usage, or None."""
    spilled = spilled_bytes(resources)
    # AMD waves wait for loads in order, so a reloaded register waits for all prefetched tiles.
    # SGPRs are spilled into lanes of VGPRs, not into memory.
    allowed = 0 if info.kind == "hip" else MAX_SPILLED_BYTES
    if spilled > allowed:
        return Reason(f"spills {bytes_text(spilled)} a thread, above {bytes_text(allowed)}")
    most = int(info.attributes.get("shared_per_block", "0"))
    used = resources.get("shared_bytes", 0)
    if most and used > most:
        return Reason(f"needs {bytes_text(used)} of shared memory, a block has {bytes_text(most)}")
    return None


class Evaluator:
    """Evaluator of one plan's candidates."""

    def __init__(self, plan: TunePlan, info: DeviceInfo, journal: Journal) -> None:
        self.plan = plan
        self.info = info
        self.journal = journal
        self.steps = ladder(info)
        self._best: dict[str, float] = {}
        self._seen: Counter[str] = Counter()
        self._climbed: Counter[str] = Counter()

    def evaluate(self, config: Config, ahead: Iterable[Config] = ()) -> Work[Trial]:
        """Request the timings of a candidate; return its trial of the highest step. Configs of
        `ahead` are compiled meanwhile."""
        later = tuple(self.case(config, self.steps[0].timing) for config in ahead)
        for step in self.steps[:-1]:
            trial = yield from self._timed(config, step, later)
            if not self._climbs(trial, step):
                return trial
        return (yield from self._timed(config, self.steps[-1], later))

    def _timed(self, config: Config, step: TrialStep, later: tuple[Case, ...]) -> Work[Trial]:
        trial = self.journal.find(config=config, step=step.name)
        if trial is None:
            request = Request(
                case=self.case(config, step.timing),
                step=step.name,
                cutoff_s=CUTOFF * self._best.get(step.name, math.inf),
            )
            yield TrialRound(requests=(request,), ahead=later)
            trial = self.journal.find(config=config, step=step.name)
        assert trial is not None
        return trial

    def case(self, config: Config, timing: Timing) -> Case:
        plan = self.plan
        timing = dataclasses.replace(timing, threads=plan.threads)
        return Case(problem=plan.problem, backend=plan.backend, config=config, timing=timing)

    def _climbs(self, trial: Trial, step: TrialStep) -> bool:
        """Return whether a candidate is timed at the next step, too: a new best one always, one
        close to the best unless too many were."""
        self._seen[step.name] += 1
        if not trial.ok or trial.seconds is None or trial.step != step.name or trial.is_cut:
            return False
        best = self._best.get(step.name, math.inf)
        self._best[step.name] = min(best, trial.seconds)
        few = self._climbed[step.name] < CLIMBING * self._seen[step.name]
        climbs = trial.seconds < best or (few and trial.seconds <= step.within * best)
        self._climbed[step.name] += climbs
        return climbs


def trial_of(request: Request, result: Result, plan: TunePlan, compile_s: float = 0.0) -> Trial:
    """Return a measured result as a line of the plan's journal."""
    measured, check = result.measurement, result.check
    worst = None
    if check is not None:  # missing writes and writes outside the output have no error value
        worst = check.worst if check.passed or check.worst > 1 else math.inf
    return Trial(
        config=request.case.config,
        step=request.step,
        status=result.status,
        seconds=measured.median_s if measured else None,
        low_s=measured.low_s if measured else 0.0,
        high_s=measured.high_s if measured else math.inf,
        worst=worst,
        kernel=result.kernel,
        error=shorten(result.error),
        cost_s=round(result.cost.get("total", 0.0) + compile_s, 6),
        at=now(),
        backend=_unless_own(request.case.backend, plan.backend),
        problem=_unless_own(request.case.problem.key, plan.problem.key),
        load=_load(measured) if measured else None,
        is_cut=measured is not None and measured.stop is StopReason.CUTOFF,
    )


def _load(measured: Measurement) -> float | None:
    """Return the load by other work in cores, averaged over all blocks: one block is too short for
    the resolution of CPU ticks."""
    loads = [b.telemetry.load for b in measured.blocks if b.telemetry.load is not None]
    return round(statistics.fmean(loads), 3) if loads else None


def compiled_trial(request: Request, compiled: Compiled, cost_s: float, plan: TunePlan) -> Trial:
    """Return the trial of a case that is not worth timing after its compilation."""
    return Trial(
        config=request.case.config,
        step=COMPILE,
        status=compiled.status,
        kernel=compiled.kernel,
        error=shorten(compiled.error),
        cost_s=round(cost_s, 6),
        at=now(),
        backend=_unless_own(request.case.backend, plan.backend),
        problem=_unless_own(request.case.problem.key, plan.problem.key),
    )


def _unless_own(name: str, own: str) -> str:
    """Return "" if `name` is the plan's own, which journals leave out."""
    return "" if name == own else name


class CheckVerdict(StrEnum):
    """The verdict on a candidate after compilation."""

    ACCEPTED = "accepted"  # a search would time it
    REJECTED = "rejected"  # for its resource usage
    FAILED = "failed"  # it did not compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A compiled candidate; `reason` is why a search would not time it."""

    config: Config
    verdict: CheckVerdict
    reason: str
    kernel: KernelInfo
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """The compiled candidates of one plan."""

    plan: TunePlan
    candidates: tuple[Candidate, ...]

    def count(self, verdict: CheckVerdict) -> int:
        return sum(candidate.verdict is verdict for candidate in self.candidates)


def check(
    plans: Sequence[TunePlan], *, candidates: int, jobs: int | None, compile_timeout_s: float
) -> Iterator[PlanCheck]:
    """Compile up to `candidates` configs of each plan: the space's default, then a random sample
    by the plan's seed. Raise UsageError before compiling if a plan is not for a GPU."""
    if candidates < 1:
        raise UsageError(
            f"the number of candidates must be at least 1, not {candidates}",
            hint="ask for at least 1",
        )
    if jobs is not None and jobs < 1:
        raise UsageError(
            f"the number of jobs must be at least 1, not {jobs}", hint="ask for at least 1"
        )
    infos = [_target(plan) for plan in plans]
    count = jobs or len(os.sched_getaffinity(0))
    return _checked(list(zip(plans, infos, strict=True)), candidates, count, compile_timeout_s)


def _target(plan: TunePlan) -> DeviceInfo:
    if reason := kernel_files.find(plan.backend).available():
        raise UsageError(f"{plan.name}: {reason}")
    if not compiles(plan.backend):
        raise UsageError(
            f"{plan.name}: {plan.backend} compiles no kernels ahead of time",
            hint="kmark tune run times it instead",
        )
    try:
        vendor_of(plan.arch)
    except UsageError:
        raise UsageError(
            f"{plan.name} is planned for {plan.arch or 'no architecture'}, which is no GPU's",
            hint="kmark tune plan DIR -b triton --arch gfx942 plans for one",
        ) from None
    return absent(plan.arch)


def _checked(
    plans: Sequence[tuple[TunePlan, DeviceInfo]], candidates: int, jobs: int, timeout_s: float
) -> Iterator[PlanCheck]:
    pool = Pool([])
    try:
        for plan, info in plans:
            # A pool compiles for one architecture; plans of one folder usually have the same.
            if not pool.compilers or pool.compilers[0].info.arch != info.arch:
                pool.close()
                pool = compile_pool(info, jobs, timeout_s)
            configs = _sample(plan, space_of(plan, info), candidates)
            compiled = _compiled(plan, configs, pool)
            yield PlanCheck(
                plan=plan,
                candidates=tuple(
                    _judge(*pair, info) for pair in zip(configs, compiled, strict=True)
                ),
            )
    finally:
        pool.close()


_DRAWN = 20  # points for each candidate that is checked, of which some may be equal in code


def _sample(plan: TunePlan, space: Space, most: int) -> list[Config]:
    points = Points.of(space, limit=_DRAWN * most)  # all take ten seconds for a GEMM on gfx942
    first = points.index(space.default)
    order = np.random.default_rng(plan.seed).permutation(len(points)).tolist()
    if first is not None:
        order = [first, *(point for point in order if point != first)]
    return [points.config(point) for point in order[:most]]


def _compiled(plan: TunePlan, configs: Sequence[Config], pool: Pool) -> list[Compiled]:
    problem, backend = plan.problem, plan.backend
    cases = [Case(problem=problem, backend=backend, config=config) for config in configs]
    jobs = [CompileCase(case=case) for case in cases]
    results = dict(pool.run_all(jobs, pool.compilers))
    if len(results) < len(jobs):
        raise KernelmarkError(
            f"no compile worker can be started: {pool.compilers[-1].lost}",
            hint="kmark doctor says what is wrong here",
        )
    return [results[job] for job in jobs]


def _judge(config: Config, compiled: Compiled, info: DeviceInfo) -> Candidate:
    reason: Reason | None
    if compiled.status is Status.OK:
        reason = static_reason(compiled.kernel.resources, info)
        verdict = CheckVerdict.REJECTED if reason else CheckVerdict.ACCEPTED
    else:
        verdict = CheckVerdict.FAILED
        reason = Reason(
            compiled.status.value + (f": {shorten(compiled.error)}" if compiled.error else ""),
            "failed",
            status=compiled.status.value,
            cause=compiled.error,
        )
    return Candidate(
        config=config,
        verdict=verdict,
        reason=reason or "",
        kernel=compiled.kernel,
        seconds=compiled.seconds,
    )
