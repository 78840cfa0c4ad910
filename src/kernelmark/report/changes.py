"""The rows of any comparison in one form, the overall answer, and a Markdown comment.

`kmark gate`, `nightly`, `ab --md`, `compare --md` and `report` all use this module, so that their
answers and tables are the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelmark.compare.verdicts import ComparedRow, Comparison
from kernelmark.core.reason import NO_REASON, Reason, shorten
from kernelmark.core.result import Case, Result
from kernelmark.core.text import markdown_cell
from kernelmark.core.units import (
    change_span,
    change_text,
    counted,
    percent_text,
    span_text,
    value_text,
)
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.names import backend_text, rerun, short
from kernelmark.report.tables import NONE, Column, Table, markdown, tabulate
from kernelmark.runners.ab import Row as PairedRow

# GitHub rejects comments of more than 65,536 characters.
MOST_ROWS = 50
# If two values of one change differ by more than this, a note explains why.
TWO_NUMBERS = 0.005
_MOST_COMMANDS = 10
_MOST_UNDECIDED = 3  # named in the answer
_SLOWER, _FASTER, _BROKEN = VerdictStatus.SLOWER, VerdictStatus.FASTER, VerdictStatus.BROKEN
# Verdicts that count as moved, most severe first.
_MOVED = (_BROKEN, _SLOWER, VerdictStatus.GONE, _FASTER, VerdictStatus.FIXED, VerdictStatus.NEW)
# Options of `kmark ab` and `kmark gate` that name output files, and those that select problems and
# kernels; all take a value.
_OUTPUT = ("--md", "--json", "--csv")
_CHOOSING = (
    *("-s", "--suite", "-o", "--op", "-a", "--axis", "-p", "--problem", "--dtype", "--filter"),
    *("--limit", "-b", "--backend", "--label", "--budget"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One compared row. `base` and `head` are in `unit`; `ratio` is head over base, between `low`
    and `high` with confidence `level` (0 if the rule has no interval). `again` is the command that
    measures the row again, `held` the reason why its alarm is suppressed. `since` is the first run
    of a regression that an earlier night confirmed."""

    problem: str
    backend: str
    status: VerdictStatus
    reason: Reason
    device: str = ""
    base: float | None = None
    head: float | None = None
    unit: str = "s"
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = 0.0
    again: str = ""
    held: Reason = NO_REASON
    since: str = ""

    @property
    def impact(self) -> float:
        """The absolute difference between head and base per call, in `unit`."""
        return 0.0 if self.base is None or self.head is None else abs(self.head - self.base)

    @property
    def counts(self) -> bool:
        """Whether the row is slower or broken and its alarm is not suppressed."""
        return self.status in (_SLOWER, _BROKEN) and not self.held


def of_pairs(
    rows: Iterable[PairedRow], argv: Sequence[str] = (), names: tuple[str, str] = ("base", "head")
) -> list[Change]:
    """Return the changes of a `kmark ab` or `kmark gate` called with the arguments `argv`."""
    changes = []
    for row in rows:
        paired, cases = row.paired, row.pair.cases
        base, head = (_median(result) for result in (row.base, row.head))
        bounds = (None, None, None) if paired is None else (paired.ratio, paired.low, paired.high)
        has_interval = paired is not None and math.isfinite(paired.high)
        changes.append(
            Change(
                problem=short(row.pair.base.problem),
                backend=_backends([backend_text(case) for case in cases]),
                device=row.head.device,
                status=row.status,
                reason=Reason.of(row.reason),
                base=base,
                head=head,
                ratio=bounds[0],
                low=bounds[1],
                high=bounds[2],
                level=1 - paired.alpha if paired is not None and has_interval else 0.0,
                again=_narrowed(argv, cases, names) if argv else "",
            )
        )
    return changes


def of_comparison(comparison: Comparison, more: Sequence[str] = ()) -> list[Change]:
    """Return the changes of a `kmark compare`; `more` arguments end each rerun command."""
    return [_of_compared(row, _level(comparison), more) for row in comparison.rows]


def answer(changes: Sequence[Change]) -> Reason:
    """Return whether anything got slower, which kernel, by how much and with what confidence."""
    compared = [change for change in changes if change.status is not VerdictStatus.IGNORED]
    if not compared:
        return Reason("nothing was compared: no kernel ran on both sides")
    open_changes = [item for item in compared if item.counts and item.since]
    counting = [item for item in compared if item.counts and not item.since]
    count = {
        # Neither a suppressed change nor one that an earlier night confirmed is news.
        status.value: sum(
            item.status is status for item in compared if not item.held and not item.since
        )
        for status in VerdictStatus
    } | {"rows": len(compared), "held": sum(bool(item.held) for item in compared)}
    kernels = counted(len(compared), "kernel")
    still = f"; {_open_text(open_changes)}" if open_changes else ""
    if count["broken"]:
        first = ranked(counting)[0]
        slower = f" and {count['slower']} got slower" if count["slower"] else ""
        return Reason(
            f"{count['broken']} of {kernels} stopped working{slower}; first {first.problem} by"
            f" {first.backend}: {shorten(first.reason)}{still}"
        )
    if count["slower"]:
        cost = _cost(ranked(counting)[0])
        return Reason(f"{count['slower']} of {kernels} got slower; {cost}{still}")
    if open_changes:
        return Reason(f"{_open_text(open_changes)} of {kernels}; {_reminder(open_changes)}")
    if count["held"]:
        return Reason(
            f"{count['held']} of {kernels} changed, but so did a canary: the machine is different,"
            " and no change of a time counts"
        )
    if count["new"] == len(compared):
        return Reason(f"there is nothing yet to compare {kernels} with")
    faster = f"; {count['faster']} got faster" if count["faster"] else ""
    unsure = ""
    if undecided := [item for item in compared if item.status is VerdictStatus.UNSURE]:
        named = [f"{item.problem} by {item.backend}" for item in undecided[:_MOST_UNDECIDED]]
        rest = len(undecided) - len(named)
        names = f"{', '.join(named)}{f' and {rest} more' if rest else ''}"
        unsure = f"; {len(undecided)} undecided: {names}"
    if 2 * len(undecided) > len(compared):
        if len(undecided) == len(compared):
            return Reason(f"nothing was decided in {kernels}: {names}")
        return Reason(
            f"{len(undecided)} of {kernels} undecided: {names}; no slowdown in the others{faster}"
        )
    gone = f"; {count['gone']} missing in head" if count["gone"] else ""
    return Reason(f"nothing got slower in {kernels}{faster}{gone}{unsure}")


def _open_text(changes: Sequence[Change]) -> str:
    """Return how many regressions are open: `2 still slower, 1 still broken`."""
    counts = [
        (sum(item.status is status for item in changes), status.value)
        for status in (_BROKEN, _SLOWER)
    ]
    return ", ".join(f"{count} still {name}" for count, name in counts if count)


def _reminder(changes: Sequence[Change]) -> str:
    """Return the worst open regression and its first run."""
    first = ranked(changes)[0]
    size = f" {change_text(first.ratio)}" if first.ratio and first.status is _SLOWER else ""
    return f"{first.problem} by {first.backend}{size} since run {first.since}"


def _cost(change: Change) -> str:
    """Return what the worst slowdown costs, with its interval where it has one."""
    base, head = (value_text(value or 0.0, change.unit) for value in (change.base, change.head))
    ratio = change_text(change.ratio or 1.0)
    text = f"{change.problem} by {change.backend} costs the most: {base} → {head}, {ratio}"
    if change.low is None or change.high is None or not change.level:
        return text
    interval = change_span(change.low, change.high)
    return f"{text} ({interval} with {100 * change.level:.3g} % confidence)"


def ranked(changes: Iterable[Change]) -> list[Change]:
    """Return the rows that moved: broken, slower, then the rest; each by cost per call."""
    moved = [change for change in changes if change.status in _MOVED]
    return sorted(
        moved, key=lambda item: (bool(item.held), _MOVED.index(item.status), -item.impact)
    )


def _interval_cell(change: Change) -> str:
    if change.low and change.high and math.isfinite(change.high):
        return span_text(math.log(change.low), math.log(change.high))
    return NONE


def _cost_cell(change: Change) -> str:
    if change.base is None or change.head is None:
        return NONE
    sign = "+" if change.head >= change.base else "-"
    return f"{sign}{value_text(change.impact, change.unit)}"


def _value_column(name: str) -> Column:
    """Return the column of a side's value, in the unit of the change."""

    def cell(change: Change) -> str:
        value = getattr(change, name)
        return NONE if value is None else value_text(value, change.unit)

    return Column(name, align="right", text=cell)


def _ratio_cell(change: Change) -> str:
    return percent_text(math.log(change.ratio)) if change.ratio else NONE


def verdict_text(row: Change | ComparedRow) -> str:
    """Return the verdict, and whether its alarm is suppressed."""
    return f"{row.status.value}, suppressed" if row.held else row.status.value


COLUMNS = (
    Column("kernel", "problem"),
    Column("backend", "backend"),
    Column("device", "device", show="several"),
    _value_column("base"),
    _value_column("head"),
    Column("change", align="right", text=_ratio_cell),
    Column("interval", align="right", text=_interval_cell),
    Column("per call", align="right", text=_cost_cell),
    Column("verdict", text=verdict_text),
)


def movers_table(changes: Sequence[Change]) -> Table:
    """Return a table of changes: both values, the ratio with its interval and the cost per call."""
    return tabulate(COLUMNS, changes)


def total_text(changes: Sequence[Change]) -> str:
    """Return the summed time of all kernels timed on both sides; "" for fewer than two."""
    timed = [change for change in changes if change.unit == "s" and change.base and change.head]
    base, head = (sum(getattr(item, side) for item in timed) for side in ("base", "head"))
    if len(timed) < 2:
        return ""
    return (
        f"One call of each of {len(timed)} kernels: {value_text(base, 's')} → "
        f"{value_text(head, 's')} ({percent_text(math.log(head / base))})"
    )


def comment(
    changes: Sequence[Change],
    *,
    facts: Sequence[str] = (),
    notes: Sequence[str] = (),
    environment: Table | None = None,
    command: str = "",
    heading: Reason | None = None,
) -> str:
    """Return Markdown for a pull request or a job summary: the answer (or `heading`), `facts`, the
    changes by impact, failures, `notes`, environment differences, and the commands to repeat it."""
    moved = ranked(changes)
    sentences = [f"{text.rstrip('.')}." for text in (*facts, total_text(changes)) if text]
    first = shorten(heading or answer(changes))
    parts = [f"### kernelmark: {markdown_cell(first)}", ""]
    parts += [" ".join(sentences), ""] if sentences else []
    if moved:
        parts.append(markdown(movers_table(moved[:MOST_ROWS])))
        if len(moved) > MOST_ROWS:
            parts += [f"and {len(moved) - MOST_ROWS} more changed rows.", ""]
    failed = [
        change
        for change in changes
        if change.status is _BROKEN or change.reason.code == "sides-failed"
    ]
    if failed:
        parts += [f"**Failures** ({len(failed)})", ""]
        parts += [
            f"- {markdown_cell(f'{item.problem} by {item.backend}')}: "
            f"{markdown_cell(shorten(item.reason))}"
            for item in failed[:MOST_ROWS]
        ]
        parts.append("")
    parts += [f"- {markdown_cell(text)}" for text in notes]
    if environment is not None and environment.rows:
        parts += ["", "<details><summary>Environment difference</summary>", ""]
        parts += [markdown(environment), "</details>"]
    elif environment is not None:
        parts += ["", "The environments do not differ."]
    every = [item.again for item in moved if item.again]
    again = every[:_MOST_COMMANDS]
    if len(every) > len(again):
        again.append(f"# and {len(every) - len(again)} more")
    if again or command:
        parts += ["", "<details><summary>Repeat it</summary>", "", "```sh"]
        parts += [*([command] if command else []), *again, "```", "", "</details>"]
    return "\n".join(parts).rstrip() + "\n"


def _of_compared(row: ComparedRow, level: float, more: Sequence[str]) -> Change:
    judged, pair = row.judgement, row.pair
    values: tuple[float | None, float | None] = judged.base_s, judged.head_s
    unit = "s"
    if pair.metric:
        base, head = pair.metrics
        values, unit = (base.value, head.value), base.unit
    sides = [side for side in (pair.base, pair.head) if side is not None]
    return Change(
        problem=short(pair.shown.case.problem),
        backend=_backends([backend_text(side.case) for side in sides]),
        device=pair.shown.device,
        status=row.status,
        reason=Reason.of(judged.reason),
        base=values[0],
        head=values[1],
        unit=unit,
        ratio=judged.ratio,
        low=judged.low,
        high=judged.high,
        level=0.0 if judged.low is None else level,
        again=rerun(pair.shown, more),
        held=row.held,
    )


def _level(comparison: Comparison) -> float:
    """Return the confidence of the rule's intervals: 1 - q for robust, 0 without intervals."""
    q = comparison.settings.get("q")
    return 1 - q if isinstance(q, float) else 0.0


def _backends(names: Sequence[str]) -> str:
    return " → ".join(dict.fromkeys(names))


def _median(result: Result) -> float | None:
    return result.measurement.median_s if result.measurement else None


def command_text(argv: Sequence[str]) -> str:
    """Return the command line of `argv` without its output files."""
    return shlex.join(["kmark", *_without(argv, _OUTPUT)])


def _without(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return `argv` without these options and their values."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def _narrowed(argv: Sequence[str], cases: tuple[Case, Case], names: tuple[str, str]) -> str:
    """Return the command line of `argv`, restricted to one pair."""
    arguments = _without(argv, (*_CHOOSING, *_OUTPUT))
    arguments += ["-p", short(cases[0].problem)]
    backends = [case.backend for case in cases]
    if len(set(backends)) == 1:
        arguments += ["-b", backends[0]]
    else:
        arguments += [
            w for pair in zip(names, backends, strict=True) for w in ("-b", ":".join(pair))
        ]
    return shlex.join(["kmark", *arguments])
