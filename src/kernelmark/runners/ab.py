"""Measure two sides, each with its interpreter and variables, alternately until their difference is
known.

A round starts a fresh worker for each side and measures every open pair on both, one side directly
after the other, pairs in a new random order. Rounds come in twos: the side that goes first is drawn
for every pair in the first round and reversed in the second (ABBA), so that a drift of the device
affects both sides equally. At preset interim looks, a pair whose verdict is certain enough is
closed. The looks share one false-alarm probability (`stats.paired.Looks`), and changes are
discoveries among all pairs, at a controlled false discovery rate (`suite_verdicts`).

A side that fails closes its pair. A failure that a busy machine can cause as well as the kernel,
such as a timeout, is repeated with both sides by turns: it counts if the other side never has one.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted, duration_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.runners.capture import git_state, kernelmark_version
from kernelmark.runners.events import Waiting
from kernelmark.runners.execute import join
from kernelmark.runners.jobs import CompileCase, Failure, MeasureCase, ReadEnvironment
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import NOT_STARTED, Limits, OnWait, Pool
from kernelmark.stats.paired import DELTA, Looks, Paired, suite_verdicts

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Variables that list folders from which libraries or packages are loaded.
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
USUAL_NAMES = ("base", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two environments; `variables` are set on top of this process's. `folder` is the
    workers' working directory, where kernel files are searched."""

    name: str
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=FrozenDict)
    folder: str = ""

    def pool(self, device: str, timeout_s: float = Limits().timeout_s, jobs: int = 0) -> Pool:
        """Return a pool whose workers run in this environment."""
        runner = LocalRunner(
            [device],
            timeout_s=timeout_s,
            python=self.python,
            variables=self.variables,
            folder=self.folder,
        )
        return runner.pool(jobs)


def parse_sides(environments: Sequence[str], settings: Sequence[str]) -> tuple[Side, Side]:
    """Parse base and head from `NAME[=PYTHON]` and `NAME:VARIABLE=VALUE`.

    The default is `base` and `head` under this interpreter."""
    texts = list(environments) or list(USUAL_NAMES)
    if len(texts) != 2:
        raise UsageError(
            f"two environments are compared, not {len(texts)}",
            hint="write: --env golden=/path/to/python --env tot=/path/to/python",
        )
    sides = [parse_side(text) for text in texts]
    if sides[0].name == sides[1].name:
        raise UsageError(f"both environments are called {sides[0].name!r}")
    for word in settings:
        name, colon, setting = word.partition(":")
        variable, equals, value = setting.partition("=")
        side_names = [side.name for side in sides]
        if not colon or not equals or not VARIABLE.match(variable):
            raise UsageError(
                f"{word!r} is not NAME:VARIABLE=VALUE",
                hint=f"for example: --set {side_names[0]}:LD_LIBRARY_PATH=/new/lib",
            )
        if name not in side_names:
            raise UsageError(
                f"there is no environment {name!r} to set {variable} in",
                hint=f"there are: {', '.join(side_names)}",
            )
        index = side_names.index(name)
        variables = {**sides[index].variables, variable: value}
        sides[index] = dataclasses.replace(sides[index], variables=FrozenDict(variables))
    return sides[0], sides[1]


def parse_side(word: str) -> Side:
    """Parse `NAME` or `NAME=PYTHON`; PYTHON may be the folder of a virtual environment."""
    name, equals, python = word.partition("=")
    if not _NAME.match(name) or (equals and not python):
        raise UsageError(
            f"{word!r} is not an environment", hint="write: --env golden=/path/to/python"
        )
    if not equals:
        return Side(name=name)
    path = user_path(python)
    if path.is_dir():  # a virtual environment's folder
        path = path / "bin" / "python"
    # Not resolved: an interpreter finds its virtual environment through the link that started it.
    executable = shutil.which(str(path))
    if executable is None:
        raise UsageError(f"{name}: there is no interpreter {python}", hint="give its full path")
    return Side(name=name, python=str(Path(executable).absolute()))


def environment_of(
    side: Side, device: str, backends: Iterable[str], timeout_s: float = 120.0
) -> Environment:
    """Start a worker of this side and return its environment, with the side's variables and
    checkouts. Raise UsageError if no worker starts."""
    job = ReadEnvironment(backends=list(backends))
    with side.pool(device, timeout_s) as pool:
        environment = pool.call(job)
        if isinstance(environment, Failure):
            # Try again: the first worker may have been killed from outside.
            environment = pool.call(job)
    if isinstance(environment, Failure):
        raise UsageError(
            f"{side.name}: no worker runs under {side.python}: {shorten(environment.error)}",
            hint="the interpreter needs Python 3.11 or newer and numpy",
        )
    environment = pool.devices[0].without_own_variables(environment)
    return dataclasses.replace(
        environment,
        kernelmark_version=kernelmark_version(),  # workers run this kernelmark
        variables=FrozenDict({**environment.variables, **side.variables}),
        libraries=FrozenDict(
            {**environment.libraries, "interpreter": side.python, **checkouts(side.variables)}
        ),
    )


def checkouts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the commits of the git checkouts among the folders in path variables."""
    commits: dict[str, str] = {}
    for name in _PATHS:
        for entry in filter(None, variables.get(name, "").split(os.pathsep)):
            folder = Path(entry) if Path(entry).is_dir() else Path(entry).parent
            commit, dirty = git_state(folder)
            if commit:
                commits[f"checkout in {name}"] = commit[:12] + (" with changes" if dirty else "")
    return commits


# A round is one of many, so it is short: two blocks. A precision that no interval can miss (100 %)
# lets the stop rule end it there.
ROUND = Timing(
    allocations=2, max_allocations=2, min_samples=5, max_s=0.1, warmup_s=0.05, target_rel_ci=1.0
)
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.BROKEN)
# Failures of a side, while the other has none, after which they are its own. Each order of the
# sides occurs, so the other answered before and after one of them.
ATTEMPTS = 3
_OF_MACHINES = (Status.TIMEOUT, Status.OUT_OF_MEMORY)


def may_be_machine(result: Result) -> bool:
    """Whether the machine may have caused a failure as well as the kernel: lack of time or memory,
    a worker that was killed from outside or did not start."""
    codes = ("worker-killed", NOT_STARTED)
    return result.status in _OF_MACHINES or result.error.root.code in codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same problem on both sides; backend and config may differ."""

    base: Case
    head: Case

    def __post_init__(self) -> None:
        if self.base.problem != self.head.problem:
            raise UsageError("both sides of a pair compute the same problem")

    @property
    def cases(self) -> tuple[Case, Case]:
        return self.base, self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The certainty that a verdict needs. `seed` determines every random order."""

    looks: Looks = field(default_factory=Looks)
    delta: float = DELTA
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise UsageError(f"an effect of {self.delta} cannot be the least that counts")
        odd = [rounds for rounds in self.looks.rounds if rounds % 2]
        if odd:
            raise UsageError(
                f"a look after {odd[0]} rounds would see one order more often than the other",
                hint="rounds come in twos: use even numbers",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A closed pair. `base_s` and `head_s` are seconds per launch, one per round."""

    pair: Pair
    status: VerdictStatus
    reason: Reason
    base_s: tuple[float, ...]
    head_s: tuple[float, ...]
    base: Result
    head: Result
    paired: Paired | None = None

    @property
    def same_binary(self) -> bool:
        """Return whether both sides ran the same binary, so that any alarm is false."""
        return bool(self.base.kernel.binary_hash) and (
            self.base.kernel.binary_hash == self.head.kernel.binary_hash
        )

    @property
    def alarms(self) -> bool:
        return self.status in ALARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An event: a pair was measured on both sides, `done` of `total` in this round."""

    round: int
    done: int
    total: int
    pair: Pair
    ratio: float | None


Event = Measured | Row | Waiting
OnEvent = Callable[[Event], None]


class SideWorker(Protocol):
    """Measures one side's cases in a round. Both sides' workers start in parallel; measuring starts
    when both are ready."""

    def ready(self) -> None: ...
    def measure(self, case: Case, process: int = 0) -> Result: ...
    def close(self) -> None: ...


Opener = Callable[[int], SideWorker]  # 0 is base, 1 is head
Judge = Callable[[Result], Result]  # replaces the status of an impossible result


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A time limit of `seconds` by `clock`; `before` seconds of it are already spent."""

    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    before: float = 0.0
    began: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.clock() - self.before)

    @property
    def spent_s(self) -> float:
        return self.clock() - self.began

    @property
    def left_s(self) -> float:
        return self.seconds - self.spent_s


class _OpenPair:
    """A pair without a verdict, with its results and seconds on both sides."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.parts: tuple[list[Result], list[Result]] = ([], [])
        self.times: tuple[list[float], list[float]] = ([], [])
        self.head_first = False
        self.looked = 0  # rounds at the last look
        self.doubtful = [0, 0]  # failures of each side that the machine may have caused
        self.attempt: tuple[Result, Result] | None = None  # the last one that failed so

    @property
    def rounds(self) -> int:
        return min(len(self.times[0]), len(self.times[1]))

    @property
    def looked_times(self) -> tuple[list[float], list[float]]:
        """Return the seconds of both sides up to the last look."""
        return self.times[0][: self.looked], self.times[1][: self.looked]

    @property
    def is_measured(self) -> bool:
        return self.attempt is not None or all(self.parts)

    @property
    def doubts(self) -> str:
        """How often each side failed for a reason that the machine may have caused."""
        texts = [
            f"{name} {counted(count, 'time')}"
            for name, count in zip(USUAL_NAMES, self.doubtful, strict=True)
            if count
        ]
        return " and ".join(texts)

    def row(self, status: VerdictStatus, reason: Reason, paired: Paired | None = None) -> Row:
        base, head = self.parts
        if self.attempt is not None and not all(self.parts):
            base, head = [self.attempt[0]], [self.attempt[1]]
        return Row(
            pair=self.pair,
            status=status,
            reason=reason,
            base_s=tuple(self.times[0]),
            head_s=tuple(self.times[1]),
            base=join(base),
            head=join(head),
            paired=paired,
        )


class Experiment:
    """Measures pairs round by round; `judge` is applied to every result. Closing the iterator of
    `events` ends the workers; `open_rows` then returns the rows of the pairs still open. If the
    budget would end before the first look, pairs drawn at random are dropped, so that the others
    can reach the look."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        rule: Rule,
        opener: Opener,
        judge: Judge | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._tracks = [_OpenPair(_with_processes(pair, rule)) for pair in pairs]
        self._family: list[_OpenPair] = []  # all pairs of the first look
        self._rule = rule
        self._opener = opener
        self._judge: Judge = judge or (lambda result: result)
        self._budget = budget or Budget()
        self._random = random.Random(rule.seed)

    def events(self) -> Generator[Event, None, None]:
        """Yield an event for every measured pair, and a row when a pair is closed."""
        pair_s = 0.0
        for number in range(self._rule.looks.last):
            # Do not start a round that cannot end in time.
            if not self._tracks or self._budget.left_s < len(self._tracks) * pair_s:
                return
            before_s, pairs = self._budget.spent_s, len(self._tracks)
            complete = yield from self._round(number)
            if not complete:
                return
            round_s = self._budget.spent_s - before_s
            pair_s = round_s / pairs
            if number == 1:  # the first round also fills caches
                yield from self._drop_over_budget(round_s)
            if number + 1 in self._rule.looks.rounds:
                yield from self._look(number + 1)

    def _round(self, number: int) -> Generator[Event, None, bool]:
        """Measure every open pair on both sides. Return False if the budget ended during the
        round."""
        self._draw_first_side(number)
        workers: list[SideWorker] = []
        try:
            workers += [self._opener(side) for side in (0, 1)]
            for worker in workers:
                worker.ready()
            order = list(self._tracks)
            self._random.shuffle(order)
            for done, track in enumerate(order, 1):
                if self._budget.left_s <= 0:
                    return False
                row = self._measure(workers, track, number)
                if row is None and track.rounds <= number:  # the budget ended between attempts
                    return False
                if row is not None:
                    self._tracks.remove(track)
                yield Measured(
                    round=number + 1,
                    done=done,
                    total=len(order),
                    pair=track.pair,
                    ratio=None if row else track.times[1][-1] / track.times[0][-1],
                )
                if row is not None:
                    yield row
        finally:
            for worker in workers:
                worker.close()
        return True

    def _drop_over_budget(self, round_s: float) -> Iterator[Row]:
        """Drop the pairs that cannot be measured until the first look, and yield their rows."""
        to_come = self._rule.looks.rounds[0] - 2
        need_s, pairs = to_come * round_s, len(self._tracks)
        if need_s <= self._budget.left_s or not self._tracks:
            return
        kept = max(1, int(pairs * max(self._budget.left_s, 0.0) / need_s))
        self._random.shuffle(self._tracks)
        dropped, self._tracks = self._tracks[kept:], self._tracks[:kept]
        for track in dropped:
            reason = Reason(
                f"left out after {counted(track.rounds, 'round')}: in "
                f"{duration_text(self._budget.seconds)} only {kept} of "
                f"{counted(pairs, 'pair')} can be decided"
            )
            yield track.row(VerdictStatus.UNSURE, reason)

    def _draw_first_side(self, number: int) -> None:
        """Decide which side goes first: drawn in even rounds, reversed in odd ones."""
        for track in self._tracks:
            drawn = self._random.random() < 0.5
            track.head_first = not track.head_first if number % 2 else drawn

    def _measure(self, workers: Sequence[SideWorker], track: _OpenPair, number: int) -> Row | None:
        """Measure both sides of a pair in this round. Return its row if a side fails.

        A failure that the machine may have caused is repeated at once, the other side first."""
        head_first = track.head_first
        while True:
            measured = {
                side: self._judge(workers[side].measure(track.pair.cases[side], number))
                for side in ((1, 0) if head_first else (0, 1))
            }
            results = measured[0], measured[1]
            doubtful = [may_be_machine(result) for result in results]
            if not any(doubtful):
                track.attempt = None
                break
            track.attempt = results
            for side in (0, 1):
                track.doubtful[side] += doubtful[side]
            if max(track.doubtful) >= ATTEMPTS:
                break
            if self._budget.left_s <= 0:
                return None
            head_first = not head_first
        for side, result in enumerate(results):
            track.parts[side].append(result)
            if result.status is Status.OK and result.measurement is not None:
                track.times[side].append(result.measurement.median_s)
        return self._failed(track, *results)

    def _failed(self, track: _OpenPair, base: Result, head: Result) -> Row | None:
        results = (base, head)
        good = [result.status is Status.OK for result in results]
        if all(good):
            return None
        doubtful = [may_be_machine(result) for result in results]
        if any(doubtful) and all(map(operator.or_, good, doubtful)):
            started = all(result.error.root.code != NOT_STARTED for result in results)
            if all(track.doubtful) or not started:
                side = doubtful.index(True)
                cause = _side_failed(USUAL_NAMES[side], results[side])
                reason = f"{cause} ({track.doubts}): perhaps the machine is too busy"
                return track.row(VerdictStatus.UNSURE, Reason(reason))
        if good[0]:
            return track.row(VerdictStatus.BROKEN, _side_failed("head", head))
        if good[1]:
            return track.row(VerdictStatus.FIXED, _side_failed("base", base))
        same = (base.status, base.error) == (head.status, head.error)
        reason = Reason(
            f"both fail: {_side_failed('base', base)}; {_side_failed('head', head)}",
            "sides-failed",
            cause=_side_failed("base", base),
            other=_side_failed("head", head),
        )
        if same:
            reason = Reason(
                f"both fail: {_side_failed('each', head)}",
                "sides-failed",
                cause=_side_failed("each", head),
            )
        return track.row(VerdictStatus.IGNORED, reason)

    def _look(self, rounds: int) -> Iterator[Row]:
        looks = self._rule.looks
        for track in self._tracks:
            track.looked = rounds
        # Closed pairs stay in the family over which false discoveries are controlled.
        self._family = self._family or list(self._tracks)
        verdicts = suite_verdicts(
            looks, [track.looked_times for track in self._family], delta=self._rule.delta
        )
        for track, paired in zip(self._family, verdicts, strict=True):
            if track in self._tracks and (paired.decided or rounds == looks.last):
                self._tracks.remove(track)
                status, reason = paired.status, paired.reason
                if track.doubtful[1] and status in (VerdictStatus.SAME, VerdictStatus.FASTER):
                    # A kernel that hangs now and then is not good.
                    status = VerdictStatus.UNSURE
                    reason = Reason(
                        f"{reason}; but attempts failed before ({track.doubts}): perhaps the "
                        "kernel hangs now and then, or the machine was too busy"
                    )
                yield track.row(status, reason, paired)

    def open_rows(self) -> list[Row]:
        """Return the rows of the pairs that are still open, with the verdict of their last look."""
        rows = []
        for track in self._tracks:
            if track.looked:
                paired = self._rule.looks.verdict(*track.looked_times, delta=self._rule.delta)
                rows.append(track.row(VerdictStatus.UNSURE, paired.reason, paired))
            elif track.is_measured:
                reason = Reason(
                    f"stopped after {counted(track.rounds, 'round')}, before the first test"
                    + (f"; attempts failed: {track.doubts}" if track.doubts else "")
                )
                rows.append(track.row(VerdictStatus.UNSURE, reason))
        return rows


def compile_ahead(side: Side, cases: Sequence[Case], device: str, jobs: int) -> None:
    """Fill one side's compile caches on `jobs` host cores. Failures are ignored: they recur when
    the case is measured."""
    with side.pool(device, jobs=jobs) as pool:
        for _ in pool.run_all([CompileCase(case=case) for case in cases], pool.compilers):
            pass


class _LocalSideWorker:
    """A worker process, started on construction."""

    def __init__(self, pool: Pool, threads: int, on_wait: OnWait | None) -> None:
        self._pool = pool
        self._on_wait = on_wait
        # Any job starts the worker; this one does not use the device.
        pool.submit(pool.devices[0], ReadEnvironment(threads=threads))

    def ready(self) -> None:
        while self._pool.poll() is not None:
            pass

    def measure(self, case: Case, process: int = 0) -> Result:
        return self._pool.call(MeasureCase(case=case, process=process), self._on_wait)

    def close(self) -> None:
        self._pool.close()


def local_opener(
    sides: tuple[Side, Side],
    device: str,
    timeout_s: float = 300.0,
    threads: int = 0,
    on_wait: OnWait | None = None,
) -> Opener:
    """Return a function that starts a fresh worker on this machine. `threads` applies to the CPU;
    `on_wait` is called with the process that holds the device."""
    return lambda side: _LocalSideWorker(sides[side].pool(device, timeout_s), threads, on_wait)


def _with_processes(pair: Pair, rule: Rule) -> Pair:
    """Return the pair with the maximum number of processes it is measured in as `processes` of its
    timing."""

    def planned(case: Case) -> Case:
        timing = dataclasses.replace(case.timing, processes=rule.looks.last)
        return dataclasses.replace(case, timing=timing)

    return Pair(base=planned(pair.base), head=planned(pair.head))


def _side_failed(side: str, result: Result) -> Reason:
    cause = result.error or "no reason was given"
    return Reason(f"{side} is {result.status.value}: {shorten(cause)}")
