"""A comparison of two sides as tables, Markdown, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelmark.core import codec
from kernelmark.core.environment import difference
from kernelmark.core.files import csv_text, json_text
from kernelmark.core.reason import Reason
from kernelmark.core.result import Run
from kernelmark.core.timing import Duty
from kernelmark.core.units import MOST_PERCENT, counted
from kernelmark.core.verdict import Verdict, VerdictStatus
from kernelmark.report.changes import TWO_NUMBERS, answer, command_text, comment, of_pairs
from kernelmark.report.names import backend_text, short
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
from kernelmark.runners.ab import USUAL_NAMES, Rule
from kernelmark.runners.ab import Row as PairedRow

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AbReport:
    """The compared rows and the two runs they are stored as; `names` are the names of the sides."""

    names: tuple[str, str]
    base: Run
    head: Run
    rule: Rule
    rows: tuple[PairedRow, ...]

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Differences between the environments, each as (what, base's value, head's value)."""
        return difference(self.base.environment, self.head.environment)

    @property
    def unmeasured(self) -> int:
        """How many pairs have no row, because the time ended before both sides were measured."""
        return max(0, self.base.cases - len(self.rows))

    @property
    def sorted_rows(self) -> list[PairedRow]:
        return sorted(self.rows, key=lambda row: (ORDER.index(row.status), -_ratio(row)))

    def verdicts(self) -> list[Verdict]:
        return [_verdict(row, self.base.id, self.head.id) for row in self.rows]


def difference_table(
    changes: Sequence[tuple[str, str, str]], names: tuple[str, str], *, empty: str = ""
) -> Table:
    """Return a table of environment differences; if there are none, with one row `empty`."""
    rows = [(what, base or NONE, head or NONE) for what, base, head in changes]
    columns = tuple(Column(name) for name in ("environment", *names))
    return Table(columns=columns, rows=tuple(rows or [(empty, NONE, NONE)] * bool(empty)))


def rows_table(report: AbReport) -> Table:
    """Return a table with one row per pair, alarms first."""
    titles = dict(zip(("base_us", "head_us"), report.names, strict=True))
    return tabulate(COLUMNS, report.sorted_rows, titles=titles)


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
    notes = []
    for row in report.rows:
        seen = clocks(row) if row.status is VerdictStatus.UNSURE else []
        if seen and max(seen) > (1 + _CLOCK_TOLERANCE) * min(seen):
            notes.append((max(seen) / min(seen), min(seen), max(seen), row.pair.base))
    if not notes:
        return ""
    _, low, high, case = max(notes, key=lambda item: item[0])
    bursts = case.timing.duty is Duty.BURST
    way_out = (
        "lock the clock"
        if bursts
        else 'idle gaps between samples stay below it (duty = "burst" in --timing FILE.toml)'
    )
    return (
        f"note: {counted(len(notes), 'unsure pair')} ran at a core clock that moved, between "
        f"{low:.0f} and {high:.0f} MHz in {short(case.problem)}; where that is the power cap, "
        f"{way_out}"
    )


def remarks(report: AbReport) -> list[str]:
    """Return notes that apply to the comparison as a whole."""
    notes = (other_load(report), audit(report), two_numbers(report), restless(report))
    return [text for text in notes if text]


def other_load(report: AbReport) -> str:
    """Return a warning if other work took cores from timed launches, else ""."""
    loads = []
    for row in report.rows:
        measured = (side.measurement for side in (row.base, row.head))
        warnings = [
            warning for measurement in measured if measurement for warning in measurement.warnings
        ]
        if seen := [warning for warning in warnings if warning.code == "other-load"]:
            loads.append(max(seen, key=_load))
    if not loads:
        return ""
    return f"warning: in {counted(len(loads), 'pair')}, {max(loads, key=_load)}"


def _load(warning: Reason) -> float:
    return float(warning.fields["load"])


def two_numbers(report: AbReport) -> str:
    """Return a note if the change of some pairs differs from that of their medians, else ""."""
    notes = []
    for row in report.rows:
        base, head = row.base.measurement, row.head.measurement
        if row.paired is not None and base is not None and head is not None:
            ratio = head.median_s / base.median_s
            notes.append((abs(ratio - row.paired.ratio), ratio, row))
    differing = [item for item in notes if item[0] > TWO_NUMBERS]
    if not differing:
        return ""
    _, ratio, row = max(differing, key=lambda item: item[0])
    most = f" (the largest difference of {len(differing)} pairs)" if len(differing) > 1 else ""
    return (
        "note: change compares the sides within each round; the columns "
        f"{' and '.join(report.names)} are medians over all rounds, as in kmark show, and differ "
        f"by {100 * (ratio - 1):+.1f} % in {short(row.pair.base.problem)}{most}"
    )


def clocks(row: PairedRow) -> list[float]:
    """Return the core clock in MHz of each block of both sides; [] if any block has no clock."""
    measured = [side.measurement for side in (row.base, row.head)]
    blocks = [block for measurement in measured if measurement for block in measurement.blocks]
    measurement = [block.clock_mhz for block in blocks if block.clock_mhz is not None]
    return measurement if len(measurement) == len(blocks) else []


def answer_of(report: AbReport) -> Reason:
    """Return the overall answer of the comparison."""
    return answer(of_pairs(report.rows))


def to_md(report: AbReport, facts: Sequence[str] = ()) -> str:
    """Return a pull-request comment: the answer, what changed, the environments and all pairs."""
    named = report.names != USUAL_NAMES
    sides = [f"Base is {report.names[0]}, head {report.names[1]}"] if named else []
    comment_text = comment(
        of_pairs(report.rows, report.base.argv, report.names),
        facts=[*sides, *facts, summary(report)],
        notes=remarks(report),
        environment=difference_table(report.changes, report.names),
        command=command_text(report.base.argv),
    )
    every = ["<details><summary>All pairs</summary>", "", markdown(rows_table(report))]
    return "\n".join([comment_text, *every, "</details>"]) + "\n"


def to_csv(report: AbReport) -> str:
    """Return CSV with one line per pair, times in microseconds."""
    return csv_text([record(COLUMNS, row) for row in report.rows], csv_names(COLUMNS))


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
            {**record(COLUMNS, row), "base_s": list(row.base_s), "head_s": list(row.head_s)}
            for row in report.rows
        ],
    }
    return json_text(document)


def _ratio(row: PairedRow) -> float:
    return row.paired.ratio if row.paired else 1.0


def _verdict(row: PairedRow, base: str, head: str) -> Verdict:
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


def _backends(row: PairedRow) -> str:
    return " → ".join(dict.fromkeys(map(backend_text, row.pair.cases)))


def _paired_number(name: str) -> Callable[[PairedRow], float | None]:
    """Return the function of a number of the paired test, None if it is not finite and positive."""

    def value(row: PairedRow) -> float | None:
        number = float(getattr(row.paired, name)) if row.paired is not None else math.nan
        return number if math.isfinite(number) and number > 0 else None

    return value


def _median_us(side: str) -> Callable[[PairedRow], float | None]:
    def value(row: PairedRow) -> float | None:
        measured = getattr(row, side).measurement
        return measured.median_s * 1e6 if measured else None

    return value


def _change_cell(row: PairedRow) -> str:
    return NONE if row.paired is None else f"{100 * (row.paired.ratio - 1):+.1f} %"


def _interval_cell(row: PairedRow) -> str:
    """Return the interval in percent; the upper bound is capped if it is too wide to be
    meaningful."""
    paired = row.paired
    if paired is None or not math.isfinite(paired.high):
        return NONE
    high = f"{100 * (paired.high - 1):+.1f} %"
    if 50 * (paired.high - paired.low) > MOST_PERCENT:
        high = f"> {MOST_PERCENT} %"
    return f"{100 * (paired.low - 1):+.1f} … {high}"


def _rounds(row: PairedRow) -> int:
    return min(len(row.base_s), len(row.head_s))


# Every column of pairs: in the table, in CSV and JSON, and in docs/fields.md.
COLUMNS = (
    Column(
        "problem",
        "pair.base.problem.key",
        "problem, with every parameter",
        text=lambda row: short(row.pair.base.problem),
    ),
    Column(
        "base_backend",
        lambda row: backend_text(row.pair.base),
        "backend of base, with its config",
        title="backend",
        text=_backends,
    ),
    file_column(
        "head_backend", lambda row: backend_text(row.pair.head), "backend of head, with its config"
    ),
    Column("status", "status.value", "verdict, as in `compare`", title="verdict", last=True),
    Column("base_us", _median_us("base"), "median of base over all rounds", "number?", "µs"),
    Column("head_us", _median_us("head"), "median of head over all rounds", "number?", "µs"),
    Column(
        "ratio",
        _paired_number("ratio"),
        "head / base inside rounds: above 1 is slower",
        "number?",
        title="change",
        text=_change_cell,
    ),
    file_column("low", _paired_number("low"), "lower end of the interval of ratio", "number?"),
    file_column("high", _paired_number("high"), "upper end of the interval of ratio", "number?"),
    Column("interval", align="right", text=_interval_cell),
    file_column(
        "q_value",
        "paired.q_value",
        "false discovery rate at which the pair counts as changed",
        "number?",
    ),
    Column("rounds", _rounds, "rounds that were measured", "integer"),
    file_column(
        "detectable",
        _paired_number("detectable"),
        "least slowdown that this many rounds find: 0.02 is 2 %",
        "number?",
    ),
    file_column(
        "same_binary", "same_binary", "whether both sides ran the same binary", "true or false"
    ),
    file_column("reason", "reason", "reason of the verdict"),
)
