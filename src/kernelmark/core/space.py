"""Space: what can be tuned for a problem, as named values and a rule that forbids combinations."""

from __future__ import annotations

import itertools
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
    first. A value has the type that `--config` gives it: yes and no are True and False."""

    parameters: Mapping[str, tuple[ConfigValue, ...]]
    default: Config = field(default_factory=FrozenDict)
    forbids: Callable[[Config], str | None] = _anything
    seeds: tuple[Config, ...] = ()

    @property
    def size(self) -> int:
        """Combinations before the rule."""
        product = 1
        for values in self.parameters.values():
            product *= len(values)
        return product

    def __iter__(self) -> Iterator[Config]:
        names = list(self.parameters)
        for values in itertools.product(*self.parameters.values()):
            config = FrozenDict(zip(names, values, strict=True))
            if self.forbids(config) is None:
                yield config
