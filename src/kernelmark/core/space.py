"""Space: what can be tuned for a problem, as named values and a rule that forbids combinations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kernelmark.core.frozen import FrozenDict
from kernelmark.core.result import Config, ConfigValue


def _anything(config: Config) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Parameters in order, each with its values in order. `forbids` gives the reason a
    combination is illegal, or None. A list of solutions is one parameter. `default` is the
    combination that a search starts from. `seeds` are combinations to try next, the most promising
    first. A value has the type that `--config` gives it: yes and no are True and False.

    `parts` make a large space quick to enumerate: a legal combination has values of one part only,
    such as all sizes 0 or none. `forbids` has to refuse the others, which are not enumerated. A
    name that a part lacks has all values."""

    parameters: Mapping[str, tuple[ConfigValue, ...]]
    default: Config = field(default_factory=FrozenDict)
    forbids: Callable[[Config], str | None] = _anything
    seeds: tuple[Config, ...] = ()
    parts: tuple[Mapping[str, tuple[ConfigValue, ...]], ...] = ()

    @property
    def products(self) -> list[list[tuple[ConfigValue, ...]]]:
        """The values of the parameters, in order, for each part."""
        return [
            [
                tuple(one for one in values if one in part[name]) if name in part else values
                for name, values in self.parameters.items()
            ]
            for part in self.parts or ({},)
        ]

    @property
    def size(self) -> int:
        """Combinations before the rule."""
        return sum(math.prod(map(len, values)) for values in self.products)

    def __iter__(self) -> Iterator[Config]:
        names = list(self.parameters)
        for product in self.products:
            for values in itertools.product(*product):
                config = FrozenDict(zip(names, values, strict=True))
                if self.forbids(config) is None:
                    yield config
