"""Matching of the results of one run with those of another."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelmark.core.metric import Metric
from kernelmark.core.micro import MICRO, is_micro, mode_of, parameters_of
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Result, Status
from kernelmark.core.units import counted, join_commas, value_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import measured_interval, quantile

By = Literal["case", "problem"]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The results of both sides of a comparison; None where a side has no result. `metric` is the
    microbenchmark metric to compare; empty for time."""

    base: Result | None
    head: Result | None
    metric: str = ""

    @property
    def results(self) -> tuple[Result, Result]:
        """Both results. Raise ValueError if one is missing."""
        if self.base is None or self.head is None:
            raise ValueError("a pair of less than two results")
        return self.base, self.head

    @property
    def metrics(self) -> tuple[Metric, Metric]:
        """The metric of both sides."""
        base, head = self.results
        return base.metric(self.metric), head.metric(self.metric)

    @property
    def shown(self) -> Result:
        """The result that names the row: head's, or base's if head has none."""
        side = self.head or self.base
        if side is None:
            raise ValueError("a pair of nothing")
        return side

    @property
    def same_binary(self) -> bool:
        """Whether both sides ran the same binary, so that a difference is noise or the machine."""
        if self.base is None or self.head is None:
            return False
        base_hash, head_hash = self.base.kernel.binary_hash, self.head.kernel.binary_hash
        return bool(base_hash) and base_hash == head_hash

    @property
    def multimodal(self) -> bool:
        """Whether the samples of a side have several modes. Block medians then jump between modes;
        block means do not."""
        base = self.base.measurement if self.base else None
        head = self.head.measurement if self.head else None
        return bool((base and base.modes) or (head and head.modes))

    @property
    def clocks_mhz(self) -> tuple[float, float] | None:
        """The core clocks of both sides; None unless both were measured."""
        sides = [side.measurement for side in (self.base, self.head) if side is not None]
        clocks = [result.clock_mhz for result in sides if result is not None]
        if len(clocks) != 2 or clocks[0] is None or clocks[1] is None:
            return None
        return clocks[0], clocks[1]


def pairs(base: Iterable[Result], head: Iterable[Result], *, by: By = "case") -> list[Pair]:
    """Return the matched results in base's order, then those that only head has.

    By `case`: same problem, backend, config and identity of the timing, and same device if a side
    has several. By `problem`: the best result of each side, over backends, configs and timings.

    A microbenchmark that each side ran once is matched by name, whatever its parameters, and gives
    one pair per metric that both sides have.
    """
    sides = (list(base), list(head))
    if by == "problem":
        best_sides = tuple(_best(side) for side in sides)
    else:
        devices = any(_several_devices(side) for side in sides)
        best_sides = tuple(_by_case(side, devices=devices) for side in sides)
    once = set.intersection(*map(_unique_micros, sides))
    named = [{_match_key(key, r, once): r for key, r in side.items()} for side in best_sides]
    keys = dict.fromkeys((*named[0], *named[1]))
    every = [Pair(base=named[0].get(key), head=named[1].get(key)) for key in keys]
    return [item for pair in every for item in _split_by_metric(pair)]


def _unique_micros(side: Sequence[Result]) -> set[str]:
    """Return the microbenchmarks of which a side has exactly one result."""
    counts = Counter(r.case.problem.op for r in side if is_micro(r.case))
    return {name for name, count in counts.items() if count == 1}


def _match_key(key: Key, result: Result, once: Collection[str]) -> Key:
    name = result.case.problem.op
    return (name, MICRO) if is_micro(result.case) and name in once else key


def _split_by_metric(pair: Pair) -> list[Pair]:
    if pair.base is None or pair.head is None:
        return [pair]
    if not pair.base.metrics:
        return [pair]
    good = pair.base.status is Status.OK and pair.head.status is Status.OK
    head_names = {metric.name for metric in pair.head.metrics} if good else set()
    names = [metric.name for metric in pair.base.metrics if metric.name in head_names]
    return [dataclasses.replace(pair, metric=name) for name in names] or [pair]


def groups(
    measurement: Measurement, *, means: bool = False, quartiles: bool = False
) -> list[list[float]]:
    """Return the block medians, geometric means or lower quartiles of each process, in order, in
    seconds."""
    times_by_process: dict[int, list[float]] = {}
    for block in measurement.blocks:
        if means:
            time_s = statistics.geometric_mean(block.samples_s)
        else:
            time_s = quantile(block.samples_s, 0.25) if quartiles else block.median_s
        times_by_process.setdefault(block.process, []).append(time_s)
    return list(times_by_process.values())


def _several_devices(side: Sequence[Result]) -> bool:
    seen: dict[str, str] = {}
    return any(seen.setdefault(r.case.id, r.device) != r.device for r in side)


def _by_case(side: Sequence[Result], *, devices: bool) -> dict[Key, Result]:
    results_by_case: dict[Key, list[Result]] = {}
    for result in side:
        key = (result.case.id, result.device if devices else "")
        results_by_case.setdefault(key, []).append(result)
    return {key: _join_processes(results) for key, results in results_by_case.items()}


def _join_processes(results: Sequence[Result]) -> Result:
    """Return one result for several processes of a case: the first failure, if any."""
    if len(results) == 1:
        return results[0]
    failed = [
        r for r in results if r.status is not Status.OK or (r.measurement is None and not r.metrics)
    ]
    if failed:
        return failed[0]
    if results[-1].measurement is None:  # metrics have no blocks to join: take the last result
        return results[-1]
    blocks = tuple(b for r in results if r.measurement for b in r.measurement.blocks)
    interval = measured_interval(blocks)
    first = results[0].measurement
    assert first is not None
    whole = dataclasses.replace(
        first, blocks=blocks, low_s=interval.low_s, high_s=interval.high_s, modes=interval.modes
    )
    return dataclasses.replace(results[0], measurement=whole)


def _best(side: Sequence[Result]) -> dict[Key, Result]:
    best_by_key: dict[Key, Result] = {}
    for result in _by_case(side, devices=True).values():
        key = (result.case.problem.key, "")
        if key not in best_by_key or _rank(result) < _rank(best_by_key[key]):
            best_by_key[key] = result
    return best_by_key


def _rank(result: Result) -> tuple[bool, bool, float]:
    if result.status is not Status.OK or result.measurement is None:
        return True, True, 0.0
    return False, not result.measurement.reliable, result.measurement.median_s


# Measured run-to-run repeatability of a GPU's headline metrics (docs/evidence.md).
SAME = 0.02
# Other metrics are known less well; some depend on the speed of the host.
_OTHERS = 0.10
_BY_HOST = 0.40
# A CPU is shared with other work, and its clock changes within minutes.
_ON_CPU = 0.10


def is_cpu(result: Result) -> bool:
    """Return whether a CPU was measured. Limits of CPUs are generous bounds that only expose
    errors: real results stay far below."""
    return result.device.partition(":")[0] == "cpu"


def floor(metric: Metric, *results: Result) -> float:
    """Return the fraction by which two runs differ even if the samples of each agree."""
    if metric.host_paced:
        return _BY_HOST
    if any(map(is_cpu, results)):
        return _ON_CPU
    return SAME if metric.headline else _OTHERS


def ratio_of(base: Metric, head: Metric) -> float | None:
    return head.value / base.value if base.value else None


def status_of(pair: Pair) -> tuple[VerdictStatus, Reason]:
    """Return the verdict on a pair of one metric, and its reason."""
    base, head = pair.metrics
    results = pair.results
    ratio = ratio_of(base, head)
    if ratio is None:
        return VerdictStatus.IGNORED, Reason("base is 0")
    difference = max(ratio, 1 / ratio) - 1 if ratio > 0 else math.inf
    if difference < SAME:
        return VerdictStatus.SAME, Reason(f"within {100 * SAME:g} %")
    # A fit over other sizes is not comparable; the sizes for a headline are always measured.
    if not base.headline and (ways := taken_ways(*results)):
        return VerdictStatus.UNSURE, Reason(f"measured differently: {join_commas(ways)}")
    spread = max(base.spread or 0.0, head.spread or 0.0)
    least = floor(base, *results)
    if difference < max(spread, least):
        if spread > least:
            return VerdictStatus.UNSURE, Reason(f"its samples spread by {100 * spread:.0f} %")
        return VerdictStatus.UNSURE, Reason(f"runs differ by {100 * least:g} %")
    if not base.better:
        return VerdictStatus.IGNORED, Reason("neither a higher nor a lower value is better")
    good = (ratio > 1) == (base.better == "higher")
    status = VerdictStatus.FASTER if good else VerdictStatus.SLOWER
    return status, Reason(f"{base.better} is better")


def facts_of(pair: Pair) -> tuple[tuple[str, str], ...]:
    """Return the values that the verdict on one metric was derived from."""
    base, head = pair.metrics
    spreads = [metric.spread for metric in (base, head) if metric.spread is not None]
    return (
        ("base", value_text(base.value, base.unit)),
        ("head", value_text(head.value, head.unit)),
        ("runs differ by", f"{100 * floor(base, *pair.results):g} %"),
        *([("spread of samples", f"{100 * max(spreads):.2g} %")] if spreads else []),
    )


def taken_ways(result: Result, other: Result) -> list[str]:
    """Return the differences in how two results of a benchmark were taken."""
    ways = []
    problems = result.case.problem, other.case.problem
    modes = [mode_of(problem) for problem in problems]
    if modes[0] != modes[1]:
        ways.append(f"as {modes[0]} and as {modes[1]}")
    else:
        mine, theirs = map(parameters_of, problems)
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        if names:
            ways.append(f"with other {' and '.join(names)}")
    threads = result.case.timing.threads, other.case.timing.threads
    if threads[0] != threads[1] and is_cpu(result) and is_cpu(other):
        ways.append(f"with {threads[0]} and with {counted(threads[1], 'thread')}")
    return ways
