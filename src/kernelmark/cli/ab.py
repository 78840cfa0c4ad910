"""`kmark ab`: compare two environments, backends or configs on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.api.selection import parse_backends, parse_config
from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.ab_output import expected, lone, preview, put_report, refuse_short, reporter
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import UsageError
from kernelmark.core.flags import below_one
from kernelmark.core.units import join_commas
from kernelmark.host.signals import command_age_s

if TYPE_CHECKING:
    from kernelmark.api.ab import AbPlan
    from kernelmark.backends import BackendRef
    from kernelmark.core.problem import Problem
    from kernelmark.core.result import Case, Config
    from kernelmark.core.timing import Timing
    from kernelmark.runners.ab import Rule
    from kernelmark.runners.sides import Side

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
        complete=completing.backends,
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
        complete=completing.devices,
        help="Measure on this device.",
    ),
]
Rounds = Annotated[
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
Budget = Annotated[
    float | None,
    o.option(
        "--budget S",
        COMPARISON,
        help="Start no pair after this many seconds of the whole command; undecided pairs are "
        "reported as unsure.",
    ),
]


def ab(
    context: typer.Context,
    *,
    sides: SideOptions,
    compared: ComparedOptions,
    outputs: o.Outputs,
    stored: o.StoredOptions,
) -> int:
    """Measure two stacks alternately; exit 1 on a regression.

    The sides differ in environment, variables, backend or config. Each round
    measures both, so that drift affects both.

    For example: kmark ab --env golden=/opt/a --env tot=/opt/b -s smoke -b torch

    Or: kmark ab -d cuda:0 -b cublaslt --set head:LD_LIBRARY_PATH=/new/lib -s smoke
    """
    from kernelmark.runners.sides import parse_sides

    stacks = parse_sides(sides.env or (), sides.settings or ())
    # Explicitly named environments may be equal, for an A/A test.
    plan = plan_of(compared, stacks, stored, may_be_equal=bool(sides.env))
    if not stored.quiet and (note := lone(plan)):
        say(note)
    if stored.dry_run:
        return preview(plan)
    from kernelmark.api.ab import Rounds, captured, compare_sides
    from kernelmark.core.environment import difference
    from kernelmark.report.ab import difference_table
    from kernelmark.runners.locks import describe_others
    from kernelmark.runners.targets import find
    from kernelmark.stores import open_store

    if not stored.quiet:
        say(expected(plan))
        if users := describe_others(find(plan.device)[1]):
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
    return put_report(report, outputs, stored=opened is not None, quiet=stored.quiet)


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
    rounds: Rounds = "10,16,24,32"
    alpha: Alpha = 0.01
    delta: Delta = 0.01
    budget: Budget = None


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
    from kernelmark.runners.ab import Pair
    from kernelmark.runners.sides import Side

    if options.budget is not None and options.budget <= 0:
        raise UsageError(
            f"--budget must be above 0, not {options.budget:g}",
            hint="seconds after which open pairs end",
        )
    names = sides[0].name, sides[1].name
    timing = _round_timing(options.timing)
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
        rule=_rule(options),
        suite=",".join(selection.suites),
        label=stored.label,
        timeout_s=stored.timeout,
        budget_s=options.budget,
        jobs=_jobs(stored.jobs, info.kind),
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


def _jobs(jobs: int | None, kind: str) -> int:
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


def _round_timing(choice: o.TimingChoice) -> Timing:
    from kernelmark.core.timing import PRESETS, load_timing_fields
    from kernelmark.runners.ab import ROUND

    file_fields = {}
    if choice.name and choice.name not in PRESETS:
        file_fields = load_timing_fields(Path(choice.name).expanduser())
    if choice.name in PRESETS or "preset" in file_fields:
        raise UsageError(
            f"--timing {choice.name}: kmark ab has no presets",
            hint="--rounds and --budget set how long it takes, --timing FILE.toml a round's fields",
        )
    return dataclasses.replace(ROUND, **file_fields | choice.changes)


def _rule(options: ComparedOptions) -> Rule:
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
