"""`kmark show`: print a stored run, or some of its results in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from kernelmark.cli import options as o
from kernelmark.cli.followups import extended, rerun_words, store_words
from kernelmark.cli.output import put, put_tables
from kernelmark.core.errors import NothingToDo, UsageError

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.core.result import ResultSet

CaseRef = Annotated[
    str | None,
    o.option(
        "--case ID",
        o.SELECTION,
        help="Show everything about one case, by its id or a prefix of it.",
    ),
]
Samples = Annotated[
    bool,
    o.option(
        "--samples",
        o.OUTPUT,
        help="Show everything about each result: blocks, samples, clocks, check, kernel, cost.",
    ),
]


def show(
    *,
    ref: o.RunRef = "latest",
    ops: o.Ops = None,
    backends: o.KeptBackends = None,
    filter: o.Filter = None,
    status: o.StatusWords = None,
    case: CaseRef = None,
    samples: Samples = False,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Show a stored run, as 'kmark run' printed it."""
    from kernelmark.api.load import loaded
    from kernelmark.cli.run_output import print_notes, put_results
    from kernelmark.report.detail import detail

    with loaded(ref, store) as (results, opened):
        place = () if opened is None else store_words(store)
        words = rerun_words(results.run.argv)
        # A run measured with --no-store and imported here: its reruns are stored.
        more = (*(word for word in words if not (place and word == "--no-store")), *place)
        found = chosen(
            results,
            ops=o.comma_list(ops),
            backends=o.comma_list(backends),
            regex=filter,
            statuses=o.comma_list(status),
            case=case,
            place=place,
        )
        if (samples or case is not None) and not outputs.any:
            for row in found.rows:
                put_tables(detail(row, samples=samples, more=more))
                put("\n")
            return 0
        put_results(found, outputs, quiet=quiet)
        warned = outputs.md == "-"
        print_notes(found, opened, quiet=quiet, warned=warned, place=place, more=more)
    return 0


def chosen(
    results: Results,
    *,
    ops: tuple[str, ...],
    backends: tuple[str, ...],
    regex: str | None,
    statuses: tuple[str, ...],
    case: str | None,
    place: tuple[str, ...],
) -> Results:
    """Return the selected results; raise NothingToDo if there are none."""
    from kernelmark.api.results import Results
    from kernelmark.core.result import ResultSet, Status
    from kernelmark.ops import registry as known_ops
    from kernelmark.workloads.select import matching

    known = [status.value for status in Status]
    for word in statuses:
        if word not in known:
            raise UsageError(f"unknown status {word!r}", hint=f"known: {', '.join(known)}")
    every: ResultSet = results.result_set
    held = {result.case.problem.op for result in every.results}
    for word in ops:
        if word not in held and word not in known_ops:
            # Other commands have -o FILE for outputs.
            meant = "a figure's file is given by -f; " if "." in word else ""
            hint = f"{meant}the run has {', '.join(sorted(held))}"
            raise UsageError(f"unknown op {word!r}", hint=hint)
    keys = None
    if regex is not None:
        keys = {p.key for p in matching([r.case.problem for r in every.results], regex)}
    kept = tuple(
        result
        for result in every.results
        if (not ops or result.case.problem.op in ops)
        and (not backends or result.case.backend in backends)
        and (keys is None or result.case.problem.key in keys)
        and (not statuses or result.status.value in statuses)
        and (case is None or result.case.id.startswith(case))
    )
    if not every.results:
        raise NothingToDo(f"run {every.run.id} has no results", hint=_without_results(every, place))
    if not kept:
        raise NothingToDo(
            f"no result matches in run {every.run.id}",
            hint=f"it has {len(every.results)}: {extended(f'kmark show {every.run.id}', place)}",
        )
    return Results(ResultSet(run=every.run, results=kept), results.roofs, results.notes)


def _without_results(found: ResultSet, place: tuple[str, ...]) -> str:
    from kernelmark.core.result import RunState
    from kernelmark.runners import locks

    state = locks.current_state(found.run)
    if state is RunState.INTERRUPTED and found.run.argv[:1] == ("run",):
        again = extended(f"kmark run --resume {found.run.id}", place)
        return f"it was interrupted before its first case ended; resume it: {again}"
    if state is RunState.RUNNING:
        return "its first case is still being measured"
    return f"other runs: {extended('kmark list runs', place)}"
