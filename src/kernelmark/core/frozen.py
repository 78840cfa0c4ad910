"""An immutable, hashable, picklable mapping that keeps its order."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar, overload

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
