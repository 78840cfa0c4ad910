"""The rows of `kmark audit`: as a table, and in CSV, JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelmark.core.files import csv_text, json_text
from kernelmark.core.result import config_key
from kernelmark.core.units import counted
from kernelmark.report.names import backend_text, config_text, short
from kernelmark.report.tables import (
    NONE,
    Column,
    Table,
    csv_names,
    file_column,
    markdown,
    record,
    tabulate,
)
from kernelmark.tune.recorded.audited import AuditedRow, AuditReport, RowVerdict

if TYPE_CHECKING:
    from kernelmark.runners.ab import Row
    from kernelmark.tune.recorded.base import Contender

# Verdicts in the order of the table, those to act on first.
ORDER = (
    *(RowVerdict.FAILED, RowVerdict.SLOWER, RowVerdict.BEATEN, RowVerdict.UNSURE),
    *(RowVerdict.TIED, RowVerdict.BEST, RowVerdict.UNMEASURED),
)
_MOST = 10.0  # larger bounds of a regret come from noise alone


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _regret(name: str) -> Callable[[AuditedRow], float | None]:
    return lambda row: None if row.regret is None else _finite(getattr(row.regret, name))


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _interval(row: AuditedRow) -> str:
    if row.regret is None:
        return NONE
    high = row.regret.high
    end = f"> {_MOST * 100:.0f} %" if high > _MOST else f"{100 * high:.1f} %"
    return f"{100 * row.regret.low:.1f} … {end}"


def _of_default(row: AuditedRow) -> float | None:
    paired = row.default.paired if row.default is not None else None
    return None if paired is None else _finite(paired.ratio)


def _contender(value: Contender | None) -> str:
    if value is None:
        return ""
    return f"{value.backend} {config_text(value.config)}".strip()


def _choice(row: AuditedRow) -> str:
    chosen = row.row.choice
    if chosen is None:
        return row.row.recorded
    is_stand_in = row.row.stand_in and row.verdict is not RowVerdict.UNMEASURED
    return _contender(chosen) + (" *" if is_stand_in else "")


COLUMNS = (
    file_column("file", "file", "the tuner's file"),
    file_column("where", "row.where", "the row in the file"),
    Column("label", "row.label", "what the tuner calls the row", title="row"),
    Column(
        "problem",
        lambda row: row.row.problem.key if row.row.problem is not None else None,
        "problem, with every parameter",
        "text?",
        text=lambda row: short(row.row.problem) if row.row.problem is not None else NONE,
    ),
    Column("choice", _choice, "what was measured for it; * a stand-in"),
    file_column("recorded", "row.recorded", "the choice as the file has it"),
    file_column("stand_in", "row.stand_in", "not the tuner's own kernel", "true or false"),
    Column(
        "vs_default",
        _of_default,
        "time of the choice / time of the default: above 1 is slower",
        "number?",
        title="of default",
        text=lambda row: NONE if (r := _of_default(row)) is None else f"{r:.3f} ×",
    ),
    Column(
        "regret",
        _regret("value"),
        "how much slower than the fastest contender: 0.1 is 10 %",
        "number?",
        text=lambda row: _percent(_regret("value")(row)),
    ),
    file_column("regret_low", _regret("low"), "lower end of the interval of regret", "number?"),
    file_column("regret_high", _regret("high"), "upper end of the interval of regret", "number?"),
    Column("interval", align="right", text=_interval),
    Column("ties", lambda row: len(row.ties), "contenders that are as fast", "integer"),
    Column(
        "flips",
        "flips",
        "share of processes in which another contender was the fastest",
        "number?",
        text=lambda row: _percent(row.flips),
    ),
    Column("applied", "applied.value", "whether a log proves that the row is used"),
    Column("verdict", "verdict.value", "verdict on the choice", last=True),
    Column("reason", "reason", "reason of the verdict", last=True),
    file_column("stable", lambda row: _contender(row.stable), "the choice to write"),
    file_column("changed", "is_changed", "whether it is another one", "true or false"),
)


def sorted_rows(report: AuditReport) -> list[AuditedRow]:
    """Return the rows, those to act on first."""
    return sorted(report.rows, key=lambda row: ORDER.index(row.verdict))


def audit_table(report: AuditReport) -> Table:
    """Return a table with a line for each row."""
    return tabulate(COLUMNS, sorted_rows(report))


def summary(report: AuditReport) -> str:
    """Return the counts of the verdicts."""
    counts = [(report.count(verdict), verdict.value) for verdict in ORDER]
    text = ", ".join(f"{count} {name}" for count, name in counts if count)
    return f"{counted(len(report.rows), 'row')}: {text}"


def notes(report: AuditReport) -> list[str]:
    """Return notes that apply to the audit as a whole."""
    lines = []
    if any(row.row.stand_in and row.pairs for row in report.rows):
        lines.append(
            "* measured with kernelmark's Triton kernel of the op, not the tuner's own: "
            "--kernel FILE.py measures that"
        )
    if not report.plan.log:
        lines.append("applied is unknown without --log FILE: the framework's log or a profile")
    return lines


def _pair_record(pair: Row) -> dict[str, Any]:
    paired = pair.paired
    numbers = ("ratio", "low", "high", "p_value", "q_value")
    return {
        "contender": backend_text(pair.base.case),
        "config": config_key(pair.base.case.config),
        "status": pair.status.value,
        **{name: _finite(getattr(paired, name)) if paired else None for name in numbers},
        "contender_s": list(pair.base_s),
        "choice_s": list(pair.head_s),
        "reason": str(pair.reason),
    }


def to_json(report: AuditReport) -> str:
    """Return all rows with the times of every contender."""
    plan = report.plan
    return json_text(
        {
            "state": report.state.value,
            "device": plan.device,
            "processes": list(plan.rule.looks.rounds),
            "alpha": plan.rule.looks.alpha,
            "delta": plan.rule.delta,
            "seed": plan.rule.seed,
            "alternatives": plan.alternatives,
            "rows": [
                {
                    **record(COLUMNS, row),
                    "tied_with": [_contender(tie) for tie in row.ties],
                    "contenders": [_pair_record(pair) for pair in row.pairs],
                }
                for row in report.rows
            ],
        }
    )


def to_csv(report: AuditReport) -> str:
    return csv_text([record(COLUMNS, row) for row in report.rows], csv_names(COLUMNS))


def to_md(report: AuditReport) -> str:
    return "\n\n".join([markdown(audit_table(report)).rstrip(), summary(report), *notes(report)])
