"""The roofs that results are compared with: measured now, or read from the store."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import ROOFS_SUITE
from kernelmark.core.result import ResultSet, Run, RunState
from kernelmark.core.units import counted, duration_text
from kernelmark.runners import places
from kernelmark.runners.impossible import threads_of
from kernelmark.stores import may_exist, new_run_id, open_store
from kernelmark.stores.roofs import newest

if TYPE_CHECKING:
    from kernelmark.api.plan import Plan
    from kernelmark.runners.forecast import Means
    from kernelmark.stores.store import Store

RoofMode = Literal["stored", "fresh", "none"]

# A roof changes with firmware, OS kernel and background load, not from hour to hour.
MAX_AGE_S = 7 * 24 * 3600.0
# Roofs that other work disturbed are measured again, once that work may have ended.
RETRY_S = 600.0
# Expected duration before the first measurement on a model: that of a Neoverse N1 and an H200.
_ROOFS_S = {"cpu": 3.0}
_GPU_ROOFS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoofs:
    """The `stored` roofs of a device for a number of CPU threads (0: all), and whether they are
    `due` to be measured, which takes about `expected_s`."""

    info: DeviceInfo
    threads: int = 0
    stored: tuple[Roof, ...] = ()
    due: bool = True
    expected_s: float = 0.0
    why: str = ""  # ends the note that they are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRoofs:
    """The roofs of a run, decided before it begins: those that are stored, and what is measured
    before the first case."""

    devices: tuple[DeviceRoofs, ...] = ()
    store: Store | None = None

    @property
    def expected_s(self) -> float:
        """The expected duration of `complete`."""
        return sum(device.expected_s for device in self.devices)

    def complete(self, tell: Callable[[str], None]) -> tuple[Roof, ...]:
        """Measure and store the roofs that are due; return all."""
        roofs: list[Roof] = []
        for device in self.devices:
            if device.due:
                roofs += measure_roofs(device, self.store, tell)
                continue
            roofs += device.stored
            if not device.stored:
                name = device.info.name
                tell(f"no roofs of {name}: nothing is stored; --roofs fresh measures them")
        return tuple(roofs)


NO_ROOFS = RunRoofs()


def roofs_for_plan(plan: Plan, store: Store | None, mode: RoofMode) -> RunRoofs:
    """Decide on the roofs of the plan's devices: those that are missing, older than a week or
    disturbed by other work are measured. Without a store they are read from the default one."""
    if mode == "none" or places.current() is not None:
        return NO_ROOFS  # those stored are of this machine
    # Imported late: commands that only read stored roofs, such as `kmark show`, save half a second.
    from kernelmark.micro.session import ROOF_SOURCES
    from kernelmark.runners.forecast import Means

    means = Means.of_machine()
    devices: list[DeviceRoofs] = []
    for info in plan.devices:
        for threads in sorted({_threads(info, case.timing.threads) for case in plan.cases}):
            stored: tuple[Roof, ...] = ()
            if store is not None or mode == "stored":
                stored = machine_roofs(store, device=info.name, arch=info.arch, threads=threads)
            due = mode == "fresh" or not _is_recent(stored)
            if store is None and mode == "stored" and info.kind in ("cuda", "hip"):
                # They take ten seconds, which a run that stores nothing would spend every time.
                stored, due = (() if due else stored), False
            due_s = _expected_s(means, info) if due and info.kind in ROOF_SOURCES else 0.0
            device = DeviceRoofs(
                info=info,
                threads=threads,
                stored=stored,
                due=due,
                expected_s=due_s,
                why=", once a week" if store is not None and mode == "stored" else "",
            )
            devices.append(device)
    return RunRoofs(devices=tuple(devices), store=store)


def machine_roofs(
    store: Store | None, *, device: str, arch: str | None = None, threads: int | None = None
) -> tuple[Roof, ...]:
    """Return the newest stored roofs of a device of this machine. Without a store, they are those
    of the default one; () if that does not exist or cannot be read."""
    if store is None and not may_exist():
        return ()
    try:
        with (
            open_store(readonly=True) if store is None else contextlib.nullcontext(store) as source
        ):
            return source.roofs(host=platform.node(), device=device, arch=arch, threads=threads)
    except KernelmarkError:
        if store is not None:
            raise
        return ()


def known_roofs(store: Store | None, devices: Sequence[str]) -> tuple[Roof, ...]:
    """Return the newest stored roofs of this machine's devices, without measuring."""
    if store is None:
        return ()
    host = platform.node()
    return tuple(roof for device in devices for roof in store.roofs(host=host, device=device))


def stored_roofs(store: Store, results: ResultSet) -> tuple[Roof, ...]:
    """Return the stored roofs of the results' host and devices as of the start of their run, so
    that percentages of a stored run do not change when a roof is measured again."""
    environment, at = results.run.environment, results.run.started
    infos = {info.name: info for info in environment.devices}
    keys = {(r.device, r.arch, threads_of(r, infos.get(r.device))) for r in results.results}
    return tuple(
        roof
        for device, arch, threads in sorted(keys)
        for roof in store.roofs(
            host=environment.host, device=device, arch=arch, threads=threads, at=at
        )
    )


def _expected_s(means: Means, info: DeviceInfo) -> float:
    learned = means.get(_seconds_name(info))
    return _ROOFS_S.get(info.kind, _GPU_ROOFS_S) if learned is None else learned


def _seconds_name(info: DeviceInfo) -> str:
    return f"{info.model or info.kind}/roofs"


def memory_roofs(store: Store | None, results: ResultSet) -> list[Roof]:
    """Return the roofs of memory levels from any stored microbenchmark on the results' host and
    devices: on a CPU, `kmark micro cache` measures levels that `kmark roofs` leaves out."""
    if store is None:
        return []
    usual = {(roof.device, roof.name) for roof in stored_roofs(store, results)}
    host = results.run.environment.host
    roofs: list[Roof] = []
    for device, arch in sorted({(result.device, result.arch) for result in results.results}):
        every = store.roofs(host=host, device=device, arch=arch, every=True)
        roofs += [r for r in every if r.kind == "bytes" and (r.device, r.name) not in usual]
    return roofs


def measure_roofs(
    device: DeviceRoofs, store: Store | None, tell: Callable[[str], None]
) -> tuple[Roof, ...]:
    """Measure and store the roofs of a device, and return them; stored ones stand for those that
    fail."""
    from kernelmark.micro.session import ROOF_SOURCES, measure_roof_sources
    from kernelmark.runners.capture import environment
    from kernelmark.runners.forecast import Means

    info, stored = device.info, device.stored
    if info.kind not in ROOF_SOURCES:
        return stored
    count = _threads(info, device.threads)
    means = Means.of_machine()
    how = f" with {counted(count, 'thread')}" if count else ""
    expected = duration_text(_expected_s(means, info))
    tell(f"measuring the roofs of {info.name}{how}{device.why}: about {expected}")
    started, here = time.time(), dataclasses.replace(environment((), ()), devices=(info,))
    try:
        results = measure_roof_sources(info.name, count, tell)
    except KernelmarkError as error:
        tell(error.message)
        return stored
    # Without compile time: next time the kernels are in the cache.
    compile_s = sum(result.cost.get("compile", 0.0) for result in results)
    means.learn(_seconds_name(info), max(0.0, time.time() - started - compile_s))
    means.save()
    key: dict[str, str | int | None] = {"host": here.host, "threads": count}
    measured = newest([(here, result) for result in results], key)
    if store is None or not measured:
        return measured or stored
    run = Run(
        id=new_run_id(),
        started=started,
        environment=here,
        suite=ROOFS_SUITE,
        cases=len(results),
        state=RunState.DONE,
        finished=time.time(),
    )
    store.add_result_set(ResultSet(run=run, results=tuple(results)))
    kept = store.roofs(host=here.host, device=info.name, arch=info.arch, threads=count)
    _tell_unsteady(measured, kept, tell)
    return kept


def _tell_unsteady(
    measured: Sequence[Roof], kept: Sequence[Roof], tell: Callable[[str], None]
) -> None:
    """Report the unsteady new roofs that do not replace older ones."""
    for roof in measured:
        for old in kept:
            same = (old.kind, old.name, old.unit) == (roof.kind, roof.name, roof.unit)
            if same and old.measured < roof.measured:
                age = duration_text(max(0.0, time.time() - old.measured))
                stays = f"the one of {age} ago stays"
                tell(f"the {roof.name} roof is not steady: other work ran; {stays}")


def _is_recent(roofs: tuple[Roof, ...]) -> bool:
    """Return whether the roofs are recent enough; disturbed ones expire after minutes."""
    if not roofs:
        return False
    most_s = RETRY_S if any(not roof.steady for roof in roofs) else MAX_AGE_S
    # Roofs are measured together; one whose re-measurement failed keeps its old time.
    return time.time() - max(roof.measured for roof in roofs) < most_s


def _threads(info: DeviceInfo, threads: int) -> int:
    return (threads or info.units) if info.kind == "cpu" else 0
