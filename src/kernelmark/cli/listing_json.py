"""JSON of `kmark list`: stable keys, base units, null for unknown. docs/fields.md lists them."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]


def ops() -> Rows:
    from kernelmark.ops import registry

    found = [(name, registry.get(name)) for name in registry.names()]
    return [
        {"op": name, "summary": op.summary, "parameters": list(op.parameters)} for name, op in found
    ]


def op(name: str) -> dict[str, Any]:
    """Return the parameters of an op and the tensors derived from them."""
    from kernelmark.ops import registry

    found = registry.get(name)
    return {
        "parameters": [
            {"parameter": word, "meaning": text} for word, text in found.parameters.items()
        ],
        "tensors": [
            {"tensor": t.name, "role": t.role, "shape": t.shape, "dtype": t.dtype, "when": t.when}
            for t in found.tensor_help
        ],
    }


def backends() -> Rows:
    """Return the backends with the same states as `kmark doctor`."""
    from kernelmark.backends import registry
    from kernelmark.cli.listing import split_kinds
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.devices import registry as devices

    here = {name for name in devices.names() if devices.get(name).available() is None}
    rows: Rows = []
    for name in registry.names():
        row: dict[str, Any] = {"backend": name, "state": "broken", "devices": [], "summary": None}
        try:
            backend = registry.get(name)
        except KernelmarkError as error:
            rows.append({**row, "reason": error.message})
            continue
        reason, runs_on = backend.available(), backend.device_kinds
        if reason is None:
            runs_on, lacking = split_kinds(backend)
            reason = None if runs_on else next(iter(lacking.values()))
        usable = "ready" if here & set(runs_on) else "no device"
        row |= {"state": "missing" if reason else usable, "devices": list(runs_on)}
        rows.append({**row, "summary": backend.summary, "reason": reason})
    return rows


def devices() -> Rows:
    from kernelmark.devices import registry

    found: Rows = []
    for name in registry.names():
        reason = registry.get(name).available()
        if reason is not None:
            found.append({"device": name, "available": False, "reason": reason})
            continue
        found += [
            {
                "device": info.name,
                "available": not info.unusable,
                "reason": info.unusable or None,
                "arch": info.arch,
                "model": info.model,
                "units": info.units,
                "memory_bytes": info.memory_bytes,
                "cache_bytes": info.cache_bytes,
                "driver": info.driver,
            }
            for info in registry.get(name).infos()
        ]
    return found


def suites() -> Rows:
    from kernelmark.workloads.suites import describe

    return [
        {"suite": info.name, "problems": info.count, "ops": dict(info.ops), "why": info.why}
        for info in describe()
    ]


def runs(place: str | None, limit: int) -> Rows:
    from kernelmark.cli.listing import result_counts
    from kernelmark.runners import locks
    from kernelmark.stores import open_store

    with open_store(place, readonly=True) as store:
        return [
            {
                "run": run.id,
                "label": run.label,
                "suite": run.suite,
                "started": run.started,
                "took_s": run.took_s,
                "state": locks.current_state(run).value,
                "excluded": run.excluded,
                "cases": run.cases,
                "results": result_counts(store, run),
            }
            for run in store.runs(limit=limit or None)
        ]


def micro_runs(place: str | None, limit: int) -> Rows:
    from kernelmark.cli.micro import opened_for_micro
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE, benchmark_name
    from kernelmark.report.tables import status_counts

    rows = []
    with opened_for_micro(place) as store:
        for run in store.runs(limit=limit or None, suites=(MICRO_SUITE, ROOFS_SUITE)):
            found = list(store.results(run.id))
            names = dict.fromkeys(benchmark_name(result.case.problem) for result in found)
            rows.append(
                {
                    "run": run.id,
                    "suite": run.suite,
                    "devices": list(dict.fromkeys(result.device for result in found)),
                    "archs": list(dict.fromkeys(result.arch for result in found)),
                    "host": run.environment.host,
                    "started": run.started,
                    "benchmarks": list(names),
                    "results": status_counts(found),
                }
            )
    return rows


def dtypes() -> Rows:
    from kernelmark.core.dtype import DTYPES

    return [
        {
            "dtype": kind.name,
            "bits": kind.bits,
            "kind": kind.kind,
            "max_value": kind.max_value,
            "unit_roundoff": kind.unit_roundoff,
        }
        for kind in DTYPES.values()
    ]


def logs() -> Rows:
    from kernelmark.workloads.logs import reading

    return [{"log": name, "summary": reading.named(name).summary} for name in reading.names()]


def strategies() -> Rows:
    from kernelmark.tune.strategies import registry

    return [{"strategy": name, "summary": registry.get(name).summary} for name in registry.names()]


def emitters() -> Rows:
    from kernelmark.tune.install.emitters import registry

    found = [(name, registry.get(name)) for name in registry.names()]
    return [
        {
            "emitter": name,
            "summary": one.summary,
            "caution": one.caution or None,
            "options": dict(one.options),
        }
        for name, one in found
    ]
