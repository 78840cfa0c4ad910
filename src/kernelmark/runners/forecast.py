"""Expected seconds of cases: from their timing, and from what this machine has shown so far.

A case takes the launches that its timing allows, what is around them (inputs, memory, checks) and,
for the first one of a backend in a process, starting and loading. Each part is a mean of what it
took lately, kept in the cache folder from command to command: importing torch takes one second
here and four seconds there, and nothing but experience knows which.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelmark import ops
from kernelmark.core.diskcache import cache_root
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.files import write_whole
from kernelmark.core.private import private_folder
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Cache
from kernelmark.runners.plan import work

# Newest observations that a mean is of: the load of a machine changes within minutes. The smallest
# and the largest are left out, as a first import from a cold disk takes ten times as long.
_NEWEST = 5
# Names that the file keeps, the latest used ones: an op of a user's own is a name.
_MOST_NAMES = 2000
# Before anything is known. Starting Python and loading numpy take half a second, torch three.
_START_S, _LOAD_S, _COMPILE_S = 1.0, 1.5, 2.0
# Around a block: memory is taken and given back, and its sets are filled and checked, by a core of
# the host or by the GPU itself.
_BLOCK_S = 0.05
_FILLED_BYTES_S = {"cpu": 1e9}
_FILLED_BY_GPU = 5e10
# Argument sets exceed the last-level cache by this factor (measure/sets.py).
_CACHES = 3
# A problem tells of those up to so many times its size: the time of a small one is mostly that of
# its launch, and scaled up to a large one it would be hours.
_ALIKE = 10
# A backend that refused so many cases and measured none will refuse the others too.
_REFUSES = 10
_BEST = "best-rate"
# Launches of a case beside the timed ones: the first of all, and those of checks.
_UNTIMED = 3


class Means:
    """Means of the newest observations by name. `path` keeps them; without one they are this
    process's alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._of: dict[str, tuple[float, ...]] = {}
        self._learnt: dict[str, tuple[float, ...]] = {}
        if path is not None:
            self._of = _loaded(path)

    @classmethod
    def of_machine(cls) -> Means:
        """The means that commands on this machine have left."""
        return cls(cache_root() / "seconds.json")

    def best_rates(self) -> Means:
        """Only the best rates of ops: what a model needs whose other parts are learnt as one. They
        hardly change, while those of a backend may be a hundredth on a busy machine."""
        made = Means()
        made._of = {name: of for name, of in self._of.items() if name.endswith(f"/{_BEST}")}
        return made

    def get(self, *names: str) -> float | None:
        """The mean of the first of `names` that is known."""
        return next((_middle(self._of[name]) for name in names if name in self._of), None)

    def learn(self, name: str, value: float) -> None:
        if math.isfinite(value) and value >= 0:
            before = self._of.pop(name, ())  # the latest ones are last
            self._of[name] = self._learnt[name] = (*before, value)[-_NEWEST:]

    def save(self) -> None:
        """Keep what was learnt, beside what other processes did meanwhile. What cannot be written
        is not missed."""
        if self._path is None or not self._learnt:
            return
        whole = {**_loaded(self._path), **self._learnt}
        kept = dict(list(whole.items())[-_MOST_NAMES:])
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            write_whole(self._path, json.dumps(kept).encode())


def _middle(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest of three or more values."""
    return statistics.fmean(sorted(values)[1:-1] if len(values) > 2 else values)


def _loaded(path: Path) -> dict[str, tuple[float, ...]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    # One number a name is what earlier versions kept.
    given = {name: of if isinstance(of, list) else [of] for name, of in found.items()}
    return {name: tuple(map(float, of)) for name, of in given.items() if of and all(map(_good, of))}


def _good(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


class Forecast:
    """Expected seconds of cases on devices like `info`. What is learnt counts at once."""

    def __init__(self, info: DeviceInfo | None = None, means: Means | None = None) -> None:
        self.means = Means() if means is None else means
        self._info = info
        self._place = "" if info is None else (info.model or info.kind)
        self._loaded: set[str] = set()  # backends that a process of this run has loaded
        self._refused: dict[str, int] = {}
        self._ran: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self._work = functools.cache(work)

    @classmethod
    def of_machine(cls, info: DeviceInfo) -> Forecast:
        """What this machine's commands have shown; nothing of it for scripted times."""
        return cls(info, Means() if info.kind == "fake" else Means.of_machine())

    # Learning

    def learn(self, result: Result, seconds: float) -> None:
        """Take in how long a finished case really took, without compiling ahead."""
        case, name = result.case, result.case.backend
        if result.measurement is None:
            self._refused[name] = self._refused.get(name, 0) + (name in self._loaded)
            self._loaded.add(name)
            return
        self._ran[name] = self._ran.get(name, 0) + 1
        cost, processes = result.cost, case.timing.processes
        launches = cost.get("warmup", 0.0) + cost.get("timed", 0.0)
        launches = launches or min(seconds, budget_s(case))
        blocks = max(case.timing.allocations, len(result.measurement.blocks) / processes)
        for key in self._block_keys(case):
            self.means.learn(key, blocks / case.timing.max_allocations)
        if name in self._loaded and processes == 1:
            factor = max(0.0, seconds - launches) / (blocks * self._block_s(case))
            for key in self._around_keys(case):
                self.means.learn(key, factor)
        else:
            # The first one also starts a worker and loads a library, as no other does.
            load_s = (seconds - launches) / processes - self._expected_around_s(case)
            self.means.learn(self._key(name, "load"), max(0.0, load_s))
        self._loaded.add(name)
        for key in self._budget_keys(case):
            self.means.learn(key, launches / budget_s(case))
        if size := self._work(case):
            # The fastest rate: large problems run closer to it than small ones.
            rate = size / result.measurement.median_s
            for key in self._rate_keys(case):
                self.means.learn(key, max(rate, self.means.get(key) or 0.0))
                self._largest[key] = max(size, self._largest.get(key, 0.0))

    def learn_compiled(self, case: Case, status: Status, seconds: float) -> None:
        """Take in what compiling a case took on one core."""
        if status is Status.OK:
            self.means.learn(self._key(case.backend, "compile"), seconds)

    # Expecting

    def seconds(self, case: Case) -> float:
        """Seconds of a case on a worker that has loaded its backend."""
        refused, ran = self._refused.get(case.backend, 0), self._ran.get(case.backend, 0)
        if refused >= _REFUSES or ran:
            # Some problems of a backend may be refused at once.
            return self._full_s(case) * ran / max(1, refused + ran)
        return self._full_s(case)

    def load_s(self, backends: Iterable[str]) -> float:
        """Seconds that a fresh worker takes for the first cases of backends beyond the others'."""
        known = [self.means.get(self._key(name, "load")) for name in sorted(set(backends))]
        return sum(_LOAD_S if one is None else one for one in known)

    def start_s(self, *commands: str) -> float:
        """Seconds of a command that are not of its cases; the first name that is known counts."""
        known = self.means.get(*(f"start/{command}" for command in commands))
        return _START_S if known is None else known

    def compile_s(self, case: Case) -> float:
        """Seconds that a core takes to compile a case."""
        known = self.means.get(self._key(case.backend, "compile"))
        return _COMPILE_S if known is None else known

    def unloaded(self, backends: Iterable[str]) -> list[str]:
        """Those of which no case has ended yet."""
        return [name for name in backends if name not in self._loaded]

    def total_s(self, cases: Iterable[Case]) -> float:
        """Seconds of cases one after the other, with loading the backends not loaded yet."""
        given = list(cases)
        loads = self.load_s(self.unloaded(case.backend for case in given))
        return loads + sum(self.seconds(case) for case in given)

    def _full_s(self, case: Case) -> float:
        timing = case.timing
        share = self.means.get(*self._budget_keys(case))
        launches = budget_s(case) * (1.0 if share is None else share)
        size, keys = self._work(case), self._rate_keys(case)
        if size and (rate := self.means.get(*keys)):
            largest = self._largest.get(keys[0])
            if largest is None or size <= _ALIKE * largest:
                one = size / rate
                # A block has its samples, or as many as its part of the seconds allows.
                room = timing.max_s / timing.allocations
                block = max(one, min(timing.min_samples * one, room))
                least = timing.allocations * block + _UNTIMED * one
                launches = max(launches, timing.processes * least)
        again = (timing.processes - 1) * self.load_s([case.backend])  # each process loads it anew
        return launches + timing.processes * self._expected_around_s(case) + again

    def _expected_around_s(self, case: Case) -> float:
        """Seconds around the launches of one process: those of a block, as often as there are."""
        factor = self.means.get(*self._around_keys(case))
        one_s = self._block_s(case) * (1.0 if factor is None else factor)
        share, timing = self.means.get(*self._block_keys(case)), case.timing
        if share is None:
            return one_s * timing.allocations
        return one_s * max(timing.allocations, share * timing.max_allocations)

    def _block_keys(self, case: Case) -> tuple[str, ...]:
        """Names of the share of its blocks that a timing uses, the closest first: blocks are added
        while times are noisy."""
        seconds = f"{case.timing.warmup_s + case.timing.max_s:g}"
        return self._key(case.backend, seconds, "blocks"), self._key("blocks")

    def _around_keys(self, case: Case) -> tuple[str, ...]:
        """Names of what is around launches, the closest first."""
        return (
            self._key(case.backend, case.problem.op, "around"),
            self._key(case.backend, "around"),
            self._key("around"),
        )

    def _block_s(self, case: Case) -> float:
        """Seconds around the launches of a block, before anything is known."""
        info, timing = self._info, case.timing
        cache = info.cache_bytes if info is not None and timing.cache is not Cache.HOT else 0
        kind = "cpu" if info is None else info.kind
        filled = max(_bytes(case), _CACHES * cache)
        return _BLOCK_S + filled / _FILLED_BYTES_S.get(kind, _FILLED_BY_GPU)

    def _budget_keys(self, case: Case) -> tuple[str, ...]:
        """Names of the share of its seconds that a timing uses, the closest first."""
        seconds = f"{case.timing.warmup_s + case.timing.max_s:g}"
        return self._key(case.backend, seconds, "launches"), self._key(case.backend, "launches")

    def _rate_keys(self, case: Case) -> tuple[str, str]:
        """Names of the rate of a backend, and of the best of all."""
        problem = case.problem
        dtypes = ",".join(dict.fromkeys(problem.dtypes.values()))
        like = problem.op, dtypes, str(case.timing.threads)
        return self._key(case.backend, *like, "rate"), self._key(*like, _BEST)

    def _key(self, *words: str) -> str:
        return "/".join((self._place, *words))


def budget_s(case: Case) -> float:
    """Seconds that a case's timing allows for warm-up and timed launches."""
    timing = case.timing
    return timing.processes * (timing.warmup_s + timing.max_s)


def compile_ahead_s(forecast: Forecast, kernels: Iterable[Case], jobs: int) -> float:
    """Seconds that `jobs` cores take to compile these."""
    return sum(forecast.compile_s(case) for case in kernels) / max(1, jobs)


def estimate_run_s(
    cases: Sequence[Case],
    infos: Sequence[DeviceInfo],
    *,
    kernels: Sequence[Case] = (),
    jobs: int = 1,
    command: str = "run",
) -> float:
    """Seconds of a command that measures `cases`, from its start; `kernels` are compiled ahead."""
    forecast = Forecast.of_machine(infos[0])
    timed = forecast.total_s(cases) / max(1, len(infos))
    compiled = compile_ahead_s(forecast, kernels, jobs)
    # On the CPU a compiler would disturb the timing, so that it goes first.
    both = timed + compiled if infos[0].kind == "cpu" else max(timed, compiled)
    return forecast.start_s(command) + both


def _bytes(case: Case) -> int:
    try:
        return ops.registry.get(case.problem.op).bytes(case.problem)
    except (KernelmarkError, KeyError):
        return 0
