"""Forecast the seconds of cases: a range from stored observations of like cases, or from the limits
of their timing.

Observations are stored in the cache folder across commands: importing torch takes one second on one
machine and four on another. A case's seconds are stored as a position between the limits of its
timing, so that they also hold for other limits.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.files import write_whole
from kernelmark.core.result import Case, Result
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder
from kernelmark.measure.stop import block_seconds, first_look
from kernelmark.measure.warmup import LEAST_SHARE

# Number of newest observations in a mean: the load of a machine changes within minutes. The
# smallest and the largest are left out: a first import from a cold disk takes ten times as long.
_OBSERVATIONS = 5
# Maximum number of names in the file, most recently used ones: user-defined ops add names too.
_MAX_NAMES = 2000
# Defaults without observations. Starting Python and loading numpy take half a second, torch three.
_START_S, _LOAD_S, _COMPILE_S = 1.0, 1.5, 2.0
# Default for set-up and check of a block: memory is allocated, filled, checked and freed.
_BLOCK_S = 0.05
# Default position of a case between the limits of its timing.
_POSITION = 0.5
# FLOPs that CPUs and GPUs do in the time of moving one byte, to within an order of magnitude.
_FLOPS_PER_BYTE = 10


def work(case: Case) -> float | None:
    """Return the size of a case in FLOPs, counting each byte moved as _FLOPS_PER_BYTE if that is
    more; None if unknown. It affects the order and the forecast of cases, never a result."""
    try:
        op = ops.registry.get(case.problem.op)
        flops, nbytes = op.flops(case.problem), op.bytes(case.problem)
    except (KernelmarkError, KeyError):
        return None
    return float(max(flops, _FLOPS_PER_BYTE * nbytes))


class Means:
    """Means of the newest observations by name, saved at `path`; without a path they last for this
    process only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._observed: dict[str, list[float]] = {} if path is None else _load(path)
        self._learned: dict[str, list[float]] = {}

    @classmethod
    def of_machine(cls) -> Means:
        """Return the means that earlier commands on this machine have saved."""
        return cls(cache_root() / "seconds.json")

    def observations(self, *names: str) -> list[float]:
        """Return the observations of the first of `names` that has some."""
        return next((self._observed[name] for name in names if name in self._observed), [])

    def get(self, *names: str) -> float | None:
        """Return the mean of the first of `names` that has observations, without the smallest and
        the largest of three or more."""
        values = sorted(self.observations(*names))
        return statistics.fmean(values[1:-1] if len(values) > 2 else values) if values else None

    def learn(self, name: str, value: float) -> None:
        if math.isfinite(value) and value >= 0:
            before = self._observed.pop(name, [])  # so that recently used names are last
            self._observed[name] = self._learned[name] = [*before, value][-_OBSERVATIONS:]

    def save(self) -> None:
        """Save the means, merged with what other processes saved meanwhile. A file that cannot be
        written is ignored."""
        if self._path is None or not self._learned:
            return
        merged = list({**_load(self._path), **self._learned}.items())
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            write_whole(self._path, json.dumps(dict(merged[-_MAX_NAMES:])).encode())


def _load(path: Path) -> dict[str, list[float]]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    items = document.items() if isinstance(document, dict) else ()
    return {n: v for n, v in items if isinstance(v, list) and v and all(map(_is_valid, v))}


def _is_valid(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


class Forecast:
    """Expected seconds of cases on devices of the same model as `info`. `learn` stores observations
    for later commands."""

    def __init__(self, info: DeviceInfo | None = None, means: Means | None = None) -> None:
        self.means = Means() if means is None else means
        self._model = "" if info is None else (info.model or info.kind)
        self._on_gpu = info is not None and info.kind in ("cuda", "hip")
        self._loaded: set[str] = set()  # backends loaded by a process of this run

    @classmethod
    def of_machine(cls, info: DeviceInfo) -> Forecast:
        """Return a forecast from this machine's saved means, or without them if times are
        scripted."""
        return cls(info, Means() if info.kind == "fake" else Means.of_machine())

    def learn(self, result: Result, seconds: float) -> None:
        """Store the observations of a case that took `seconds` without compiling ahead."""
        case, processes = result.case, result.case.timing.processes
        is_first = case.backend not in self._loaded
        self._loaded.add(case.backend)
        if result.measurement is None:
            return
        if is_first or processes > 1:  # each process also loads the library
            load_s = (seconds - self._launches_s(result)) / processes
            self.means.learn(self._key(case.backend, "load"), max(0.0, load_s))
            seconds = self._launches_s(result)
        least_s, most_s = self._limits_s(case)
        position = max(0.0, (seconds / processes - least_s) / (most_s - least_s))
        specific, *general = self._position_keys(case)
        self.means.learn(specific, position)
        for key in general:  # one launch of a huge problem may exceed the cap
            self.means.learn(key, min(1.0, position))

    def _launches_s(self, result: Result) -> float:
        """Return the seconds of a result without loading and compiling."""
        timing, cost = result.case.timing, result.cost
        around_s = timing.processes * first_look(timing) * _BLOCK_S
        return cost.get("warmup", 0.0) + cost.get("timed", 0.0) + around_s

    def learn_compiled(self, case: Case, seconds: float) -> None:
        """Store the seconds that compiling a case took on one core."""
        self.means.learn(self._key(case.backend, "compile"), seconds)

    def seconds(self, case: Case) -> float:
        """Return the seconds of a case on a worker that has loaded its backend."""
        return self._case_s(case, self._mean(_POSITION, *self._position_keys(case)))

    def range_s(self, cases: Iterable[Case]) -> tuple[float, float]:
        """Return the likely range of the seconds of cases in sequence, with loading their
        backends."""
        cases = list(cases)
        low_s = high_s = self.load_s(case.backend for case in cases)
        chance = [0.0, 0.0]
        for case in cases:
            positions, expected_s = self._positions(case), self.seconds(case)
            if not positions:  # such cases are all short or all long
                low_s += self._case_s(case, 0.0)
                high_s += self._case_s(case, 1.0)
                continue
            low_s += expected_s
            high_s += expected_s
            # Over many cases chance averages out. A few observations do not show all of it.
            few = [*positions, _POSITION] if len(positions) < _OBSERVATIONS else positions
            for side, position in enumerate((min(few), max(few))):
                chance[side] += (self._case_s(case, position) - expected_s) ** 2
        return low_s - math.sqrt(chance[0]), high_s + math.sqrt(chance[1])

    def load_s(self, backends: Iterable[str]) -> float:
        """Return the seconds that a fresh worker takes to start and load these backends."""
        return sum(self._mean(_LOAD_S, self._key(name, "load")) for name in set(backends))

    def start_s(self) -> float:
        """Return the seconds of `kmark run` without its cases."""
        return self._mean(_START_S, "start/run")

    def compile_ahead_s(self, kernels: Mapping[str, int], jobs: int) -> float:
        """Return the seconds that `jobs` cores take to compile this many kernels by backend."""
        each_s = {name: self._mean(_COMPILE_S, self._key(name, "compile")) for name in kernels}
        return sum(count * each_s[name] for name, count in kernels.items()) / max(1, jobs)

    def unloaded(self, backends: Iterable[str]) -> list[str]:
        """Return the backends without a finished case."""
        return [name for name in backends if name not in self._loaded]

    def _case_s(self, case: Case, position: float) -> float:
        least_s, most_s = self._limits_s(case)
        # Each further process loads the backend again.
        reload_s = (case.timing.processes - 1) * self.load_s([case.backend])
        return case.timing.processes * (least_s + position * (most_s - least_s)) + reload_s

    def _limits_s(self, case: Case) -> tuple[float, float]:
        """Return the seconds of a process that is precise at the first chance, and of one that its
        time cap ends."""
        timing = case.timing
        block_s = block_seconds(timing, 0.0, enqueued=self._on_gpu)
        blocks = first_look(timing)
        around_s = blocks * _BLOCK_S
        least_s = LEAST_SHARE * timing.warmup_s + blocks * block_s
        return around_s + least_s, around_s + timing.warmup_s + timing.max_s + 1e-9

    def _position_keys(self, case: Case) -> tuple[str, ...]:
        """Return the names of the position between the limits, the most specific first. It depends
        on the target precision, and hardly on the limits themselves."""
        like = f"{case.timing.target_rel_ci:g}/{case.timing.allocations}/position"
        size = str(round(math.log2(work(case) or 1.0) / 2))  # problems within a factor of 4
        own = self._key(case.backend, case.problem.op, size, like)
        return own, self._key(case.backend, like), self._key(like)

    def _positions(self, case: Case) -> list[float]:
        return self.means.observations(*self._position_keys(case))

    def _mean(self, default: float, *names: str) -> float:
        mean = self.means.get(*names)
        return default if mean is None else mean

    def _key(self, *parts: str) -> str:
        return "/".join((self._model, *parts))


def estimate_run_s(
    cases: Sequence[Case],
    infos: Sequence[DeviceInfo],
    *,
    kernels: Mapping[str, int] | None = None,
    jobs: int = 1,
) -> tuple[float, float]:
    """Return the likely range of the seconds of `kmark run` for `cases`, with compiling this many
    `kernels` by backend ahead."""
    forecast = Forecast.of_machine(infos[0])
    compile_s = forecast.compile_ahead_s(kernels or {}, jobs)
    ends = []
    for cases_s in forecast.range_s(cases):
        timed_s = cases_s / max(1, len(infos))
        # On the CPU a compiler would disturb the timing, so compiling comes first.
        whole_s = timed_s + compile_s if infos[0].kind == "cpu" else max(timed_s, compile_s)
        ends.append(forecast.start_s() + whole_s)
    return ends[0], ends[1]
