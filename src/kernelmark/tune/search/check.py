"""Check: the resource usage of a sample of a plan's candidates, compiled without a GPU.

Candidates are only compiled, and rejected by the same rule as in a search (spills, shared memory),
so a space can be checked on a laptop.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kernelmark import backends
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config, KernelInfo, Status
from kernelmark.core.space import Space
from kernelmark.gpu.architectures import absent
from kernelmark.gpu.rtc import vendor_of
from kernelmark.runners.jobs import CompileCase, Compiled, compiles
from kernelmark.runners.local import compile_pool
from kernelmark.runners.pool import Pool
from kernelmark.tune.plans.narrow import space_of
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.points import Points
from kernelmark.tune.search.evaluate import static_reason


class Verdict(StrEnum):
    """The verdict on a candidate after compilation."""

    ACCEPTED = "accepted"  # a search would time it
    REJECTED = "rejected"  # for its resource usage
    FAILED = "failed"  # it did not compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A compiled candidate; `reason` is why a search would not time it."""

    config: Config
    verdict: Verdict
    reason: str
    kernel: KernelInfo
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The compiled candidates of one plan."""

    plan: TunePlan
    candidates: tuple[Candidate, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(candidate.verdict is verdict for candidate in self.candidates)


def check(
    plans: Sequence[TunePlan], *, candidates: int, jobs: int | None, compile_timeout_s: float
) -> Iterator[Check]:
    """Compile up to `candidates` configs of each plan: the space's default, then a random sample
    by the plan's seed. Raise UsageError before compiling if a plan is not for a GPU."""
    if candidates < 1:
        raise UsageError(
            Reason("count-below", what="candidates", least=1, given=candidates),
            hint="ask for at least 1",
        )
    if jobs is not None and jobs < 1:
        raise UsageError(
            Reason("count-below", what="jobs", least=1, given=jobs), hint="ask for at least 1"
        )
    infos = [_target(plan) for plan in plans]
    count = jobs or len(os.sched_getaffinity(0))
    return _checked(list(zip(plans, infos, strict=True)), candidates, count, compile_timeout_s)


def _target(plan: TunePlan) -> DeviceInfo:
    if reason := backends.find(plan.backend).available():
        raise UsageError(Reason("plan-refused", plan=plan.name, cause=reason))
    if not compiles(plan.backend):
        raise UsageError(
            Reason("compiles-nothing-ahead", plan=plan.name, backend=plan.backend),
            hint="kmark tune run times it instead",
        )
    try:
        vendor_of(plan.arch)
    except UsageError:
        raise UsageError(
            Reason("plan-not-for-gpu", plan=plan.name, arch=plan.arch, no_arch=not plan.arch),
            hint="kmark tune plan DIR -b triton --arch gfx942 plans for one",
        ) from None
    return absent(plan.arch)


def _checked(
    plans: Sequence[tuple[TunePlan, DeviceInfo]], candidates: int, jobs: int, timeout_s: float
) -> Iterator[Check]:
    pool = Pool([])
    try:
        for plan, info in plans:
            # A pool compiles for one architecture; plans of one folder usually have the same.
            if not pool.compilers or pool.compilers[0].info.arch != info.arch:
                pool.close()
                pool = compile_pool(info, jobs, timeout_s)
            configs = _sample(plan, space_of(plan, info), candidates)
            compiled = _compiled(plan, configs, pool)
            yield Check(
                plan=plan,
                candidates=tuple(
                    _judge(*pair, info) for pair in zip(configs, compiled, strict=True)
                ),
            )
    finally:
        pool.close()


def _sample(plan: TunePlan, space: Space, most: int) -> list[Config]:
    points = Points.of(space)
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
            Reason("no-compile-worker", cause=pool.compilers[-1].lost),
            hint="kmark doctor says what is wrong here",
        )
    return [results[job] for job in jobs]


def _judge(config: Config, compiled: Compiled, info: DeviceInfo) -> Candidate:
    reason: Reason | None
    if compiled.status is Status.OK:
        reason = static_reason(compiled.kernel.resources, info)
        verdict = Verdict.REJECTED if reason else Verdict.ACCEPTED
    else:
        verdict = Verdict.FAILED
        reason = Reason("failed", status=compiled.status.value, cause=compiled.error)
    return Candidate(
        config=config,
        verdict=verdict,
        reason=reason or "",
        kernel=compiled.kernel,
        seconds=compiled.seconds,
    )
