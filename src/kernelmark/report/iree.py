"""Reports on IREE modules as tables and JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelmark.core.units import time_text
from kernelmark.iree.ab import Outcome, Report, Times
from kernelmark.iree.dispatches import DispatchCost
from kernelmark.iree.execute import DispatchTime
from kernelmark.iree.modules import Dispatch
from kernelmark.numerics.divergence import ULP_BOUNDS, Divergence
from kernelmark.report.tables import NONE, Column, Table
from kernelmark.stats.paired import Paired

_SHORT = {
    "registers": "VGPR",
    "accumulation_registers": "AGPR",
    "scalar_registers": "SGPR",
    "spilled_registers": "spilled VGPR",
    "spilled_scalar_registers": "spilled SGPR",
    "stack_bytes": "stack bytes",
    "shared_bytes": "LDS bytes",
}
_MOST_CONFIG = 160
_PIPELINE = re.compile(r"pipeline = #[\w.]+<(\w+)>")
_WORKGROUP = re.compile(r"workgroup_size = (\[[\d, ]+\])")


def tables(report: Report) -> list[Table]:
    """The variants' times, their divergences, and their dispatches."""
    made = [_variants(report)]
    if rows := [row for one in report.outcomes for row in _divergences(one, report)]:
        names = ("variant", "output", "against", "max abs", "max rel", "bad", "first bad")
        left = {"variant", "against", "first bad"}
        ulps = [f"≤ {bound:g} ulp" for bound in ULP_BOUNDS] + ["more"]
        made.append(_table("divergence", (*names, *ulps), rows, left))
    made += [_dispatches(one) for one in report.outcomes if one.built]
    return made


def document(report: Report) -> dict[str, Any]:
    """All that is known, in seconds."""
    plan = report.plan
    return {
        "module": str(plan.module),
        "module_sha256": report.module_sha256,
        "function": report.function,
        "target": report.target,
        "inputs": list(plan.inputs),
        "seed": plan.seed,
        "not_run": report.not_run,
        "no_reference": report.no_reference,
        "variants": [_outcome(one) for one in report.outcomes],
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    return {
        "name": one.variant.name,
        "arguments": list(one.variant.arguments),
        "status": one.status.value,
        "error": one.error,
        "specs_applied": one.specs_applied,
        "compile_s": one.built.compile_s if one.built else None,
        "end_to_end": _times_document(one.end_to_end),
        "kernels": _times_document(one.kernels),
        "end_to_end_verdict": _verdict_document(one.end_to_end_verdict),
        "kernels_verdict": _verdict_document(one.kernels_verdict),
        "against_first": [_divergence_document(d) for d in one.against_first],
        "against_f64": [_divergence_document(d) for d in one.against_f64],
        "dispatches": [
            {
                "name": dispatch.name,
                "config": list(dispatch.config),
                "resources": dict(dispatch.resources),
                "seconds": time.seconds if (time := one.dispatch_s.get(dispatch.name)) else None,
                "calls": time.calls if time else None,
            }
            for dispatch in (one.built.dispatches if one.built else ())
        ],
    }


def _times_document(times: Times | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {
        "median_s": times.median_s,
        "low_s": times.low_s,
        "high_s": times.high_s if math.isfinite(times.high_s) else None,
        "cv": times.cv,
        "samples_s": [list(block.samples_s) for block in times.blocks],
    }


def _verdict_document(found: Paired | None) -> dict[str, Any] | None:
    if found is None:
        return None
    bounds = {"low": found.low, "high": found.high}
    return {
        "status": found.status.value,
        "ratio": found.ratio,
        **{name: value if math.isfinite(value) else None for name, value in bounds.items()},
        "rounds": found.rounds,
    }


def _divergence_document(one: Divergence) -> dict[str, Any]:
    return {
        "count": one.count,
        "tolerance": one.tolerance,
        "max_abs": one.max_abs if math.isfinite(one.max_abs) else None,
        "max_rel": one.max_rel if math.isfinite(one.max_rel) else None,
        "bad": one.bad,
        "fraction_bad": one.fraction_bad,
        "first_bad": list(one.first_bad) if one.first_bad is not None else None,
        "ulp_bounds": list(ULP_BOUNDS),
        "ulps": list(one.ulps),
    }


def _variants(report: Report) -> Table:
    timed = ("interval", "CV", "against first")
    columns: tuple[str, ...] = ("variant", "status", "compile", "specs applied")
    if not report.not_run:
        columns += ("end to end", *timed, "kernels only", *timed)
    rows = [
        (
            one.variant.name,
            one.status.value,
            time_text(one.built.compile_s) if one.built else NONE,
            {None: NONE, True: "yes", False: "NO"}[one.specs_applied],
            *_cells(one.end_to_end, one.end_to_end_verdict),
            *_cells(one.kernels, one.kernels_verdict),
        )[: len(columns)]
        for one in report.outcomes
    ]
    name = f" @{report.function}" if report.function else ""
    title = f"{report.plan.module.name}{name} on {report.target}"
    return _table(title, columns, rows, {"variant", "status", "specs applied"})


def _cells(times: Times | None, verdict: Paired | None) -> tuple[str, str, str, str]:
    if times is None:
        return NONE, NONE, NONE, NONE
    high = time_text(times.high_s) if math.isfinite(times.high_s) else "∞"
    shown = f"{verdict.ratio:.3f} × ({verdict.status.value})" if verdict else NONE
    interval = f"{time_text(times.low_s)} to {high}"
    return time_text(times.median_s), interval, f"{times.cv:.1%}", shown


def _divergences(one: Outcome, report: Report) -> list[tuple[str, ...]]:
    first = report.outcomes[0].variant.name
    return [
        (
            *(one.variant.name, str(at), against, f"{found.max_abs:.3g}", f"{found.max_rel:.3g}"),
            f"{found.fraction_bad:.2%}",
            str(list(found.first_bad)) if found.first_bad is not None else NONE,
            *(f"{count / found.count:.1%}" if found.count else NONE for count in found.ulps),
        )
        for against, every in (("float64", one.against_f64), (first, one.against_first))
        for at, found in enumerate(every)
    ]


def _dispatches(one: Outcome) -> Table:
    assert one.built is not None
    used = dict.fromkeys(name for d in one.built.dispatches for name in d.resources)
    title = f"dispatches of {one.variant.name}"
    timed = ("calls", "time") if one.dispatch_s else ()
    columns = ("dispatch", *timed, *(_SHORT.get(name, name) for name in used), "config")
    rows = [
        (
            dispatch.name,
            *_time_cells(one.dispatch_s.get(dispatch.name))[: len(timed)],
            *(str(dispatch.resources.get(name, NONE)) for name in used),
            config_text(dispatch),
        )
        for dispatch in _by_time(one.built.dispatches, one.dispatch_s)
    ]
    return _table(title, columns, rows, {"dispatch", "config"})


def _time_cells(time: DispatchTime | None) -> tuple[str, str]:
    return (f"{time.calls:g}", time_text(time.seconds)) if time else (NONE, NONE)


def _by_time(dispatches: Sequence[Dispatch], times: Mapping[str, Any]) -> list[Dispatch]:
    return sorted(dispatches, key=lambda d: -times[d.name].seconds if d.name in times else 0.0)


def config_text(dispatch: Dispatch) -> str:
    """The pipeline and tile sizes of a dispatch on one line."""
    pipeline = _PIPELINE.search(dispatch.config[0]) if dispatch.config else None
    size = _WORKGROUP.search(dispatch.config[0]) if dispatch.config else None
    # The op with a reduction decides how its neighbours are tiled.
    tiles = sorted(dispatch.config[1:], key=lambda one: "reduction" in one)[-1:]
    words = [pipeline[1] if pipeline else "", size[1] if size else "", *tiles]
    text = " ".join(filter(None, words)) or NONE
    return text if len(text) <= _MOST_CONFIG else f"{text[:_MOST_CONFIG]}…"


def _table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]], left: set[str]
) -> Table:
    made = tuple(Column(name=c, align="left" if c in left else "right") for c in columns)
    return Table(title=title, columns=made, rows=tuple(rows))


def costs_table(costs: Sequence[DispatchCost]) -> Table:
    """Dispatches by time, with the problems that they compute."""
    rows = [
        (
            one.name,
            str(one.calls),
            time_text(one.seconds),
            f"{one.fraction:.1%}",
            one.computed.problem.key if one.computed.problem else NONE,
            " ".join(one.computed.lost) or one.computed.why or NONE,
        )
        for one in costs
    ]
    columns = ("dispatch", "calls", "time × calls", "of all", "problem", "left out")
    return _table("", columns, rows, {"dispatch", "problem", "left out"})


def costs_document(costs: Sequence[DispatchCost]) -> list[dict[str, Any]]:
    """Dispatches by time, in seconds."""
    return [
        {
            "name": one.name,
            "calls": one.calls,
            "seconds": one.seconds,
            "fraction": one.fraction,
            "problem": one.computed.problem.key if one.computed.problem else None,
            "lost": list(one.computed.lost),
            "why": one.computed.why,
            "resources": dict(one.resources),
        }
        for one in costs
    ]
