"""Repeats: figures of several sessions, and how far they are apart."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(slots=True)
class Repeats:
    """Figures by name, one of each session, and how far they are apart."""

    times: int
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    @property
    def spread(self) -> dict[str, float]:
        """Largest minus smallest, over the median, of those that every session has."""
        return {
            name: (max(values) - min(values)) / (statistics.median(values) or 1.0)
            for name, values in self.values.items()
            if len(values) == self.times
        }

    @property
    def complete(self) -> bool:
        return bool(self.values) and len(self.spread) == len(self.values)

    @property
    def wide(self) -> dict[str, float]:
        """Those over 2 %, the widest first."""
        found = {name: value for name, value in self.spread.items() if value > 0.02}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def told(self, what: str) -> str:
        spread = self.spread
        worst = max(spread, key=lambda name: spread[name], default="none")
        text = f"{len(spread)} {what}, the widest {worst}: {spread.get(worst, 0.0):.2%}"
        over = ", ".join(f"{name} {value:.1%}" for name, value in self.wide.items())
        return f"{text}; over 2 %: {over}" if over else text

    @property
    def figures(self) -> dict[str, Any]:
        return {"values": self.values, "spread": self.spread}
