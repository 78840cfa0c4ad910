"""Families: problems of near-equal sizes are searched once.

The first problem of a family, the costliest one, is searched in full. The others follow it: each
evaluates a short list, the candidates that were fastest on the problems next to it, and has a final
of its own. The order of the list is that of the predicted times.
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
    """Return the plans with families: one within RADIUS of an earlier one that is searched in full
    follows the nearest of these, with at most so many evaluations."""
    leaders: list[TunePlan] = []
    changed = []
    for plan in plans:
        near = [(distance(plan.problem, leader.problem), leader.name) for leader in leaders]
        apart, name = min(near, default=(math.inf, ""))
        if apart > RADIUS:
            leaders.append(plan)
            changed.append(plan)
            continue
        least = min(evaluations, plan.budget.evaluations)
        budget = dataclasses.replace(plan.budget, evaluations=least)
        changed.append(dataclasses.replace(plan, follows=name, budget=budget))
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
