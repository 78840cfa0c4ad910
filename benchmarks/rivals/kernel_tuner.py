"""Kernel Tuner's strategies, driven through their `tune(searchspace, runner, tuning_options)`.

The runner is ours: it looks times up, charges one evaluation for each distinct configuration and
lets re-asked ones pass free, as Kernel Tuner's own simulation runner does. A strategy that ends
before its budget is spent is started again, which can only help it. Two of its strategies need
packages that it does not install: `pyatf_strategies` is in a file of its own, and `skopt` is left
out, for it ends with an error where a configuration fails, as some do in three of the eight spaces,
and takes seconds for a proposal.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import io
import random
import warnings
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernelmark.tune.simulate import Simulated

LIBRARY = "kernel-tuner"
NAMES = (
    "adaptive_tabu_greywolf",
    "basinhopping",
    "bayes_opt",
    "diff_evo",
    "dual_annealing",
    "firefly_algorithm",
    "genetic_algorithm",
    "greedy_ils",
    "greedy_mls",
    "hybrid_vndx",
    "minimize",
    "mls",
    "nsga2",
    "nsga3",
    "ordered_greedy_mls",
    "pso",
    "random_sample",
    "simulated_annealing",
)
SLOW: frozenset[str] = frozenset()
STARTS = 20


def version() -> str:
    """The version whose strategies are compared with."""
    return importlib.metadata.version(LIBRARY)


@lru_cache(maxsize=1)
def _searchspace(space: Simulated) -> Any:
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.util import replace_param_occurrences

    names = space.points.names
    rules = [
        str(replace_param_occurrences(rule, dict(space.constants or {})))
        for rule in space.restrictions
        if any(name in rule for name in names)  # a rule on constants alone is no rule
    ]
    params = {n: list(v) for n, v in zip(names, space.points.values, strict=True)}
    built = Searchspace(params, rules, 10**9)
    if built.size != len(space.points):
        raise ValueError(f"{space.name}: {built.size} configurations, {len(space.points)} measured")
    return built


def evaluations(space: Simulated, name: str, seed: int, budget: int) -> list[int]:
    """The distinct points that a strategy asks for, in order."""
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.util import StopCriterionReached, TuningBudget

    random.seed(seed)
    np.random.seed(seed)
    # A search space remembers neighbours it gave out: a second search would profit from the first.
    searchspace = copy.deepcopy(_searchspace(space))
    runner = _runner(space)
    limit = min(budget, len(space.points))
    options = Options(
        strategy=name,
        strategy_options=Options(max_fevals=limit),
        max_fevals=limit,
        tune_params=searchspace.tune_params,
        restrictions=searchspace._modified_restrictions,
        objective=["time"],
        objective_higher_is_better=[False],
        verbose=False,
        quiet=True,
        simulation_mode=True,
        metrics=None,
        cache={},
        cachefile=None,
        block_size_names=None,
        seed=seed,
        budget=TuningBudget(None, limit),
    )
    strategy = strategy_map[name]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for _ in range(STARTS):
            before = len(runner.asked)
            with contextlib.suppress(StopCriterionReached):
                strategy.tune(searchspace, runner, options)
            if len(runner.asked) >= limit or len(runner.asked) == before:
                break
    return list(runner.asked)


def _runner(space: Simulated) -> Any:
    from kernel_tuner.runners.runner import Runner
    from kernel_tuner.util import RuntimeFailedConfig

    class LookUp(Runner):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.asked: dict[int, None] = {}
            self.dev = SimpleNamespace(max_threads=10**9, name=space.name)

        def get_device_info(self) -> Any:
            return self.dev

        def get_environment(self, tuning_options: Any) -> dict[str, Any]:
            return {}

        def run(self, parameter_space: Any, tuning_options: Any) -> list[Any]:
            return [self._one(tuple(element), tuning_options) for element in parameter_space]

        def _one(self, element: tuple[Any, ...], tuning_options: Any) -> dict[str, Any] | None:
            if tuning_options.budget.is_done():
                return None
            config = dict(zip(space.points.names, element, strict=True))
            point = space.points.index(config)
            if point is None:
                raise ValueError(f"{config} is no point of {space.name}")
            if point not in self.asked:
                self.asked[point] = None
                tuning_options.budget.add_evaluations(1)
            seconds = space.seconds(point)
            if seconds is None:
                failed = RuntimeFailedConfig()
                return {**config, "time": failed, "__error__": failed}
            return {**config, "time": seconds * 1e3}

    return LookUp()
