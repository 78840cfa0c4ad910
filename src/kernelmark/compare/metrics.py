"""How metrics of microbenchmarks are judged: by how well they repeat, as they have no blocks.

Two runs differ by more than each one's own samples tell. What a metric must move by to be a change
is the larger of that and of the spread that was measured with it.
"""

from __future__ import annotations

import math

from kernelmark.compare.match import Pair
from kernelmark.core.metric import Metric
from kernelmark.core.micro import mode_of, parameters_of
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result
from kernelmark.core.units import counted, value_text
from kernelmark.core.verdict import VerdictStatus

# How well a GPU's headline metrics repeat from run to run, by measurement (docs/evidence.md).
SAME = 0.02
# Other metrics are not that well known, and some are the pace of the host.
_OTHERS = 0.10
_BY_HOST = 0.40
# A CPU also does other work, and its clock is another one minutes later.
_ON_CPU = 0.10


def is_cpu(result: Result) -> bool:
    """Return whether a CPU was measured, whose limits are more than any core can do: they tell
    mistakes, nothing comes near them."""
    return result.device.partition(":")[0] == "cpu"


def floor(metric: Metric, *results: Result) -> float:
    """Return what two runs differ by even where each one's own samples agree."""
    if metric.host_paced:
        return _BY_HOST
    if any(map(is_cpu, results)):
        return _ON_CPU
    return SAME if metric.headline else _OTHERS


def ratio_of(base: Metric, head: Metric) -> float | None:
    return head.value / base.value if base.value else None


def status_of(pair: Pair) -> tuple[VerdictStatus, Reason]:
    """Return the verdict on a pair of one metric, and why."""
    base, head = pair.metrics
    results = pair.both
    ratio = ratio_of(base, head)
    if ratio is None:
        return VerdictStatus.IGNORED, Reason("base-zero")
    apart = max(ratio, 1 / ratio) - 1 if ratio > 0 else math.inf
    if apart < SAME:
        return VerdictStatus.SAME, Reason("metric-within", limit=SAME)
    # A fit over other sizes is another figure; what a headline is made of is always there.
    if not base.headline and (ways := taken_ways(*results)):
        return VerdictStatus.UNSURE, Reason("taken-otherwise", ways=tuple(ways))
    spread = max(base.spread or 0.0, head.spread or 0.0)
    least = floor(base, *results)
    if apart < max(spread, least):
        if spread > least:
            return VerdictStatus.UNSURE, Reason("samples-spread", spread=spread)
        return VerdictStatus.UNSURE, Reason("runs-differ", limit=least)
    if not base.better:
        return VerdictStatus.IGNORED, Reason("none-better")
    good = (ratio > 1) == (base.better == "higher")
    status = VerdictStatus.FASTER if good else VerdictStatus.SLOWER
    return status, Reason("metric-changed", ratio=ratio, better=base.better)


def facts_of(pair: Pair) -> tuple[tuple[str, str], ...]:
    """Return what a verdict on one metric follows from."""
    base, head = pair.metrics
    spreads = [metric.spread for metric in (base, head) if metric.spread is not None]
    return (
        ("base", value_text(base.value, base.unit)),
        ("head", value_text(head.value, head.unit)),
        ("runs differ by", f"{100 * floor(base, *pair.both):g} %"),
        *([("spread of samples", f"{100 * max(spreads):.2g} %")] if spreads else []),
    )


def taken_ways(result: Result, other: Result) -> list[str]:
    """In which ways two results of a benchmark were not taken alike."""
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
