"""Reports on IREE modules as tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from kernelmark.backends.iree.compiler import DispatchTime, config_parts
from kernelmark.core.units import time_text
from kernelmark.iree.ab import ULP_BOUNDS, Divergence, Report, Times, VariantOutcome
from kernelmark.iree.dispatches import DispatchCost
from kernelmark.iree.modules import BuiltModule, ModuleDispatch
from kernelmark.report.tables import NONE, Column, Table, file_column, record, tabulate
from kernelmark.stats.paired import Paired

_SHORT = {
    "registers": "VGPR",
    "accumulation_registers": "AGPR",
    "scalar_registers": "SGPR",
    "spilled_registers": "VGPR spills",
    "spilled_scalar_registers": "SGPR spills",
    "stack_bytes": "stack B",
    "shared_bytes": "LDS B",
}


_SHOWN = 20  # dispatches in a table


def tables(report: Report) -> list[Table]:
    """Return tables of the variants, their times and divergences, and their dispatches."""
    result = [_variants(report)]
    if any(outcome.end_to_end or outcome.kernels for outcome in report.outcomes):
        result.append(_times(report))
    if rows := [row for outcome in report.outcomes for row in _divergences(outcome, report)]:
        names = ("variant", "output", "against", "max abs", "max rel", "bad", "first bad")
        left = {"variant", "against", "first bad"}
        ulps = [f"≤ {bound:g}" for bound in ULP_BOUNDS] + ["more"]
        title = "divergence; the last columns count elements by their error in ulps"
        result.append(_table(title, (*names, *ulps), rows, left))
    for outcome in report.outcomes:
        # Of many candidates, only those measured in full.
        if outcome.built and (outcome.end_to_end_verdict or not outcome.variant.candidate):
            result += [_dispatches(outcome, outcome.built), _configs(outcome, outcome.built)]
    return result


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain JSON values, in seconds."""
    return {
        "module": str(report.plan.module),
        **_fields(report, "module_sha256", "function", "target"),
        **_fields(report.plan, "inputs", "seed"),
        **_fields(report, "not_run", "reference", "reference_error", "no_reference"),
        "variants": [_outcome(outcome) for outcome in report.outcomes],
    }


def _outcome(outcome: VariantOutcome) -> dict[str, Any]:
    return {
        "name": outcome.variant.name,
        "candidate": outcome.variant.candidate,
        "arguments": list(outcome.variant.arguments),
        "status": outcome.status.value,
        "error": outcome.error,
        "specs_applied": outcome.specs_applied,
        "compile_s": outcome.built.compile_s if outcome.built else None,
        "end_to_end": outcome.end_to_end and _times_document(outcome.end_to_end),
        "kernels": outcome.kernels and _times_document(outcome.kernels),
        "end_to_end_verdict": outcome.end_to_end_verdict
        and _verdict_document(outcome.end_to_end_verdict),
        "kernels_verdict": outcome.kernels_verdict and _verdict_document(outcome.kernels_verdict),
        "against_first": [_divergence_document(d) for d in outcome.against_first],
        "against_reference": [_divergence_document(d) for d in outcome.against_reference],
        "dispatches": [
            {
                "name": dispatch.name,
                "config": list(dispatch.config),
                "resources": dict(dispatch.resources),
                "seconds": time.seconds
                if (time := outcome.dispatch_s.get(dispatch.name))
                else None,
                "calls": time.calls if time else None,
            }
            for dispatch in (outcome.built.dispatches if outcome.built else ())
        ],
    }


def _times_document(times: Times) -> dict[str, Any]:
    samples = [list(block.samples_s) for block in times.blocks]
    names = ("median_s", "low_s", "high_s", "mean_s", "stddev_s", "cv", "cpu_s")
    return {**_fields(times, *names), "samples_s": samples}


def _verdict_document(paired: Paired) -> dict[str, Any]:
    return _fields(paired, "status", "ratio", "low", "high", "rounds")


def _divergence_document(divergence: Divergence) -> dict[str, Any]:
    names = ("count", "tolerance", "max_abs", "max_rel", "bad", "fraction_bad", "first_bad")
    ulps = {"ulp_bounds": list(ULP_BOUNDS), "ulps": list(divergence.ulps)}
    return _fields(divergence, *names) | ulps


def _fields(source: object, *names: str) -> dict[str, Any]:
    """Return fields as JSON values; what is not finite becomes null."""
    return {name: _json_value(getattr(source, name)) for name in names}


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value


def _variants(report: Report) -> Table:
    columns = ("variant", "status", "compile", "specs applied")
    rows = [
        (
            outcome.variant.name,
            outcome.status.value,
            time_text(outcome.built.compile_s) if outcome.built else NONE,
            {None: NONE, True: "yes", False: "NO"}[outcome.specs_applied],
        )
        for outcome in report.outcomes
    ]
    name = f" @{report.function}" if report.function else ""
    title = f"{report.plan.module.name}{name} on {report.target}"
    target = report.plan.target
    if target.startswith("sm_") and not report.target.endswith(target):
        title += f" (IREE's newest target for {target})"
    return _table(title, columns, rows, {"variant", "status", "specs applied"})


def _times(report: Report) -> Table:
    columns = (
        "variant",
        "part",
        "median",
        "interval",
        "mean",
        "stddev",
        "CV",
        "CPU",
        "against first",
    )
    rows = [
        (outcome.variant.name, part, *_cells(times, verdict))
        for outcome in sorted(report.outcomes, key=_rank)
        for part, times, verdict in (
            ("end to end", outcome.end_to_end, outcome.end_to_end_verdict),
            ("kernels only", outcome.kernels, outcome.kernels_verdict),
        )
    ]
    return _table("times", columns, rows, {"variant", "part"})


def _rank(outcome: VariantOutcome) -> tuple[bool, float]:
    """Return the key by which candidates follow the variants, the fastest first."""
    if not outcome.variant.candidate:
        return (False, 0.0)
    times = outcome.end_to_end
    return (True, times.median_s if times else math.inf)


def _cells(times: Times | None, verdict: Paired | None) -> tuple[str, ...]:
    if times is None:
        return (NONE,) * 7
    high = time_text(times.high_s) if math.isfinite(times.high_s) else "∞"
    shown = f"{verdict.ratio:.3f} × ({verdict.status.value})" if verdict else NONE
    interval = f"{time_text(times.low_s)} to {high}"
    mean, stddev = time_text(times.mean_s), time_text(times.stddev_s)
    cpu = NONE if times.cpu_s is None else time_text(times.cpu_s)
    median = time_text(times.median_s)
    return median, interval, mean, stddev, f"{100 * times.cv:.1f} %", cpu, shown


def _divergences(outcome: VariantOutcome, report: Report) -> list[tuple[str, ...]]:
    first = report.outcomes[0].variant.name
    return [
        (
            *(outcome.variant.name, str(at), against),
            *(f"{divergence.max_abs:.3g}", f"{divergence.max_rel:.3g}"),
            f"{100 * divergence.fraction_bad:.2f} %",
            NONE if divergence.first_bad is None else str(list(divergence.first_bad)),
            *(
                f"{100 * count / divergence.count:.1f} %" if divergence.count else NONE
                for count in divergence.ulps
            ),
        )
        for against, every in (
            (report.reference, outcome.against_reference),
            (first, outcome.against_first),
        )
        for at, divergence in enumerate(every)
    ]


def _dispatches(outcome: VariantOutcome, built: BuiltModule) -> Table:
    used = dict.fromkeys(name for d in built.dispatches for name in d.resources)
    title = _limited("dispatches", outcome, built)
    timed = ("calls", "time") if outcome.dispatch_s else ()
    columns = ("dispatch", *timed, *(_SHORT.get(name, name) for name in used))
    rows = [
        (
            dispatch.name,
            *_time_cells(outcome.dispatch_s.get(dispatch.name))[: len(timed)],
            *(str(dispatch.resources.get(name, NONE)) for name in used),
        )
        for dispatch in _by_time(built.dispatches, outcome.dispatch_s)[:_SHOWN]
    ]
    return _table(title, columns, rows, {"dispatch"})


def _configs(outcome: VariantOutcome, built: BuiltModule) -> Table:
    """Return a table with one line per part of a config: whole configs are too wide."""
    rows = [
        (dispatch.name if at == 0 else "", part)
        for dispatch in _by_time(built.dispatches, outcome.dispatch_s)[:_SHOWN]
        for at, part in enumerate(config_parts(dispatch.config) or (NONE,))
    ]
    title = _limited("configs", outcome, built)
    return _table(title, ("dispatch", "config"), rows, {"dispatch", "config"})


def _limited(what: str, outcome: VariantOutcome, built: BuiltModule) -> str:
    """Return a title, which has how many dispatches are left out."""
    count = len(built.dispatches)
    more = f"; {_SHOWN} of {count}, --json has all" if count > _SHOWN else ""
    return f"{what} of {outcome.variant.name}{more}"


def _time_cells(time: DispatchTime | None) -> tuple[str, str]:
    return (f"{time.calls:g}", time_text(time.seconds)) if time else (NONE, NONE)


def _by_time(
    dispatches: Sequence[ModuleDispatch], times: Mapping[str, Any]
) -> list[ModuleDispatch]:
    return sorted(dispatches, key=lambda d: -times[d.name].seconds if d.name in times else 0.0)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]], left: set[str]
) -> Table:
    columns_made = tuple(Column(name=c, align="left" if c in left else "right") for c in columns)
    return Table(title=title, columns=columns_made, rows=tuple(rows))


def _left_out(cost: DispatchCost) -> str:
    return " ".join(cost.computed.lost) or cost.computed.why or NONE


# Every column of `kmark iree costs`, in the table and in JSON.
COST_COLUMNS = (
    Column("name", "name", title="dispatch"),
    Column("calls", "calls", type="integer"),
    Column("seconds", "seconds", type="number", unit="s", title="time × calls"),
    Column(
        "fraction",
        "fraction",
        type="number",
        title="of all",
        text=lambda cost: f"{100 * cost.fraction:.1f} %",
    ),
    Column("problem", "computed.problem.key"),
    Column("lost", lambda cost: list(cost.computed.lost), title="left out", text=_left_out),
    file_column("why", "computed.why", "why no problem was found"),
    file_column("resources", lambda cost: dict(cost.resources), "resources"),
)


def costs_table(costs: Sequence[DispatchCost]) -> Table:
    """Return a table of dispatches by time, with the problem that each computes."""
    return tabulate(COST_COLUMNS, costs)


def costs_document(costs: Sequence[DispatchCost]) -> list[dict[str, Any]]:
    """Return JSON records of dispatches by time, in seconds."""
    return [record(COST_COLUMNS, cost) for cost in costs]
