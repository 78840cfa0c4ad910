"""Where devices are and workers run: this machine, or another place such as a Ray cluster.

Commands name devices, and pools start workers; neither depends on the place. A place is in use for
the duration of a `with` block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.runners.pool import Workers


class Place(Protocol):
    """Devices that are not on this machine. Names are unique within the place."""

    @property
    def workers(self) -> Workers: ...
    @property
    def compilers(self) -> int:
        """The number of kernels to compile at a time."""

    def devices(self, names: Sequence[str]) -> list[DeviceInfo]:
        """Return the devices that users' names stand for, and reserve them."""

    def unavailable(self, backend: str, info: DeviceInfo) -> str:
        """Return why a backend cannot run where the device is; "" if it can."""

    def close(self) -> None: ...


_current: ContextVar[Place | None] = ContextVar("place", default=None)


def current() -> Place | None:
    """Return the place in use; None for this machine."""
    return _current.get()


@contextlib.contextmanager
def at(place: Place) -> Iterator[None]:
    """Use `place` in the `with` block, and close it at the end."""
    token = _current.set(place)
    try:
        yield
    finally:
        _current.reset(token)
        place.close()


def opened(runner: str, tell: Callable[[str], object]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the place is the one that users call `runner`: local, or a Ray
    cluster. `tell` gets notes about waiting for it."""
    if runner == "local":
        return contextlib.nullcontext()
    from kernelmark.runners.ray import open_place

    return at(open_place(runner, tell))
