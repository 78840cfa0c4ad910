"""Optuna's samplers through ask and tell, on the logarithm of the time.

Every parameter is an integer: the index of its value, in the order of the space (`tpe_categorical`
takes the values as unordered instead). Restrictions and re-asked configurations are free. A
sampler whose proposals are illegal or known many times in a row is given the nearest legal unknown
point instead, so that no budget is lost and it learns from that point; a failed configuration is
told as the worst time seen.
"""

from __future__ import annotations

import importlib.metadata
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.tune.simulate import Simulated

LIBRARY = "optuna"
NAMES = ("cmaes", "gp", "nsga2", "nsga3", "qmc", "random", "tpe", "tpe_categorical")
SLOW = frozenset({"gp"})
PATIENCE = {"gp": 2, "cmaes": 10}  # these repeat themselves: asking on and on is no use
PATIENCE_OF_OTHERS = 20


def version() -> str:
    """The version whose samplers are compared with."""
    return importlib.metadata.version(LIBRARY)


def _sampler(name: str, seed: int) -> Any:
    from optuna import samplers

    kinds = {
        "cmaes": samplers.CmaEsSampler,
        "gp": samplers.GPSampler,
        "nsga2": samplers.NSGAIISampler,
        "nsga3": samplers.NSGAIIISampler,
        "qmc": samplers.QMCSampler,
        "random": samplers.RandomSampler,
    }
    return kinds.get(name, samplers.TPESampler)(seed=seed)


def evaluations(space: Simulated, name: str, seed: int, budget: int) -> list[int]:
    """The distinct points that a sampler asks for, in order."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = _Run(space, name, seed)
        for _ in range(min(budget, len(space.points))):
            run.step()
    return run.asked


class _Run:
    def __init__(self, space: Simulated, name: str, seed: int) -> None:
        import optuna

        self.space = space
        self.study = optuna.create_study(sampler=_sampler(name, seed))
        self.patience = PATIENCE.get(name, PATIENCE_OF_OTHERS)
        kind: Any = optuna.distributions
        self.distributions = {
            n: kind.CategoricalDistribution(tuple(range(len(v))))
            if name == "tpe_categorical"
            else kind.IntDistribution(0, len(v) - 1)
            for n, v in zip(space.points.names, space.points.values, strict=True)
        }
        self.asked: list[int] = []
        self.known: dict[int, float] = {}

    def step(self) -> None:
        """One charged evaluation, and as many free proposals as it takes."""
        import optuna

        row: NDArray[np.int64] = np.zeros((1, 0), np.int64)
        for _ in range(self.patience):
            trial = self.study.ask(self.distributions)
            row = np.array([[trial.params[n] for n in self.space.points.names]], np.int64)
            point = int(self.space.points.find(row)[0])
            if point < 0:
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            elif point in self.known:
                self.study.tell(trial, self.known[point])
            else:
                self.study.tell(trial, self._value(point))
                return
        self._instead(row)

    def _value(self, point: int) -> float:
        self.asked.append(point)
        seconds = self.space.seconds(point)
        worst = max(self.known.values(), default=0.0)
        self.known[point] = worst if seconds is None else math.log(seconds)
        return self.known[point]

    def _instead(self, row: NDArray[np.int64]) -> None:
        import optuna

        codes = self.space.points.codes
        steps = np.abs(codes - row) / np.maximum(1, codes.max(axis=0))
        far = (codes != row).sum(axis=1) + steps.sum(axis=1)
        far[self.asked] = np.inf
        point = int(far.argmin())
        params = dict(zip(self.space.points.names, codes[point].tolist(), strict=True))
        value = self._value(point)
        self.study.add_trial(
            optuna.trial.create_trial(params=params, distributions=self.distributions, value=value)
        )
