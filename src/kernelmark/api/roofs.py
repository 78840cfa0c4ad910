"""Which roofs results are compared with: measured here and now, or taken from the store."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from kernelmark.api.plan import Plan
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import ResultSet
from kernelmark.core.roof import Roof
from kernelmark.core.units import counted, duration_text
from kernelmark.micro import gpu_roofs
from kernelmark.micro.roofs import quick
from kernelmark.runners.lock import held
from kernelmark.runners.possible import threads_of

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

RoofMode = Literal["stored", "fresh", "none"]

# A roof moves with firmware, kernel and what else the machine does, not from hour to hour.
MAX_AGE_S = 7 * 24 * 3600.0
# What other work disturbed is measured again, but not before that work may be over.
RETRY_S = 600.0


def roofs_for_plan(
    plan: Plan, store: Store | None, mode: RoofMode, tell: Callable[[str], None]
) -> tuple[Roof, ...]:
    """The roofs of the plan's devices, measured where none are known, where these are a week old
    and where other work disturbed them."""
    if mode == "none":
        return ()
    found: list[Roof] = []
    for info in plan.devices:
        for threads in sorted({_threads(info, case.timing.threads) for case in plan.cases}):
            found += _roofs(info, threads, store, mode, tell)
    return tuple(found)


def known_roofs(store: Store | None, devices: Sequence[str]) -> tuple[Roof, ...]:
    """The newest roofs that the store has of this machine's devices; nothing is measured."""
    if store is None:
        return ()
    host = platform.node()
    return tuple(roof for device in devices for roof in store.roofs(host=host, device=device))


def stored_roofs(store: Store, results: ResultSet) -> tuple[Roof, ...]:
    """The newest roofs that the store has for where these results come from."""
    environment = results.run.environment
    infos = {info.name: info for info in environment.devices}
    places = {
        (result.device, result.arch, threads_of(result, infos.get(result.device)))
        for result in results.results
    }
    return tuple(
        roof
        for device, arch, threads in sorted(places)
        for roof in store.roofs(host=environment.host, device=device, arch=arch, threads=threads)
    )


def _roofs(
    info: DeviceInfo,
    threads: int,
    store: Store | None,
    mode: RoofMode,
    tell: Callable[[str], None],
) -> tuple[Roof, ...]:
    host = platform.node()
    known: tuple[Roof, ...] = ()
    if store is not None:
        known = store.roofs(host=host, device=info.name, arch=info.arch, threads=threads)
        if mode == "stored" and _still_good(known):
            return known
    if info.kind in ("cuda", "hip") and store is None and mode == "stored":
        tell(f"no roofs of {info.name}: nothing is stored; --roofs fresh measures them (10 s)")
        return ()
    return measure_roofs(info, threads, store, tell, known)


def measure_roofs(
    info: DeviceInfo,
    threads: int,
    store: Store | None,
    tell: Callable[[str], None],
    known: tuple[Roof, ...] = (),
) -> tuple[Roof, ...]:
    """Roofs of a device measured now and stored; `known` ones stay where that fails."""
    if info.kind in ("cuda", "hip"):
        return _of_gpu(info, store, known, tell)
    if info.kind != "cpu":
        return known
    count = threads or info.units
    tell(f"measuring the roofs of {info.name} with {counted(count, 'thread')} (some seconds)")
    try:
        with held(info, lambda who: tell(f"waiting for {who}, which is timing on {info.name}")):
            measured = quick(info.name, count)
    except KernelmarkError as error:
        tell(error.message)
        return known
    if store is None:
        return measured
    host = platform.node()
    before = store.roofs(host=host, device=info.name, arch=info.arch, threads=count)
    kept = tuple(_steadier(roof, before, tell) for roof in measured)
    store.add_roofs([roof for roof in kept if roof not in before], host=host)
    return kept


def _of_gpu(
    info: DeviceInfo, store: Store | None, known: tuple[Roof, ...], tell: Callable[[str], None]
) -> tuple[Roof, ...]:
    """Measured in a process of its own; what cannot be measured keeps its last known roof."""
    tell(f"measuring the roofs of {info.name} (about 10 s, once a week)")
    try:
        measured, _ = gpu_roofs.measure(info.name, tell)
    except KernelmarkError as error:
        tell(error.message)
        return known
    if store is not None:
        store.add_roofs(measured, host=platform.node())
    fresh = {(roof.kind, roof.name, roof.unit) for roof in measured}
    return (*measured, *(r for r in known if (r.kind, r.name, r.unit) not in fresh))


def _still_good(known: tuple[Roof, ...]) -> bool:
    """Whether they are young enough; those that other work disturbed are so for minutes only."""
    if not known:
        return False
    most_s = RETRY_S if any(not roof.steady for roof in known) else MAX_AGE_S
    # They are measured together; one that could not be measured again keeps its age.
    return time.time() - max(roof.measured for roof in known) < most_s


def _steadier(roof: Roof, before: tuple[Roof, ...], tell: Callable[[str], None]) -> Roof:
    """The new roof, higher or lower; one that other work disturbed does not replace a steady one,
    however old."""
    if roof.steady:
        return roof
    for old in before:
        same = (old.kind, old.name, old.unit) == (roof.kind, roof.name, roof.unit)
        if same and old.steady:
            age = duration_text(max(0.0, time.time() - old.measured))
            tell(f"the {roof.name} roof is not steady: other work ran; the one of {age} ago stays")
            return old
    return roof


def _threads(info: DeviceInfo, asked: int) -> int:
    return (asked or info.units) if info.kind == "cpu" else 0
