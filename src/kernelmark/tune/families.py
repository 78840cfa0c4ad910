"""Families: problems of near-equal sizes are searched once.

The problem in the middle of a family is searched in full. The others follow it: each evaluates a
short list, the candidates that were fastest on the problems next to it, and compares the best with
the reference in a final of its own. The order of the list is a model that all problems of the
family share: the predicted slowdown of a candidate is the mean of those that were measured,
weighted by nearness.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, config_key
from kernelmark.tune.journal import Header, Trial
from kernelmark.tune.plans import TunePlan, distance

# Doublings between a problem and the one that it follows.
RADIUS = 1.5
# A candidate counts as this much slower than the best until it was measured nearby, with a weight
# of this part of that of a measurement on the same sizes.
_UNKNOWN, _DOUBT = 0.5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The candidates of a search that worked, with their times."""

    problem: Problem
    backend: str
    arch: str
    times: Mapping[str, tuple[Config, float]]  # by config_key

    @classmethod
    def of(cls, header: Header, reached: Iterable[Trial]) -> Searched:
        """Return the search of a journal; `reached` has the trial of the highest step of each."""
        problem = ops.parse(header.problem)
        times = {
            config_key(trial.config): (trial.config, trial.seconds)
            for trial in reached
            if trial.ok and trial.seconds is not None
        }
        return cls(problem=problem, backend=header.backend, arch=header.arch, times=times)


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
    configs: dict[str, Config] = {}
    slowdown: dict[str, float] = {}
    weights: dict[str, float] = {}
    for search in searches:
        apart = distance(plan.problem, search.problem)
        comparable = (search.backend, search.arch) == (plan.backend, arch)
        if not (comparable and search.times and math.isfinite(apart)):
            continue
        weight = 1 / (1 + apart) ** 4
        best_s = min(seconds for _, seconds in search.times.values())
        for key, (config, seconds) in search.times.items():
            configs.setdefault(key, config)
            slowdown[key] = slowdown.get(key, 0.0) + weight * math.log(seconds / best_s)
            weights[key] = weights.get(key, 0.0) + weight
    predicted = {
        key: (slowdown[key] + _DOUBT * _UNKNOWN) / (weights[key] + _DOUBT) for key in configs
    }
    return [configs[key] for key in sorted(configs, key=lambda key: (predicted[key], key))]
