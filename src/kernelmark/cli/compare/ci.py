"""Comparisons of revisions: `kmark gate`, `kmark bisect` and `kmark nightly`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.compare import ab as a
from kernelmark.cli.compare.ab import lone, preview, put_report, reporter
from kernelmark.cli.compare.compare import FailOnWords
from kernelmark.cli.output import check_writable, put, put_table, say, write
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import below_one
from kernelmark.core.units import join_and, join_commas, join_or
from kernelmark.core.verdict import NOTHING

if TYPE_CHECKING:
    from kernelmark.api.ab import AbPlan
    from kernelmark.api.bisect import Source
    from kernelmark.api.checkouts import Checkouts, Where
    from kernelmark.runners.ab import Side

SIDES = "Sides"
NAMES = ("base", "head")

Base = Annotated[
    str | None,
    o.option("--base REF", SIDES, help="Compare with this commit, branch or tag.", common=True),
]
Head = Annotated[
    str,
    o.option(
        "--head REF",
        SIDES,
        help="Judge this commit, branch or tag; '.' is the working tree with its changes.",
        common=True,
    ),
]
Repo = Annotated[
    str,
    o.option(
        "--repo DIR",
        SIDES,
        help="Use the git repository of this folder; paths of kernel files, suites and timing "
        "files are relative to it.",
    ),
]
Build = Annotated[
    str,
    o.option(
        "--build CMD",
        SIDES,
        help="Build each checkout with this shell command, run inside it.",
        common=True,
    ),
]
BuildTimeout = Annotated[
    float, o.option("--build-timeout S", SIDES, help="Limit the seconds of one build.")
]
Python = Annotated[
    str,
    o.option(
        "--python PATH",
        SIDES,
        help="Run both sides with this interpreter or virtual environment; {tree} stands for the "
        "checkout: {tree}/.venv.",
    ),
]
BaseEnv = Annotated[
    str | None,
    o.option(
        "--base-env PYTHON",
        SIDES,
        help="Compare environments, not commits: the interpreter or virtual environment of base.",
    ),
]
HeadEnv = Annotated[
    str | None,
    o.option("--head-env PYTHON", SIDES, help="The interpreter or virtual environment of head."),
]
Settings = Annotated[
    list[str] | None,
    o.option(
        "--set [SIDE:]VARIABLE=VALUE",
        SIDES,
        help="Set an environment variable on both sides, or on base or head: "
        "PYTHONPATH={tree}/src. Repeatable.",
    ),
]
Budget = Annotated[
    float,
    o.option(
        "--budget S",
        a.COMPARISON,
        help="Stop measuring after this many seconds. If that is too short for every case, a "
        "random part is left out and listed as undecided.",
        common=True,
    ),
]


def gate(
    context: typer.Context,
    *,
    side_options: SideOptions,
    compared: GateCompared,
    fail_on: FailOnWords = None,
    outputs: o.Outputs,
    stored: GateStored,
) -> int:
    """Measure two commits alternately; exit 1 on a regression.

    Also compares two environments (--base-env, --head-env).

    For example: kmark gate --base origin/main --build make -s smoke -b torch

    Or, for a kernel file: kmark gate --base main --head . -b kernels/softmax.py
    """
    from kernelmark.api.ab import captured, compare_sides
    from kernelmark.compare import alarms as failing
    from kernelmark.report.ab import answer_of
    from kernelmark.stores import open_store

    verdicts = o.comma_list(fail_on)
    limits = failing.parse(verdicts) if verdicts else failing.FailOn()
    tell: Callable[[str], None] = (lambda text: None) if stored.quiet else say
    with contextlib.ExitStack() as stack:
        sides, facts = stack.enter_context(_sides(side_options, tell))
        # Read files from head: a change may add the suite that measures it.
        with contextlib.chdir(sides[1].folder or "."):
            plan = a.plan_of(compared, sides, stored)
        if note := lone(plan):
            tell(note)
        if stored.dry_run:
            return preview(plan)
        opened = None if stored.no_store else stack.enter_context(open_store(stored.store))
        report = compare_sides(
            plan,
            captured(plan),
            store=opened,
            argv=_pinned(context.obj or (), facts),
            on_event=stack.enter_context(reporter(plan, quiet=stored.quiet)),
        )
    code = put_report(
        report,
        outputs,
        stored,
        limits=limits,
        facts=[f"{name}: {text}" for name, text in facts.items()],
    )
    say(answer_of(report))
    return code


@dataclass(frozen=True, kw_only=True)
class CheckoutOptions(o.Options):
    """Options for checking out and building a commit."""

    repo: Repo = "."
    build: Build = ""
    build_timeout: BuildTimeout = 3600.0
    python: Python = ""
    settings: Settings = None


@dataclass(frozen=True, kw_only=True)
class SideOptions(CheckoutOptions):
    """Options that name the two sides."""

    base: Base = None
    head: Head = "HEAD"
    base_env: BaseEnv = None
    head_env: HeadEnv = None


@dataclass(frozen=True, kw_only=True)
class GateCompared(a.ComparedOptions):
    """Options of what is compared, with the time budget of a CI job."""

    budget: Budget = 1200.0


@dataclass(frozen=True, kw_only=True)
class GateStored(o.StoredOptions):
    """Options for measuring and storing cases, with a default label."""

    label: o.Label = "gate"


@contextlib.contextmanager
def _sides(
    options: SideOptions, tell: Callable[[str], None]
) -> Iterator[tuple[tuple[Side, Side], dict[str, str]]]:
    """Yield base and head, checked out and built, and for each its commit and subject."""
    from kernelmark.runners.ab import parse_sides

    variables = {name: variables_of(options.settings or (), name) for name in NAMES}
    if options.base_env is not None or options.head_env is not None:
        _check_environments(options)
        settings = [f"{side}:{n}={v}" for side in NAMES for n, v in variables[side].items()]
        pythons = [f"base={options.base_env}", f"head={options.head_env}"]
        yield parse_sides(pythons, settings), {}
        return
    if options.base is None:
        raise UsageError(
            "there is nothing to compare with",
            hint="give a commit, --base origin/main, or --base-env and --head-env",
        )
    with checkouts_of(options, tell) as checkouts:
        repository = checkouts.repository
        if options.head == "HEAD" and repository.changed:
            tell("note: changes that are not committed are not measured; --head . measures them")
        refs = {"base": options.base, "head": options.head}
        for ref in refs.values():  # check both before building one
            repository.describe(ref)
        sides = tuple(checkouts.side(side, refs[side], variables[side]) for side in NAMES)
        yield (sides[0], sides[1]), {n: repository.describe(ref) for n, ref in refs.items()}


def _pinned(argv: Sequence[str], commits: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line with commits in place of refs, which may move."""
    from kernelmark.api.checkouts import WORKING_TREE_TEXT

    pinned = list(argv)
    for side, text in commits.items():
        commit = text.split()[0]
        if text == WORKING_TREE_TEXT:
            continue
        positions = [
            i for i, argument in enumerate(pinned) if argument.partition("=")[0] == f"--{side}"
        ]
        pinned += [] if positions else [f"--{side}", commit]
        for i in positions:
            at, argument = (i, f"--{side}={commit}") if "=" in pinned[i] else (i + 1, commit)
            pinned[at] = argument
    return tuple(pinned)


def checkouts_of(
    options: CheckoutOptions,
    tell: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> Checkouts:
    """Return the checkouts of the commits that the options name, with these variables."""
    from kernelmark.api.checkouts import Checkouts, Recipe, Repository

    if options.build_timeout <= 0:
        raise UsageError(f"--build-timeout must be above 0, not {options.build_timeout:g}")
    recipe = Recipe(
        build=options.build,
        python=options.python,
        variables=variables or {},
        timeout_s=options.build_timeout,
    )
    return Checkouts(Repository(options.repo), recipe, tell)


def variables_of(
    settings: Sequence[str], side: str, names: Sequence[str] = NAMES
) -> dict[str, str]:
    """Return the variables of a side from `[SIDE:]VARIABLE=VALUE`; its own override common ones."""
    from kernelmark.runners.ab import VARIABLE

    variables: dict[str, dict[str, str]] = {"": {}, side: {}}
    for setting in settings:
        left, equals, value = setting.partition("=")
        name, colon, variable = left.rpartition(":")
        if not equals or not VARIABLE.match(variable) or (colon and name not in names):
            raise UsageError(
                f"--set={setting!r} is not [SIDE:]VARIABLE=VALUE",
                hint="for example: --set LD_LIBRARY_PATH=/new/lib"
                + (f"; sides: {', '.join(names)}" if names else ""),
            )
        if name in variables:
            variables[name][variable] = value
    return {**variables[""], **variables[side]}


def _check_environments(options: SideOptions) -> None:
    if options.base_env is None or options.head_env is None:
        present, missing = NAMES if options.head_env is None else NAMES[::-1]
        raise UsageError(
            f"--{present}-env needs --{missing}-env", hint="both sides need an interpreter"
        )
    for_commits = [f"--{name}" for name in ("base", "build", "python") if getattr(options, name)]
    if for_commits:
        raise UsageError(
            f"{join_or(tuple(for_commits))} cannot be combined with --base-env",
            hint="environments are compared as they are; commits are built",
        )


File = Annotated[
    str, typer.Argument(metavar="FILE", help="The configuration, such as nightly.toml.")
]
DryRun = Annotated[bool, o.option("--dry-run", o.RUNNING, help="List the steps; run nothing.")]
Fresh = Annotated[
    bool, o.option("--fresh", o.RUNNING, help="Start over, even if the last night is unfinished.")
]


def nightly(
    file: File,
    fresh: Fresh = False,
    md: o.Md = None,
    quiet: o.Quiet = False,
    dry_run: DryRun = False,
) -> int:
    """Run the suites of a config; confirm and report regressions.

    The exit code is 1 on a confirmed regression. Repeat the command after a reboot or
    Ctrl-C to continue: finished steps are skipped. If the same file is already running,
    the exit code is 4. An example: examples/nightly/nightly.toml
    """
    from kernelmark.api.nightly import Tools, load, run_night, steps_of
    from kernelmark.cli.progress import reporter
    from kernelmark.host.signals import caught_stops
    from kernelmark.stores import open_store

    if md is not None:
        check_writable(md)
    config = load(file)
    if dry_run:
        for step in steps_of(config):
            put(f"{step}\n")
        return 0
    tell: Callable[[str], None] = (lambda text: None) if quiet else say
    tools = Tools(tell=tell, reporter=lambda plan: reporter(plan, quiet=quiet), fresh=fresh)
    try:
        # Mark the command as started: a signal during an import is then deferred, instead of ending
        # the process at once.
        with (
            caught_stops(),
            contextlib.chdir(config.folder),
            open_store(config.store or None) as store,
        ):
            ended = run_night(config, store, tools)
    except KeyboardInterrupt:
        # Replaces the message of the interrupted step: the night can be continued.
        raise KeyboardInterrupt("interrupted; the same command goes on with this night") from None
    if md is not None:
        write(md, ended.summary)
    say(ended.answer)
    return ended.code


CANDIDATES = "Candidates"

Good = Annotated[
    str | None, o.option("--good REF", CANDIDATES, common=True, help="Start from this fast commit.")
]
Bad = Annotated[
    str, o.option("--bad REF", CANDIDATES, common=True, help="End at this slow, later commit.")
]
WheelList = Annotated[
    str | None,
    o.option(
        "--wheels FILE",
        CANDIDATES,
        common=True,
        help="Search wheels instead of commits: a text file with one path per line, relative to "
        "it, from good to bad.",
    ),
]
ConfigList = Annotated[
    str | None,
    o.option(
        "--configs FILE",
        CANDIDATES,
        common=True,
        help="Search configs instead of commits: a JSON list, or one 'name=value …' per line.",
    ),
]
Confidence = Annotated[
    float,
    o.option(
        "--confidence P",
        a.COMPARISON,
        check=below_one,
        help="Stop when a candidate is the culprit with this probability.",
    ),
]
FreshSearch = Annotated[
    bool, o.option("--fresh", o.RUNNING, help="Discard an unfinished search and start over.")
]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(o.Options):
    """Options of the search, and of where its result goes."""

    confidence: Confidence = 0.95
    json: o.Json = None
    md: o.Md = None
    quiet: o.Quiet = False
    timeout: o.Timeout = 300.0
    fresh: FreshSearch = False


def bisect(
    context: typer.Context,
    *,
    candidates: CandidateOptions,
    compared: a.ComparedOptions,
    search: SearchOptions,
) -> int:
    """Find the commit, wheel or config that slowed a kernel down.

    Also finds the one that broke it.

    For example: kmark bisect --good v1.2 --bad HEAD -b kernels/softmax.py

    Repeat the command to continue an interrupted search. The exit code is 4 if good
    and bad do not differ, or if the culprit was not found.
    """
    from kernelmark.api.bisect import Question, bisect, comment, document, forget
    from kernelmark.core.files import json_text
    from kernelmark.report.changes import command_text, movers_table, of_pairs

    outputs = o.Outputs(json=search.json, md=search.md)
    if search.confidence <= 0.5:
        raise UsageError(
            f"--confidence must be above 0.5, not {search.confidence:g}", hint="0.95 is usual"
        )
    tell: Callable[[str], None] = (lambda text: None) if search.quiet else say
    stored = o.StoredOptions(timeout=search.timeout)
    with _candidates(candidates, compared, stored, tell) as (source, plan):
        question = Question(
            cases=tuple(pair.base for pair in plan.pairs),
            rule=plan.rule,
            confidence=search.confidence,
            budget_s=math.inf if compared.budget is None else compared.budget,
            key=f"{candidates.build}\n{candidates.python}\n{candidates.settings}\n{plan.device}\n{plan.rule}",
        )
        if search.fresh:
            forget(question, source.names)
        try:
            finding = bisect(source, question, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; the same command goes on with the search"
            ) from None
    if not outputs.stdout_taken and finding.rows:
        put_table(movers_table(of_pairs(finding.rows)))
    outputs.put(
        json=lambda: json_text(document(finding)),
        md=lambda: comment(finding, command_text(context.obj or ())),
    )
    say(finding.answer)
    return 0 if finding.state in ("located", "range") else NOTHING


@dataclass(frozen=True, kw_only=True)
class Candidates(o.Options):
    """Options that name the candidates: one of good, wheels and configs."""

    good: Good = None
    bad: Bad = "HEAD"
    wheels: WheelList = None
    configs: ConfigList = None


@dataclass(frozen=True, kw_only=True)
class CandidateOptions(CheckoutOptions, Candidates):
    """Options for the candidates, and for checking out and building commits among them."""


@contextlib.contextmanager
def _candidates(
    options: CandidateOptions,
    compared: a.ComparedOptions,
    stored: o.StoredOptions,
    tell: Callable[[str], None],
) -> Iterator[tuple[Source, AbPlan]]:
    """Yield the candidates that the options name, and the plan of what is measured on each."""
    from kernelmark.api import checkouts as known

    kinds = {"--good": options.good, "--wheels": options.wheels, "--configs": options.configs}
    chosen = tuple(option for option, value in kinds.items() if value is not None)
    if len(chosen) != 1:
        raise UsageError(
            f"exactly one of {join_commas(kinds)} is needed"
            + (f", not {join_and(chosen)}" if chosen else ""),
            hint="give one of --good REF, --wheels FILE and --configs FILE",
        )
    if options.good is None:
        side = _side(options)
        plan = a.plan_of(compared, (side, dataclasses.replace(side, name="head")), stored)
        if options.wheels is not None:
            yield known.Wheels(known.read_wheels(options.wheels), side, _where(plan)), plan
        elif options.configs is not None:
            yield known.Configs(known.read_configs(options.configs), side, _where(plan)), plan
        return
    variables = variables_of(options.settings or (), "", ())
    with checkouts_of(options, tell, variables) as checkouts:
        bad = checkouts.side("head", options.bad)
        with contextlib.chdir(bad.folder):
            plan = a.plan_of(compared, (dataclasses.replace(bad, name="base"), bad), stored)
        yield known.Commits(checkouts, options.good, options.bad, _where(plan)), plan


def _side(options: CandidateOptions) -> Side:
    """Return the environment shared by all candidates."""
    from kernelmark.core.immutable import FrozenDict
    from kernelmark.runners.ab import parse_side

    side = parse_side(f"base={options.python}" if options.python else "base")
    variables = variables_of(options.settings or (), "", ())
    return dataclasses.replace(side, variables=FrozenDict(variables))


def _where(plan: AbPlan) -> Where:
    from kernelmark.api.checkouts import Where
    from kernelmark.runners.jobs import threads_of
    from kernelmark.runners.targets import find

    threads = threads_of(plan.pairs[0].base, find(plan.device)[1])
    return Where(device=plan.device, timeout_s=plan.timeout_s, threads=threads)
