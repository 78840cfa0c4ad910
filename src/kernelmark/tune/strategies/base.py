"""Strategy and Search: which point of a space to try next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelmark.tune.points import Points


class Search(ABC):
    """One search over the points of one space. The same seed and the same answers in the same
    order give the same questions, so that a search can be replayed from its journal."""

    @abstractmethod
    def ask(self, n: int) -> list[int]:
        """Up to `n` distinct points that were never asked for; [] when none is left.

        Points that were asked for and not yet told are taken as pending, not as bad."""

    @abstractmethod
    def tell(self, point: int, seconds: float | None) -> None:
        """What a point gave; None when it failed. Also for points that `ask` did not give
        (the default, winners of neighbouring problems)."""


class Strategy(ABC):
    """A way of searching; it sees points and times only."""

    name: str
    summary: str  # one line for `kmark list strategies`

    @abstractmethod
    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        """Return a search that expects to be told about `budget` points. `starts` are asked first,
        in order: the default, then winners of neighbouring problems."""
