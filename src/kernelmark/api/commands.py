"""Benchmark commands of others, run as they are: how far equal runs of one differ, and whether two
differ.

A run of a command is one observation of each time that it reports. What is inside a run, its own
samples and interval, only shows where the variation comes from.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Result, Status
from kernelmark.host.processes import last_line, run_child
from kernelmark.report.names import backend_text, short
from kernelmark.stats.paired import Looks, Paired, paired_verdict, suite_verdicts
from kernelmark.workloads.importers import SECONDS, Overrides, recognized
from kernelmark.workloads.importers import read as read_file

# `{out.json}` in a command stands for a file that it writes; its ending helps to recognise it.
_OUT = re.compile(r"\{out(\.\w+)?\}")
LEAST_RUNS = 4
# A comparison of two runs should be wrong in at most this many.
ACCEPTED = 0.01
# Changes that a rule may take for real, and that tools use.
THRESHOLDS = (0.01, 0.02, 0.05, 0.10)
# The width of a 95 % interval in standard errors; the error of a median over that of a mean.
_INTERVAL_ERRORS = 2 * 1.96
_MEDIAN_ERROR = 1.2533
_LEAST_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A time that one run of a command reported, with its own interval and samples if it has
    them."""

    time_s: float
    low_s: float = math.nan
    high_s: float = math.nan
    samples_s: tuple[float, ...] = ()

    @property
    def has_interval(self) -> bool:
        return self.low_s < self.high_s

    @property
    def error(self) -> float:
        """The standard error of the time, as a fraction, by what was inside the run."""
        if len(self.samples_s) < _LEAST_SAMPLES:
            return math.log(self.high_s / self.low_s) / _INTERVAL_ERRORS
        spread = statistics.stdev(map(math.log, self.samples_s))
        return _MEDIAN_ERROR * spread / math.sqrt(len(self.samples_s))

    def meets(self, other: Reading) -> bool:
        return self.low_s <= other.high_s and other.low_s <= self.high_s


Readings = Mapping[str, Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that reports times. `pattern` finds them in what it prints, by groups `time` and
    perhaps `name` and `unit` (default: `unit`); without it, what it prints, or the file `{out}` in
    its words, is read as a format of `kmark import`: `file_format`, or the one recognised."""

    words: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    unit: str = "us"
    file_format: str | None = None
    timeout_s: float = 300.0

    def run(self) -> Readings:
        """Run the command once. Raise UsageError if it fails or reports no time."""
        with tempfile.TemporaryDirectory(prefix="kmark-") as folder:
            words, place = self.words, None
            if match := next(filter(None, map(_OUT.search, words)), None):
                place = Path(folder) / f"out{match[1] or ''}"
                words = tuple(_OUT.sub(lambda _: str(place), word) for word in words)
            try:
                done = run_child(words, timeout_s=self.timeout_s)
            except OSError as error:
                raise UsageError(f"{self.words[0]} cannot be run: {error.strerror}") from None
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"{self.words[0]} took longer than {self.timeout_s:g} s", hint="--timeout S"
                ) from None
            if done.returncode:
                said = last_line(done.stderr) or last_line(done.stdout) or "it printed nothing"
                raise UsageError(f"{self.words[0]} ended with exit code {done.returncode}: {said}")
            if self.pattern is not None:
                text = (place.read_bytes() if place else done.stdout + done.stderr).decode(
                    errors="replace"
                )
                return self._matched(text, self.pattern)
            if place is None:
                ending = "json" if done.stdout.lstrip()[:1] in (b"{", b"[") else "csv"
                place = Path(folder) / f"stdout.{ending}"
                place.write_bytes(done.stdout)
            return self._imported(place)

    def _matched(self, text: str, pattern: re.Pattern[str]) -> Readings:
        times: dict[str, list[float]] = {}
        matches = list(pattern.finditer(text))
        named = "name" in pattern.groupindex
        for number, match in enumerate(matches, 1):
            groups = match.groupdict()
            name = groups["name"] if named else f"time {number}" if len(matches) > 1 else "time"
            unit = (groups.get("unit") or self.unit).replace("µ", "u")
            if unit not in SECONDS:
                raise UsageError(f"unknown unit {unit!r}", hint=", ".join(SECONDS))
            try:
                value = float(match["time"].replace(",", ""))
            except ValueError:
                raise UsageError(f"--pattern found {match['time']!r}, which is no number") from None
            if not 0 < value < math.inf:
                raise UsageError(f"--pattern found {match['time']!r}, which is no time")
            times.setdefault(name.strip(), []).append(value * SECONDS[unit])
        if not times:
            raise UsageError("--pattern finds no time in what the command prints")
        return {name: Reading(time_s=statistics.median(some)) for name, some in times.items()}

    def _imported(self, place: Path) -> Readings:
        if not place.exists():
            raise UsageError(f"{self.words[0]} did not write {{out}}")
        if self.file_format is None and recognized(place) is None:
            raise UsageError(
                "what the command prints is in no format that 'kmark import' reads",
                hint="--pattern '(?P<name>\\w+): (?P<time>[\\d.]+) (?P<unit>us|ms)', or {out.json} "
                "for the file that it writes",
            )
        read = read_file(place, Overrides(), self.file_format)
        results = [result for result in read.results if _has_time(result)]
        if not results:
            raise UsageError(f"{self.words[0]} reported no time")
        return {_name(result): _reading(result) for result in results}


def _has_time(result: Result) -> bool:
    return result.status is Status.OK and result.measurement is not None


def _name(result: Result) -> str:
    return f"{short(result.case.problem)} {backend_text(result.case)}"


def _reading(result: Result) -> Reading:
    measured = result.measurement
    assert measured is not None
    return Reading(
        time_s=measured.median_s,
        low_s=measured.low_s,
        high_s=measured.high_s,
        samples_s=tuple(time_s for block in measured.blocks for time_s in block.samples_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualRuns:
    """How far the times of one benchmark differ between equal runs of its command.

    The shares divide the variance between runs: `inside` is what samples or intervals of a run
    explain, `drift` what neighbouring runs have in common, `start` the rest, new in each process:
    placement in memory, start-up, clocks.
    """

    name: str
    readings: tuple[Reading, ...]

    @property
    def times(self) -> list[float]:
        return [reading.time_s for reading in self.readings]

    @property
    def runs(self) -> int:
        return len(self.readings)

    @property
    def median_s(self) -> float:
        return statistics.median(self.times)

    @property
    def changes(self) -> list[float]:
        """The change from one run to another for each pair of runs, as a fraction of the faster."""
        return [max(a, b) / min(a, b) - 1 for a, b in combinations(self.times, 2)]

    def alarms(self, threshold: float) -> float:
        """Return the share of comparisons of two runs that differ by more than a threshold."""
        return _share(change > threshold for change in self.changes)

    @property
    def own_alarms(self) -> float | None:
        """The share of comparisons of two runs whose own intervals do not meet; None without."""
        if not all(reading.has_interval for reading in self.readings):
            return None
        return _share(not a.meets(b) for a, b in combinations(self.readings, 2))

    @property
    def least_change(self) -> float:
        """The least change of which at most `ACCEPTED` of the comparisons of two runs show more."""
        ordered = sorted(self.changes)
        return ordered[min(len(ordered) - 1, math.ceil((1 - ACCEPTED) * len(ordered)) - 1)]

    @property
    def paired(self) -> Paired | None:
        """What as many runs show if each is compared with the next one, as `kmark ab` does."""
        pairs = len(self.times) // 2
        if pairs < LEAST_RUNS:
            return None
        return paired_verdict(self.times[0 : 2 * pairs : 2], self.times[1 : 2 * pairs : 2])

    @property
    def spread(self) -> float:
        """The standard deviation between runs, as a fraction."""
        return statistics.stdev(map(math.log, self.times))

    @property
    def inside(self) -> float | None:
        """The share of the variance that what is inside a run explains; None without intervals."""
        if self.own_alarms is None or not self.spread:
            return None
        variance = statistics.fmean(reading.error**2 for reading in self.readings)
        return min(1 - self.drift, variance / self.spread**2)

    @property
    def drift(self) -> float:
        if not self.spread:
            return 0.0
        steps = [math.log(b / a) for a, b in pairwise(self.times)]
        between = statistics.fmean(step * step for step in steps) / 2
        return max(0.0, 1 - between / self.spread**2)

    @property
    def start(self) -> float:
        return max(0.0, 1 - self.drift - (self.inside or 0.0))


def _share(answers: Iterator[bool]) -> float:
    counted = list(answers)
    return sum(counted) / len(counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The verdict on one time that both commands report."""

    name: str
    base_s: float
    head_s: float
    paired: Paired


class Rounds:
    """Runs of commands, by turns. `on_run` is called with the runs so far after each; a stop by
    Ctrl-C or the budget keeps them."""

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        budget_s: float = math.inf,
        on_run: Callable[[int], None] = lambda done: None,
        seed: int = 0,
    ) -> None:
        self._commands = commands
        self._on_run = on_run
        self._random = random.Random(seed)
        self._begun, self._budget_s = time.monotonic(), budget_s
        self._longest_s = 0.0
        self.runs: list[list[Readings]] = [[] for _ in commands]
        self.was_stopped = False

    def measure(self, rounds: int) -> bool:
        """Run until there are this many rounds. Return False if it ended before."""
        while len(self.runs[-1]) < rounds:
            left_s = self._budget_s - (time.monotonic() - self._begun)
            if left_s < self._longest_s:
                return False
            begun = time.monotonic()
            order = [*enumerate(self._commands)]
            self._random.shuffle(order)
            try:
                readings = {side: command.run() for side, command in order}
            except KeyboardInterrupt:
                self.was_stopped = True
                return False
            for side, runs in enumerate(self.runs):
                runs.append(readings[side])
            self._longest_s = max(self._longest_s, time.monotonic() - begun)
            self._on_run(len(self.runs[-1]))
        return True

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names that every run reported, and those that only some did."""
        every = [readings for runs in self.runs for readings in runs]
        first = list(every[0]) if every else []
        common = [name for name in first if all(name in readings for readings in every)]
        others = {name: None for readings in every for name in readings if name not in common}
        return common, list(others)

    def equal_runs(self) -> list[EqualRuns]:
        """How equal runs of the one command differ."""
        (runs,) = self.runs
        return [
            EqualRuns(name=name, readings=tuple(readings[name] for readings in runs))
            for name in self.names[0]
        ]

    def compared(self, looks: Looks, delta: float) -> list[Compared]:
        """The verdicts on two commands at the look after as many rounds as there are."""
        names = self.names[0]
        times = [
            tuple([readings[name].time_s for readings in runs] for runs in self.runs)
            for name in names
        ]
        pairs = [(base, head) for base, head in times]
        verdicts = suite_verdicts(looks, pairs, delta=delta)
        return [
            Compared(
                name=name,
                base_s=statistics.median(base),
                head_s=statistics.median(head),
                paired=paired,
            )
            for name, (base, head), paired in zip(names, pairs, verdicts, strict=True)
        ]


def compare(rounds: Rounds, looks: Looks, delta: float) -> list[Compared]:
    """Return the verdicts of the last look that was reached; none before the first."""
    verdicts: list[Compared] = []
    for count in looks.rounds:
        if not rounds.measure(count):
            break
        verdicts = rounds.compared(looks, delta)
        if all(one.paired.decided for one in verdicts):
            break
    return verdicts
