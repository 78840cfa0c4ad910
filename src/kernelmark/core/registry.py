"""Registry: adding a thing is adding a file.

Names come from the file names in a package, without importing them, and from entry points of
other distributions. `get(name)` imports that one module and takes its attribute.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The things of one kind: `Registry("kernelmark.backends", "backend")`."""

    def __init__(self, package: str, attribute: str) -> None:
        self.package = package
        self.attribute = attribute
        self._loaded: dict[str, T] = {}

    @cached_property
    def _files(self) -> frozenset[str]:
        """A module is a thing of this kind unless it is the base or begins with an underscore."""
        path = importlib.import_module(self.package).__path__
        return frozenset(
            m.name for m in pkgutil.iter_modules(path) if m.name != "base" and m.name[0] != "_"
        )

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        # Here, because a worker that knows its names from files starts a sixth faster without it.
        from importlib.metadata import entry_points

        return {e.name: e for e in entry_points(group=self.package)}

    def names(self) -> list[str]:
        """Return every known name, sorted; nothing is imported."""
        return sorted(self._files | self._entry_points.keys() | self._loaded.keys())

    def get(self, name: str) -> T:
        """Return the thing called `name`, also written with dashes; an unknown name lists the
        known."""
        if name not in self:
            name = name.replace("-", "_")
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        if name in self._files:
            module = importlib.import_module(f"{self.package}.{name}")
            if not hasattr(module, self.attribute):
                raise UsageError(
                    Reason("module-lacks", file=str(module.__file__), name=self.attribute),
                    hint="a file that is not one of them begins with an underscore",
                )
            return cast(T, getattr(module, self.attribute))
        if name in self._entry_points:
            return cast(T, self._load_outside(name))
        close = difflib.get_close_matches(name, self.names(), n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            Reason("unknown-name", what=self.attribute, name=name),
            hint=f"{meant}known: {', '.join(self.names())}",
        )

    def _load_outside(self, name: str) -> object:
        try:
            return self._entry_points[name].load()
        except Exception as error:
            raise UsageError(
                Reason("plugin-not-loaded", what=self.attribute, name=name, error=str(error)),
                hint=f"it comes from {self._entry_points[name].value}",
            ) from error

    def add(self, name: str, thing: T) -> None:
        """Make `thing` known under `name` in this process: a kernel from a user's file, a test."""
        self._loaded[name] = thing
        self.__dict__["_files"] = self._files - {name}
        self.__dict__["_entry_points"] = {k: v for k, v in self._entry_points.items() if k != name}

    def __contains__(self, name: object) -> bool:
        # Entry points last: reading those of all installed distributions takes 40 ms.
        return name in self._loaded or name in self._files or name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
