"""`kmark ab`: two environments, backends or configs beside each other on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import Outputs, counted, flush, put_table, say, write
from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    from kernelmark.api.ab import AbPlan
    from kernelmark.core.result import Case
    from kernelmark.core.timing import Timing
    from kernelmark.report.ab import AbReport
    from kernelmark.runners.ab import Event, Rule

REGRESSION = 1
SOME_FAILED = 3
INTERRUPTED = 130
COMPARISON = "Comparison"

Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=PYTHON]",
        help="A side: a name and its interpreter or virtual environment. Twice: base, then head.",
        rich_help_panel=COMPARISON,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME:VARIABLE=VALUE",
        help="A variable of one side: tot:LD_LIBRARY_PATH=/new/lib. Repeated.",
        rich_help_panel=COMPARISON,
    ),
]
SideBackend = Annotated[
    list[str] | None,
    typer.Option(
        "-b",
        "--backend",
        metavar="[NAME:]BACKEND",
        help="The backend of both sides, or of the one named. Repeated on both sides: several.",
        rich_help_panel=COMPARISON,
    ),
]
SideConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="[NAME:]KEY=VALUE",
        help="A tunable choice on both sides, or on the one named. Repeated.",
        rich_help_panel=COMPARISON,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "-d", "--device", metavar="DEVICE", help="The one device.", rich_help_panel=o.SELECTION
    ),
]
Rounds = Annotated[
    str,
    typer.Option(
        "--rounds",
        metavar="N,N,…",
        help="Rounds after which verdicts are looked at; the last one ends the comparison.",
        rich_help_panel=COMPARISON,
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        "--alpha",
        metavar="P",
        help="Share of alarms that may be false; of a single pair, the chance of one.",
        rich_help_panel=COMPARISON,
    ),
]
Delta = Annotated[
    float,
    typer.Option(
        "--delta",
        metavar="SHARE",
        help="The least change that counts, as 0.01.",
        rich_help_panel=COMPARISON,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="S",
        help="Stop after this many seconds; pairs that are still open stay unsure.",
        rich_help_panel=COMPARISON,
    ),
]
MinSamples = Annotated[
    int | None,
    typer.Option(
        "--samples", metavar="N", help="Samples in a block.", rich_help_panel=o.MEASUREMENT
    ),
]


def ab(
    context: typer.Context,
    env: Env = None,
    settings: Settings = None,
    backends: SideBackend = None,
    config: SideConfig = None,
    ops: o.Ops = None,
    device: Device = "cpu",
    suites: o.Suites = None,
    axes: o.Axes = None,
    dtypes: o.Dtypes = None,
    problems: o.Problems = None,
    filter: o.Filter = None,
    limit: o.Limit = None,
    rounds: Rounds = "10,16,24",
    alpha: Alpha = 0.01,
    delta: Delta = 0.01,
    budget: Budget = None,
    cache: o.CacheState = None,
    threads: o.Threads = None,
    max_s: o.MaxSeconds = None,
    warmup_s: o.WarmupSeconds = None,
    samples: MinSamples = None,
    seed: o.Seed = None,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    label: o.Label = "",
    json: o.Json = None,
    csv: o.Csv = None,
    md: o.Md = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
    timeout: o.Timeout = 300.0,
    jobs: o.Jobs = None,
) -> int:
    """Compare two environments, backends or configs side by side; exit 1 on a regression.

    For example: kmark ab --env golden=/opt/a/python --env tot=/opt/b/python -s smoke -b torch

    Or: kmark ab -b numpy --set head:OMP_NUM_THREADS=1 -s smoke
    """
    outputs = Outputs(json=json, csv=csv, md=md)
    plan = plan_of(context.params)
    if not quiet and (note := _lone(plan)):
        say(note)
    if dry_run:
        return _preview(plan)
    from kernelmark.api.ab import captured, compare_sides
    from kernelmark.core.environment import difference
    from kernelmark.report.ab import difference_table
    from kernelmark.stores import open_store

    environments = captured(plan)
    if not outputs.stdout_taken:
        put_table(difference_table(difference(*environments), plan.names))
        say()
    with contextlib.ExitStack() as stack:
        opened = None if no_store else stack.enter_context(open_store(store))
        report = compare_sides(
            plan,
            environments,
            store=opened,
            argv=tuple(context.obj or ()),
            on_event=(lambda event: None) if quiet else _tell(len(plan.pairs)),
        )
    return _told(report, outputs, stored=opened is not None, quiet=quiet)


def plan_of(params: Mapping[str, Any]) -> AbPlan:
    """The comparison that the options ask for; whatever is illegal is refused here."""
    from kernelmark.api.ab import AbPlan
    from kernelmark.api.plan import Selection, problems_of
    from kernelmark.runners import targets
    from kernelmark.runners.ab import Pair
    from kernelmark.runners.environments import parse_sides

    sides = parse_sides(params["env"] or (), params["settings"] or ())
    names = sides[0].name, sides[1].name
    timing = _timing(params)
    selection = Selection(
        ops=o.comma_list(params["ops"]),
        problems=tuple(params["problems"] or ()),
        suites=o.comma_list(params["suites"]),
        axes=tuple(params["axes"] or ()),
        dtypes=o.comma_list(params["dtypes"]),
        filter=params["filter"],
        limit=params["limit"],
    )
    found = problems_of(selection, timing)
    _, info = targets.find(params["device"])
    choices = [_choices(params, name, names) for name in names]
    if len(choices[0][0]) != len(choices[1][0]):
        raise UsageError(
            f"{names[0]} has {len(choices[0][0])} backends and {names[1]} has "
            f"{len(choices[1][0])}: they are compared one with one"
        )

    def case(problem: Any, side: int, place: int) -> Case:
        from kernelmark.core.result import Case

        chosen, config = choices[side]
        return Case(problem=problem, backend=chosen[place], timing=timing, config=config)

    pairs = tuple(
        Pair(base=case(problem, 0, place), head=case(problem, 1, place))
        for problem in found
        for place in range(len(choices[0][0]))
    )
    return AbPlan(
        sides=sides,
        pairs=pairs,
        device=info.name,
        rule=_rule(params),
        suite=",".join(selection.suites),
        label=params["label"],
        timeout_s=params["timeout"],
        budget_s=params["budget"],
        jobs=_jobs(params["jobs"], info.kind),
    )


def _jobs(given: int | None, kind: str) -> int:
    """Host cores that compile first: all for a GPU, none where there is nothing to compile."""
    import os

    if given is not None:
        return max(0, given)
    return len(os.sched_getaffinity(0)) if kind in ("cuda", "hip") else 0


def _choices(
    params: Mapping[str, Any], name: str, names: tuple[str, str]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The backends and the config of one side."""
    from kernelmark import backends as known
    from kernelmark.api.plan import parse_config

    found = o.comma_list(_of_side(params["backends"] or (), name, names))
    if not found:
        raise UsageError(f"no backend is given for {name}", hint="write: -b torch")
    for one in found:
        known.find(one)
    return found, parse_config(_of_side(params["config"] or (), name, names))


def _of_side(words: Sequence[str], name: str, names: tuple[str, str]) -> list[str]:
    """Words for one side, without its name: those of both sides first."""
    own = [word.removeprefix(f"{name}:") for word in words if word.startswith(f"{name}:")]
    prefixes = tuple(f"{one}:" for one in names)
    return [word for word in words if not word.startswith(prefixes)] + own


def _timing(params: Mapping[str, Any]) -> Timing:
    import dataclasses

    from kernelmark.runners.ab import ROUND

    names = ("cache", "threads", "max_s", "warmup_s", "seed")
    changes = {name: params[name] for name in names if params[name] is not None}
    if params["samples"] is not None:
        changes["min_samples"] = params["samples"]
    return dataclasses.replace(ROUND, **changes)


def _rule(params: Mapping[str, Any]) -> Rule:
    from kernelmark.runners.ab import Rule
    from kernelmark.stats.paired import Looks, least_rounds

    try:
        looks = Looks(
            rounds=tuple(int(word) for word in params["rounds"].split(",")), alpha=params["alpha"]
        )
    except ValueError as error:
        raise UsageError(
            f"--rounds {params['rounds']} --alpha {params['alpha']}: {error}",
            hint="write: --rounds 10,16,24 --alpha 0.01",
        ) from None
    first = looks.rounds[0]
    need = least_rounds(looks.alpha_at(first))
    if first < need:
        raise UsageError(
            f"a look after {first} rounds cannot show anything at alpha {looks.alpha:g}",
            hint=f"the first look needs about {need + need % 2} rounds, or a larger --alpha",
        )
    return Rule(looks=looks, delta=params["delta"], seed=params["seed"] or 1)


def _lone(plan: AbPlan) -> str:
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


def _preview(plan: AbPlan) -> int:
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
        "timing, if no launch is longer than its share"
    )
    return 0


def _tell(total: int) -> Callable[[Event], None]:
    from kernelmark.report.names import short
    from kernelmark.runners.ab import Measured

    left = {"pairs": total}

    def tell(event: Event) -> None:
        if isinstance(event, Measured):
            if event.done == event.total:
                say(f"round {event.round}: {counted(event.total, 'pair')}")
            return
        left["pairs"] -= 1
        name = short(event.pair.base.problem)
        say(f"{event.status.value}: {name}: {event.reason} ({left['pairs']} left)")

    return tell


def _told(report: AbReport, outputs: Outputs, *, stored: bool, quiet: bool) -> int:
    from kernelmark.core.result import RunState
    from kernelmark.report import ab as made

    texts: tuple[tuple[str | None, Callable[[AbReport], str]], ...] = (
        (outputs.json, made.to_json),
        (outputs.csv, made.to_csv),
        (outputs.md, made.to_md),
    )
    if not outputs.stdout_taken and report.rows:
        put_table(made.rows_table(report))
        flush()
    for place, text in sorted(texts, key=lambda pair: pair[0] != "-"):
        if place is not None:
            write(place, text(report))
    if not quiet:
        say(made.summary(report))
        if audit := made.audit(report):
            say(audit)
        if stored:
            say(f"stored as {report.base.label} ({report.base.id}) and {report.head.label}")
    if report.base.state is RunState.INTERRUPTED:
        return INTERRUPTED
    if report.regressions:
        return REGRESSION
    return (
        SOME_FAILED if any(r.base.status.failed or r.head.status.failed for r in report.rows) else 0
    )
