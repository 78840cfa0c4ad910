"""Output of `kmark ab` before, during and after measuring."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kernelmark.cli.output import fancy, flush, progress_bar, put_table, say, say_above
from kernelmark.core.units import counted, duration_text
from kernelmark.core.verdict import INTERRUPTED, NOTHING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from kernelmark.api.ab import AbPlan, Rounds
    from kernelmark.cli.options import Outputs
    from kernelmark.compare.alarms import FailOn
    from kernelmark.report.ab import AbReport
    from kernelmark.runners.ab import Budget, Event


_STYLES = {
    **dict.fromkeys(("slower", "broken"), "red"),
    **dict.fromkeys(("faster", "fixed"), "green"),
    "unsure": "dim",
}


def lone(plan: AbPlan) -> str:
    """Return a note if the rounds are too few to detect a change of a single pair, else ""."""
    from kernelmark.stats.paired import rounds_for_one

    looks, pairs = plan.rule.looks, len(plan.pairs)
    need = rounds_for_one(looks, pairs)
    if need <= looks.last:
        return ""
    return (
        f"note: a change that only one of {counted(pairs, 'pair')} has cannot be seen in "
        f"{looks.last} rounds; it takes about {need + need % 2} (--rounds)"
    )


def preview(plan: AbPlan) -> int:
    from kernelmark.report.names import backend_text, short
    from kernelmark.report.tables import Column, tabulate

    columns = (
        Column("problem", text=lambda pair: short(pair.base.problem)),
        Column(plan.names[0], text=lambda pair: backend_text(pair.base)),
        Column(plan.names[1], text=lambda pair: backend_text(pair.head)),
    )
    put_table(tabulate(columns, plan.pairs))
    say(expected(plan))
    return 0


def expected(plan: AbPlan) -> str:
    """Return one line about what is compared and how long it takes."""
    from kernelmark.api.ab import Rounds

    first, last = Rounds(plan).whole_s
    rounds = plan.rule.looks.rounds
    text = f"{counted(len(plan.pairs), 'pair')} on {plan.device}"
    if plan.budget_s is not None and plan.budget_s < last:
        text += f", at most {duration_text(plan.budget_s)} (--budget)"
        if plan.budget_s < first:
            text += (
                f": too short for the first test, which is after {rounds[0]} rounds, about "
                f"{duration_text(first)}; pairs would stay unsure"
            )
        return text
    if len(rounds) == 1:
        return f"{text}, {rounds[0]} rounds: about {duration_text(last)}"
    return (
        f"{text}, {rounds[0]} to {rounds[-1]} rounds: about {duration_text(first)} if all is "
        f"decided at the first test, at most about {duration_text(last)}"
    )


def refuse_short(plan: AbPlan) -> None:
    """Raise NothingToDo if the budget ends before the first round, judging by earlier commands."""
    from kernelmark.api.ab import Rounds
    from kernelmark.core.errors import NothingToDo

    rounds = Rounds(plan)
    start_s, budget_s = rounds.start_s, plan.budget_s
    if budget_s is not None and start_s is not None and budget_s < start_s:
        raise NothingToDo(
            f"--budget {budget_s:g} ends before the first round: starting both"
            f" sides takes about {duration_text(start_s)}",
            hint=f"the first test needs about {duration_text(rounds.whole_s[0])}",
        )


@contextlib.contextmanager
def reporter(
    plan: AbPlan, *, quiet: bool, budget: Budget | None = None
) -> Iterator[Callable[[Event], None]]:
    """Yield a callback for the events of a comparison: a bar with the time left on a terminal, else
    a line per round. With `quiet` it only records how long rounds take, for forecasts."""
    from kernelmark.api.ab import Rounds

    rounds = Rounds(plan, budget)
    with contextlib.ExitStack() as stack:
        stack.callback(rounds.save)
        tell: Callable[[Event], None] = _ignored
        if not quiet and fancy(sys.stderr):
            tell = Drawn(stack.enter_context(progress_bar()), rounds)
        elif not quiet:
            tell = progress(rounds)

        def take(event: Event) -> None:
            rounds.take(event)
            tell(event)

        yield take


def _ignored(event: Event) -> None:
    pass


def left(rounds: Rounds) -> str:
    """Return the remaining time as text."""

    near, far = rounds.left_s
    if rounds.looks.after(rounds.done) in (None, rounds.looks.last) or near == far:
        return f"about {duration_text(far)} left"
    return f"next test in about {duration_text(near)}, at most {duration_text(far)} left"


class Drawn:
    """A progress bar over the rounds, with the pair that was measured last."""

    def __init__(self, bar: Bar, rounds: Rounds) -> None:
        self._bar = bar
        self._rounds = rounds
        self._lines = progress(rounds, lambda text: say_above(bar, text))
        self._task = bar.add_task("starting", total=rounds.last, left=left(rounds))

    def __call__(self, event: Event) -> None:
        from kernelmark.report.names import short
        from kernelmark.runners.ab import Measured

        with contextlib.suppress(OSError):  # the comparison continues if the terminal goes away
            if not isinstance(event, Measured):
                self._lines(event)
                return
            self._bar.update(
                self._task,
                completed=event.round - 1 + event.done / event.total,
                total=max(self._rounds.last, event.round),
                left=left(self._rounds),
                description=f"round {event.round}: {short(event.pair.base.problem)}",
            )


def progress(rounds: Rounds, say: Callable[[str], object] = say) -> Callable[[Event], None]:
    from kernelmark.report.names import short
    from kernelmark.runners.ab import Measured
    from kernelmark.runners.events import Waiting

    waited: set[str] = set()

    def tell(event: Event) -> None:
        if isinstance(event, Waiting):
            if event.holder not in waited:  # once per process, not per case
                waited.add(event.holder)
                say(str(event))
        elif isinstance(event, Measured):
            if event.done == event.total:
                more = f" ({left(rounds)})" if event.round < rounds.last else ""
                say(f"round {event.round}: {counted(event.total, 'pair')}{more}")
        else:
            name, open_pairs = short(event.pair.base.problem), counted(rounds.pairs, "pair")
            say(f"{event.status.value}: {name}: {event.reason} ({open_pairs} left)")

    return tell


def put_report(
    report: AbReport,
    outputs: Outputs,
    *,
    stored: bool,
    quiet: bool,
    limits: FailOn | None = None,
    facts: Sequence[str] = (),
) -> int:
    """Print and write the report; return the exit code. `limits` define which verdicts fail,
    `facts` follow the answer in Markdown."""
    from kernelmark.api.ab import outcome
    from kernelmark.report import ab as made

    if not outputs.stdout_taken and report.rows:
        shown = report.sorted_rows
        styles = [_STYLES.get(row.status.value, "") for row in shown]
        put_table(made.rows_table(report), styles=styles)
        flush()
    outputs.put(
        json=lambda: made.to_json(report),
        csv=lambda: made.to_csv(report),
        md=lambda: made.to_md(report, facts),
    )
    code = outcome(report, limits)
    sides = [f"{run.label} ({run.id})" for run in (report.base, report.head)]
    kept = f"stored as {' and '.join(sides)}"
    if not quiet and report.rows:
        say(made.summary(report))
        for line in made.remarks(report):
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
        if not report.rows:
            say("nothing was measured on both sides before the time ended; no result is kept")
        elif any(row.base_s for row in report.rows):
            say("nothing was judged: the time ended before the first test")
        else:
            say("nothing was compared: no pair ran on both sides")
    return code
