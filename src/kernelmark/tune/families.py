"""Families: problems of near-equal sizes are searched once.

The problem in the middle of a family is searched in full. The others follow it: each evaluates a
short list, the candidates that were fastest on the problems next to it, and compares the best with
the reference in a final of its own. The order of the list is that of the predicted times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from kernelmark import ops
from kernelmark.backends._memory import Searched, predicted
from kernelmark.core.result import Config, config_key
from kernelmark.tune.journal import Header, Trial
from kernelmark.tune.plans import TunePlan, distance

# Doublings between a problem and the one that it follows.
RADIUS = 1.5


def searched(header: Header, reached: Iterable[Trial]) -> Searched:
    """Return the times of a journal; `reached` has the trial of the highest step of each config."""
    times = {
        config_key(trial.config): (trial.config, trial.seconds)
        for trial in reached
        if trial.ok and trial.seconds is not None
    }
    return Searched(
        problem=ops.parse(header.problem), backend=header.backend, arch=header.arch, times=times
    )


def joined(plans: Sequence[TunePlan], evaluations: int) -> list[TunePlan]:
    """Return the plans with families. The plan with the most others within RADIUS is searched in
    full, then that with the most of the rest, and so on. Each other one follows the nearest of
    these, with at most so many evaluations."""
    near = [
        {n for n, other in enumerate(plans) if distance(plan.problem, other.problem) <= RADIUS}
        for plan in plans
    ]
    alone, leaders = set(range(len(plans))), []
    while alone:
        # The earlier of equals, as max does: plans are listed by their cost.
        leaders.append(max(sorted(alone), key=lambda n: len(near[n] & alone)))
        alone -= near[leaders[-1]]
    changed = []
    for number, plan in enumerate(plans):
        if number in leaders:
            changed.append(plan)
            continue
        followed = min(
            (plans[n] for n in leaders if n in near[number]),
            key=lambda leader: (distance(plan.problem, leader.problem), leader.name),
        )
        least = min(evaluations, plan.budget.evaluations)
        changed.append(
            dataclasses.replace(
                plan,
                follows=followed.name,
                budget=dataclasses.replace(plan.budget, evaluations=least),
                # Its candidates were compared on the problems next to it already.
                acceptance=dataclasses.replace(plan.acceptance, finalists=1),
            )
        )
    return changed


def ranked(plan: TunePlan, arch: str, searches: Iterable[Searched]) -> list[Config]:
    """Return the candidates of these searches, in the order of their predicted times on the plan's
    problem."""
    comparable = [
        search
        for search in searches
        if (search.backend, search.arch) == (plan.backend, arch)
        and math.isfinite(distance(plan.problem, search.problem))
    ]
    return [config for config, _ in predicted(plan.problem, arch, comparable)]
