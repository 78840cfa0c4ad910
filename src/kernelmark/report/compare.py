"""A comparison as tables, a pull-request comment, records and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelmark.compare.match import taken_ways
from kernelmark.compare.verdicts import ALARMS, ComparedRow, Comparison
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.files import Cell
from kernelmark.core.micro import benchmark_name, is_micro
from kernelmark.core.problem import parse_key
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Run, config_key
from kernelmark.core.units import MOST_PERCENT, counted, value_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.changes import TWO_NUMBERS, of_comparison, verdict_text
from kernelmark.report.changes import comment as changes_comment
from kernelmark.report.detail import facts
from kernelmark.report.names import backend_text, distinguishing, rerun, short
from kernelmark.report.tables import NONE, Column, Table, file_column, record, tabulate
from kernelmark.stats.paired import COMMON_LIMIT, DELTA
from kernelmark.workloads.importers import notes as file_notes

_UNKNOWN = Environment()
# Clocks that differ by less than the robust rule's effect floor cannot explain a change.
_CLOCK_FLOOR = 0.01
_GONE_HINT = "; to fail on that too: --fail-on slower,broken,gone"


def table(rows: Sequence[ComparedRow], title: str = "") -> Table:
    """Return a table with one line per row: times, change with interval, verdict, reason."""
    shown = [row.pair.shown for row in rows]
    names = [
        (result.case.problem.key, backends_text(row), row.pair.metric, result.device)
        for row, result in zip(rows, shown, strict=True)
    ]
    timings = distinguishing(names, [result.case.timing for result in shown])
    has_metrics = any(row.pair.metric for row in rows)
    metrics = [(_metric(row) or NONE) if has_metrics else "" for row in rows]
    return tabulate(COLUMNS, rows, title=title, texts={"timing": timings, "metric": metrics})


def summary(comparison: Comparison) -> str:
    """Return `61 rows by robust: 2 slower, 58 same, 1 unsure; 2 of them suppressed`."""
    counts = ", ".join(f"{n} {status.value}" for status, n in comparison.counts.items())
    suppressed = sum(bool(row.held) for row in comparison.rows)
    summary = f"{counted(len(comparison.rows), 'row')} by {comparison.rule}: {counts}"
    return f"{summary}; {suppressed} of them suppressed" if suppressed else summary


def notes(comparison: Comparison, *, gone_fails: bool = False) -> list[str]:
    """Return the caveats of the verdicts; `gone_fails`: rows that only base has already fail."""
    same_run = comparison.base.id == comparison.head.id
    twice = [f"base and head are one run, {comparison.base.id}"] if same_run else []
    suppressed = any(row.held for row in comparison.rows)
    so = "changes of times are suppressed" if suppressed else "other changes may be its"
    lines = twice + [
        f"canary moved: {moved_text(text)}; the machine changed, so {so}"
        for text in comparison.moved
    ]
    single = [row for row in comparison.rows if _one_process(row)]
    if comparison.rule == "robust" and single:
        lines.append(
            f"{_rows(len(single))} measured in one process: the intervals leave out how processes "
            "and days differ; kmark ab measures both sides in many processes"
        )
    bare = sum(_is_bare(row) for row in comparison.rows)
    if bare:
        lines.append(
            f"{_rows(bare)} compared by a mean without dispersion: only threshold rules and "
            "history apply"
        )
    if otherwise := [row for row in comparison.rows if _is_timed_otherwise(row)]:
        base, head = _timings(otherwise[0])
        lines.append(f"{_rows(len(otherwise))} timed in another way in head: {base} → {head}")
    base_archs = {row.pair.base.arch or "unknown" for row in comparison.rows if row.pair.base}
    head_archs = {row.pair.head.arch or "unknown" for row in comparison.rows if row.pair.head}
    if base_archs != head_archs:
        lines.append(
            f"the devices differ: {', '.join(sorted(base_archs))} and "
            f"{', '.join(sorted(head_archs))}"
        )
    if moved := sum(_on_another_gpu(row, comparison) for row in comparison.rows):
        lines.append(
            f"{_rows(moved)} measured on another GPU in head: two GPUs, even of one model, may "
            "differ by several percent"
        )
    audit = comparison.audit
    if audit.compared:
        lines.append(
            f"{_rows(audit.compared)} the same binary on both sides, which tests the rule itself: "
            f"{counted(audit.alarms, 'false alarm')}"
        )
    lines += _common_changes(comparison)
    lines += _two_numbers(comparison)
    lines += _micro_differences(comparison)
    lines += _clock_notes(comparison)
    lines += comparison.notes
    lines += _import_notes(comparison)
    if gone := comparison.counts.get(VerdictStatus.GONE):
        what = "1 row of base is" if gone == 1 else f"{gone} rows of base are"
        lines.append(f"{what} not in head{'' if gone_fails else _GONE_HINT}")
    return lines


def _common_changes(comparison: Comparison) -> list[str]:
    """Return a note for each change that rows on a CPU have in common."""
    changes = Counter(row.judgement.common for row in comparison.rows if row.judgement.common)
    lines = []
    for ratio, count in changes.items():
        if abs(math.log(ratio)) > COMMON_LIMIT:
            so = "more than machines usually do between runs, so verdicts include it: "
        elif abs(math.log(ratio)) > DELTA:
            so = "which verdicts leave out: "
        else:
            continue
        lines.append(
            f"{counted(count, 'row')} changed by {change_text(ratio)} in common, {so}the machine "
            "has changed, or what all of them use; canaries or kmark ab can tell"
        )
    return lines


def change_of_medians(row: ComparedRow) -> float | None:
    """Return the ratio of a row's medians if it differs from the judged ratio, else None."""
    sides = [side.measurement for side in (row.pair.base, row.pair.head) if side is not None]
    medians = [measurement.median_s for measurement in sides if measurement is not None]
    if row.judgement.ratio is None or row.pair.metric or len(medians) != 2:
        return None
    ratio = medians[1] / medians[0]
    return ratio if abs(ratio - row.judgement.ratio) > TWO_NUMBERS else None


def _two_numbers(comparison: Comparison) -> list[str]:
    """Return a note if the change of some rows differs from the change of their medians."""
    differing = [(row, ratio) for row in comparison.rows if (ratio := change_of_medians(row))]
    if not differing:
        return []
    row, ratio = max(differing, key=lambda pair: abs(pair[1] - (pair[0].judgement.ratio or 1.0)))
    most = f" (the largest difference of {len(differing)} rows)" if len(differing) > 1 else ""
    return [
        f"base and head are the times that {comparison.rule} judges, not medians as in kmark show "
        f"and kmark history: the medians of row {row.number} changed by {change_text(ratio)}{most}"
    ]


def _micro_differences(comparison: Comparison) -> list[str]:
    """Return notes on microbenchmarks that were measured differently on the two sides."""
    differences: dict[str, dict[str, None]] = {}
    for row in comparison.rows:
        if row.pair.metric and (ways := taken_ways(*row.pair.results)):
            name = benchmark_name(row.pair.shown.case.problem)
            differences.setdefault(", ".join(ways), {})[name] = None
    return [f"{', '.join(names)}: taken {ways}" for ways, names in differences.items()]


def unrecorded(comparison: Comparison) -> str:
    """Return a sentence about environments that were not recorded, as in imported files of bare
    times and in runs whose workers all died; "" if there are none."""
    if all(run.environment == _UNKNOWN for run in comparison.runs):
        return "the environments were not recorded"
    base, head = (run.environment.recorded for run in comparison.runs)
    if base == head:
        return ""
    return f"libraries and variables of {'head' if base else 'base'} were not recorded"


def environment(comparison: Comparison) -> Table:
    """Return a table of all differences between the two environments."""
    return Table(
        title="environment",
        columns=tuple(Column(name) for name in ("what", "base", "head")),
        rows=tuple(
            (what, base or NONE, head or NONE) for what, base, head in comparison.environment
        ),
    )


def explain(row: ComparedRow, more: Sequence[str] = ()) -> list[Table]:
    """Return tables that explain a row's verdict, with its rerun command and `more` arguments."""
    shown = row.pair.shown
    what = [
        ("problem", shown.case.problem.key),
        ("backend", backends_text(row)),
        ("timing", " → ".join(_timings(row))),
        ("case", shown.case.id),
        *([("metric", row.pair.metric)] if row.pair.metric else []),
        ("verdict", row.status.value),
        ("reason", row.judgement.reason),
        *([("suppressed", row.held)] if row.held else []),
        *([("clock", clock_text(row))] if row.pair.clocks_mhz else []),
        ("same binary", "yes" if row.pair.same_binary else "no, or not known"),
        *([("run again", command)] if (command := rerun(shown, more)) else []),
    ]
    tables = [facts(f"row {row.number}", what)]
    if row.judgement.facts:
        tables.append(facts("how the rule decided", row.judgement.facts))
    return tables


def comment(
    comparison: Comparison,
    *,
    command: str,
    failed: bool,
    gone_fails: bool = False,
    more: Sequence[str] = (),
) -> str:
    """Return Markdown for a pull request: changes, environment differences and the commands to
    reproduce them, with `more` arguments. Unchanged rows are counted, not listed."""
    changes = of_comparison(comparison, more)
    is_explained = failed and not any(change.counts for change in changes)
    facts = ["It fails, as --fail-on asks"] if is_explained else []
    lines = notes(comparison, gone_fails=gone_fails)
    table = _untitled(environment(comparison))
    if missing := unrecorded(comparison):
        lines.append(missing)
    return changes_comment(
        changes,
        facts=[*facts, summary(comparison), _sides_text(comparison)],
        notes=lines,
        environment=None if missing and not table.rows else table,
        command=command,
    )


def records(comparison: Comparison) -> list[dict[str, Cell]]:
    """Return one flat record per row, in seconds."""
    return [record(COLUMNS, row) for row in comparison.rows]


def document(comparison: Comparison, more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the comparison as plain JSON values; `more` arguments end each rerun command."""
    audit = comparison.audit
    return {
        "kernelmark": "compare",
        "version": codec.VERSION,
        "base": _run_document(comparison.base),
        "head": _run_document(comparison.head),
        "rule": {"name": comparison.rule, **comparison.settings},
        "counts": {status.value: count for status, count in comparison.counts.items()},
        "same_binary": {"compared": audit.compared, "alarms": audit.alarms},
        "sentinels_moved": list(comparison.moved),
        "environment": [
            {"what": what, "base": base, "head": head}
            for what, base, head in comparison.environment
        ],
        "rows": [
            {name: _plain(value) for name, value in record(COLUMNS, row).items()}
            | {"again": rerun(row.pair.shown, more)}
            for row in comparison.rows
        ],
    }


def _plain(value: Cell) -> Any:
    """Return a JSON value. A Reason is kept, because `json_text` writes its code."""
    return value if isinstance(value, Reason) else codec.plain(value)


def moved_text(moved: Reason) -> str:
    """Return a moved canary as `gemm m=8 … dtype=f32: slower`."""
    problem = short(parse_key(moved.fields["problem"]))
    return f"{problem}: {moved.fields['verdict']}"


def change_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return `+3.1 % ±0.4`: the change with half the width of its interval, or that it is too
    noisy."""
    if ratio is None:
        return NONE
    text = f"{100 * (ratio - 1):+z.1f} %"
    if low is None or high is None or not math.isfinite(high - low):
        return text
    half = 50 * (high - low)
    return f"{text} ±{half:.1f}" if half <= MOST_PERCENT else "too noisy"


def backends_text(row: ComparedRow) -> str:
    """Return the backend, or both if the best results of each side are compared."""
    sides = [side for side in (row.pair.base, row.pair.head) if side is not None]
    return " → ".join(dict.fromkeys(backend_text(side.case) for side in sides))


def _timings(row: ComparedRow) -> list[str]:
    """Return the timing identity, or that of base and of head if they differ, which they can only
    when the best results of each side are compared."""
    sides = [side for side in (row.pair.base, row.pair.head) if side is not None]
    return list(dict.fromkeys(side.case.timing.identity for side in sides))


def _is_timed_otherwise(row: ComparedRow) -> bool:
    """Return whether the two sides have different timing identities. Results from one store share
    Timing objects, so `is` is checked first: formatting a thousand identities dominates the time of
    the notes."""
    base, head = row.pair.base, row.pair.head
    if base is None or head is None or base.case.timing is head.case.timing:
        return False
    return base.case.timing.identity != head.case.timing.identity


def values_of(row: ComparedRow) -> tuple[float | None, float | None]:
    """Return the compared values of base and head."""
    if row.pair.metric:
        base, head = row.pair.metrics
        return base.value, head.value
    return row.judgement.base_s, row.judgement.head_s


def _metric(row: ComparedRow) -> str:
    """Return the name of the compared quantity; "" for a microbenchmark that only one side has."""
    return row.pair.metric or ("" if is_micro(row.pair.shown.case) else "time")


def unit_of(row: ComparedRow) -> str:
    if row.pair.metric:
        return row.pair.metrics[0].unit
    return "s" if _metric(row) else ""


def _import_notes(comparison: Comparison) -> list[str]:
    """Return the notes stored with imported files, by side."""
    notes = []
    for side in ("base", "head"):
        results = [getattr(row.pair, side) for row in comparison.rows]
        texts = file_notes(result for result in results if result is not None)
        notes += [f"{side}: {text}" for text in texts]
    return notes


def _one_process(row: ComparedRow) -> bool:
    if row.status in (VerdictStatus.NEW, VerdictStatus.GONE) or row.judgement.low is None:
        return False
    return any(
        side is not None
        and side.measurement is not None
        and len({block.process for block in side.measurement.blocks}) == 1
        for side in (row.pair.base, row.pair.head)
    )


def _on_another_gpu(row: ComparedRow, comparison: Comparison) -> bool:
    """Return whether the two sides of a row were measured on two GPUs of one architecture."""
    base, head = row.pair.base, row.pair.head
    if base is None or head is None or base.arch != head.arch:
        return False
    sides = zip(comparison.runs, (base, head), strict=True)
    base_uuid, head_uuid = (run.environment.uuid(result.device) for run, result in sides)
    return bool(base_uuid and head_uuid) and base_uuid != head_uuid


def _is_bare(row: ComparedRow) -> bool:
    """Return whether both sides have a time and at least one is a bare mean."""
    base, head = row.pair.base, row.pair.head
    if base is None or head is None or base.measurement is None or head.measurement is None:
        return False
    return _is_single(base.measurement) or _is_single(head.measurement)


def _is_single(measurement: Measurement) -> bool:
    blocks = measurement.blocks
    return len(blocks) == 1 and len(blocks[0].samples_s) == 1


def _rows(count: int) -> str:
    return "1 row was" if count == 1 else f"{count} rows were"


def _sides_text(comparison: Comparison) -> str:
    names = [_run_text(run) for run in comparison.runs]
    if names[0] == names[1]:
        names = [f"{name} ({run.id})" for name, run in zip(names, comparison.runs, strict=True)]
    return f"Base {names[0]}, head {names[1]}"


def _run_text(run: Run) -> str:
    # An imported run is named after its file.
    file = "" if run.argv or Path(run.suite).suffix in ("", ".toml") else run.suite
    return f"`{run.label or file or run.id}`"


def _run_document(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "label": run.label,
        "suite": run.suite,
        "started": run.started,
        "commit": run.environment.commit,
        "fingerprint": run.environment.fingerprint,
    }


def _untitled(titled: Table) -> Table:
    return Table(columns=titled.columns, rows=titled.rows)


def is_clock_change(row: ComparedRow) -> bool:
    """Return whether the row's time changed and its core clock changed too.

    A GPU at its power cap runs the same kernel at a clock that depends on temperature and on the
    load before. A rule that judges only times calls such a row changed; the change in cycles shows
    whether the kernel or the clock changed. The rule robust compares at equal clocks itself."""
    if row.status not in ALARMS or row.judgement.reason.code == "at-equal-clock":
        return False
    clocks = row.pair.clocks_mhz
    return clocks is not None and abs(math.log(clocks[1] / clocks[0])) > _CLOCK_FLOOR


def clock_text(row: ComparedRow) -> str:
    """Return `1402 → 1606 MHz: -1.4 % in cycles`; "" if a side has no measured clock."""
    if row.pair.clocks_mhz is None:
        return ""
    base, head = row.pair.clocks_mhz
    text = f"{base:.0f} → {head:.0f} MHz"
    ratio = row.judgement.ratio
    if ratio is None:
        return text
    return f"{text}: {100 * (ratio * head / base - 1):+.1f} % in cycles"


def _clock_notes(comparison: Comparison) -> list[str]:
    """Return a note if rows changed along with the clock, and if the sides' warm-ups differ."""
    rows = [row for row in comparison.rows if is_clock_change(row)]
    if not rows:
        return []
    what = "1 changed row" if len(rows) == 1 else f"{len(rows)} changed rows"
    text = (
        f"{what} ran at another core clock in head, so the change in cycles is beside: heat, power "
        "and the work before set the clock; kmark ab measures both sides in turns"
    )
    base, head = max((_warmups(row) for row in rows), key=lambda pair: abs(pair[0] - pair[1]))
    if base != head:
        text += (
            f". Base was warmed up for up to {base:g} s, head for {head:g} s: measure both with "
            "the same --timing"
        )
    return [text]


def _warmups(row: ComparedRow) -> tuple[float, float]:
    base, head = row.pair.base or row.pair.shown, row.pair.shown
    return base.case.timing.warmup_s, head.case.timing.warmup_s


def change_cell(row: ComparedRow) -> str:
    judged = row.judgement
    return change_text(judged.ratio, judged.low, judged.high)


def _value_cell(row: ComparedRow, side: int) -> str:
    value = values_of(row)[side]
    return NONE if value is None else value_text(value, unit_of(row))


def _reason_cell(row: ComparedRow) -> str:
    reason = row.judgement.reason
    return f"{reason}; {clock_text(row)}" if is_clock_change(row) else str(reason)


def _number(name: str, path: str, meaning: str, unit: str = "") -> Column:
    return file_column(name, path, meaning, "number?", unit)


# Every column of a comparison: in the table, CSV, JSON, the dashboard and docs/fields.md.
COLUMNS = (
    Column("number", "number", "number of the row", "integer", title="#", page="-"),
    file_column("base_run", lambda row: row.runs[0], "id of base"),
    file_column("head_run", lambda row: row.runs[1], "id of head"),
    file_column("op", "pair.shown.case.problem.op", "op"),
    Column(
        "problem",
        "pair.shown.case.problem.key",
        "problem, with every parameter",
        text=lambda row: short(row.pair.shown.case.problem),
        page="problem:name",
    ),
    Column(
        "backend",
        "pair.shown.case.backend",
        "backend of head, or of base if head has none",
        text=backends_text,
    ),
    file_column(
        "config",
        lambda row: config_key(row.pair.shown.case.config),
        "config of the same side",
        "JSON",
    ),
    Column(
        "timing",
        "pair.shown.case.timing.identity",
        "timing of the same side, as in a series",
        show="any",
        page="-",
    ),
    Column("device", "pair.shown.device", "device of the same side", show="several"),
    file_column("arch", "pair.shown.arch", "architecture of the device"),
    file_column("case", "pair.shown.case.id", "id of the case"),
    Column(
        "verdict",
        "status.value",
        "faster, slower, same, unsure, new, gone, broken, fixed or ignored",
        text=verdict_text,
        last=True,
        page="verdict:state",
    ),
    Column(
        "reason",
        "judgement.reason",
        "reason of the verdict",
        title="why",
        text=_reason_cell,
        last=True,
        page="why",
    ),
    file_column("base_status", "pair.base.status.value", "status of the result in base", "text?"),
    file_column("head_status", "pair.head.status.value", "status of the result in head", "text?"),
    Column(
        "metric",
        lambda row: _metric(row) or None,
        "metric, if it is not the time of a launch",
        "text?",
        show="any",
        page="-",
    ),
    file_column(
        "unit", lambda row: unit_of(row) or None, "unit of base_value and head_value", "text?"
    ),
    Column(
        "base_value",
        lambda row: values_of(row)[0],
        "value in base",
        "number?",
        "`unit`",
        title="base",
        text=lambda row: _value_cell(row, 0),
        page="base_value:value",
    ),
    Column(
        "head_value",
        lambda row: values_of(row)[1],
        "value in head",
        "number?",
        "`unit`",
        title="head",
        text=lambda row: _value_cell(row, 1),
        page="head_value:value",
    ),
    _number("base_s", "judgement.base_s", "time in base that the rule compares", "s"),
    _number("head_s", "judgement.head_s", "time in head that the rule compares", "s"),
    Column(
        "ratio",
        "judgement.ratio",
        "head / base: above 1 is slower",
        "number?",
        title="change",
        text=change_cell,
        page="ratio:interval",
    ),
    _number("low", "judgement.low", "lower end of the interval of ratio"),
    _number("high", "judgement.high", "upper end of the interval of ratio"),
    _number("p_value", "judgement.p_value", "p-value of the test"),
    _number(
        "detectable",
        "judgement.detectable",
        "least slowdown that would have been found: 0.02 is 2 %",
    ),
    file_column("same_binary", lambda row: "yes" if row.pair.same_binary else "no", "yes or no"),
    file_column("base_backend", "pair.base.case.backend", "backend of base", "text?"),
    file_column(
        "base_config",
        lambda row: config_key(row.pair.base.case.config) if row.pair.base else None,
        "config of base",
        "JSON?",
    ),
    file_column("base_timing", "pair.base.case.timing.identity", "timing of base", "text?"),
    file_column(
        "common",
        "judgement.common",
        "ratio that all rows on a CPU have in common, because of the machine or of what they share",
        "number?",
    ),
    file_column("held", lambda row: row.held or None, "why the row is suppressed", "text?"),
    file_column(
        "base_mhz",
        lambda row: (row.pair.clocks_mhz or (None, None))[0],
        "core clock of base",
        "number?",
        "MHz",
    ),
    file_column(
        "head_mhz",
        lambda row: (row.pair.clocks_mhz or (None, None))[1],
        "core clock of head",
        "number?",
        "MHz",
    ),
)
