"""Registry: backends, ops, formats and so on are added by adding a file.

Names are the file names in a package, which are not imported, and the entry points of other
distributions. `get(name)` imports one module and returns its attribute.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The objects of one kind: `Registry("kernelmark.backends", "backend")`."""

    def __init__(self, package: str, attribute: str, *, advice: str = "") -> None:
        self.package = package
        self.attribute = attribute
        self._advice = advice  # the end of the hint for an unknown name
        self._loaded: dict[str, T] = {}

    @cached_property
    def _files(self) -> frozenset[str]:
        """The modules of the package, except `base` and those with a leading underscore."""
        path = importlib.import_module(self.package).__path__
        return frozenset(
            m.name for m in pkgutil.iter_modules(path) if m.name != "base" and m.name[0] != "_"
        )

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        # Imported here: a worker that needs no entry points starts a sixth faster without it.
        from importlib.metadata import entry_points

        return {e.name: e for e in entry_points(group=self.package)}

    def names(self) -> list[str]:
        """Return all names, sorted, without importing anything."""
        return sorted(self._files | self._entry_points.keys() | self._loaded.keys())

    def get(self, name: str) -> T:
        """Return the object called `name`, in which dashes may replace underscores; raise an error
        that lists the known names."""
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
                    f"{module.__file__} has no `{self.attribute}`",
                    hint="a file that is not one of them begins with an underscore",
                )
            return cast(T, getattr(module, self.attribute))
        if name in self._entry_points:
            return cast(T, self._load_outside(name))
        close = self.closest(name)
        meant = f"did you mean {close}? " if close else ""
        raise UsageError(
            f"unknown {self.attribute} {name!r}",
            hint=f"{meant}known: {', '.join(self.names())}{self._advice}",
        )

    def closest(self, name: str) -> str:
        """Return the known name that is most like `name`; "" if none is."""
        return next(iter(difflib.get_close_matches(name, self.names(), n=1)), "")

    def _load_outside(self, name: str) -> object:
        try:
            return self._entry_points[name].load()
        except Exception as error:
            raise UsageError(
                f"the plugin that offers {self.attribute} {name!r} cannot be loaded: {error}",
                hint=f"it comes from {self._entry_points[name].value}",
            ) from error

    def add(self, name: str, thing: T) -> None:
        """Register `thing` under `name` in this process, such as a kernel from a user's file."""
        self._loaded[name] = thing
        self.__dict__["_files"] = self._files - {name}
        self.__dict__["_entry_points"] = {k: v for k, v in self._entry_points.items() if k != name}

    def __contains__(self, name: object) -> bool:
        # Entry points last: reading those of all installed distributions takes 40 ms.
        return name in self._loaded or name in self._files or name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """Facts about a file format. `versions` of the tool whose code defined it; `exactness`: what is
    read or written exactly, and what is refused or reported; `checked`: how this was verified."""

    versions: str
    exactness: str
    checked: str
