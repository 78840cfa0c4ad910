"""Tables of what tuning found: the outcomes of plans, and the resources of compiled candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernelmark.core.result import config_key
from kernelmark.core.units import bytes_text, counted
from kernelmark.report.tables import NONE, Column, Table, tabulate
from kernelmark.report.tuning import percent, seconds_text, titled, tuned_text
from kernelmark.tune.records.results import Outcome
from kernelmark.tune.search.evaluate import Candidate, Check, Verdict, spilled_bytes


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
