"""Parse the device names of `-d`: cpu, cuda:3, cuda:0-7, fake, all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from kernelmark import devices
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError, about
from kernelmark.core.units import counted, join_commas
from kernelmark.devices.base import DeviceKind
from kernelmark.devices.fake import COUNT_VARIABLE
from kernelmark.runners import places

_NAME = re.compile(r"([a-z][a-z0-9_]*)(?::(\d+)(?:-(\d+))?)?\Z")
# Prefixes of vendors and architectures, which are not device names, with the name to suggest.
_MEANT = {
    "gpu": "cuda:0 or hip:0",
    **dict.fromkeys(("nvidia", "sm_"), "cuda:0"),
    **dict.fromkeys(("amd", "rocm", "gfx"), "hip:0"),
}


def find(name: str) -> tuple[DeviceKind, DeviceInfo]:
    """Return the kind and facts of one device by its name."""
    if (place := places.current()) is not None:
        infos = place.devices([name])
        if len(infos) > 1:
            raise UsageError(f"{name!r} names {len(infos)} devices, but one is needed")
        return devices.registry.get(infos[0].kind), infos[0]
    kind_name, first, last = _parse(name)
    if last != first:
        raise UsageError(f"{name!r} names several devices, but one is needed")
    kind = _kind(kind_name, name)
    for info in _present(kind, kind_name):
        if info.index == first:
            if info.unusable:
                raise UsageError(f"{info.name} cannot be used: {info.unusable}")
            return kind, info
    hint = f"there are: {', '.join(info.name for info in kind.infos())}"
    if kind_name == "fake":
        hint += f"; set ${COUNT_VARIABLE} to how many there shall be"
    raise UsageError(f"there is no device {name!r}", hint=hint)


def check_threads(info: DeviceInfo, threads: int) -> None:
    """Raise an error if the CPU has fewer cores than `threads`."""
    if info.kind == "cpu" and threads > info.units:
        raise UsageError(
            f"{threads} threads were asked for and {counted(info.units, 'core')} can be used",
            hint=f"use {counted(info.units, 'thread')}{'' if info.units == 1 else ' or less'}",
        )


def parse_devices(names: Sequence[str]) -> list[DeviceInfo]:
    """Return every device of `names` once, in order.

    The devices share a run's cases, so they must be of one kind and architecture. `all` is every
    GPU of one vendor, or the CPU if there is no GPU.
    """
    if not names:
        raise UsageError("no device was given", hint="for example: -d cpu")
    if (place := places.current()) is not None:
        infos = place.devices(names)
    else:
        every = (info for name in names for info in (_all() if name == "all" else _range(name)))
        infos = list({info.name: info for info in every}.values())
    other = next((i for i in infos if (i.kind, i.arch) != (infos[0].kind, infos[0].arch)), None)
    if other is not None:
        raise UsageError(
            f"{infos[0].name} ({infos[0].arch}) and {other.name} ({other.arch}) cannot share a run",
            hint="start one run for each architecture",
        )
    return infos


def _range(name: str) -> list[DeviceInfo]:
    kind_name, first, last = _parse(name)
    if ":" not in name or first == last:
        return [find(name)[1]]
    return [find(f"{kind_name}:{index}")[1] for index in range(first, last + 1)]


def _all() -> list[DeviceInfo]:
    for kind_name in devices.registry.names():
        if kind_name not in ("cpu", "fake"):
            kind = devices.registry.get(kind_name)
            infos = kind.infos() if kind.available() is None else []
            if usable := [info for info in infos if not info.unusable]:
                return usable
    return [find("cpu")[1]]


def _kind(kind_name: str, name: str) -> DeviceKind:
    if kind_name not in devices.registry:
        kind_names = devices.registry.names()
        near = "".join(difflib.get_close_matches(kind_name, kind_names, n=1))
        meant = next(
            (kind for prefix, kind in _MEANT.items() if kind_name.startswith(prefix)), near
        )
        raise UsageError(
            f"unknown device {name!r}",
            hint=(f"did you mean {meant}? " if meant else "")
            + f"known kinds: {join_commas(kind_names)}, or all",
        )
    return devices.registry.get(kind_name)


def _parse(name: str) -> tuple[str, int, int]:
    match = _NAME.match(name)
    if match is None:
        raise UsageError(
            f"{name!r} is not a device", hint="write: cpu, cuda:0, hip:0, cuda:0-7, all"
        )
    first = int(match[2] or 0)
    last = int(match[3] or first)
    if last < first:
        hint = f"write: {match[1]}:{last}-{first}"
        raise UsageError(f"{name!r} is not a device: its range goes down", hint=hint)
    return match[1], first, last


@about("device")
def _present(kind: DeviceKind, name: str) -> list[DeviceInfo]:
    reason = kind.available()
    if reason is not None:
        raise UsageError(reason)
    return kind.infos()
