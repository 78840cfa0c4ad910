"""`kmark run`: measure, check, print and store."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.followups import extended, redacted, rerun_words, store_words
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import NothingToDo, StoreError, UsageError
from kernelmark.core.units import counted, join_or
from kernelmark.core.verdict import INTERRUPTED, NOTHING, SOME_FAILED
from kernelmark.host.signals import command_age_s

if TYPE_CHECKING:
    from kernelmark.api.plan import Plan
    from kernelmark.api.results import Results
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.result import Case, Run
    from kernelmark.stores.store import Store

# Newest runs that are searched for an unfinished one.
_LOOKED_AT = 100


@dataclass(frozen=True, kw_only=True)
class RunChoice(o.Options):
    """Options that select what is measured, and how; a resumed run keeps its own."""

    selection: Annotated[o.Selection, o.selection_options("backends", "devices", "config")]
    no_canaries: o.NoCanaries = False
    no_sentinels: o.NoSentinels = False
    timing: Annotated[
        o.TimingChoice,
        o.timing_options(
            "timer", "processes", "max_allocations", "target_rel_ci", preset="default"
        ),
    ]

    def plan(self, *, canaries: bool) -> Plan:
        """Return the cases; with `canaries`, those of suites unless an option leaves them out."""
        from kernelmark.api.plan import plan

        canaries = canaries and not (self.no_canaries or self.no_sentinels)
        selection = dataclasses.replace(self.selection, canaries=canaries)
        return plan(selection, self.timing.load())


@dataclass(frozen=True, kw_only=True)
class RunOptions(o.StoredOptions, RunChoice):
    """The options of `kmark run`, except outputs and --resume."""

    roofs: o.Roofs = "stored"
    retry_failed: o.RetryFailed = False


def run(
    context: typer.Context, *, options: RunOptions, outputs: o.Outputs, resume: o.Resume = None
) -> int:
    """Measure problems with backends; verify and store results.

    For example: kmark run -s demo

    Or: kmark run -o gemm -b numpy,torch -a m=[256:2048:*2] -a n=512 -a k=512
    --dtype f32
    """
    _check_resume(resume, options)
    plan = options.plan(canaries=not options.no_store) if resume is None else None
    with _open_store(options, resume) as (store, resumed):
        roofs = options.roofs
        if plan is None and resumed is not None:
            before = _stored_options(context, resumed)
            plan = before.plan(canaries="sentinels" in resumed.suite.split(","))
            if roofs == _default(context, "roofs"):
                roofs = before.roofs
        if plan is None:
            raise NothingToDo("there is nothing left to run")
        if options.dry_run:
            return _preview(plan, store, resumed, options, outputs)
        from kernelmark.api.roofs import expected_roofs_s

        # Measure no roofs if only JSON is written, which has no percentages.
        roofs = roofs if store is not None or outputs.shows_percent else "none"
        roofs_s = expected_roofs_s(plan, store, roofs)
        options = dataclasses.replace(options, roofs=roofs)
        argv = tuple(context.obj or ())
        results, cases_s = _measure(plan, options, store, argv=argv, resumed=resumed)
        code = _finish(results, store, options, outputs, argv)
        if not roofs_s:
            _learn_start(command_age_s() - cases_s)
        return code


def _learn_start(seconds: float) -> None:
    """Record the time that the command takes outside its cases, for later estimates."""
    from kernelmark.runners.forecast import Means

    means = Means.of_machine()
    means.learn("start/run", seconds)
    means.save()


def _check_resume(resume: str | None, options: RunOptions) -> None:
    if resume is None and options.retry_failed:
        raise UsageError("--retry-failed needs --resume")
    if resume is not None and options.no_store:
        raise UsageError(
            "--no-store cannot be combined with --resume", hint="a run is resumed from a store"
        )


@contextlib.contextmanager
def _open_store(
    options: RunOptions, resume: str | None
) -> Iterator[tuple[Store | None, Run | None]]:
    """Yield the store, opened before anything runs, and the run to resume."""
    if resume is None and (options.no_store or options.dry_run):
        yield None, None
        return
    from kernelmark.stores import open_store

    with open_store(options.store) as store:
        failed_too = options.retry_failed
        yield store, None if resume is None else _resumed(store, resume, failed_too=failed_too)


def _resumed(store: Store, ref: str, *, failed_too: bool) -> Run:
    if ref == "latest":
        return _newest(store, failed_too=failed_too)
    run = store.run(ref)
    if not run.argv:
        raise UsageError(
            f"kmark run cannot resume run {run.id}",
            hint="its cases are not known here: start a new run",
        )
    if run.argv[0] != "run":
        made_by = shlex.join(run.argv[: 2 if run.argv[0] == "tune" else 1])
        raise UsageError(
            f"kmark run cannot resume run {run.id}, which was made by kmark {made_by}",
            hint=f"give that command again: kmark {shlex.join(redacted(run.argv))}",
        )
    return run


def _newest(store: Store, *, failed_too: bool) -> Run:
    """Return the newest interrupted run of `kmark run`; with `failed_too`, else the newest finished
    one, to repeat its failures."""
    from kernelmark.core.result import RunState
    from kernelmark.runners import locks

    mine = [run for run in store.runs(limit=_LOOKED_AT) if run.argv[:1] == ("run",)]
    ended = [run for run in mine if locks.current_state(run) is RunState.DONE] if failed_too else []
    for run in mine:
        if locks.current_state(run) is RunState.INTERRUPTED:
            return run
    if ended:
        return ended[0]
    raise NothingToDo(
        "there is no unfinished run of kmark run",
        hint="--resume --retry-failed measures again what failed in the newest one",
    )


def _stored_options(context: typer.Context, run: Run) -> RunOptions:
    """Return the options that the run was started with, from its stored command line."""
    from kernelmark.api.run import folder_of

    declared = {parameter.name: parameter.opts[-1] for parameter in context.command.params}
    names = [name for name in RunChoice.parameters() if name in declared]
    again = [name for name in names if context.params[name] != _default(context, name)]
    if again:
        raise UsageError(
            f"{join_or(tuple(map(declared.get, again)))} cannot be combined with --resume",
            hint=f"it keeps those of the run: kmark {shlex.join(redacted(run.argv))}",
        )
    params = dict(context.command.make_context("kmark run", list(run.argv[1:])).params)
    folder = folder_of(run.id)
    for name in ("backend", "suite"):
        texts = o.comma_list(params[name])
        params[name] = [_from_folder(text, folder, run) for text in texts] or None
    params["timing"] = _from_folder(params["timing"], folder, run)
    return RunOptions.of(params)


def _from_folder(text: str, folder: Path | None, run: Run) -> str:
    """Return the path of a file named by a run, resolved in the folder that the run was started in;
    other texts unchanged."""
    from kernelmark.backends import FILES, registry

    if not text.endswith((*FILES, ".toml")) or text in registry:
        return text
    path = Path(text).expanduser()
    if folder is not None:
        return str(folder / path)
    if not path.exists():
        raise UsageError(
            f"there is no file {text}",
            hint=f"run {run.id} was started in another folder, which is not known here: resume it "
            "from there",
        )
    return text


def _default(context: typer.Context, name: str) -> object:
    value = context.params[name]
    parameter = next(p for p in context.command.params if p.name == name)
    default = parameter.get_default(context)
    return value if not value and not default else default


def _measure(
    plan: Plan,
    options: RunOptions,
    store: Store | None,
    *,
    argv: tuple[str, ...],
    resumed: Run | None,
) -> tuple[Results, float]:
    """Return the results, and the seconds that their cases took."""
    from kernelmark.api.run import Conduct, measure
    from kernelmark.cli.progress import CaseClock, reporter

    conduct = Conduct(
        label=options.label,
        roofs=options.roofs,
        timeout_s=options.timeout,
        jobs=options.jobs,
        retry_failed=options.retry_failed,
        refuse_config=True,
    )
    with reporter(plan, quiet=options.quiet) as on_event:
        clock = CaseClock(on_event)
        results = measure(
            plan, conduct=conduct, store=store, argv=argv, on_event=clock, resumed=resumed
        )
    return results, clock.seconds


def _finish(
    results: Results,
    store: Store | None,
    options: RunOptions,
    outputs: o.Outputs,
    argv: tuple[str, ...],
) -> int:
    """Print the results and notes after the last case; return the exit code."""
    from kernelmark.cli.run_output import print_demo_hints, print_notes, put_results
    from kernelmark.core.result import RunState, Status

    interrupted = results.run.state is RunState.INTERRUPTED
    store_option = () if store is None else store_words(options.store)
    # A resumed run keeps its original arguments.
    more = (*rerun_words((*results.run.argv, *argv[1:])), *store_option)
    try:
        put_results(results, outputs, quiet=options.quiet)
    finally:
        quiet, warned = options.quiet, outputs.md == "-"
        print_notes(results, store, quiet=quiet, warned=warned, place=store_option, more=more)
        if interrupted and store is None:
            say("interrupted: nothing is stored, since --no-store was given")
        elif interrupted:
            resume = extended(f"kmark run --resume {results.run.id}", store_option)
            say(f"interrupted; everything so far is stored: {resume}")
        elif "demo" in results.run.suite.split(",") and not options.quiet:
            print_demo_hints(results, store_option)
    if interrupted:
        return INTERRUPTED
    if results.failed:
        return SOME_FAILED
    statuses = {row.result.status for row in results.rows if not row.sentinel}
    if statuses == {Status.UNSUPPORTED}:
        say("nothing was measured: all that was asked for is unsupported")
        return NOTHING
    return 0


def _preview(
    plan: Plan, store: Store | None, resumed: Run | None, options: RunOptions, outputs: o.Outputs
) -> int:
    """Print the cases and how long they would take; return the exit code."""
    from kernelmark.cli.run_output import plan_table
    from kernelmark.core.units import about_text

    done = store.finished(resumed.id) if store is not None and resumed is not None else set()
    cases = [case for case in plan.cases if case.id not in done]
    if not cases:
        raise NothingToDo("there is nothing left to run")
    put_table(plan_table(cases))
    refused = _refused(cases, plan.devices[0])
    possible = [case for case in cases if case.id not in refused]
    low_s, high_s = _expected_s(plan, possible, options, outputs)
    where = ", ".join(info.name for info in plan.devices)
    say(f"{counted(len(cases), 'case')} on {where}, {about_text(low_s, high_s)}")
    for note in plan.notes:
        say(f"note: {note}")
    for reason, count in Counter(refused.values()).most_common():
        say(f"note: {counted(count, 'case')} will be unsupported: {reason}")
    return 0


def _expected_s(
    plan: Plan, cases: Sequence[Case], options: RunOptions, outputs: o.Outputs
) -> tuple[float, float]:
    """Return the likely range of the seconds of the whole command, including roofs that it would
    measure."""
    from kernelmark.api.roofs import expected_roofs_s
    from kernelmark.runners.forecast import estimate_run_s
    from kernelmark.runners.jobs import compiles
    from kernelmark.runners.local import LocalRunner
    from kernelmark.runners.pool import kernel_key
    from kernelmark.stores import open_store

    infos = plan.devices
    jobs = LocalRunner([info.name for info in infos], jobs=options.jobs).jobs
    kernels = {kernel_key(case): case for case in cases if compiles(case.backend)}
    roofs_s = 0.0
    with contextlib.ExitStack() as stack:
        store = None
        if not options.no_store:
            with contextlib.suppress(NothingToDo, StoreError):  # the store may not exist yet
                store = stack.enter_context(open_store(options.store, readonly=True))
        if outputs.shows_percent or not options.no_store:
            roofs_s = expected_roofs_s(plan, store, options.roofs)
    ahead = Counter(case.backend for case in kernels.values() if len(kernels) > 1 and jobs)
    low_s, high_s = estimate_run_s(cases, infos, kernels=ahead, jobs=jobs)
    return roofs_s + low_s, roofs_s + high_s


def _refused(cases: Sequence[Case], info: DeviceInfo) -> dict[str, str]:
    """Return by case id why cases cannot run on this device."""
    from kernelmark import backends

    loaded = {case.backend: backends.find(case.backend) for case in cases}
    reasons = {case.id: loaded[case.backend].supports(case.problem, info) for case in cases}
    return {case_id: reason for case_id, reason in reasons.items() if reason is not None}
