"""Fields of a request that are also options of `kmark`, each declared once.

    target_rel_ci: float = flag(0.01, "--target-ci FRACTION", "Stop when …", check=fraction)

The command line derives its options from these declarations, nightly files their keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How a field is given on the command line. `usage` is the text of its help, without the
    values of an enumeration; `takes` is the type of the option; `parse` turns the texts of a
    repeatable one into the field's value; `check` raises ValueError for a wrong number; `complete`
    is a function of cli/completing.py."""

    usage: str
    help: str
    takes: type
    parse: Callable[[Sequence[str]], Any] | None = None
    check: Callable[[float], None] | None = None
    complete: str = ""
    hidden: bool = False

    @property
    def parameter(self) -> str:
        """The name of the command's parameter: `max_blocks` for `--max-blocks N`."""
        option = next(part for part in self.usage.split() if part.startswith("--"))
        return option.removeprefix("--").replace("-", "_")


def flag(default: Any, usage: str, help: str, *, takes: type | None = None, **more: Any) -> Any:
    """Return a dataclass field that is also an option; it takes a text of its default's type."""
    kind = takes or (list if isinstance(default, tuple) else type(default))
    declared = Flag(usage=usage, help=help, takes=kind, **more)
    return dataclasses.field(default=default, metadata={"flag": declared})


def flags(kind: type) -> dict[str, Flag]:
    """Return the options of a dataclass by the names of its fields."""
    fields = dataclasses.fields(kind)
    return {field.name: field.metadata["flag"] for field in fields if "flag" in field.metadata}


def positive(value: float) -> None:
    if not value > 0:
        raise ValueError(f"{value:g} must be positive")


def not_negative(value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{value:g} must not be negative")


def below_one(value: float) -> None:
    """Refuse 1 or more for a fraction: the user meant a percentage."""
    if value >= 1:
        meant = f"write {value / 100:g} for {value:g} %" if value <= 100 else "write 0.05 for 5 %"
        raise ValueError(f"{value:g} must be below 1\nit is a fraction: {meant}")


def fraction(value: float) -> None:
    positive(value)
    below_one(value)
