"""Run microbenchmarks, store their results, and find stored runs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelmark.api.results import Results
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.core.units import counted
from kernelmark.host.signals import interruptible
from kernelmark.micro import registry, session
from kernelmark.micro.base import Mode
from kernelmark.runners.capture import environment
from kernelmark.runners.forecast import Means
from kernelmark.runners.locks import hold_run_locks
from kernelmark.runners.targets import find, parse_devices
from kernelmark.stores import new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

OnResult = Callable[[Result], None]
_LATEST = re.compile(r"latest(?:~(\d{1,9}))?\Z")


def names_for(device: str) -> list[str]:
    """Return every benchmark that runs on this kind of device."""
    _, info = find(device)
    return [name for name in registry.names() if info.kind in registry.get(name).kinds]


def names_for_fleet(devices: Sequence[str]) -> list[str]:
    """Return the benchmarks that compare devices by default: those of their roofs."""
    kind = parse_devices(devices)[0].kind
    if kind not in session.ROOF_SOURCES:
        raise UsageError(
            f"no microbenchmark runs on the device {kind!r}",
            hint=f"compare devices of these kinds: {', '.join(session.ROOF_SOURCES)}",
        )
    return list(session.ROOF_SOURCES[kind])


class Pace:
    """Expected duration of microbenchmarks, learned from finished ones of the same `way`: device,
    threads and mode."""

    def __init__(
        self, names: Sequence[str], way: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.open = list(names)
        self._names = tuple(names)
        self._means = Means.of_machine()
        self._way = way
        self._clock = clock
        self._begun = clock()

    @property
    def left_s(self) -> float | None:
        """Expected seconds of the benchmarks still to run, with the median of the others for those
        never measured before; None if that is most of them: `incore` takes a fortieth of
        `roofline`, and the first one of all also builds kernels."""
        means = {name: self._means.get(self._name(name)) for name in self._names}
        learned = {name: seconds for name, seconds in means.items() if seconds is not None}
        if not learned or 2 * len(learned) < len(means):
            return None
        usual = statistics.median(learned.values())
        return sum(learned.get(name, usual) for name in self.open)

    def take(self, name: str) -> None:
        """Record that a benchmark has ended now."""
        now = self._clock()
        self._means.learn(self._name(name), now - self._begun)
        self._begun = now
        if name in self.open:
            self.open.remove(name)

    def save(self) -> None:
        self._means.save()

    def _name(self, name: str) -> str:
        return f"micro/{self._way}/{name}"


def measure(
    names: Sequence[str],
    *,
    device: str = "cpu",
    fleet: Sequence[str] = (),
    threads: int = 0,
    mode: Mode = "quick",
    parameters: Mapping[str, Any] | None = None,
    store: Store | None = None,
    argv: Sequence[str] = (),
    tell: session.Tell | None = None,
    on_result: OnResult | None = None,
    on_interrupt: Callable[[Results], None] | None = None,
) -> Results:
    """Run microbenchmarks, and store each result when it ends. Unsupported benchmarks alone make no
    run: they are stored with the first other result. On Ctrl-C, `on_interrupt` gets the results so
    far. `fleet` names devices that all run them at the same time, instead of `device`."""
    results: list[Result] = []
    unstored: list[Result] = []
    if fleet:
        infos = parse_devices(fleet)
        running = session.run_fleet(names, infos, mode=mode, parameters=parameters)
    else:
        infos = [find(device)[1]]
        running = session.run(
            names, device=device, threads=threads, mode=mode, parameters=parameters, tell=tell
        )
    run = Run(
        id=new_run_id(),
        started=time.time(),
        environment=environment(infos, ()),
        suite=MICRO_SUITE,
        argv=tuple(argv),
        cases=len(names) * len(infos),
    )

    def add(result: Result) -> None:
        """Store a result, and with the first that makes a run also those before it."""
        is_new = not is_run(results)
        results.append(result)
        unstored.append(result)
        if store is not None and is_run(results):
            if is_new:
                store.add_run(run)
            store.add_results(run.id, unstored)
            unstored.clear()

    def end(state: RunState) -> Results:
        ended = dataclasses.replace(run, state=state, finished=time.time())
        if store is not None and is_run(results):
            store.update_run(ended)
        return Results(ResultSet(run=ended, results=tuple(results)))

    try:
        # Close the worker here: after an error it must not wait for garbage collection.
        with (
            hold_run_locks([run.id] if store is not None else []),
            interruptible() as guard,
            contextlib.closing(running),
        ):
            for result in running:
                with guard.finishing():  # Ctrl-C must not come between run and result
                    add(result)
                if on_result is not None:
                    on_result(result)
    except KeyboardInterrupt:
        stored = store is not None and is_run(results)
        kept = f"; stored as {run.id}" if stored else "; nothing is stored"
        so_far = end(RunState.INTERRUPTED)
        if on_interrupt is not None and results:
            on_interrupt(so_far)
        count = counted(len(results), "result")
        raise KeyboardInterrupt(f"interrupted after {count}{kept}") from None
    return end(RunState.DONE)


def is_run(results: Sequence[Result]) -> bool:
    """Return whether there is something to store: a result that is not `unsupported`."""
    return any(result.status is not Status.UNSUPPORTED for result in results)


def find_run(ref: str, store: Store) -> str:
    """Return the id of a run of microbenchmarks. `latest`, `latest~1`, … count only such runs, and
    not those of roofs; other refs are resolved as for any run."""
    match = _LATEST.match(ref)
    if match is None:
        return store.run(ref).id
    back = int(match[1] or 0)
    runs = store.runs(limit=back + 1, suites=(MICRO_SUITE,))
    if back < len(runs):
        return runs[back].id
    roofs = len(store.runs(suites=(ROOFS_SUITE,)))
    if not runs:
        raise NothingToDo(
            "no run of kmark micro is stored" + (", only of kmark roofs" if roofs else ""),
            hint="measure it: kmark micro cache latency",
        )
    newest = ", ".join(run.id for run in runs[:5])
    raise UsageError(
        f"there are too few runs of kmark micro: {len(runs)}"
        + (", not counting kmark roofs" if roofs else ""),
        hint=f"the newest are: {newest}",
    )
