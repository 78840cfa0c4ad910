"""Winners of similar problems as starts: a good config for m=64 is rarely bad for m=96."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, config_key
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.points import Points

MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best config that a search found for a problem, whether it was kept or not."""

    problem: Problem
    backend: str
    arch: str
    config: Config


def starts(
    plan: TunePlan, arch: str, winners: Iterable[Winner], points: Points, most: int = MOST
) -> list[Config]:
    """Return winners of problems that differ from the plan's in sizes only, mapped to points of
    its space, nearest problem first."""
    near = [
        (distance(plan.problem, winner.problem), config_key(winner.config), winner)
        for winner in winners
        if winner.backend == plan.backend and winner.arch == arch
    ]
    near = sorted((n for n in near if math.isfinite(n[0])), key=lambda n: n[:2])
    configs: dict[str, Config] = {}
    for _, _, winner in near:
        config = mapped(winner.config, points)
        if config is not None:
            configs.setdefault(config_key(config), config)
        if len(configs) == most:
            break
    return list(configs.values())


def distance(problem: Problem, other: Problem) -> float:
    """Return the distance between sizes in doublings, infinite if anything else differs."""
    if (problem.op, problem.dtypes, problem.options) != (other.op, other.dtypes, other.options):
        return math.inf
    if problem.dims.keys() != other.dims.keys():
        return math.inf
    return math.sqrt(sum(_doublings(problem.dims[n], other.dims[n]) ** 2 for n in problem.dims))


def mapped(config: Config, points: Points) -> Config | None:
    """Return `config` with each value replaced by the nearest of the space, None if the result is
    not a point."""
    if set(config) != set(points.names):
        return None
    near = {
        name: _nearest(config[name], values)
        for name, values in zip(points.names, points.values, strict=True)
    }
    nearest = FrozenDict(near)
    return None if points.index(nearest) is None else nearest


def _nearest(value: ConfigValue, values: tuple[ConfigValue, ...]) -> ConfigValue:
    if value in values or isinstance(value, str | bool):
        return value
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return min(numbers, key=lambda v: _doublings(v, value), default=value)


def _doublings(one: float, other: float) -> float:
    if one <= 0 or other <= 0:
        return abs(one - other)
    return abs(math.log2(one / other))
