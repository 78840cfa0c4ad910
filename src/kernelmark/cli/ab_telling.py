"""What `kmark ab` says: before, while and after it measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernelmark.cli.ending import INTERRUPTED, NOTHING
from kernelmark.cli.output import Outputs, flush, put_results_table, put_table, say
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.api.ab import AbPlan
    from kernelmark.compare.fail_on import FailOn
    from kernelmark.report.ab import AbReport
    from kernelmark.runners.ab import Event


_STYLES = {
    **dict.fromkeys(("slower", "broken"), "red"),
    **dict.fromkeys(("faster", "fixed"), "green"),
    "unsure": "dim",
}


def lone(plan: AbPlan) -> str:
    """What a change of one pair alone would take, where the rounds are too few for it."""
    from kernelmark.stats.suite import rounds_for_one

    looks, pairs = plan.rule.looks, len(plan.pairs)
    need = rounds_for_one(looks, pairs)
    if need <= looks.last:
        return ""
    return (
        f"note: a change that only one of {counted(pairs, 'pair')} has cannot be seen in "
        f"{looks.last} rounds; it takes about {need + need % 2} (--rounds)"
    )


def preview(plan: AbPlan) -> int:
    from kernelmark.core.units import duration_text
    from kernelmark.report.names import backend_text, short
    from kernelmark.report.tables import Column, Table
    from kernelmark.runners.plan import budget_s

    columns = tuple(Column(name=name) for name in ("problem", *plan.names))
    rows = tuple(
        (short(p.base.problem), backend_text(p.base), backend_text(p.head)) for p in plan.pairs
    )
    put_table(Table(columns=columns, rows=rows))
    seconds = plan.rule.looks.last * sum(
        budget_s(case) for pair in plan.pairs for case in pair.cases
    )
    say(
        f"{counted(len(plan.pairs), 'pair')} on {plan.device}, looked at after "
        f"{', '.join(map(str, plan.rule.looks.rounds))} rounds, about {duration_text(seconds)} of "
        "launches, if none is longer than its share; starting processes, inputs, checks and "
        "evictions are not in it"
    )
    return 0


def progress(total: int) -> Callable[[Event], None]:
    from kernelmark.report.names import short
    from kernelmark.runners.ab import Measured
    from kernelmark.runners.events import Waiting

    left = {"pairs": total}
    waited: set[str] = set()

    def tell(event: Event) -> None:
        if isinstance(event, Waiting):
            if event.holder not in waited:  # once for each, not at every case
                waited.add(event.holder)
                say(str(event))
            return
        if isinstance(event, Measured):
            if event.done == event.total:
                say(f"round {event.round}: {counted(event.total, 'pair')}")
            return
        left["pairs"] -= 1
        name = short(event.pair.base.problem)
        say(f"{event.status.value}: {name}: {event.reason} ({left['pairs']} left)")

    return tell


def told(
    report: AbReport,
    outputs: Outputs,
    *,
    stored: bool,
    quiet: bool,
    limits: FailOn | None = None,
    facts: Sequence[str] = (),
) -> int:
    """Put the report where it was asked for; the exit code. `limits` say which verdicts fail,
    `facts` go under the answer of the Markdown."""
    from kernelmark.api.ab import outcome
    from kernelmark.report import ab as made

    if not outputs.stdout_taken and report.rows:
        shown = report.sorted_rows
        styles = [_STYLES.get(row.status.value, "") for row in shown]
        put_results_table(made.rows_table(report), styles=styles)
        flush()
    outputs.put(
        json=lambda: made.to_json(report),
        csv=lambda: made.to_csv(report),
        md=lambda: made.to_md(report, facts),
    )
    code = outcome(report, limits)
    kept = f"stored as {report.base.label} ({report.base.id}) and {report.head.label}"
    if not quiet and report.rows:
        say(made.summary(report))
        for line in filter(None, (made.audit(report), made.restless(report))):
            say(line)
        if stored and code != INTERRUPTED:
            say(kept)
    if code == INTERRUPTED:
        where = kept if stored else "not stored, since --no-store was given"
        say(
            f"interrupted; what was measured so far is {where}"
            if report.rows
            else "interrupted before any pair was measured on both sides; no result is kept"
        )
    elif code == NOTHING:
        say("nothing was compared: no pair ran on both sides")
    return code
