"""Building blocks of immutable values: a mapping, a property computed once, a mark of fields."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")
D = TypeVar("D")


class FrozenDict(Mapping[str, V]):
    """Equal to any mapping with the same items; hashable so that values can hold it."""

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        held = items._items if isinstance(items, FrozenDict) else dict(items)
        object.__setattr__(self, "_items", held)

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
