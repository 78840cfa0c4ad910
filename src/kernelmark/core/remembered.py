"""A property of an immutable value that is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
_MISSING = object()


class remembered(Generic[T]):
    """A `functools.cached_property` for classes with slots. A base class has the slot `_NAME`,
    which is not a field, so that equality, copies, pickles and files ignore it.

    Pages and comparisons of a thousand results read each median about ten times."""

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
        # Catching AttributeError would take longer than computing a median.
        found: Any = getattr(instance, self._slot, _MISSING)
        if found is _MISSING:
            found = self._compute(instance)
            object.__setattr__(instance, self._slot, found)
        return found  # type: ignore[no-any-return]
