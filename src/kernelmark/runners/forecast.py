"""Forecast the seconds of cases, from their timing and from earlier observations on this machine.

The time of a case consists of its launches, the set-up and checks around them and, for the first
case of a backend in a process, starting and loading. Each part is forecast by the mean of its
latest observations, stored in the cache folder across commands: importing torch takes one second on
one machine and four on another.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelmark import backends, ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.files import write_whole
from kernelmark.core.result import Case, Result, Status, StopReason
from kernelmark.core.timing import Cache
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder
from kernelmark.measure.blocks import block_seconds
from kernelmark.measure.warmup import LEAST_SHARE
from kernelmark.runners.plan import work

# Number of newest observations in a mean: the load of a machine changes within minutes. The
# smallest and the largest are left out: a first import from a cold disk takes ten times as long.
_OBSERVATIONS = 5
# Maximum number of names in the file, most recently used ones: user-defined ops add names too.
_MAX_NAMES = 2000
# Defaults without observations. Starting Python and loading numpy take half a second, torch three.
_START_S, _LOAD_S, _COMPILE_S = 1.0, 1.5, 2.0
# Default for set-up and check of a block: memory is allocated and freed, and the argument sets are
# filled and checked at this rate, by one host core or by the GPU.
_BLOCK_S = 0.05
_CPU_FILL_BYTES_S = 1e9
_GPU_FILL_BYTES_S = 5e10
# Argument sets exceed the last-level cache by this factor (measure/sets.py).
_CACHE_FACTOR = 3
# A rate is extrapolated to problems up to this many times the largest observed: a small problem's
# time is mostly launch latency, which would scale to hours for a large problem.
_MAX_EXTRAPOLATION = 10
# A backend that refused this many cases and measured none is assumed to refuse the rest too.
_MAX_REFUSED = 10
_BEST = "best-rate"
_LARGEST = "largest"  # the work of the largest problem that a rate was learnt from
# A case that used more than this fraction of its budget was probably ended by the time cap.
_CAPPED = 0.9
_FEW = 3  # fewer observations of an event leave its probability uncertain
_NORMAL_90 = 1.28  # standard deviations above the mean that one of ten values exceeds
# Untimed launches of a case: the first one, and those of checks.
_UNTIMED = 3


class Means:
    """Means of the newest observations by name, saved at `path`; without a path they last for this
    process only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._observed: dict[str, tuple[float, ...]] = {}
        self._learnt: dict[str, tuple[float, ...]] = {}
        if path is not None:
            self._observed = _load(path)

    @classmethod
    def of_machine(cls) -> Means:
        """Return the means that earlier commands on this machine have saved."""
        return cls(cache_root() / "seconds.json")

    def best_rates(self) -> Means:
        """Return only the best rates of ops. They hardly change, while a backend's rates may drop
        to a hundredth on a busy machine."""
        rates = Means()
        ends = f"/{_BEST}", f"/{_BEST}/{_LARGEST}"
        rates._observed = {n: v for n, v in self._observed.items() if n.endswith(ends)}
        return rates

    def get(self, *names: str) -> float | None:
        """Return the mean of the first of `names` that has observations."""
        known = (self._observed[name] for name in names if name in self._observed)
        return next((_trimmed_mean(values) for values in known), None)

    def largest(self, name: str) -> float | None:
        """Return the largest observation; None if there are none."""
        return max(self._observed.get(name, ()), default=None)

    def observations(self, *names: str) -> tuple[float, ...]:
        """Return the observations of the first of `names` that has some."""
        return next((self._observed[name] for name in names if name in self._observed), ())

    def learn(self, name: str, value: float) -> None:
        if math.isfinite(value) and value >= 0:
            before = self._observed.pop(name, ())  # so that recently used names are last
            self._observed[name] = self._learnt[name] = (*before, value)[-_OBSERVATIONS:]

    def save(self) -> None:
        """Save the means, merged with what other processes saved meanwhile. A file that cannot be
        written is ignored."""
        if self._path is None or not self._learnt:
            return
        merged = {**_load(self._path), **self._learnt}
        kept = dict(list(merged.items())[-_MAX_NAMES:])
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            write_whole(self._path, json.dumps(kept).encode())


def _trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the smallest and the largest of three or more values."""
    return statistics.fmean(sorted(values)[1:-1] if len(values) > 2 else values)


def _load(path: Path) -> dict[str, tuple[float, ...]]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    # Earlier versions saved one number per name.
    lists = {n: v if isinstance(v, list) else [v] for n, v in document.items()}
    return {n: tuple(map(float, v)) for n, v in lists.items() if v and all(map(_is_valid, v))}


def _is_valid(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


class Forecast:
    """Expected seconds of cases on devices of the same model as `info`; `learn` updates them."""

    def __init__(self, info: DeviceInfo | None = None, means: Means | None = None) -> None:
        self.means = Means() if means is None else means
        self._info = info
        self._model = "" if info is None else (info.model or info.kind)
        self._loaded: set[str] = set()  # backends loaded by a process of this run
        self._refused: dict[str, int] = {}
        self._ran: dict[str, int] = {}
        self._work = functools.cache(work)

    @classmethod
    def of_machine(cls, info: DeviceInfo) -> Forecast:
        """Return a forecast from this machine's saved means, or without them if times are
        scripted."""
        return cls(info, Means() if info.kind == "fake" else Means.of_machine())

    # Learning

    def learn(self, result: Result, seconds: float) -> None:
        """Update the means from a finished case that took `seconds` without compiling ahead."""
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
            self._learn_around(case, max(0.0, seconds - launches) / blocks)
        else:
            # The first case of a backend also starts a worker, loads the library and compiles. What
            # is around its launches is used only until there is another case.
            if processes == 1 and "total" in cost and not self.means.get(*self._around_keys(case)):
                parts = (launches, cost.get("inputs", 0.0), cost.get("compile", 0.0))
                self._learn_around(case, max(0.0, cost["total"] - sum(parts)) / blocks)
            load_s = (seconds - launches) / processes - self._expected_around_s(case)
            self.means.learn(self._key(name, "load"), max(0.0, load_s))
        self._loaded.add(name)
        stop = result.measurement.stop
        ended_late = stop in (StopReason.TIME, StopReason.BLOCKS)
        at_cap = ended_late or launches >= _CAPPED * budget_s(case)
        for key in self._settled_keys(case, "at cap"):
            self.means.learn(key, float(at_cap))
        if cost.get("timed") and not at_cap:
            settled = {
                "warm-up": cost.get("warmup", 0.0) / processes,
                "blocks": blocks,
                "block": cost["timed"] / processes / blocks / self._block_s(case),
            }
            for what, value in settled.items():
                for key in self._settled_keys(case, what):
                    self.means.learn(key, value)
        if size := self._work(case):
            # The fastest rate so far, which large problems approach more closely than small ones.
            rate = size / result.measurement.median_s
            for key in self._rate_keys(case):
                self.means.learn(key, max(rate, self.means.get(key) or 0.0))
                largest = f"{key}/{_LARGEST}"
                self.means.learn(largest, max(size, self.means.largest(largest) or 0.0))

    def _learn_around(self, case: Case, block_s: float) -> None:
        for key in self._around_keys(case):
            self.means.learn(key, block_s / self._block_s(case))

    def learn_compiled(self, case: Case, status: Status, seconds: float) -> None:
        """Update the means from compiling a case, which took `seconds` on one core."""
        if status is Status.OK:
            self.means.learn(self._key(case.backend, "compile"), seconds)

    # Forecasting

    def seconds(self, case: Case) -> float:
        """Return the seconds of a case on a worker that has loaded its backend."""
        refused, ran = self._refused.get(case.backend, 0), self._ran.get(case.backend, 0)
        if refused >= _MAX_REFUSED or ran:
            # A refused case takes no time.
            return self._full_s(case) * ran / max(1, refused + ran)
        return self._full_s(case)

    def load_s(self, names: Iterable[str]) -> float:
        """Return the seconds that a fresh worker takes to start and load these backends."""
        known = [self.means.get(*self._load_keys(name)) for name in sorted(set(names))]
        return sum(_LOAD_S if load_s is None else load_s for load_s in known)

    def start_s(self, *commands: str) -> float:
        """Return the seconds of a command without its cases, by the first of `commands` with
        observations."""
        known = self.means.get(*(f"start/{command}" for command in commands))
        return _START_S if known is None else known

    def compile_s(self, case: Case) -> float:
        """Return the seconds that a core takes to compile a case."""
        known = self.means.get(self._key(case.backend, "compile"))
        return _COMPILE_S if known is None else known

    def unloaded(self, names: Iterable[str]) -> list[str]:
        """Return the backends without a finished case."""
        return [name for name in names if name not in self._loaded]

    def total_s(self, cases: Iterable[Case]) -> float:
        """Return the seconds of cases in sequence, including loading of backends that are not
        loaded yet."""
        cases = list(cases)
        load_s = self.load_s(self.unloaded(case.backend for case in cases))
        return load_s + sum(self.seconds(case) for case in cases)

    def range_s(self, cases: Iterable[Case]) -> tuple[float, float]:
        """Return the range expected to include four of five runs of these cases. It is chance
        whether a case ends after a few blocks or at its time cap; over many cases this averages
        out."""
        cases = list(cases)
        total_s = self.total_s(cases)
        capped = [_uncertain(self._at_cap(case)) for case in cases]
        wider_s = [max(0.0, budget_s(case) - self._precise_s(case)) for case in cases]
        parts = zip(capped, wider_s, strict=True)
        likely_s = _NORMAL_90 * math.hypot(*(s * math.sqrt(p * (1 - p)) for p, s in parts))
        # No case ends earlier than one that is precise at its first chance.
        shorter_s = sum(self._launches_s(case) - self._precise_s(case) for case in cases)
        return total_s - min(likely_s, shorter_s), total_s + likely_s

    def _at_cap(self, case: Case) -> tuple[float, ...]:
        """Return whether similar cases ended at their time cap, 1 or 0 each."""
        return self.means.observations(*self._settled_keys(case, "at cap"))

    def _full_s(self, case: Case) -> float:
        timing = case.timing
        launches_s = self._launches_s(case)
        size = self._work(case)
        known = (key for key in self._rate_keys(case) if self.means.get(key))
        if size and (key := next(known, "")) and (rate := self.means.get(key)):
            # Earlier versions saved rates without it.
            largest = self.means.largest(f"{key}/{_LARGEST}")
            if largest is None or size <= _MAX_EXTRAPOLATION * largest:
                launch_s = size / rate
                # A block has min_samples launches, or as many as fit into its part of max_s.
                part_s = timing.max_s / timing.allocations
                block_s = max(launch_s, min(timing.min_samples * launch_s, part_s))
                least_s = timing.allocations * block_s + _UNTIMED * launch_s
                launches_s = max(launches_s, timing.processes * least_s)
        # Each further process loads the backend again.
        reload_s = (timing.processes - 1) * self.load_s([case.backend])
        return launches_s + timing.processes * self._expected_around_s(case) + reload_s

    def _launches_s(self, case: Case) -> float:
        """Return the expected seconds of warm-up and timed launches in all processes."""
        at_cap = self._at_cap(case)
        if not at_cap:
            return budget_s(case)
        precise_s = self._precise_s(case)
        few = len(at_cap) < _FEW
        capped = _uncertain(at_cap) if few else statistics.fmean(at_cap)
        return precise_s + capped * (budget_s(case) - precise_s)

    def _precise_s(self, case: Case) -> float:
        """Return the seconds of launches of a case that reaches its target precision. A larger time
        cap adds no blocks, but raises the minimum length of each."""
        timing, info = case.timing, self._info
        parts = ("warm-up", "blocks", "block")
        known = [self.means.get(*self._settled_keys(case, what)) for what in parts]
        warmup_s = LEAST_SHARE * timing.warmup_s if known[0] is None else known[0]
        blocks = timing.allocations if known[1] is None else known[1]
        on_gpu = info is not None and info.kind in ("cuda", "hip")
        least_s = block_seconds(timing, 0.0, enqueued=on_gpu)
        block_s = max(least_s, (known[2] or 0.0) * self._block_s(case))
        process_s = warmup_s + blocks * min(block_s, timing.max_s / timing.allocations)
        return min(budget_s(case), timing.processes * process_s)

    def _settled_keys(self, case: Case, what: str) -> tuple[str, ...]:
        """Return the names of one quantity needed to reach the target precision, the most specific
        first: seconds of warm-up, number of blocks, seconds per block, or whether it was missed."""
        timing = case.timing
        like = _precision(timing.target_rel_ci, timing.allocations, timing.warmup_s)
        name = f"settled {what}"
        return self._key(case.backend, like, name), self._key(like, name)

    def _load_keys(self, name: str) -> tuple[str, ...]:
        """Return the names of the seconds that a worker takes to start and load a backend. A kernel
        file for a CPU imports at least numpy."""
        own = self._key(name, "load")
        on_cpu = self._info is None or self._info.kind == "cpu"
        is_own = on_cpu and backends.is_file(name)
        return (own, self._key("numpy", "load")) if is_own else (own,)

    def _expected_around_s(self, case: Case) -> float:
        """Return the seconds of set-up and checks of all blocks of one process."""
        factor = self.means.get(*self._around_keys(case))
        block_s = self._block_s(case) * (1.0 if factor is None else factor)
        fraction, timing = self.means.get(*self._block_keys(case)), case.timing
        if fraction is None:
            return block_s * timing.allocations
        return block_s * max(timing.allocations, fraction * timing.max_allocations)

    def _block_keys(self, case: Case) -> tuple[str, ...]:
        """Return the names of the used fraction of max_allocations, the most specific first. Blocks
        are added while times are noisy."""
        seconds = f"{case.timing.warmup_s + case.timing.max_s:g}"
        return self._key(case.backend, seconds, "blocks"), self._key("blocks")

    def _around_keys(self, case: Case) -> tuple[str, ...]:
        """Return the names of the factor on `_block_s`, the most specific first."""
        return (
            self._key(case.backend, case.problem.op, "around"),
            self._key(case.backend, "around"),
            self._key("around"),
        )

    def _block_s(self, case: Case) -> float:
        """Return the default seconds of a block's set-up and check."""
        info, timing = self._info, case.timing
        cache = info.cache_bytes if info is not None and timing.cache is not Cache.HOT else 0
        on_cpu = info is None or info.kind == "cpu"
        filled = max(_bytes(case), _CACHE_FACTOR * cache)
        return _BLOCK_S + filled / (_CPU_FILL_BYTES_S if on_cpu else _GPU_FILL_BYTES_S)

    def _rate_keys(self, case: Case) -> tuple[str, str]:
        """Return the names of the backend's rate and of the best rate of all backends."""
        problem = case.problem
        dtypes = ",".join(dict.fromkeys(problem.dtypes.values()))
        like = problem.op, dtypes, str(case.timing.threads)
        return self._key(case.backend, *like, "rate"), self._key(*like, _BEST)

    def _key(self, *words: str) -> str:
        return "/".join((self._model, *words))


@functools.cache  # a queue of thousands of cases has one or two
def _precision(target: float, allocations: int, warmup_s: float) -> str:
    return f"{target:g}/{allocations}/{warmup_s:g}"


def _uncertain(events: Sequence[float]) -> float:
    """Return the probability of an event from observations of 1 or 0: a third without any, and
    never 0 or 1."""
    return (sum(events) + 0.5) / (len(events) + 1.5)


def budget_s(case: Case) -> float:
    """Return the seconds that a case's timing allows for warm-up and timed launches."""
    timing = case.timing
    return timing.processes * (timing.warmup_s + timing.max_s)


def compile_ahead_s(forecast: Forecast, kernels: Iterable[Case], jobs: int) -> float:
    """Return the seconds that `jobs` cores take to compile `kernels`."""
    return sum(forecast.compile_s(case) for case in kernels) / max(1, jobs)


def estimate_run_s(
    cases: Sequence[Case],
    infos: Sequence[DeviceInfo],
    *,
    kernels: Sequence[Case] = (),
    jobs: int = 1,
    command: str = "run",
) -> tuple[float, float]:
    """Return the likely range of the seconds of a command that measures `cases` and compiles
    `kernels` ahead."""
    forecast = Forecast.of_machine(infos[0])
    compile_s = compile_ahead_s(forecast, kernels, jobs)

    def whole_s(cases_s: float) -> float:
        timed_s = cases_s / max(1, len(infos))
        # On the CPU a compiler would disturb the timing, so compiling comes first.
        both_s = timed_s + compile_s if infos[0].kind == "cpu" else max(timed_s, compile_s)
        return forecast.start_s(command) + both_s

    low_s, high_s = forecast.range_s(cases)
    return whole_s(low_s), whole_s(high_s)


def _bytes(case: Case) -> int:
    try:
        return ops.registry.get(case.problem.op).bytes(case.problem)
    except (KernelmarkError, KeyError):
        return 0
