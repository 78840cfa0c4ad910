"""Tables of a tuning folder: cost of the problems, plans and progress."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernelmark.core.result import config_key
from kernelmark.core.units import bytes_text, counted, time_text, width_text
from kernelmark.report.names import config_text, short
from kernelmark.report.tables import NONE, Column, Table, tabulate
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.plans.planner import Draft, Fate, Refused
from kernelmark.tune.plans.summary import Cost, Summary
from kernelmark.tune.records.results import Metrics, Outcome
from kernelmark.tune.records.status import PlanStatus
from kernelmark.tune.search.evaluate import Candidate, Check, Verdict, spilled_bytes

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
    return config_text(outcome.tuned.config) or NONE


def _evaluated(plan: TunePlan, count: int) -> str:
    """Return `12 of 100`; without the total if the budget was lowered below what was evaluated."""
    # A space listed in the plan may have fewer combinations; the backend's own space is not known
    # here.
    listed = math.prod(len(values) for values in plan.space.values()) if plan.space else math.inf
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


def _registers(check: Check) -> str:
    used = [c.kernel.resources.get("registers") for c in _compiled(check)]
    return _span([count for count in used if count is not None], str)


def _spilled(check: Check) -> str:
    return _span([spilled_bytes(c.kernel.resources) for c in _compiled(check)], bytes_text)


def _compiled(check: Check) -> list[Candidate]:
    return [candidate for candidate in check.candidates if candidate.verdict is not Verdict.FAILED]


def _verdict_column(verdict: Verdict) -> Column:
    return Column(verdict.value, lambda check: check.count(verdict), type="integer")


_CHECK_COLUMNS = (
    Column("plan", text=lambda check: titled(check.plan)),
    Column("compiled", lambda check: len(check.candidates), type="integer"),
    *map(_verdict_column, Verdict),
    _right("registers", _registers),
    _right("spilled", _spilled),
    Column(
        "the others, for example",
        text=lambda check: next((c.reason for c in check.candidates if c.reason), ""),
    ),
)


def check_table(checks: Sequence[Check]) -> Table:
    """Return a table with one row per plan; registers and spills are ranges per thread."""
    return tabulate(_CHECK_COLUMNS, checks)


def _span(values: Sequence[int], text: Callable[[int], str]) -> str:
    if not values:
        return NONE
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def check_records(checks: Sequence[Check]) -> list[dict[str, str | int | float | None]]:
    """Return one flat record per candidate; resources that the compiler did not report are None."""
    return [_record(check, candidate) for check in checks for candidate in check.candidates]


def _record(check: Check, candidate: Candidate) -> dict[str, str | int | float | None]:
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


def check_line(checks: Sequence[Check]) -> str:
    """Return a one-sentence summary of all plans."""
    every = [candidate for check in checks for candidate in check.candidates]
    counts = Counter(candidate.verdict for candidate in every)
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    archs = ", ".join(dict.fromkeys(check.plan.arch for check in checks))
    where = f"{counted(len(every), 'candidate')} of {counted(len(checks), 'plan')}"
    return f"{where} compiled for {archs}: {verdicts}"
