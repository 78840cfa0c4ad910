"""Building blocks of immutable values: a mapping, a property computed once, and marks of fields.
A field of a request is declared together with its option of `kmark`.

    target_rel_ci: float = flag(0.01, "--target-ci FRACTION", "Stop when …", check=fraction)

The command line derives its options from these declarations, nightly files their keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")
D = TypeVar("D")


class FrozenDict(Mapping[str, V]):
    """Equal to any mapping with the same items; hashable so that values can hold it."""

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        own_items = items._items if isinstance(items, FrozenDict) else dict(items)
        object.__setattr__(self, "_items", own_items)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("FrozenDict cannot be changed")

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    # The inherited views and `get` call Python code per item: too slow for a million items.
    @overload
    def get(self, key: str, /) -> V | None: ...

    @overload
    def get(self, key: str, /, default: V | D) -> V | D: ...

    def get(self, key: str, /, default: object = None) -> object:
        return self._items.get(key, default)

    def keys(self) -> KeysView[str]:
        return self._items.keys()

    def values(self) -> ValuesView[V]:
        return self._items.values()

    def items(self) -> ItemsView[str, V]:
        return self._items.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"

    def __reduce__(self) -> tuple[type, tuple[dict[str, V]]]:
        return type(self), (dict(self._items),)


T = TypeVar("T")
_MISSING = object()


class computed_once(Generic[T]):
    """A `functools.cached_property` for classes with slots. A base class has the slot `_NAME`,
    which is not a field, so that equality, copies, pickles and files ignore it.

    Pages and comparisons of a thousand results read each median about ten times."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._slot = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> computed_once[T] | T:
        if instance is None:
            return self
        # Catching AttributeError would take longer than computing a median.
        found: Any = getattr(instance, self._slot, _MISSING)
        if found is _MISSING:
            found = self._compute(instance)
            object.__setattr__(instance, self._slot, found)
        return found  # type: ignore[no-any-return]


# Metadata key of a field that documents of older versions do not have.
OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How a field is given on the command line. `usage` is the text of its help, without the
    values of an enumeration; `takes` is the type of the option; `parse` turns the texts of a
    repeatable one into the field's value; `check` raises ValueError for a wrong number; `complete`
    names a function of cli/options.py; `--help` shows options that are `common`."""

    usage: str
    help: str
    takes: type
    parse: Callable[[Sequence[str]], Any] | None = None
    check: Callable[[float], None] | None = None
    complete: str = ""
    common: bool = False

    @property
    def parameter(self) -> str:
        """The name of the command's parameter: `max_blocks` for `--max-blocks N`."""
        option = next(part for part in self.usage.split() if part.startswith("--"))
        return option.removeprefix("--").replace("-", "_")


def flag(
    default: Any,
    usage: str,
    help: str,
    *,
    takes: type | None = None,
    optional: bool = False,
    **more: Any,
) -> Any:
    """Return a dataclass field that is also an option; it takes a text of its default's type. A
    field that documents of older versions do not have is `optional`."""
    kind = takes or (list if isinstance(default, tuple) else type(default))
    declared = Flag(usage=usage, help=help, takes=kind, **more)
    metadata = {"flag": declared, OPTIONAL: True} if optional else {"flag": declared}
    return dataclasses.field(default=default, metadata=metadata)


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
