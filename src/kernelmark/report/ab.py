"""A comparison of two sides as tables, Markdown, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelmark.core import codec
from kernelmark.core.environment import difference
from kernelmark.core.files import csv_text, json_text
from kernelmark.core.reason import Reason
from kernelmark.core.result import Run
from kernelmark.core.timing import Duty
from kernelmark.core.units import MOST_PERCENT, counted, time_text
from kernelmark.core.verdict import Verdict, VerdictStatus
from kernelmark.report.changes import TWO_NUMBERS, answer, command_text, comment, of_pairs
from kernelmark.report.names import backend_text, short
from kernelmark.report.render import markdown
from kernelmark.report.tables import NONE, Column, Table
from kernelmark.runners.ab import Row, Rule
from kernelmark.runners.sides import USUAL_NAMES
from kernelmark.stats.paired import Paired

# In order of importance.
ORDER = (
    VerdictStatus.BROKEN,
    VerdictStatus.SLOWER,
    VerdictStatus.FASTER,
    VerdictStatus.FIXED,
    VerdictStatus.UNSURE,
    VerdictStatus.SAME,
    VerdictStatus.IGNORED,
)
# Relative difference up to which core clocks count as equal.
_CLOCK_TOLERANCE = 0.02
_FIELDS = (
    *("problem", "base_backend", "head_backend", "status", "base_us", "head_us", "ratio", "low"),
    *("high", "q_value", "rounds", "detectable", "same_binary", "reason"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbReport:
    """The compared rows and the two runs they are stored as; `names` are the names of the sides."""

    names: tuple[str, str]
    base: Run
    head: Run
    rule: Rule
    rows: tuple[Row, ...]

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Differences between the environments, each as (what, base's value, head's value)."""
        return difference(self.base.environment, self.head.environment)

    @property
    def unmeasured(self) -> int:
        """How many pairs have no row, because the time ended before both sides were measured."""
        return max(0, self.base.cases - len(self.rows))

    @property
    def sorted_rows(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: (ORDER.index(row.status), -_ratio(row)))

    def verdicts(self) -> list[Verdict]:
        return [_verdict(row, self.base.id, self.head.id) for row in self.rows]


def difference_table(changes: Sequence[tuple[str, str, str]], names: tuple[str, str]) -> Table:
    """Return a table of environment differences; one row "nothing differs" if there are none."""
    made = _named(changes, names)
    return made if made.rows else replace(made, rows=(("nothing differs", NONE, NONE),))


def _named(changes: Sequence[tuple[str, str, str]], names: tuple[str, str]) -> Table:
    columns = tuple(Column(name=name) for name in ("environment", *names))
    return Table(
        columns=columns, rows=tuple((what, a or NONE, b or NONE) for what, a, b in changes)
    )


def rows_table(report: AbReport) -> Table:
    """Return a table with one row per pair, alarms first."""
    several = any(
        (row.pair.base.backend, row.pair.base.config)
        != (row.pair.head.backend, row.pair.head.config)
        for row in report.rows
    )
    columns = (
        Column(name="problem"),
        Column(name="backend"),
        Column(name=report.names[0], align="right"),
        Column(name=report.names[1], align="right"),
        Column(name="change", align="right"),
        Column(name="interval", align="right"),
        Column(name="rounds", align="right"),
        Column(name="verdict"),
    )
    return Table(
        columns=columns, rows=tuple(_cells(row, several=several) for row in report.sorted_rows)
    )


def summary(report: AbReport) -> str:
    """Return the verdict counts (`1 slower, 58 same, 2 unsure`) and the false discovery rate."""
    counts = dict.fromkeys(ORDER, 0)
    for row in report.rows:
        counts[row.status] += 1
    summary = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    if not summary:
        return "no pair was measured"
    if report.unmeasured:
        summary += f", {report.unmeasured} not measured"
    if not counts[VerdictStatus.SLOWER] + counts[VerdictStatus.FASTER]:
        return summary
    share = 100 * report.rule.looks.alpha
    return f"{summary}; expected false alarms among slower and faster: at most {share:g} %"


def audit(report: AbReport) -> str:
    """Return how many pairs of identical binaries were called changed; "" without such pairs."""
    same = [row for row in report.rows if row.same_binary and row.paired is not None]
    wrong = [r for r in same if r.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER)]
    if not same:
        return ""
    pairs = f"{counted(len(same), 'pair')} ran the same binary on both sides"
    return f"{pairs}: {len(wrong) or 'none'} called changed"


def restless(report: AbReport) -> str:
    """Return a note if pairs stayed unsure while the core clock moved, with a remedy; else "". A
    power cap takes effect after some milliseconds, and not equally soon in every round."""
    found = []
    for row in report.rows:
        seen = clocks(row) if row.status is VerdictStatus.UNSURE else []
        if seen and max(seen) > (1 + _CLOCK_TOLERANCE) * min(seen):
            found.append((max(seen) / min(seen), min(seen), max(seen), row.pair.base))
    if not found:
        return ""
    _, low, high, case = max(found, key=lambda one: one[0])
    bursts = case.timing.duty is Duty.BURST
    way_out = (
        "lock the clock"
        if bursts
        else 'idle gaps between samples stay below it (duty = "burst" in --timing FILE.toml)'
    )
    return (
        f"note: {counted(len(found), 'unsure pair')} ran at a core clock that moved, between "
        f"{low:.0f} and {high:.0f} MHz in {short(case.problem)}; where that is the power cap, "
        f"{way_out}"
    )


def remarks(report: AbReport) -> list[str]:
    """Return notes that apply to the comparison as a whole."""
    found = (other_load(report), audit(report), two_numbers(report), restless(report))
    return [text for text in found if text]


def other_load(report: AbReport) -> str:
    """Return a warning if other work took cores from timed launches, else ""."""
    loads = []
    for row in report.rows:
        measured = (side.measurement for side in (row.base, row.head))
        warnings = [one for found in measured if found for one in found.warnings]
        if seen := [one for one in warnings if one.code == "other-load"]:
            loads.append(max(seen, key=_load))
    if not loads:
        return ""
    return f"warning: in {counted(len(loads), 'pair')}, {max(loads, key=_load)}"


def _load(warning: Reason) -> float:
    return float(warning.fields["load"])


def two_numbers(report: AbReport) -> str:
    """Return a note if the change of some pairs differs from that of their medians, else ""."""
    found = []
    for row in report.rows:
        base, head = row.base.measurement, row.head.measurement
        if row.paired is not None and base is not None and head is not None:
            ratio = head.median_s / base.median_s
            found.append((abs(ratio - row.paired.ratio), ratio, row))
    apart = [one for one in found if one[0] > TWO_NUMBERS]
    if not apart:
        return ""
    _, ratio, row = max(apart, key=lambda one: one[0])
    most = f" (the largest difference of {len(apart)} pairs)" if len(apart) > 1 else ""
    return (
        "note: change compares the sides within each round; the columns "
        f"{' and '.join(report.names)} are medians over all rounds, as in kmark show, and differ "
        f"by {100 * (ratio - 1):+.1f} % in {short(row.pair.base.problem)}{most}"
    )


def clocks(row: Row) -> list[float]:
    """Return the core clock in MHz of each block of both sides; [] if any block has no clock."""
    measured = [side.measurement for side in (row.base, row.head)]
    blocks = [block for found in measured if found for block in found.blocks]
    found = [block.clock_mhz for block in blocks if block.clock_mhz is not None]
    return found if len(found) == len(blocks) else []


def answer_of(report: AbReport) -> Reason:
    """Return the overall answer of the comparison."""
    return answer(of_pairs(report.rows))


def to_md(report: AbReport, facts: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Return a pull-request comment: the answer, what changed, the environments and all pairs."""
    named = report.names != USUAL_NAMES
    sides = [f"Base is {report.names[0]}, head {report.names[1]}"] if named else []
    made = comment(
        of_pairs(report.rows, report.base.argv, report.names),
        facts=[*sides, *facts, summary(report)],
        notes=[*remarks(report), *notes],
        environment=_named(report.changes, report.names),
        command=command_text(report.base.argv),
    )
    every = ["<details><summary>All pairs</summary>", "", markdown(rows_table(report))]
    return "\n".join([made, *every, "</details>"]) + "\n"


def to_csv(report: AbReport) -> str:
    """Return CSV with one line per pair, times in microseconds."""
    rows = [{k: v for k, v in _values(row).items() if k in _FIELDS} for row in report.rows]
    return csv_text(rows, _FIELDS)


def to_json(report: AbReport) -> str:
    """Return JSON of the environments, the rule and the rows with the time of every round."""
    document = {
        "kernelmark": "ab",
        "version": codec.VERSION,
        "names": list(report.names),
        "runs": [report.base.id, report.head.id],
        "environments": [codec.plain(run.environment) for run in (report.base, report.head)],
        "difference": [list(change) for change in report.changes],
        "unmeasured": report.unmeasured,
        "rule": {
            "rounds": list(report.rule.looks.rounds),
            "alpha": report.rule.looks.alpha,
            "delta": report.rule.delta,
            "seed": report.rule.seed,
        },
        "rows": [
            {**_values(row), "base_s": list(row.base_s), "head_s": list(row.head_s)}
            for row in report.rows
        ],
    }
    return json_text(document)


def _cells(row: Row, *, several: bool) -> tuple[str, ...]:
    pair, paired = row.pair, row.paired
    backend = backend_text(pair.base)
    if several:
        backend = f"{backend} → {backend_text(pair.head)}"
    times = [_time(side.measurement.median_s if side.measurement else None) for side in _sides(row)]
    change = interval = NONE
    if paired is not None:
        change = f"{100 * (paired.ratio - 1):+.1f} %"
        if math.isfinite(paired.high):
            interval = f"{100 * (paired.low - 1):+.1f} … {_high_text(paired)}"
    rounds = str(min(len(row.base_s), len(row.head_s)))
    return (short(pair.base.problem), backend, *times, change, interval, rounds, row.status.value)


def _high_text(paired: Paired) -> str:
    """Return the upper bound in percent, capped if the interval is too wide to be meaningful."""
    percent = 100 * (paired.high - 1)
    far = 50 * (paired.high - paired.low) > MOST_PERCENT
    return f"> {MOST_PERCENT} %" if far else f"{percent:+.1f} %"


def _sides(row: Row) -> tuple[Any, Any]:
    return row.base, row.head


def _time(seconds: float | None) -> str:
    return NONE if seconds is None else time_text(seconds)


def _ratio(row: Row) -> float:
    return row.paired.ratio if row.paired else 1.0


def _values(row: Row) -> dict[str, Any]:
    """Return the values of a row for CSV and JSON, None for those not finite and positive."""
    paired = row.paired
    times = [s.measurement.median_s * 1e6 if s.measurement else None for s in _sides(row)]
    found: dict[str, float | None] = dict.fromkeys(("ratio", "low", "high", "detectable"))
    found["q_value"] = None if paired is None else paired.q_value
    if paired is not None:
        for name in ("ratio", "low", "high", "detectable"):
            value = float(getattr(paired, name))
            found[name] = value if math.isfinite(value) and value > 0 else None
    return {
        "problem": row.pair.base.problem.key,
        "base_backend": backend_text(row.pair.base),
        "head_backend": backend_text(row.pair.head),
        "status": row.status.value,
        "base_us": times[0],
        "head_us": times[1],
        **found,
        "rounds": min(len(row.base_s), len(row.head_s)),
        "same_binary": row.same_binary,
        "reason": row.reason,
    }


def _verdict(row: Row, base: str, head: str) -> Verdict:
    paired = row.paired
    return Verdict(
        series=row.head.series,
        base=base,
        head=head,
        status=row.status,
        reason=row.reason,
        ratio=paired.ratio if paired else None,
        low=paired.low if paired else None,
        high=paired.high if paired else None,
    )
