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
from kernelmark.cli.output import (
    extended,
    flush,
    put_table,
    redacted,
    rerun_words,
    say,
    started_as,
    store_words,
)
from kernelmark.core.errors import NothingToDo, StoreError, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.result import Status
from kernelmark.core.units import about_text, counted, join_or
from kernelmark.core.verdict import INTERRUPTED, NOTHING, SOME_FAILED
from kernelmark.host.signals import command_age_s
from kernelmark.report.names import backend_text, short
from kernelmark.report.tables import Column, Table

if TYPE_CHECKING:
    from kernelmark.api.plan import Plan
    from kernelmark.api.results import Results
    from kernelmark.api.run import Conduct
    from kernelmark.cli.options import Outputs
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.result import Case, Run
    from kernelmark.report.results import ResultRow
    from kernelmark.report.summary import Failure
    from kernelmark.stores.store import Store

# Commands to try after the demo, and why.
NEXT = {
    "kmark show {run} --samples": "every block, sample and check behind these numbers",
    "kmark run -o gemm -a 'm=[128:1024:*2]' -a n=512 -a k=512 --dtype f32": "your own sizes",
    "kmark micro --quick": "what this machine's caches, memory and instructions can do",
}
# Maximum commands per reason; `kmark show --status` lists the rest.
_COMMANDS = 3


def put_results(
    results: Results,
    outputs: Outputs,
    *,
    table: bool = True,
    quiet: bool = False,
    problems: int | None = None,
) -> int:
    """Print the answer and the table, unless stdout has data, and write the requested files. With
    `problems`, the table has only so many of them, and all failures. Return the number of results
    that it leaves out."""
    from kernelmark.report.micro import metrics_table
    from kernelmark.report.results import first_problems, results_table, with_separator
    from kernelmark.report.summary import answer

    timed = results.timed if problems is None else first_problems(results.timed, problems)
    hidden = 0
    try:
        if table and not outputs.stdout_taken and results.rows:
            for sentence in () if quiet else answer(results.timed):
                say(sentence)
            if timed:
                hidden = len(results.timed) - len(timed)
                put_table(
                    results_table(timed), styles=[_style(row) for row in with_separator(timed)]
                )
            if results.micro:
                put_table(metrics_table(results.micro))
            flush()
    finally:  # write the files even if the reader of stdout closed its pipe
        outputs.put(json=results.to_json, csv=results.to_csv, md=results.to_md)
    return hidden


def print_notes(
    results: Results,
    store: Store | None,
    *,
    quiet: bool,
    warned: bool = False,
    store_options: Sequence[str] = (),
    more: Sequence[str] = (),
    most: int | None = None,
    hidden: int = 0,
    unread: int = 0,
) -> None:
    """Print failures with rerun commands, at most `most` warnings, notes, and where results are
    stored. `warned`: stdout has the warnings. `store_options` is the `--store` option, `more`
    are arguments for reruns. The table leaves out `hidden` results, and `unread` ones that are not
    in `results` either: all are ok."""
    from kernelmark.report.summary import collect_warnings, find_failures, mark_text, status_summary

    run_id = results.run.id if store is not None else None
    for failure in find_failures(results.rows):
        _print_failure(failure, run_id, store_options, more)
    mark = "" if warned else mark_text(results.rows)
    if (left_out := hidden + unread) and run_id is not None:
        command = extended(f"kmark show {run_id} --limit 0", store_options)
        say(f"the table leaves out {counted(left_out, 'ok result')}; all: {command}")
    if quiet:
        if mark and run_id is not None:
            say(f"{mark}; details: {extended(f'kmark show {run_id}', store_options)}")
        return
    if mark:
        say(f"{mark}:")
    warnings = [] if warned else collect_warnings(results.rows)
    shown = len(warnings) if most is None else most
    for warning in warnings[:shown]:
        say(f"warning: {warning}")
    if rest := warnings[shown:]:
        command = extended(f"kmark show {run_id}", store_options) if run_id else "kmark run"
        say(f"{counted(len(rest), 'more kind')} of warnings: {command}")
    for text in results.notes:
        say(f"note: {text}")
    where = f"stored in {store.where}" if store is not None else "not stored"
    name = f"{results.run.id} ({results.run.label})" if results.run.label else results.run.id
    more_ok = f" (and {unread} ok that were not read)" if unread else ""
    say(f"run {name}: {status_summary(results.rows) or 'no results'}{more_ok}; {where}")


def print_demo_hints(results: Results, store_options: Sequence[str]) -> None:
    """Print what the demo shows, and commands to try next."""
    from kernelmark.report.summary import lessons

    say()
    say("what this shows:")
    for text in lessons(results.timed):
        say(f"- {text}")
    say("try next:")
    program = started_as()
    for command, why in NEXT.items():
        arguments = command.format(run=results.run.id).removeprefix("kmark")
        say(f"  # {why}")
        say(f"  {extended(program + arguments, store_options)}")


def put_preview(
    plan: Plan, roofs_s: float, store: Store | None, resumed: Run | None, jobs: int | None
) -> None:
    """Print the cases, and how long they and the roofs, `roofs_s`, would take."""
    done = store.finished(resumed.id) if store is not None and resumed is not None else set()
    cases = [case for case in plan.cases if case.id not in done]
    if not cases:
        raise NothingToDo("there is nothing left to run")
    table, refused = _plan_table(cases), _refused(cases, plan.devices[0])
    possible = [case for case in cases if case.id not in refused]
    low_s, high_s = _expected_s(plan.devices, possible, jobs)
    put_table(table)
    where = ", ".join(info.name for info in plan.devices)
    duration = about_text(roofs_s + low_s, roofs_s + high_s)
    say(f"{counted(len(cases), 'case')} on {where}, {duration}")
    for note in plan.notes:
        say(f"note: {note}")
    for reason, count in Counter(refused.values()).most_common():
        say(f"note: {counted(count, 'case')} will be unsupported: {reason}")


def _expected_s(
    infos: Sequence[DeviceInfo], cases: Sequence[Case], jobs: int | None
) -> tuple[float, float]:
    """Return the likely range of the seconds of the command, without measuring roofs."""
    from kernelmark.runners.forecast import estimate_run_s
    from kernelmark.runners.jobs import compile_jobs, compiles
    from kernelmark.runners.pool import kernel_key

    workers = compile_jobs(jobs, infos)
    kernels = {kernel_key(case): case for case in cases if compiles(case.backend)}
    ahead = Counter(case.backend for case in kernels.values() if len(kernels) > 1 and workers)
    return estimate_run_s(cases, infos, kernels=ahead, jobs=workers)


def _refused(cases: Sequence[Case], info: DeviceInfo) -> dict[str, str]:
    """Return by case id why cases cannot run on this device."""
    from kernelmark.runners import kernel_files

    loaded = {case.backend: kernel_files.find(case.backend) for case in cases}
    reasons = {case.id: loaded[case.backend].supports(case.problem, info) for case in cases}
    return {case_id: reason for case_id, reason in reasons.items() if reason is not None}


def _plan_table(cases: Sequence[Case]) -> Table:
    """Return a table of the cases that would run."""
    columns = tuple(Column(name=name) for name in ("problem", "backend", "case"))
    rows = tuple((short(case.problem), backend_text(case), case.id) for case in cases)
    return Table(columns=columns, rows=rows)


def _print_failure(
    failure: Failure, run_id: str | None, store_options: Sequence[str], more: Sequence[str]
) -> None:
    count = len(failure.rows)
    say(failure.sentence)
    if failure.cut and run_id is not None:
        case = f"kmark show {run_id} --case {failure.rows[0].result.case.id}"
        say(f"  details: {extended(case, store_options)}")
    if not failure.status.failed:
        return
    for command in failure.commands(more)[:_COMMANDS]:
        say(f"  again: {command}")
    if count > _COMMANDS and run_id is not None:
        rest = f"kmark show {run_id} --status {failure.status.value}"
        say(f"  and {count - _COMMANDS} more: {extended(rest, store_options)}")


def _style(row: ResultRow | None) -> str:
    if row is None:
        return "dim"
    if row.result.status.failed:
        return "red"
    if row.result.status is not Status.OK:
        return "dim"
    return "bold" if row.times_best == 1.0 else ""


# Newest runs that are searched for an unfinished one.
_LOOKED_AT = 100
# Warnings after the demo, the worst ones: folded, they fill a dozen lines.
_DEMO_WARNINGS = 4


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

    def plan(self, *, canaries: bool, load_s: float = 0.0) -> Plan:
        """Return the cases; with `canaries`, those of suites unless an option leaves them out. A
        kernel file has `load_s` seconds to be imported."""
        from kernelmark.api.plan import plan

        canaries = canaries and not (self.no_canaries or self.no_sentinels)
        selection = dataclasses.replace(self.selection, canaries=canaries)
        return plan(selection, self.timing.load(), load_s=load_s)


@dataclass(frozen=True, kw_only=True)
class RunOptions(o.StoredOptions, RunChoice):
    """The options of `kmark run`, except outputs and --resume."""

    roofs: o.Roofs = "stored"
    interleave: o.Interleave = "auto"
    retry_failed: o.RetryFailed = False
    compile_timeout: o.CompileTimeout = 600.0
    runner: o.Runner = "local"


def run(
    context: typer.Context, *, options: RunOptions, outputs: o.Outputs, resume: o.Resume = None
) -> int:
    """Measure problems with backends; verify and store results.

    For example: kmark run -s demo

    Or: kmark run -o gemm -b numpy,torch -a m=[256:2048:*2] -a n=512 -a k=512
    --dtype f32
    """
    _check_resume(resume, options)
    with o.placed(options.runner, quiet=options.quiet):
        return _run(context, options, outputs, resume)


def _run(
    context: typer.Context, options: RunOptions, outputs: o.Outputs, resume: str | None
) -> int:
    plan, load_s = None, options.compile_timeout
    if resume is None:
        plan = options.plan(canaries=not options.no_store, load_s=load_s)
    with _open_store(options, resume) as (store, resumed):
        roofs = options.roofs
        if plan is None and resumed is not None:
            before = _stored_options(context, resumed)
            plan = before.plan(canaries="sentinels" in resumed.suite.split(","), load_s=load_s)
            if roofs == _default(context, "roofs"):
                roofs = before.roofs
        if plan is None:
            raise NothingToDo("there is nothing left to run")
        from kernelmark.api.roofs import roofs_for_plan
        from kernelmark.api.run import Conduct

        # Measure no roofs if only JSON is written, which has no percentages.
        if options.no_store and not outputs.shows_percent:
            roofs = "none"
        run_roofs = roofs_for_plan(plan, store, roofs)
        if options.dry_run:
            put_preview(plan, run_roofs.expected_s, store, resumed, options.jobs)
            return 0
        conduct = Conduct(
            label=options.label,
            argv=tuple(context.obj or ()),
            roofs=run_roofs,
            timeout_s=options.timeout,
            compile_timeout_s=options.compile_timeout,
            jobs=options.jobs,
            interleave=options.interleave,
            retry_failed=options.retry_failed,
            refuse_config=True,
            problems=None if outputs.any else o.MOST_PROBLEMS,
        )
        results, cases_s = _measure(plan, conduct, store, resumed, quiet=options.quiet)
        code = _finish(results, store, options, outputs, conduct.argv)
        if not run_roofs.expected_s:
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
    if resume is None and options.no_store:
        yield None, None
        return
    from kernelmark.stores import open_store

    if resume is None and options.dry_run:
        with contextlib.ExitStack() as stack:
            store = None
            with contextlib.suppress(NothingToDo, StoreError):  # the store may not exist yet
                store = stack.enter_context(open_store(options.store, readonly=True))
            yield store, None
        return
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
    path = user_path(text)
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
    plan: Plan, conduct: Conduct, store: Store | None, resumed: Run | None, *, quiet: bool
) -> tuple[Results, float]:
    """Return the results, and the seconds that their cases took."""
    from kernelmark.api.run import measure
    from kernelmark.cli.progress import CaseClock, reporter

    with reporter(plan, quiet=quiet) as on_event:
        clock = CaseClock(on_event)
        results = measure(plan, conduct=conduct, store=store, on_event=clock, resumed=resumed)
    return results, clock.seconds


def _finish(
    results: Results,
    store: Store | None,
    options: RunOptions,
    outputs: o.Outputs,
    argv: tuple[str, ...],
) -> int:
    """Print the results and notes after the last case; return the exit code."""
    from kernelmark.core.result import RunState, Status

    interrupted = results.run.state is RunState.INTERRUPTED
    demo = "demo" in results.run.suite.split(",")
    store_option = () if store is None else store_words(options.store)
    # A resumed run keeps its original arguments.
    more = (*rerun_words((*results.run.argv, *argv[1:])), *store_option)
    hidden, unread, most = 0, 0, None if store is None else o.MOST_PROBLEMS
    if store is not None:  # a resumed run may have results that were not read
        unread = sum(store.counts(results.run.id).values()) - len(results)
    try:
        hidden = put_results(results, outputs, quiet=options.quiet, problems=most)
    finally:
        quiet, warned = options.quiet, outputs.md == "-"
        print_notes(
            results,
            store,
            quiet=quiet,
            warned=warned,
            store_options=store_option,
            more=more,
            most=_DEMO_WARNINGS if demo else None,
            hidden=hidden,
            unread=unread,
        )
        if interrupted and store is None:
            say("interrupted: nothing is stored, since --no-store was given")
        elif interrupted:
            place = () if options.runner == "local" else ("--runner", options.runner)
            resume = extended(f"kmark run --resume {results.run.id}", (*place, *store_option))
            say(f"interrupted; everything so far is stored: {resume}")
        elif demo and not options.quiet:
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
