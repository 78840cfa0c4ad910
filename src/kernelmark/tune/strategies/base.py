"""Strategy and Search: which point of a space to try next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelmark.tune.points import Points


class Search(ABC):
    """One search over the points of one space, with an ask-tell interface. It is deterministic for
    a seed and a sequence of reported times, so that it can be replayed from its journal."""

    @abstractmethod
    def ask(self, n: int) -> list[int]:
        """Propose up to `n` distinct points that were not proposed yet; [] if none is left.

        Points without a reported time are pending, not failed."""

    @abstractmethod
    def tell(self, point: int, seconds: float | None) -> None:
        """Report the time of a point, None if it failed. The point need not come from `ask` (the
        default, winners of similar problems)."""


class Strategy(ABC):
    """A search algorithm over points and times, independent of problem and backend."""

    name: str
    summary: str  # one line for `kmark list strategies`

    @abstractmethod
    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        """Return a search planned for `budget` points. It proposes `starts` first, in order: the
        default, then winners of similar problems."""
