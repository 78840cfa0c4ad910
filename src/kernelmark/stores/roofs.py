"""Roofs: a query over stored results of microbenchmarks.

`Metric.roof` marks the metrics that are roofs. Roofs that were imported with a file, or come from a
store of an older version, are results of a pseudo-benchmark `roofs`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Kind, Metric, Roof
from kernelmark.core.micro import ROOFS_SUITE, benchmark_name, micro_case, mode_of
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.core.units import value_text

_RECORDED = "roofs"
_UNITS = {"flops": "FLOP/s", "bytes": "B/s", "launches": "1/s"}


def roofs_of(result: Result, info: DeviceInfo | None = None) -> list[Roof]:
    """Return the roofs that a result measured; none if it is not `ok`. Of several metrics for one
    roof, the highest counts."""
    metrics_by_device: dict[str, list[Metric]] = {}
    for metric in result.metrics if result.status is Status.OK else ():
        if metric.roof and metric.value > 0:
            metrics_by_device.setdefault(metric.roof, []).append(metric)
    return [_roof(result, metrics, info) for metrics in metrics_by_device.values()]


def _per_s(metric: Metric) -> float:
    return 1e9 / metric.value if metric.unit == "ns" else metric.value


def _roof(result: Result, metrics: Sequence[Metric], info: DeviceInfo | None) -> Roof:
    metric = max(metrics, key=_per_s)
    kind, name, unit = (*metric.roof.split(" ", 2), "")[:3]
    problem = result.case.problem
    how = f"kmark micro {benchmark_name(problem)} ({metric.name}), {mode_of(problem)}"
    if len(metrics) > 1:
        rates = ", ".join(f"{item.name} {value_text(item.value, item.unit)}" for item in metrics)
        how += f", the best of {rates}"
    return Roof(
        device=result.device,
        arch=result.arch,
        kind=cast(Kind, kind),
        name=name,
        value=_per_s(metric),
        how=metric.why if problem.op == _RECORDED else how,
        measured=result.started,
        unit=unit,
        threads=result.case.timing.threads,
        model=info.model if info else "",
        steady=metric.steady,
        limit=not metric.stand_in,
    )


def recorded(roofs: Iterable[Roof], host: str) -> list[ResultSet]:
    """Return roofs as runs to store, one per device. Ids are derived from the contents, so that
    storing a run twice changes nothing."""
    roofs_by_device: dict[tuple[str, str, str], dict[tuple[int, float], list[Roof]]] = {}
    for roof in roofs:
        roofs_by_time = roofs_by_device.setdefault((roof.device, roof.arch, roof.model), {})
        roofs_by_time.setdefault((roof.threads, roof.measured), []).append(roof)
    return [
        _recorded_run(host, DeviceInfo(name=d, kind=d.partition(":")[0], model=model, arch=a), some)
        for (d, a, model), some in roofs_by_device.items()
    ]


def _recorded_run(
    host: str, info: DeviceInfo, roofs_by_time: Mapping[tuple[int, float], list[Roof]]
) -> ResultSet:
    text = repr((host, info, roofs_by_time)).encode("utf-8", "backslashreplace")
    run = Run(
        id=f"roofs-{hashlib.sha256(text).hexdigest()[:16]}",
        started=max(measured for _, measured in roofs_by_time),
        environment=Environment(host=host, devices=(info,)),
        suite=ROOFS_SUITE,
        cases=len(roofs_by_time),
        state=RunState.DONE,
    )
    results = tuple(
        Result(
            case=micro_case(_RECORDED, "recorded", {}, threads),
            device=info.name,
            arch=info.arch,
            status=Status.OK,
            started=measured,
            metrics=tuple(map(_metric, some)),
        )
        for (threads, measured), some in roofs_by_time.items()
    )
    return ResultSet(run=run, results=results)


def _metric(roof: Roof) -> Metric:
    parts = [word for word in (roof.kind, roof.name, roof.unit) if word]
    return Metric(
        name="_".join(parts),
        value=roof.value,
        unit=_UNITS[roof.kind],
        why=roof.how,
        roof=" ".join(parts),
        steady=roof.steady,
        stand_in=not roof.limit,
    )


def newest(
    results: Iterable[tuple[Environment, Result]],
    required: Mapping[str, str | int | None],
    at: float = math.inf,
) -> tuple[Roof, ...]:
    """Return the newest roof of each host, device, kind, name, unit and number of threads. An
    unsteady roof never replaces a steady one.

    `at` selects the roofs that were newest at that time. If there was none yet, the first one
    measured later counts, so that the result for a given time never changes again."""
    best: dict[tuple[str | int, ...], Roof] = {}
    for host, roof in sorted(_every(results), key=lambda pair: pair[1].measured):
        actual = {"host": host, "threads": roof.threads}
        if any(actual[name] != required[name] for name in actual if required[name] is not None):
            continue
        key = (host, roof.device, roof.arch, roof.kind, roof.name, roof.unit, roof.threads)
        best_so_far = best.get(key)
        if best_so_far is None or (roof.measured <= at and (roof.steady or not best_so_far.steady)):
            best[key] = roof
    return tuple(best[key] for key in sorted(best))


def _every(results: Iterable[tuple[Environment, Result]]) -> Iterator[tuple[str, Roof]]:
    for environment, result in results:
        infos = {info.name: info for info in environment.devices}
        for roof in roofs_of(result, infos.get(result.device)):
            yield environment.host, roof
