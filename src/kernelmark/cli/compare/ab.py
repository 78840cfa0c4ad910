"""`kmark ab`: compare two environments, backends or configs on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.api.selection import parse_backends, parse_config
from kernelmark.cli import options as o
from kernelmark.cli.compare.commands import ReadingOptions, Words, compare_commands
from kernelmark.cli.options import complete_backends, complete_devices
from kernelmark.cli.output import fancy, flush, progress_bar, put_table, say, say_above
from kernelmark.core.errors import UsageError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import below_one
from kernelmark.core.units import counted, duration_text, join_commas
from kernelmark.core.verdict import INTERRUPTED, NOTHING
from kernelmark.host.signals import command_age_s

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from kernelmark.api.ab import AbPlan, Rounds
    from kernelmark.backends import BackendRef
    from kernelmark.cli.options import Outputs, StoredOptions
    from kernelmark.compare.alarms import FailOn
    from kernelmark.core.problem import Problem
    from kernelmark.core.result import Case, Config
    from kernelmark.core.timing import Timing
    from kernelmark.report.ab import AbReport
    from kernelmark.runners.ab import Budget, Event, Rule, Side

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
    options: StoredOptions,
    *,
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
    if not options.quiet and report.rows:
        say(made.summary(report))
        for line in made.remarks(report):
            say(line)
        if code != INTERRUPTED and not options.no_store:
            say(kept)
    if code == INTERRUPTED:
        where = "not stored, since --no-store was given" if options.no_store else kept
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


COMPARISON = "Comparison"
_EXAMPLES = (
    "for example: kmark ab -b base:numpy -b head:torch -s demo, or with -o gemm -a m=512 -a n=512 "
    "-a k=512 --dtype f32 in place of -s"
)

Env = Annotated[
    list[str] | None,
    o.option(
        "--env NAME[=PYTHON]",
        COMPARISON,
        help="Name a side and its virtual environment or interpreter. First base, then head.",
        common=True,
    ),
]
Settings = Annotated[
    list[str] | None,
    o.option(
        "--set NAME:VARIABLE=VALUE",
        COMPARISON,
        help="Set an environment variable on one side: tot:LD_LIBRARY_PATH=/new/lib. Repeatable.",
    ),
]
SideBackend = Annotated[
    list[str] | None,
    o.option(
        "-b --backend [NAME:]BACKEND",
        COMPARISON,
        complete=complete_backends,
        help="Use this backend on both sides, or on the named one. Repeatable.",
    ),
]
SideConfig = Annotated[
    list[str] | None,
    o.option(
        "--config [NAME:]KEY=VALUE",
        COMPARISON,
        help="Set a tuning parameter on both sides, or on the named one. Repeatable.",
    ),
]
Device = Annotated[
    str,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        complete=complete_devices,
        help="Measure on this device.",
        common=True,
    ),
]
RoundsText = Annotated[
    str,
    o.option(
        "--rounds N,N,…",
        COMPARISON,
        help="Test for a verdict after these numbers of rounds; stop after the last.",
    ),
]
Alpha = Annotated[
    float,
    o.option(
        "--alpha P",
        COMPARISON,
        help="Limit the false discovery rate over all pairs; for a single pair, the false-alarm "
        "rate.",
    ),
]
Delta = Annotated[
    float,
    o.option(
        "--delta FRACTION",
        COMPARISON,
        check=below_one,
        help="Ignore changes below this fraction: 0.01 is 1 %.",
    ),
]
BudgetSeconds = Annotated[
    float | None,
    o.option(
        "--budget S",
        COMPARISON,
        help="Start no pair after this many seconds of the whole command; undecided pairs are "
        "reported as unsure.",
        common=True,
    ),
]


def ab(
    context: typer.Context,
    *,
    words: Words = None,
    sides: SideOptions,
    compared: ComparedOptions,
    reading: ReadingOptions,
    outputs: o.Outputs,
    stored: o.StoredOptions,
    runner: o.Runner = "local",
) -> int:
    """Measure two stacks alternately; exit 1 on a regression.

    The sides differ in environment, variables, backend or config. Each round
    measures both, so that drift affects both. The sides may also be two commands that
    report times themselves; no result is stored then.

    For example: kmark ab --env golden=/opt/a --env tot=/opt/b -s smoke -b torch

    Or: kmark ab -d cuda:0 -b cublaslt --set head:LD_LIBRARY_PATH=/new/lib -s smoke

    Or: kmark ab -- ./old_bench --json -- ./new_bench --json
    """
    from kernelmark.runners.ab import parse_sides

    if words and "--" not in (context.obj or ()):
        context.fail(f"Got unexpected extra argument ({words[0]})")
    if words:
        return compare_commands(
            words,
            reading,
            outputs,
            rule_of(compared).looks,
            delta=compared.delta,
            budget_s=compared.budget,
            timeout_s=stored.timeout,
            quiet=stored.quiet,
        )
    stacks = parse_sides(sides.env or (), sides.settings or ())
    with o.placed(runner, quiet=stored.quiet):
        return _compare_stacks(context, stacks, sides, compared, outputs, stored)


def _compare_stacks(
    context: typer.Context,
    stacks: tuple[Side, Side],
    sides: SideOptions,
    compared: ComparedOptions,
    outputs: o.Outputs,
    stored: o.StoredOptions,
) -> int:
    # Explicitly named environments may be equal, for an A/A test.
    plan = plan_of(compared, stacks, stored, may_be_equal=bool(sides.env))
    if not stored.quiet and (note := lone(plan)):
        say(note)
    if stored.dry_run:
        return preview(plan)
    from kernelmark.api.ab import Rounds, captured, compare_sides
    from kernelmark.core.environment import difference
    from kernelmark.report.ab import difference_table
    from kernelmark.runners import places
    from kernelmark.runners.locks import describe_others
    from kernelmark.runners.targets import find
    from kernelmark.stores import open_store

    if not stored.quiet:
        say(expected(plan))
        if places.current() is None and (users := describe_others(find(plan.device)[1])):
            say(f"note: {plan.device} is in use by {users}: times may be disturbed")
    refuse_short(plan)
    environments = captured(plan)
    changes = difference(*environments)
    # Sides that differ by their backends or configs are not expected to differ in more.
    if not outputs.stdout_taken and (changes or all(p.base == p.head for p in plan.pairs)):
        put_table(difference_table(changes, plan.names, empty="nothing differs"))
        say()
    with contextlib.ExitStack() as stack:
        opened = None if stored.no_store else stack.enter_context(open_store(stored.store))
        # The budget covers the whole command, not only its rounds.
        spent_s = command_age_s()
        remaining = plan.budget(spent_s)
        forecast = Rounds(plan)
        forecast.learn_start(spent_s)
        forecast.save()
        report = compare_sides(
            plan,
            environments,
            store=opened,
            argv=tuple(context.obj or ()),
            on_event=stack.enter_context(reporter(plan, quiet=stored.quiet, budget=remaining)),
            budget=remaining,
        )
    return put_report(report, outputs, stored)


@dataclass(frozen=True, kw_only=True)
class SideOptions(o.Options):
    """Options that name the two sides."""

    env: Env = None
    settings: Settings = None


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(o.Options):
    """Options of `kmark ab`, `gate` and `bisect` that select what is compared, and how."""

    selection: Annotated[o.Selection, o.selection_options()]
    timing: Annotated[o.TimingChoice, o.timing_options("min_samples")]
    backends: SideBackend = None
    config: SideConfig = None
    device: Device = "cpu"
    rounds: RoundsText = "10,16,24,32"
    alpha: Alpha = 0.01
    delta: Delta = 0.01
    budget: BudgetSeconds = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """The backends of one side, and their config."""

    backends: tuple[BackendRef, ...]
    config: Config

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(ref.name for ref in self.backends)


def plan_of(
    options: ComparedOptions,
    sides: tuple[Side, Side],
    stored: o.StoredOptions,
    *,
    may_be_equal: bool = True,
) -> AbPlan:
    """Return the comparison that the options describe; raise UsageError for invalid options, and
    for two equal sides unless `may_be_equal`."""
    from kernelmark.api.ab import AbPlan
    from kernelmark.api.plan import problems_of
    from kernelmark.backends._lineage import own_kernels
    from kernelmark.core.result import Case
    from kernelmark.runners import targets
    from kernelmark.runners.ab import Pair, Side

    if options.budget is not None and options.budget <= 0:
        raise UsageError(
            f"--budget must be above 0, not {options.budget:g}",
            hint="seconds after which open pairs end",
        )
    names = sides[0].name, sides[1].name
    timing = round_timing(options.timing)
    base, head = (_choose(options, name, names) for name in names)
    selection = dataclasses.replace(options.selection, backends=base.backends + head.backends)
    own = own_kernels(selection.backends)
    if not (own or selection.ops or selection.problems or selection.suites):
        raise UsageError("nothing was asked for", hint=_EXAMPLES)
    # the current interpreter and environment
    here = all(side == Side(name=side.name) for side in sides)
    problems = problems_of(selection, timing, here=here)
    _, info = targets.find(options.device)
    if len(base.backends) != len(head.backends):
        side, other = names
        raise UsageError(
            f"{side} has {join_commas(base.names)}, and {other} has "
            f"{join_commas(head.names)}: backends are compared one with one"
        )

    def case(problem: Problem, backend: str, config: Config) -> Case:
        name = own[backend].name if backend in own else ""
        return Case(problem=problem, backend=backend, timing=timing, config=config, name=name)

    pairs = tuple(
        Pair(base=case(problem, first, base.config), head=case(problem, second, head.config))
        for problem in problems
        for first, second in zip(base.names, head.names, strict=True)
    )
    plan = AbPlan(
        sides=sides,
        pairs=pairs,
        device=info.name,
        rule=rule_of(options),
        suite=",".join(selection.suites),
        label=stored.label,
        timeout_s=stored.timeout,
        budget_s=options.budget,
        jobs=jobs_for(stored.jobs, info.kind),
    )
    if not may_be_equal and _alike(sides) and all(pair.base == pair.head for pair in pairs):
        first, second = (*base.names, "BACKEND")[:2]
        raise UsageError(
            f"both sides would measure {join_commas(base.names)}: nothing differs",
            hint=f"name the sides: -b {names[0]}:{first} -b {names[1]}:{second}; --env a --env b "
            "compares a thing with itself",
        )
    return plan


def _alike(sides: tuple[Side, Side]) -> bool:
    return (sides[0].python, sides[0].variables) == (sides[1].python, sides[1].variables)


def jobs_for(jobs: int | None, kind: str) -> int:
    """Return the cores for compiling ahead; by default all for a GPU and none for a CPU."""
    if jobs is not None:
        return max(0, jobs)
    return len(os.sched_getaffinity(0)) if kind in ("cuda", "hip") else 0


def _choose(options: ComparedOptions, name: str, names: tuple[str, str]) -> _Choice:
    """Return what one side measures."""
    backends = parse_backends(_of_side(options.backends or (), name, names))
    if not backends:
        raise UsageError(f"no backend is given for {name}", hint="write: -b torch")
    for ref in backends:  # not loaded: a file is loaded by its side, which may have other packages
        if ref.file is not None and not ref.file.is_file():
            raise UsageError(
                f"there is no file {ref.name}",
                hint="-b takes the name of a backend or of a kernel file (.py, .cu, .hip)",
            )
    return _Choice(backends, parse_config(_of_side(options.config or (), name, names)))


def _of_side(texts: Sequence[str], name: str, names: tuple[str, str]) -> list[str]:
    """Return the option values for one side, without its prefix; values for both come first."""
    own = [text.removeprefix(f"{name}:") for text in texts if text.startswith(f"{name}:")]
    prefixes = tuple(f"{side}:" for side in names)
    return [text for text in texts if not text.startswith(prefixes)] + own


def round_timing(choice: o.TimingChoice) -> Timing:
    from kernelmark.core.timing import PRESETS, load_timing_fields
    from kernelmark.runners.ab import ROUND

    file_fields = {}
    if choice.name and choice.name not in PRESETS:
        file_fields = load_timing_fields(user_path(choice.name))
    if choice.name in PRESETS or "preset" in file_fields:
        raise UsageError(
            f"--timing {choice.name}: paired rounds have no presets",
            hint="--rounds and --budget set how long it takes, --timing FILE.toml a round's fields",
        )
    return dataclasses.replace(ROUND, **file_fields | choice.changes)


def rule_of(options: ComparedOptions) -> Rule:
    from kernelmark.runners.ab import Rule
    from kernelmark.stats.paired import Looks, least_rounds

    try:
        looks = Looks(rounds=_parse_rounds(options.rounds), alpha=options.alpha)
    except ValueError as error:
        raise UsageError(
            f"--rounds {options.rounds} --alpha {options.alpha}: {error}",
            hint="write: --rounds 10,16,24,32 --alpha 0.01",
        ) from None
    first = looks.rounds[0]
    need = least_rounds(looks.alpha_at(first))
    if first < need:
        raise UsageError(
            f"{first} rounds can show nothing at this level; it takes {need}",
            hint=f"begin with {need + need % 2} rounds, or give a larger --alpha",
        )
    return Rule(looks=looks, delta=options.delta, seed=options.timing.changes.get("seed") or 1)


def _parse_rounds(text: str) -> tuple[int, ...]:
    numbers = [number.strip() for number in text.split(",")]
    if wrong := [number for number in numbers if not number.isdecimal()]:
        raise ValueError(f"{wrong[0]!r} is not a whole number")
    return tuple(map(int, numbers))
