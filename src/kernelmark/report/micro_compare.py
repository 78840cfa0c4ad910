"""Two sides of microbenchmarks: their common metrics, what differs, and what may be chance."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelmark.core.micro import MicroMetric, MicroResult
from kernelmark.core.result import Status
from kernelmark.core.units import counted
from kernelmark.micro import registry
from kernelmark.micro.session import plain_name
from kernelmark.report.micro import is_cpu, value_text
from kernelmark.report.tables import NONE, Column, Table

# How well a GPU's headline metrics repeat from run to run, by measurement (docs/evidence.md).
_SAME = 0.02
# Other metrics are not that well known, and some are the pace of the host.
_SAME_OTHERS = 0.10
_SAME_BY_HOST = 0.40
# A CPU also does other work, and its clock is another one minutes later.
_SAME_ON_CPU = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A metric that both sides have, with the results it is from."""

    benchmark: str
    base: MicroMetric
    head: MicroMetric
    results: tuple[MicroResult, MicroResult]

    @property
    def ratio(self) -> float | None:
        return self.head.value / self.base.value if self.base.value else None

    @property
    def spread(self) -> float | None:
        """The larger spread of the two points, as far as it is stored."""
        metrics = (self.base, self.head)
        found = [_spread(r, m) for r, m in zip(self.results, metrics, strict=True)]
        return max((one for one in found if one is not None), default=None)

    @property
    def floor(self) -> float:
        """What two runs differ by even where each one's own samples agree."""
        name = plain_name(self.benchmark)
        known = name in registry  # what was stored may be of another version
        if known and self.base.name in registry.get(name).host_paced:
            return _SAME_BY_HOST
        if any(map(is_cpu, self.results)):
            return _SAME_ON_CPU
        return _SAME if self.base.headline else _SAME_OTHERS

    @property
    def verdict(self) -> str:
        ratio = self.ratio
        if ratio is None:
            return ""
        apart = max(ratio, 1 / ratio) - 1 if ratio > 0 else math.inf
        if apart < _SAME:
            return "same"
        # A fit over other sizes is another figure; what a headline is made of is always there.
        otherwise = not self.base.headline and bool(_ways(*self.results))
        if otherwise or apart < max(self.spread or 0.0, self.floor):
            return "unsure"
        if not self.base.better:
            return ""
        return "better" if (ratio > 1) == (self.base.better == "higher") else "worse"


def table(base: Sequence[MicroResult], head: Sequence[MicroResult]) -> Table:
    """The metrics that both sides have, side by side, with head over base."""
    rows = [
        (
            pair.benchmark,
            pair.base.name,
            value_text(pair.base.value, pair.base.unit),
            value_text(pair.head.value, pair.head.unit),
            NONE if pair.ratio is None else f"{pair.ratio:.3f} ×",
            pair.verdict,
        )
        for pair in _pairs(base, head)
    ]
    names = ("benchmark", "metric", *_sides(base, head), "ratio", "verdict")
    columns = tuple(
        Column(name=n, align="left" if i in (0, 1, 5) else "right") for i, n in enumerate(names)
    )
    return Table(columns=columns, rows=tuple(rows))


def records(
    base: Sequence[MicroResult], head: Sequence[MicroResult]
) -> list[dict[str, str | int | float | None]]:
    """One flat record a metric that both sides have, in SI units."""
    sides = _sides(base, head)
    return [
        {
            "benchmark": pair.benchmark,
            "metric": pair.base.name,
            "unit": pair.base.unit,
            "base": sides[0],
            "head": sides[1],
            "base_value": pair.base.value,
            "head_value": pair.head.value,
            "ratio": pair.ratio,
            "spread": pair.spread,
            "verdict": pair.verdict,
        }
        for pair in _pairs(base, head)
    ]


def notes(base: Sequence[MicroResult], head: Sequence[MicroResult]) -> list[str]:
    """A sentence for each way in which benchmarks were not taken alike."""
    found: dict[str, list[str]] = {}
    pairs = {pair.benchmark: pair.results for pair in _pairs(base, head)}
    for name, (one, other) in pairs.items():
        ways = _ways(one, other)
        if ways:
            found.setdefault(", ".join(ways), []).append(name)
    return [f"{', '.join(names)}: taken {ways}" for ways, names in found.items()]


def _ways(one: MicroResult, other: MicroResult) -> list[str]:
    ways = []
    if one.mode != other.mode:
        ways.append(f"as {one.mode} and as {other.mode}")
    else:
        given = {**one.parameters, **other.parameters}
        names = [n for n in given if one.parameters.get(n) != other.parameters.get(n)]
        if names:
            ways.append(f"with other {' and '.join(names)}")
    if one.threads != other.threads and is_cpu(one) and is_cpu(other):
        ways.append(f"with {one.threads} and with {counted(other.threads, 'thread')}")
    return ways


def _pairs(base: Iterable[MicroResult], head: Iterable[MicroResult]) -> Iterator[_Pair]:
    left, right = _metrics(base), _metrics(head)
    for key, (result, metric) in left.items():
        if key in right:
            other, theirs = right[key]
            yield _Pair(benchmark=key[0], base=metric, head=theirs, results=(result, other))


def _metrics(
    results: Iterable[MicroResult],
) -> dict[tuple[str, str], tuple[MicroResult, MicroMetric]]:
    return {
        (result.benchmark, metric.name): (result, metric)
        for result in results
        if result.status is Status.OK
        for metric in result.metrics
    }


def _spread(result: MicroResult, metric: MicroMetric) -> float | None:
    """The spread of the point that a metric is the figure of; None where it is of several."""
    same_unit = [column.name for column in result.columns if column.unit == metric.unit]
    found = [
        float(spread)
        for row in result.rows
        if isinstance(spread := row.get("spread"), int | float)
        and any(row.get(name) == metric.value for name in same_unit)
    ]
    return max(found, default=None)


def _sides(base: Sequence[MicroResult], head: Sequence[MicroResult]) -> tuple[str, str]:
    """What the two are called: by their devices, else by when they were taken."""
    names = _who(base), _who(head)
    if names[0] != names[1] or not base or not head:
        return names
    first, second = (_moment(min(result.started for result in side)) for side in (base, head))
    return ("base", "head") if first == second else (first, second)


def _moment(started: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))


def _who(results: Sequence[MicroResult]) -> str:
    names = dict.fromkeys(result.model or result.device for result in results)
    return ", ".join(names) or NONE
