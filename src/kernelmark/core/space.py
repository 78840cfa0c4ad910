"""Space: the tuning parameters of a problem with their values, and a rule for illegal configs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Config, ConfigValue


def _anything(config: Config) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space: ordered parameters, each with ordered values. `forbids` returns the reason
    why a combination is illegal, or None. A list of solutions is one parameter. `default` is the
    combination that a search starts from; `seeds` are combinations to try next, most promising
    first. Values have the types that `--config` gives them: yes and no are True and False.

    `parts` make a large space fast to enumerate: every legal combination takes its values from one
    part, for example all sizes 0 or none. Other combinations are not enumerated, and `forbids` must
    refuse them. A parameter that a part does not name keeps all its values there."""

    parameters: Mapping[str, tuple[ConfigValue, ...]]
    default: Config = field(default_factory=FrozenDict)
    forbids: Callable[[Config], str | None] = _anything
    seeds: tuple[Config, ...] = ()
    parts: tuple[Mapping[str, tuple[ConfigValue, ...]], ...] = ()

    @property
    def products(self) -> list[list[tuple[ConfigValue, ...]]]:
        """For each part, the values of every parameter."""
        return [
            [
                tuple(value for value in values if value in part[name]) if name in part else values
                for name, values in self.parameters.items()
            ]
            for part in self.parts or ({},)
        ]

    @property
    def size(self) -> int:
        """The number of combinations, illegal ones included."""
        return sum(math.prod(map(len, values)) for values in self.products)

    def __iter__(self) -> Iterator[Config]:
        names = list(self.parameters)
        for product in self.products:
            for values in itertools.product(*product):
                config = FrozenDict(zip(names, values, strict=True))
                if self.forbids(config) is None:
                    yield config
