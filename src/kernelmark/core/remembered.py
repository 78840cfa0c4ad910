"""A property of an immutable value that is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
_MISSING = object()


class remembered(Generic[T]):
    """As `functools.cached_property`, for classes with slots: a base class holds the slot
    `_NAME`, which is no field, so equality, copies, pickles and files do not see it.

    Pages and comparisons of a thousand results ask for the same median ten times."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._slot = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> remembered[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> remembered[T] | T:
        if instance is None:
            return self
        # An exception would take longer than the median that is computed.
        found: Any = getattr(instance, self._slot, _MISSING)
        if found is _MISSING:
            found = self._compute(instance)
            object.__setattr__(instance, self._slot, found)
        return found  # type: ignore[no-any-return]
