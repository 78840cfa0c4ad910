"""kmark gate and kmark nightly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import ab as a
from kernelmark.cli import options as o
from kernelmark.cli.ab_output import lone, preview, put_report, reporter
from kernelmark.cli.compare import FailOnWords
from kernelmark.cli.output import check_writable, put, say, write
from kernelmark.core.errors import UsageError
from kernelmark.core.units import join_or

if TYPE_CHECKING:
    from kernelmark.api.checkouts import Checkouts
    from kernelmark.runners.sides import Side

SIDES = "Sides"
NAMES = ("base", "head")

Base = Annotated[
    str | None, o.option("--base REF", SIDES, help="Compare with this commit, branch or tag.")
]
Head = Annotated[
    str,
    o.option(
        "--head REF",
        SIDES,
        help="Judge this commit, branch or tag; '.' is the working tree with its changes.",
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
        "--build CMD", SIDES, help="Build each checkout with this shell command, run inside it."
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
        stored=opened is not None,
        quiet=stored.quiet,
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
    from kernelmark.runners.sides import parse_sides

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
    from kernelmark.runners.sides import VARIABLE

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
    from kernelmark.api.nightly import Tools, run_night, steps_of
    from kernelmark.api.nightly_file import load
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
