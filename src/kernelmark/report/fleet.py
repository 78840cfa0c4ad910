"""The devices of a fleet that are slower than others of their model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Result
from kernelmark.core.units import value_text
from kernelmark.report.names import short
from kernelmark.report.tables import Column, Table
from kernelmark.stats.outliers import LEAST_DEVICES, FleetRange, find_slow

_COLUMNS = ("benchmark", "metric", "model", "devices", "median", "expected", "slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMetric:
    """A headline metric on the devices of a model. `range` is None for too few devices."""

    benchmark: str
    metric: str
    unit: str
    model: str
    devices: tuple[str, ...]
    values: tuple[float, ...]
    range: FleetRange | None

    @property
    def slow(self) -> list[tuple[str, float, float]]:
        """Return device, value and z of the slow devices, the slowest first."""
        if self.range is None:
            return []
        return [(self.devices[i], self.values[i], self.range.z[i]) for i in self.range.slow]


def fleet_metrics(
    results: Iterable[Result], infos: Sequence[DeviceInfo], alpha: float = 0.01
) -> list[FleetMetric]:
    """Return the headline metrics of the devices of each model. `alpha` is the probability of any
    false alarm among all of them."""
    models = {info.name: info.model for info in infos}
    groups: dict[tuple[str, str, str, str, str], dict[str, float]] = {}
    for result in results:
        for metric in result.headlines:
            # Metrics that depend on the host as much do not tell devices apart.
            if metric.better and metric.value > 0 and not metric.host_paced:
                name, model = short(result.case.problem), models.get(result.device, "")
                key = name, metric.name, metric.unit, metric.better, model
                groups.setdefault(key, {})[result.device] = metric.value
    return [
        FleetMetric(
            benchmark=name,
            metric=metric,
            unit=unit,
            model=model,
            devices=tuple(values),
            values=tuple(values.values()),
            range=find_slow(
                [*values.values()], higher_is_better=better == "higher", alpha=alpha / len(groups)
            ),
        )
        for (name, metric, unit, better, model), values in groups.items()
    ]


def fleet_table(metrics: Sequence[FleetMetric]) -> Table:
    """Return a table with one row per metric and model."""
    rows = [tuple(_row(metric)[name] for name in _COLUMNS) for metric in metrics]
    return Table(columns=tuple(Column(name=name) for name in _COLUMNS), rows=tuple(rows))


def _row(metric: FleetMetric) -> Mapping[str, str]:
    found, unit = metric.range, metric.unit
    shown = {"median": "–", "expected": f"needs {LEAST_DEVICES} devices", "slow": "–"}
    if found is not None:
        low, high = value_text(found.low, unit), value_text(found.high, unit)
        slow = [f"{name} ({value / found.median - 1:+.1%})" for name, value, _ in metric.slow]
        shown = {
            "median": value_text(found.median, unit),
            "expected": f"{low} to {high}",
            "slow": ", ".join(slow) or "none",
        }
    return {
        "benchmark": metric.benchmark,
        "metric": metric.metric,
        "model": metric.model,
        "devices": str(len(metric.devices)),
        **shown,
    }
