"""Verdicts on metrics of microbenchmarks, which have no blocks: based on their repeatability.

Two runs differ by more than the samples within each run do. A metric must move by more than its
known run-to-run repeatability, and by more than the spread that was measured with it.
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
from kernelmark.core.wording import join_commas

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
