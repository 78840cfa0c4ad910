"""The search techniques of pyATF as Kernel Tuner's `pyatf_strategies` drives them.

Kernel Tuner 1.5 builds pyATF's search space with arguments that pyatf 0.0.13 does not take, and
allows one restriction a parameter; so the space is built here, from the legal configurations
themselves. Coordinates then lead to the same configurations: at each parameter to one of the values
that are legal after those before it. A technique that asks for nothing new for long (the pattern
search stays at a local optimum for ever) is started again, as strategies of Kernel Tuner that end.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from kernelmark.tune.simulate import Simulated
from rivals import kernel_tuner

LIBRARY = "pyatf"
NAMES = (
    "auc_bandit",
    "differential_evolution",
    "pattern_search",
    "round_robin",
    "simulated_annealing",
    "torczon",
)
SLOW: frozenset[str] = frozenset()
IN_VAIN = 1000


def version() -> str:
    """The version whose techniques are compared with."""
    return importlib.metadata.version(LIBRARY)


def evaluations(space: Simulated, name: str, seed: int, budget: int) -> list[int]:
    """The distinct points that a technique asks for, in order."""
    from kernel_tuner.interface import strategy_map
    from kernel_tuner.strategies import pyatf_strategies

    def tune(searchspace: Any, runner: Any, options: Any) -> Any:
        options.strategy_options["searchtechnique"] = name
        options.restrictions_unmodified = []
        return pyatf_strategies.tune(searchspace, runner, options)

    strategy = f"pyatf {name}"
    strategy_map[strategy] = SimpleNamespace(tune=tune)
    with _built_here(space, pyatf_strategies):
        return kernel_tuner.evaluations(space, strategy, seed, budget)


@contextlib.contextmanager
def _built_here(space: Simulated, strategies: Any) -> Iterator[None]:
    """In a folder of its own, as Kernel Tuner makes one for caches where it runs."""
    import pyatf.search_space

    before = strategies.Searchspace, pyatf.search_space.SearchSpace
    tree = _tree(space)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        strategies.Searchspace = lambda *_, **__: SimpleNamespace(get_tune_params_pyatf=list)
        pyatf.search_space.SearchSpace = lambda *_, **__: _Patient(tree)
        try:
            yield
        finally:
            strategies.Searchspace, pyatf.search_space.SearchSpace = before


class _Patient:
    """A search space that ends a search which asks for nothing new."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._seen: set[tuple[Any, ...]] = set()
        self._in_vain = 0

    def get_configuration(self, coordinates: Any) -> Any:
        from kernel_tuner.util import StopCriterionReached

        config = self._tree.get_configuration(coordinates)
        key = tuple(config.values())
        self._in_vain = self._in_vain + 1 if key in self._seen else 0
        self._seen.add(key)
        if self._in_vain > IN_VAIN:
            raise StopCriterionReached("nothing new")
        return config


@lru_cache(maxsize=1)
def _tree(space: Simulated) -> Any:
    from pyatf import TP, Set
    from pyatf.search_space import SearchSpace

    names = space.points.names
    legal = [tuple(space.points.config(i).values()) for i in range(len(space.points))]
    parameters = [
        TP(name, Set(*values), _is_prefix(names[: at + 1], {row[: at + 1] for row in legal}))
        for at, (name, values) in enumerate(zip(names, space.points.values, strict=True))
    ]
    built = SearchSpace(*parameters, verbosity=0)
    if built.constrained_size != len(legal):
        raise ValueError(f"{space.name}: {built.constrained_size} configurations of {len(legal)}")
    return built


def _is_prefix(names: tuple[str, ...], known: set[tuple[Any, ...]]) -> Callable[..., bool]:
    """A rule over these parameters; pyATF reads from its signature which they are."""

    def rule(**values: Any) -> bool:
        return tuple(values[name] for name in names) in known

    kind = inspect.Parameter.KEYWORD_ONLY
    rule.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    return rule
