"""Tables and figures of a tuning folder: cost of the problems, plans and progress."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelmark.backends._memory import Searched
from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import BACKEND, Status, config_key
from kernelmark.core.units import bytes_text, counted, time_text, width_text
from kernelmark.report.names import config_text, short
from kernelmark.report.tables import NONE, Column, Table, tabulate
from kernelmark.tune import journal
from kernelmark.tune.evaluate import Candidate, CheckVerdict, PlanCheck, spilled_bytes
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.journal import PlanStatus, Trial
from kernelmark.tune.plans import Draft, Fate, Refused, TunePlan
from kernelmark.tune.results import Metrics, Outcome
from kernelmark.tune.summary import Cost, Summary

if TYPE_CHECKING:
    from kernelmark.report.figures import Values
    from kernelmark.report.vega import Spec

Records = list[dict[str, str | int | float | None]]

# Relative half-width above which a problem's share of the time is unreliable.
_MAX_HALF_WIDTH = 0.2
_NUMBER = re.compile(r"\b\d+\b")


def _table(columns: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Return a table with comma-separated column names; those with a `>` are aligned right."""
    names = columns.split(",")
    return Table(
        columns=tuple(
            Column(name=name.lstrip(">"), align="right" if name[0] == ">" else "left")
            for name in names
        ),
        rows=tuple(rows),
    )


def summary_table(costs: Sequence[Cost]) -> Table:
    """Return a table with the cost of each problem, in the given order."""
    return _table(
        "problem,>calls,>a call,>±,>all calls,>share,>up to here,status",
        (
            (
                short(cost.problem),
                str(cost.count),
                seconds_text(cost.time_s),
                width_text(cost.rel_half_width),
                seconds_text(cost.total_s) if cost.total_s else NONE,
                percent(cost.share) if cost.total_s else NONE,
                percent(cost.cumulative) if cost.total_s else NONE,
                _status(cost),
            )
            for cost in costs
        ),
    )


def summary_line(summary: Summary) -> str:
    """Return a one-sentence summary of the workload."""
    basis = summary.basis
    calls = sum(cost.count for cost in summary.costs)
    line = f"{counted(calls, 'call')} of {counted(len(summary.costs), 'problem')}"
    where = f"with {basis.backend} {basis.version} on {basis.device}"
    if not summary.total_s:
        return f"{line}: none of them could be timed {where}"
    line += f" take{'s' if calls == 1 else ''} {seconds_text(summary.total_s)} {where}"
    if len(summary.selected) < len(summary.costs):
        line += (
            f"; {counted(len(summary.selected), 'problem')} at or above the threshold "
            f"{'is' if len(summary.selected) == 1 else 'are'} {percent(summary.coverage)} of it"
        )
    return line


def titled(plan: TunePlan | Outcome) -> str:
    """Return the name and problem of a plan."""
    return f"{plan.name}: {short(plan.problem)}"


def plan_table(drafts: Sequence[Draft], fates: Mapping[str, Fate]) -> Table:
    """Return a table of plans and what happened to each plan's file."""
    return _table(
        "plan,>calls,>share,>reference,>combinations,file",
        (
            (
                titled(draft.plan),
                str(draft.plan.count),
                percent(draft.plan.share) if draft.plan.share else NONE,
                seconds_text(draft.plan.reference_s) if draft.plan.reference_s else NONE,
                str(draft.combinations),
                _fate(fates[draft.plan.name]),
            )
            for draft in drafts
        ),
    )


def memory_records(searches: Sequence[Searched]) -> Records:
    """Return one record per backend, architecture and op of remembered searches."""
    groups: dict[tuple[str, str, str], list[Searched]] = {}
    for search in searches:
        groups.setdefault((search.backend, search.arch, search.problem.op), []).append(search)
    return [
        {
            **dict(zip(("backend", "arch", "op"), key, strict=True)),
            "problems": len(group),
            "times": sum(len(search.times) for search in group),
        }
        for key, group in sorted(groups.items())
    ]


def memory_table(searches: Sequence[Searched]) -> Table:
    """Return a table of the backends, architectures and ops of remembered searches."""
    rows = (tuple(map(str, record.values())) for record in memory_records(searches))
    return _table("backend,arch,op,>problems,>times", rows)


def plan_records(
    drafts: Sequence[Draft], fates: Mapping[str, Fate], refused: Sequence[Refused]
) -> Records:
    """Return one flat record per problem; a problem without a plan has a reason."""
    records: Records = [
        {
            "plan": draft.plan.name,
            "problem": draft.plan.problem.key,
            "count": draft.plan.count,
            "pct_of_total": _pct(draft.plan.share),
            "reference_us": _us(draft.plan.reference_s) or None,
            "combinations": draft.combinations,
            "file": fates[draft.plan.name].value,
            "reason": "",
        }
        for draft in drafts
    ]
    empty = dict.fromkeys(records[0] if records else ("plan", "problem", "count", "reason"))
    for refusal in refused:
        cost = refusal.cost
        record = {"problem": cost.problem.key, "count": cost.count, "reason": refusal.reason}
        records.append(empty | {"plan": ""} | record)
    return records


def reasons(refused: Sequence[Refused]) -> list[str]:
    """Return why problems have no plan, each reason once. Reasons that differ in sizes only are
    grouped under the first one's text."""
    groups: dict[str, list[Refused]] = {}
    for refusal in refused:
        groups.setdefault(_NUMBER.sub("#", refusal.reason), []).append(refusal)
    return [
        f"no plan for {counted(len(group), 'problem')} ({_first(group)}): {group[0].reason}"
        for group in groups.values()
    ]


def doubts(summary: Summary) -> list[str]:
    """Return warnings about unreliable shares."""
    wide = [c for c in summary.costs if c.total_s and c.rel_half_width > _MAX_HALF_WIDTH]
    lines = []
    if wide:
        share = math.fsum(cost.share for cost in wide)
        lines.append(
            f"the times of {counted(len(wide), 'problem')} ({percent(share)} of the whole) are "
            f"known to no better than ± {100 * _MAX_HALF_WIDTH:.0f} %: measure on a quiet machine, "
            "or with --timing default"
        )
    return lines


def plans_line(
    drafts: Sequence[Draft],
    fates: Mapping[str, Fate],
    refused: Sequence[Refused],
    left_out: Sequence[Cost],
) -> str:
    """Return a one-sentence summary of the plans."""
    counts = {fate: list(fates.values()).count(fate) for fate in Fate}
    summary = ", ".join(f"{count} {fate.value}" for fate, count in counts.items() if count)
    line = counted(len(drafts), "plan") + (f" ({summary})" if summary else "")
    share = math.fsum(draft.plan.share for draft in drafts)
    line += f" for {percent(share)} of the time" if share else ""
    line += f", {counted(len(refused), 'problem')} that cannot be tuned" if refused else ""
    return line + (f", {len(left_out)} below the threshold" if left_out else "")


def status_table(plan_statuses: Sequence[PlanStatus]) -> Table:
    """Return a table with the progress of each plan."""
    columns = "plan,>share,state,>evaluated,>failed,>best,>ratio,config,reason"
    return _table(columns, map(_status_row, plan_statuses))


def _status_row(status: PlanStatus) -> tuple[str, ...]:
    plan, outcome = status.plan, status.outcome
    ratio = outcome.ratio if outcome else math.nan
    return (
        titled(plan) if plan else status.name,
        percent(plan.share) if plan and plan.share else NONE,
        status.state.value,
        _evaluated(plan, status.evaluations) if plan else NONE,
        str(status.failures) if status.evaluations else NONE,
        seconds_text(outcome.tuned.median_s if outcome else status.best_s),
        NONE if math.isnan(ratio) else f"{ratio:.3f} ×",
        tuned_text(outcome) if outcome else NONE,
        status.reason,
    )


def tuned_text(outcome: Outcome) -> str:
    """Return the config that was compared with the reference."""
    tuned = outcome.tuned
    text = config_text(tuned.config)
    return (f"{tuned.backend} {text}".strip() if outcome.reached_s else text) or NONE


def _evaluated(plan: TunePlan, count: int) -> str:
    """Return `12 of 100`; without the total if the budget was lowered below what was evaluated."""
    # A space listed in the plan may have fewer combinations; the backend's own space is not known
    # here.
    whole = not plan.space or BACKEND in plan.space
    listed = math.inf if whole else math.prod(map(len, plan.space.values()))
    budget = int(min(plan.budget.evaluations, listed))
    return f"{count} of {budget}" if count <= budget else str(count)


def status_records(plan_statuses: Sequence[PlanStatus]) -> Records:
    """Return one flat record per plan; times in microseconds."""
    return [_status_record(status, status.plan, status.outcome) for status in plan_statuses]


def _status_record(
    status: PlanStatus, plan: TunePlan | None, outcome: Outcome | None
) -> dict[str, str | int | float | None]:
    return {
        "plan": status.name,
        "problem": plan.problem.key if plan else "",
        "state": status.state.value,
        "count": plan.count if plan else None,
        "pct_of_total": _pct(plan.share) if plan else None,
        "budget": plan.budget.evaluations if plan else None,
        "evaluations": status.evaluations,
        "failures": status.failures,
        "best_us": _us(status.best_s),
        "reference_us": _us(outcome.reference.median_s) if outcome else None,
        "tuned_us": _us(outcome.tuned.median_s) if outcome else None,
        "ratio": _number(outcome.ratio) if outcome else None,
        "low": _number(outcome.low) if outcome else None,
        "high": _number(outcome.high) if outcome else None,
        "kept": ("yes" if outcome.kept else "no") if outcome else None,
        "config_tuned": config_key(outcome.tuned.config) if outcome else None,
        "reason": status.reason,
    }


def comparison_table(pairs: Iterable[tuple[Outcome, Outcome]]) -> Table:
    """Return a table of winners that were compared again, from their outcomes before and now."""
    rows = (_comparison_row(now, before.ratio) for before, now in pairs)
    return _table("name,>tuned,>reference,>ratio,>before", rows)


def _comparison_row(outcome: Outcome, ratio_before: float) -> tuple[str, ...]:
    ratio = f"{outcome.ratio:.3f} × ({outcome.low:.3f} to {outcome.high:.3f})"
    return (
        outcome.name,
        seconds_text(outcome.tuned.median_s),
        seconds_text(outcome.reference.median_s),
        NONE if math.isnan(outcome.ratio) else ratio,
        f"{ratio_before:.3f} ×",
    )


def metrics_line(metrics: Metrics) -> str:
    """Return a one-sentence summary of the tuning results."""
    if not metrics.kept:
        return f"none of {counted(metrics.problems, 'problem')} is kept"
    line = (
        f"{metrics.kept} of {counted(metrics.problems, 'problem')} kept: "
        f"{metrics.geomean_uplift:.3f} × faster"
    )
    if metrics.kept > 1:
        line += f" in the geometric mean, {metrics.average_uplift:.3f} × in the arithmetic mean"
    if metrics.coverage:
        line += (
            f"; that saves {percent(metrics.weighted_saving)} of the workload's time, of which "
            f"they are {percent(metrics.coverage)}"
        )
    return line


def percent(share: float) -> str:
    """Return `12.3 %`, with more digits below 10 %."""
    value = 100 * share
    for limit, digits in ((0.1, 3), (1, 2), (10, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{digits}f} %"
    return f"{value:.0f} %"


def _first(group: Sequence[Refused]) -> str:
    name = short(group[0].cost.problem)
    return name if len(group) == 1 else f"{name}, …"


def _status(cost: Cost) -> str:
    if cost.status is None:
        return "not timed"
    if cost.reason:
        return f"{cost.status.value}: {cost.reason}"
    return cost.status.value if cost.selected else f"{cost.status.value}, below the threshold"


def _fate(fate: Fate) -> str:
    texts = {Fate.EDITED: "edited by hand, left alone", Fate.UNREADABLE: "cannot be read"}
    return texts.get(fate, fate.value)


def _pct(share: float) -> float | None:
    """Return a share in percent, or None if it is 0 (unknown)."""
    return round(100 * share, 6) or None


def _us(seconds: float) -> float | None:
    return _number(seconds * 1e6)


def _number(value: float) -> float | None:
    """Return the value, or None if it is not finite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def seconds_text(seconds: float) -> str:
    """Return `12.3 µs`, or a dash for NaN (not measured)."""
    return NONE if math.isnan(seconds) else time_text(seconds)


def _end(outcome: Outcome) -> str:
    return f"{'kept' if outcome.kept else 'not kept'}, {outcome.reason}"


def _right(name: str, text: Callable[[Any], str]) -> Column:
    return Column(name, text=text, align="right")


_OUTCOME_COLUMNS = (
    Column("plan", text=titled),
    _right("share", lambda outcome: percent(outcome.share) if outcome.share else NONE),
    _right("reference", lambda outcome: seconds_text(outcome.reference.median_s)),
    _right("tuned", lambda outcome: seconds_text(outcome.tuned.median_s)),
    _right("ratio", lambda item: NONE if math.isnan(item.ratio) else f"{item.ratio:.3f} ×"),
    Column("tried", "evaluations", type="integer"),
    Column("config", text=tuned_text),
    Column("outcome", text=_end),
)


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with one row per outcome, in the given order."""
    return tabulate(_OUTCOME_COLUMNS, outcomes)


def by_worth(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return kept outcomes first, ordered by the workload time they save."""
    return sorted(outcomes, key=_worth)


def _worth(outcome: Outcome) -> tuple[bool, float]:
    saved = outcome.saved_s if math.isfinite(outcome.saved_s) else -math.inf
    return not outcome.kept, -saved


def outcome_line(outcome: Outcome) -> str:
    """Return a one-line summary of an outcome."""
    return f"{outcome.name}: {_end(outcome)}"


def _registers(check: PlanCheck) -> str:
    used = [c.kernel.resources.get("registers") for c in _compiled(check)]
    return _span([count for count in used if count is not None], str)


def _spilled(check: PlanCheck) -> str:
    return _span([spilled_bytes(c.kernel.resources) for c in _compiled(check)], bytes_text)


def _compiled(check: PlanCheck) -> list[Candidate]:
    return [
        candidate for candidate in check.candidates if candidate.verdict is not CheckVerdict.FAILED
    ]


def _verdict_column(verdict: CheckVerdict) -> Column:
    return Column(verdict.value, lambda check: check.count(verdict), type="integer")


_CHECK_COLUMNS = (
    Column("plan", text=lambda check: titled(check.plan)),
    Column("compiled", lambda check: len(check.candidates), type="integer"),
    *map(_verdict_column, CheckVerdict),
    _right("registers", _registers),
    _right("spilled", _spilled),
    Column(
        "the others, for example",
        text=lambda check: next((c.reason for c in check.candidates if c.reason), ""),
    ),
)


def check_table(checks: Sequence[PlanCheck]) -> Table:
    """Return a table with one row per plan; registers and spills are ranges per thread."""
    return tabulate(_CHECK_COLUMNS, checks)


def _span(values: Sequence[int], text: Callable[[int], str]) -> str:
    if not values:
        return NONE
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def check_records(checks: Sequence[PlanCheck]) -> list[dict[str, str | int | float | None]]:
    """Return one flat record per candidate; resources that the compiler did not report are None."""
    return [_record(check, candidate) for check in checks for candidate in check.candidates]


def _record(check: PlanCheck, candidate: Candidate) -> dict[str, str | int | float | None]:
    used = candidate.kernel.resources
    return {
        "plan": check.plan.name,
        "problem": check.plan.problem.key,
        "arch": check.plan.arch,
        "verdict": candidate.verdict.value,
        "reason": candidate.reason,
        "registers": used.get("registers"),
        "accumulation_registers": used.get("accumulation_registers"),
        "scalar_registers": used.get("scalar_registers"),
        "spilled_registers": used.get("spilled_registers"),
        "spilled_scalar_registers": used.get("spilled_scalar_registers"),
        "stack_bytes": used.get("stack_bytes"),
        "shared_bytes": used.get("shared_bytes"),
        "compile_s": round(candidate.seconds, 6),
        "config": config_key(candidate.config),
    }


def check_line(checks: Sequence[PlanCheck]) -> str:
    """Return a one-sentence summary of all plans."""
    every = [candidate for check in checks for candidate in check.candidates]
    counts = Counter(candidate.verdict for candidate in every)
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in CheckVerdict)
    archs = ", ".join(dict.fromkeys(check.plan.arch for check in checks))
    where = f"{counted(len(every), 'candidate')} of {counted(len(checks), 'plan')}"
    return f"{where} compiled for {archs}: {verdicts}"


_MOST_PLANS = 6  # maximum plans whose candidates are drawn
_MOST_LINES = 250  # maximum candidates per plan: more are not distinguishable
_TIME = "time"


def folder_figure(folder: TuningFolder) -> Spec:
    """Return the figure of all plans in a tuning folder that have a journal."""
    there = [name for name in folder.names() if folder.journal(name).is_file()]
    return tuning_figure({name: journal.read_journal(folder.journal(name))[1] for name in there})


def tuning_figure(trials: Mapping[str, Sequence[Trial]]) -> Spec:
    """Return the best time so far over evaluations, the importance of each parameter, and parallel
    coordinates of each plan's candidates."""
    from kernelmark.report import figures

    progress: Values = []
    matter: Values = []
    for name, plan_trials in trials.items():
        timed = _timed(plan_trials)
        final = min((trial.seconds or math.inf for trial in timed), default=math.inf)
        best = math.inf
        for at, trial in enumerate(timed, 1):
            best = min(best, trial.seconds or math.inf)
            point = {"plan": name, "at": at, "us": best * 1e6, "ratio": best / final}
            progress.append(point | {"time": time_text(best)})
        for parameter, share in importance(timed).items():
            matter.append({"plan": name, "parameter": parameter, "share": share})
    if not progress:
        raise NothingToDo("no candidate has a time to draw")
    line = {
        "x": {"field": "at", "type": "quantitative", "title": "timings"},
        # Normalised to each plan's best, because small and large problems share the axis.
        "y": {"field": "ratio", "type": "quantitative", "scale": {"zero": False}}
        | {"title": "best so far over the best found"},
        "color": figures.by_field("plan"),
        "tooltip": [{"field": item, "type": "nominal"} for item in ("plan", "at", "time")],
    }
    share_x = {"field": "share", "type": "quantitative", "axis": {"format": "%"}}
    share_x["title"] = "share of the variance of log time that the parameter explains alone"
    bar = {
        "y": {"field": "parameter", "type": "nominal", "sort": "-x", "title": None},
        "x": share_x,
        "color": figures.by_field("plan", legend=False),
        "yOffset": {"field": "plan", "type": "nominal"},
    }
    first = {"width": figures.WIDTH, "height": figures.HEIGHT // 2, "data": {"values": progress}}
    panels: list[Spec] = [
        {**first, "mark": {"type": "line", "interpolate": "step-after"}, "encoding": line}
    ]
    if matter:
        second = {"width": figures.WIDTH, "height": {"step": 16}, "data": {"values": matter}}
        panels.append({**second, "mark": "bar", "encoding": bar})
    panels += [
        spec
        for name, plan_trials in list(trials.items())[:_MOST_PLANS]
        if (spec := coordinates(name, plan_trials)) is not None
    ]
    return {"vconcat": panels}


def importance(trials: Sequence[Trial]) -> dict[str, float]:
    """Return each parameter's fraction of the variance of log time (η²)."""
    times = [math.log(trial.seconds) for trial in trials if trial.seconds]
    if len(times) < 3 or statistics.pvariance(times) == 0:
        return {}
    whole, mean = statistics.pvariance(times), statistics.fmean(times)
    weights = {}
    for name in dict.fromkeys(name for trial in trials for name in trial.config):
        groups: dict[object, list[float]] = {}
        for trial, seconds in zip(trials, times, strict=True):
            groups.setdefault(trial.config.get(name), []).append(seconds)
        if len(groups) > 1:
            between = sum(len(g) * (statistics.fmean(g) - mean) ** 2 for g in groups.values())
            weights[name] = between / len(times) / whole
    return weights


def coordinates(name: str, trials: Sequence[Trial]) -> Spec | None:
    """Return parallel coordinates of one plan: one line per candidate over its parameters, the most
    important first, then its time; the fastest are drawn last and darkest. None if nothing
    varies."""
    from kernelmark.report import figures

    best: dict[str, Trial] = {}
    for trial in _timed(trials):
        key = str(sorted(trial.config.items()))
        if key not in best or (trial.seconds or 0.0) < (best[key].seconds or 0.0):
            best[key] = trial
    fastest_last = sorted(best.values(), key=lambda trial: -(trial.seconds or 0.0))
    weight = importance(fastest_last)
    parameters = sorted(weight, key=lambda item: -weight[item])
    if not parameters:
        return None
    # The fastest candidates, and every n-th of the rest.
    step = max(1, math.ceil(len(fastest_last) / _MOST_LINES))
    half = fastest_last[-_MOST_LINES // 2 :]
    shown = [*fastest_last[: -len(half) : step], *half]
    places = {
        parameter: _heights([trial.config.get(parameter) for trial in fastest_last])
        for parameter in parameters
    }
    times = [math.log(trial.seconds or 1.0) for trial in fastest_last]
    low, high = min(times), max(times)
    lines: Values = []
    for number, trial in enumerate(shown):
        seconds = trial.seconds or 1.0
        height = (math.log(seconds) - low) / (high - low) if high > low else 0.5
        common = {"line": number, "us": seconds * 1e6, "time": time_text(seconds)}
        common["config"] = " ".join(f"{n}={v}" for n, v in sorted(trial.config.items()))
        lines += [
            {**common, "axis": parameter, "y": places[parameter][trial.config.get(parameter)]}
            for parameter in parameters
        ]
        lines.append({**common, "axis": _TIME, "y": height})
    labels: Values = [
        {"axis": parameter, "y": y, "value": "default" if value is None else str(value)}
        for parameter in parameters
        for value, y in places[parameter].items()
    ]
    ends = ((0.0, low), (1.0, high))
    labels += [{"axis": _TIME, "y": y, "value": time_text(math.exp(at))} for y, at in ends]
    axis = {"title": None, "labelAngle": 0, "domain": False, "ticks": False, "grid": True}
    x: Spec = {"field": "axis", "type": "nominal", "sort": [*parameters, _TIME], "axis": axis}
    # The plan's name as an axis title, because pages omit panel titles.
    bare = {"labels": False, "ticks": False, "domain": False, "grid": False, "title": name}
    y: Spec = {"field": "y", "type": "quantitative", "axis": bare}
    # Visible on light and dark backgrounds; either end of viridis fades on one of them.
    fading = [figures.PALETTE[5], figures.PALETTE[1], figures.PALETTE[7]]
    scale = {"type": "log", "range": fading, "interpolate": "rgb", "nice": False}
    colour: Spec = {"field": "us", "type": "quantitative", "title": "µs", "scale": scale}
    tips = [{"field": item, "type": "nominal"} for item in ("time", "config")]
    drawn = {"x": x, "y": y, "detail": {"field": "line"}, "color": colour, "tooltip": tips}
    text = {"type": "text", "align": "left", "dx": 5, "dy": -7, "fontSize": 10}
    thin = {"type": "line", "strokeWidth": 1.2, "opacity": 0.55}
    return {
        "width": max(figures.WIDTH, 90 * (len(parameters) + 1)),
        "height": figures.HEIGHT * 2 // 3,
        "layer": [
            {"data": {"values": lines}, "mark": thin, "encoding": drawn},
            {
                "data": {"values": labels},
                "mark": text,
                "encoding": {"x": x, "y": y, "text": {"field": "value"}},
            },
        ],
    }


def _timed(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.seconds and t.status is Status.OK and not t.backend]


def _heights(values: Sequence[object]) -> dict[object, float]:
    """Return each value's height on its axis, evenly spaced: numbers in order, then others."""
    distinct = dict.fromkeys(values)
    numbers = sorted(v for v in distinct if isinstance(v, int | float))
    order: list[object] = [*numbers, *sorted((v for v in distinct if v not in numbers), key=str)]
    last = max(1, len(order) - 1)
    return {value: index / last for index, value in enumerate(order)}
