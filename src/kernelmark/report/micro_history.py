"""The history of a microbenchmark: headline metrics run by run, in series that can be compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.micro import MicroResult
from kernelmark.core.units import counted
from kernelmark.micro.base import MODES
from kernelmark.micro.session import named
from kernelmark.report.micro import is_cpu, value_text
from kernelmark.report.tables import NONE, Column, Table

Points = Sequence[tuple[str, MicroResult]]  # (run id, result), oldest first
_LONGEST = 40  # characters of a parameter's value in a title


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What results have in common that can be compared over time. `chosen` are the parameters that
    are not the mode's own."""

    benchmark: str
    model: str
    host: str
    device: str
    arch: str
    threads: int
    mode: str
    chosen: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        where = [self.device] if self.model else []
        where += [self.arch] if self.arch else []
        where += [counted(self.threads, "thread")] if self.threads else []
        place = f" ({', '.join(where)})" if where else ""
        host = [f"host {self.host}"] if self.host else []
        given = [f"{name}={_short(value)}" for name, value in self.chosen]
        who = f"{self.benchmark} on {self.model or self.device}{place}"
        return ", ".join([who, *host, self.mode, *given])


def series_of(result: MicroResult) -> Series:
    """The series that a result is a point of."""
    mode = next((mode for mode in MODES if mode == result.mode), None)
    usual = named(result.benchmark).settings(mode, {}).plain() if mode else {}
    chosen = {name: str(v) for name, v in result.parameters.items() if v != usual.get(name)}
    return Series(
        benchmark=result.benchmark,
        model=result.model,
        host=result.host,
        device=result.device,
        arch=result.arch,
        threads=result.threads if is_cpu(result) else 0,
        mode=result.mode,
        chosen=tuple(sorted(chosen.items())),
    )


def tables(points: Points) -> list[Table]:
    """A table for each series, in the order in which they began."""
    found: dict[Series, list[tuple[str, MicroResult]]] = {}
    for run_id, result in points:
        found.setdefault(series_of(result), []).append((run_id, result))
    return [_table(series, some) for series, some in found.items()]


def records(points: Points) -> list[dict[str, str | int | float | None]]:
    """One flat record a metric of a run, for CSV."""
    found: list[dict[str, str | int | float | None]] = []
    for run_id, result in points:
        series = series_of(result)
        found += [
            {
                "run": run_id,
                "started": result.started,
                "benchmark": series.benchmark,
                "model": series.model,
                "host": series.host,
                "device": series.device,
                "arch": series.arch,
                "threads": series.threads or None,
                "mode": series.mode,
                "parameters": "; ".join(f"{name}={value}" for name, value in series.chosen),
                "status": result.status.value,
                "metric": metric.name,
                "value": metric.value,
                "unit": metric.unit,
            }
            for metric in result.metrics
        ]
    return found


def _table(series: Series, points: Points) -> Table:
    shown = (m for _, result in points for m in result.headlines or result.metrics)
    names = list(dict.fromkeys(m.name for m in shown))
    rows = []
    for run_id, result in points:
        values = {m.name: value_text(m.value, m.unit) for m in result.metrics}
        rows.append(
            (
                run_id,
                time.strftime("%Y-%m-%d %H:%M", time.localtime(result.started)),
                *(values.get(name, NONE) for name in names),
                result.status.value,
            )
        )
    titles = ("run", "started", *names, "status")
    columns = tuple(Column(name=n, align="right" if n in names else "left") for n in titles)
    return Table(columns=columns, rows=tuple(rows), title=series.title)


def _short(value: str) -> str:
    if len(value) <= _LONGEST:
        return value
    each = value.split(",")
    return f"{each[0]},…,{each[-1]} ({len(each)})" if len(each) > 2 else f"{value[:_LONGEST]}…"
