"""Pages about runs: the list, a run, a result, a comparison, the roofline and charts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence

from kernelmark.api.roofs import memory_roofs
from kernelmark.compare.verdicts import ComparedRow
from kernelmark.core.errors import KernelmarkError, NothingToDo
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE, is_micro
from kernelmark.core.result import Run, RunState, Status
from kernelmark.core.units import counted, time_text, value_text, width_text
from kernelmark.report import compare as compared
from kernelmark.report import figures, micro
from kernelmark.report.detail import detail
from kernelmark.report.names import rerun
from kernelmark.report.page import environment_table
from kernelmark.report.results import COLUMNS, ResultRow, rate, share_text
from kernelmark.report.summary import answer, collect_warnings, find_failures, status_summary
from kernelmark.report.tables import date_text
from kernelmark.runners.locks import current_state
from kernelmark.web.pages import parts
from kernelmark.web.pages.parts import Page, Params, Section, Urls, Values, table
from kernelmark.web.source import Source

RULES = ("robust", "golden-tot", "ratio")
CHARTS = ("bars", "ecdf", "sweep", "heatmap")  # other kinds have separate pages
_CHOICES = 50  # maximum runs in a drop-down list
_MOST_DRAWN = 2000  # maximum points of a roofline
_COMMANDS = 5  # maximum commands shown per kind of failure
_TIMES = ("median_s", "width", "rate", "share", "times_best")
_FILTERS = ("q", "op", "backend", "status", "dtype")


def runs(source: Source, urls: Urls, params: Params) -> Page:
    """Return the stored runs, newest first."""
    columns = ("label", "suite", "state")
    page_runs, total = source.store.find_runs(
        limit=parts.most_rows(params),
        offset=parts.offset_of(params),
        text=params.get("q", ""),
        **{name: params.get(name, "") for name in columns},
    )
    names = source.store.run_names()
    return {
        "title": "Runs",
        "lead": "Every stored run, newest first.",
        "filters": [
            parts.search_box(params),
            *(parts.choice(name, params, names[name]) for name in columns),
        ],
        "tables": [runs_table(source, page_runs, urls) | parts.pager(total, params, urls, "runs")],
    }


def runs_table(source: Source, listed_runs: Sequence[Run], urls: Urls, title: str = "") -> Section:
    """Return a table of runs."""
    sizes = source.store.sizes([run.id for run in listed_runs])
    rows = []
    for run in listed_runs:
        info = next(iter(run.environment.devices), None)
        rows.append(
            {
                "run": run.id,
                "label": run.label,
                "suite": run.suite,
                "started": run.started,
                "duration_s": run.took_s,
                "state": current_state(run).value,
                "results": sizes.get(run.id, 0),
                "cases": run.cases,
                "host": run.environment.host,
                "device": info.model or info.name if info else "",
                "commit": run.environment.commit[:12],
                "links": {"run": urls("run", run.id)},
            }
        )
    columns = [
        *("run:name", "label", "suite", "started:date", "duration_s:duration:duration"),
        *("results:count", "state:state", "device", "host", "commit:code"),
    ]
    return table(columns, rows, title=title, empty="No run matches", sortable=False)


def progress(source: Source, run: Run, urls: Urls) -> Values:
    """Return the progress of a run."""
    return {
        "run": run.id,
        "label": run.label,
        "suite": run.suite,
        "started": run.started,
        "done": source.store.sizes([run.id]).get(run.id, 0),
        "cases": run.cases,
        "href": urls("run", run.id),
    }


def run(source: Source, urls: Urls, params: Params) -> Page:
    """Return one run: the answer, all rows, failures with rerun commands, the environment."""
    results = source.results(params["run_id"])
    run_shown, every = results.run, results.rows
    state = current_state(run_shown)
    rows = _filtered(every, params)
    before = source.store.run_before(run_shown)
    here = run_shown.environment
    page: Page = {
        "title": f"Run {run_shown.label or run_shown.id}",
        "lead": status_summary(every) or "no results yet",
        "state": state.value,
        "answer_lines": answer(every),
        "running": [progress(source, run_shown, urls)] if state is RunState.RUNNING else [],
        "facts": parts.facts(
            ("run", run_shown.id),
            ("suite", run_shown.suite),
            ("started", f"{date_text(run_shown.started)} UTC"),
            ("host", here.host),
            ("devices", ", ".join(f"{info.name} {info.model}".strip() for info in here.devices)),
            ("commit", here.commit + (" (changed)" if here.dirty else "")),
            ("command", shlex.join(["kmark", *run_shown.argv]) if run_shown.argv else ""),
        ),
        "actions": parts.actions(
            *(
                (
                    ("Roofline", urls("roofline", run=run_shown.id)),
                    ("Charts", urls("charts", run=run_shown.id, kind=CHARTS[0])),
                )
                if results.timed
                else ()
            ),
            (
                "Compare with the run before",
                urls("compare", base=before.id, head=run_shown.id) if before else None,
            ),
        ),
        "filters": [
            parts.search_box(params),
            *_row_filters(every, params),
            parts.choice("status", params, tuple(_statuses(every))),
        ],
        "tables": [
            parts.paged(
                *(_rows_table(rows), params, urls, "run", run_shown.id),
                make=_result_row,
                more=_result_links(run_shown.id, urls),
            )
        ],
        "failures": [
            {
                "status": failure.status.value,
                "reason": failure.reason,
                "cases": len(failure.rows),
                "commands": list(failure.commands()[:_COMMANDS]),
            }
            for failure in find_failures(rows)
        ],
        "notes": list(map(str, collect_warnings(rows))),
        "environment": parts.text_table(environment_table(here)),
    }
    if before:
        changed = parts.changes(before.environment, here)
        page["changed"] = {"since": before.id, "href": urls("run", before.id), "rows": changed}
    return page


def _statuses(rows: Sequence[ResultRow]) -> list[str]:
    there = {row.result.status for row in rows}
    return [status.value for status in Status if status in there]


def _row_filters(rows: Sequence[ResultRow], params: Params) -> list[Values]:
    ops = sorted({row.result.case.problem.op for row in rows})
    backends = sorted({row.result.case.backend for row in rows})
    return [parts.choice("op", params, ops), parts.choice("backend", params, backends)]


def _dtype_filter(rows: Sequence[ResultRow], params: Params) -> Values:
    dtypes = {name for row in rows for name in row.result.case.problem.dtypes.values()}
    return parts.choice("dtype", params, sorted(dtypes))


def _filtered(rows: Sequence[ResultRow], params: Params) -> Sequence[ResultRow]:
    """Return the rows that pass the filters."""
    if not any(params.get(name) for name in _FILTERS):
        return rows
    return [row for row in rows if _is_wanted(row, params)]


def _is_wanted(row: ResultRow, params: Params) -> bool:
    case = row.result.case
    values = {"op": case.problem.op, "backend": case.backend, "status": row.result.status.value}
    if any(params.get(name) and params[name] != value for name, value in values.items()):
        return False
    if params.get("dtype", "") not in ("", *case.problem.dtypes.values()):
        return False
    return parts.has_words(f"{case.problem.key} {row.backend} {row.result.device}", params)


def _rows_table(rows: Sequence[ResultRow], title: str = "") -> Section:
    """Return a table of results; `_result_row` formats the rows of the current page."""
    columns = parts.page_columns(COLUMNS, rows)
    if any(row.result.metrics for row in rows):
        if not any(row.measurement for row in rows):
            columns = [column for column in columns if column.key not in _TIMES]
        at = next((i for i, c in enumerate(columns) if c.key == _TIMES[0]), len(columns))
        columns[at:at] = [parts.PageColumn("metric"), parts.PageColumn("value", "value")]
    return table(columns, rows, title=title, empty="No result matches")


def _result_links(run_id: str, urls: Urls) -> Callable[[ResultRow], Values]:
    """Return a function that returns what only the rows on the current page need."""

    def more(row: ResultRow) -> Values:
        result = row.result
        links = {"problem": result_url(run_id, result.case.id, result.device, urls)}
        return {"why": str(result.why), "again": rerun(result), "links": links}

    return more


def _result_row(row: ResultRow) -> Values:
    result, measured, shown = row.result, row.measurement, row.shown_share
    headline = next(iter(result.headlines), None)
    return parts.page_values(COLUMNS, row) | {
        "arch": result.arch,
        "case": result.case.id,
        "metric": headline.name if headline else "",
        "value": headline.value if headline else None,
        "unit": headline.unit if headline else "s",
        "low_s": measured.low_s if measured else None,
        "high_s": measured.high_s if measured else None,
        "warned": row.is_warned,
        "share": shown.value if shown else None,
        "bound": shown.bound if shown else None,
        "tied": row.tied,
    }


def result_url(run_id: str, case_id: str, device: str, urls: Urls) -> str | None:
    return urls("result", run_id, case_id, device=parts.device_query(device))


def comparison(source: Source, urls: Urls, params: Params) -> Page:
    """Return the comparison of two runs, changed rows first."""
    head = source.store.run(params.get("head") or _newest(source))
    before = source.store.run_before(head) if not params.get("base") else None
    base = before or source.store.run(params.get("base") or "latest~1")
    rule, shown = params.get("rule") or "robust", params.get("show") or "changed"
    judged = source.comparison(base, head, rule)
    changed = judged.changed
    numbers = {row.number for row in changed}
    rest = [row for row in judged.rows if row.number not in numbers] if shown == "all" else []
    rows = [row for row in (*changed, *rest) if parts.has_words(row.pair.shown.case.series, params)]
    columns = parts.page_columns(compared.COLUMNS, rows)
    choices = _run_choices(source, (base, head))
    whole = {**params, "base": base.id, "head": head.id}
    return {
        "title": "Compare",
        "lead": f"{compared.summary(judged)}.",
        "counts": {status.value: count for status, count in judged.counts.items()},
        "filters": [
            parts.choice("base", whole, choices, required=True),
            parts.choice("head", whole, choices, required=True),
            parts.choice("rule", {"rule": rule}, RULES, required=True),
            parts.choice("show", {"show": shown}, ("changed", "all"), label="Rows", required=True),
            parts.search_box(params),
        ],
        "tables": [
            parts.paged(
                table(columns, rows, empty="No row changed"),
                whole,
                urls,
                "compare",
                make=_compared_row,
                more=_compared_links(head.id, urls),
            )
        ],
        "notes": compared.notes(judged),
        "changed": {
            "since": base.id,
            "href": urls("run", base.id),
            "rows": parts.changes(base.environment, head.environment),
        },
    }


def _compared_links(head: str, urls: Urls) -> Callable[[ComparedRow], Values]:
    """Return a function that returns what only the rows on the current page need."""

    def more(row: ComparedRow) -> Values:
        pair, shown = row.pair, row.pair.shown
        links = {
            "problem": urls("series", shown.case.id, arch=shown.arch, metric=pair.metric),
            "head_value": result_url(head, shown.case.id, shown.device, urls)
            if pair.head
            else None,
        }
        return {"again": rerun(shown), "links": links}

    return more


def _compared_row(row: ComparedRow) -> Values:
    shown, judged = row.pair.shown, row.judgement
    return parts.page_values(compared.COLUMNS, row) | {
        "suppressed": bool(row.held),
        "case": shown.case.id,
        "metric": row.pair.metric or "time",
        "unit": compared.unit_of(row) or "s",
        "low": parts.finite(judged.low),
        "high": parts.finite(judged.high),
        "p_value": parts.finite(judged.p_value),
    }


def _newest(source: Source) -> str:
    """Return the id of the newest run with kernels; microbenchmarks have no rows to draw."""
    return next((run.id for run in _runs_of_kernels(source)), "latest")


def _runs_of_kernels(source: Source) -> list[Run]:
    newest_runs, _ = source.store.find_runs(limit=_CHOICES)
    return [run for run in newest_runs if run.suite not in (MICRO_SUITE, ROOFS_SUITE)]


def _run_choices(source: Source, more: Iterable[Run] = ()) -> list[tuple[str, str]]:
    every = {run.id: run for run in (*_runs_of_kernels(source), *more)}
    newest = sorted(every.values(), key=lambda run: -run.started)
    return [(run.id, f"{date_text(run.started)}  {run.label or run.id}") for run in newest]


def result(source: Source, urls: Urls, params: Params) -> Page:
    """Return one result: samples by block, clocks, resources and the rerun command."""
    results = source.results_like(params["run_id"], params["case_id"])
    device = params.get("device", "")
    row = next(
        (
            row
            for row in results.rows
            if row.result.case.id == params["case_id"] and device in ("", row.result.device)
        ),
        None,
    )
    if row is None:
        raise NothingToDo("there is no such result", hint="the run's page lists its results")
    result_shown, measured = row.result, row.result.measurement
    metric = result_shown.headlines[0].name if result_shown.metrics else ""
    key = result_shown.case.problem.key
    other_rows = [other for other in results.rows if other.result.case.problem.key == key]
    same = _rows_table(other_rows, title="The same problem by all backends")
    more = _result_links(results.run.id, urls)
    same["rows"] = [_result_row(other) | more(other) for other in other_rows]
    return {
        "title": row.problem if is_micro(result_shown.case) else f"{row.problem} by {row.backend}",
        "status": result_shown.status.value,
        "reason": str(result_shown.why) if result_shown.status is not Status.OK else "",
        "facts": parts.facts(
            *_headline(row),
            ("device", f"{result_shown.device} ({result_shown.arch})"),
            ("run", results.run.label or results.run.id),
            ("started", f"{date_text(results.run.started)} UTC"),
        ),
        "command": rerun(result_shown),
        "actions": parts.actions(
            (
                "History",
                urls("series", result_shown.case.id, arch=result_shown.arch, metric=metric),
            ),
            ("Run", urls("run", results.run.id)),
        ),
        "figures": parts.figure("Points", lambda: micro.micro_figure(result_shown))
        if is_micro(result_shown.case)
        else parts.figure("Samples by block", lambda: figures.samples([row])),
        "notes": list(map(str, collect_warnings([row]))),
        "details": [parts.text_table(of) for of in detail(row, samples=False)],
        "samples": [] if measured is None else [list(block.samples_s) for block in measured.blocks],
        "tables": [same] if len(other_rows) > 1 else [],
    }


def _headline(row: ResultRow) -> list[tuple[str, str]]:
    measured = row.result.measurement
    pairs = [(m.name, value_text(m.value, m.unit)) for m in row.result.headlines]
    if measured is None:
        return pairs
    clock = measured.clock_mhz
    return [
        *pairs,
        ("median", time_text(measured.median_s)),
        ("±", width_text(measured.rel_half_width)),
        ("rate", rate(row)),
        ("of roof", share_text(row.shown_share)),
        ("samples", f"{measured.samples} in {counted(len(measured.blocks), 'block')}"),
        ("clock", f"{clock:.0f} MHz" if clock else ""),
    ]


def roofline(source: Source, urls: Urls, params: Params) -> Page:
    """Return the roofline of a run, and the rows furthest from their roof."""
    results = source.results(params.get("run") or _newest(source))
    run_shown = results.run
    every = [row for row in results.timed if row.ranks]
    # A one-element canary is at 0 % of every roof.
    every = [row for row in every if not row.sentinel] or every
    rows_shown = sorted(
        _filtered(every, params), key=lambda row: row.share.value if row.share else math.inf
    )
    rows = _rows_table(rows_shown, title="Furthest from the roof first")
    whole = {**params, "run": run_shown.id}
    most = f"the {_MOST_DRAWN} results furthest from their roof are drawn, of {len(rows_shown)}"
    return {
        "title": "Roofline",
        "lead": f"{counted(len(rows_shown), 'result')} of run {run_shown.label or run_shown.id}, "
        f"{date_text(run_shown.started)} UTC, under the roofs that were measured on its devices.",
        "filters": [
            parts.choice("run", whole, _run_choices(source, [run_shown]), required=True),
            *_row_filters(every, params),
            _dtype_filter(every, params),
            parts.search_box(params),
        ],
        "figures": parts.figure(
            "FLOP/s over intensity",
            lambda: figures.roofline(
                rows_shown[:_MOST_DRAWN],
                [*results.roofs, *memory_roofs(source.store, results.result_set)],
            ),
        ),
        "notes": [most] if len(rows_shown) > _MOST_DRAWN else [],
        "tables": [
            parts.paged(
                *(rows, whole, urls, "roofline"),
                make=_result_row,
                more=_result_links(run_shown.id, urls),
            )
        ],
    }


def charts(source: Source, urls: Urls, params: Params) -> Page:
    """Return a chart of a run as `kmark plot` draws it: bars, speed-ups or rates over a dim."""
    results = source.results(params.get("run") or _newest(source))
    run_shown, kind = results.run, params.get("kind") or CHARTS[0]
    every = results.timed
    rows_shown = _filtered(every, params)
    chart_options = figures.OPTIONS.get(kind, ())
    options = {name: params[name] for name in chart_options if params.get(name)}
    dims = list(dict.fromkeys(name for row in rows_shown for name in row.result.case.problem.dims))
    backends = list(dict.fromkeys(row.backend for row in rows_shown if row.timed))
    values = {"x": dims, "y": dims, "base": backends, "head": backends}
    whole = {**params, "run": run_shown.id, "kind": kind}
    spec, why = None, ""
    try:
        spec = figures.RESULT_KINDS[kind](rows_shown, **options)
    except KernelmarkError as error:
        why = "; ".join(filter(None, (str(error.message), str(error.hint or ""))))
    return {
        "title": "Charts",
        "lead": f"Run {run_shown.label or run_shown.id}, {date_text(run_shown.started)} UTC.",
        "kinds": parts.actions(  # links for a static site, which has no forms
            *(
                (figures.TITLES[name], urls("charts", run=run_shown.id, kind=name))
                for name in CHARTS
            )
        ),
        "filters": [
            parts.choice("run", whole, _run_choices(source, [run_shown]), required=True),
            parts.choice(
                "kind",
                {"kind": kind},
                [(name, figures.TITLES[name]) for name in CHARTS],
                label="Chart",
                required=True,
            ),
            *_row_filters(every, params),
            _dtype_filter(every, params),
            *(
                parts.choice(name, params, values[name], unset="Automatic")
                for name in chart_options
            ),
            parts.search_box(params),
        ],
        "figures": parts.figure(figures.TITLES[kind], lambda: spec) if spec else [],
        "notes": [f"nothing to draw: {why}"] if why else [],
        "tables": [
            parts.paged(
                *(_rows_table(rows_shown), whole, urls, "charts"),
                make=_result_row,
                more=_result_links(run_shown.id, urls),
            )
        ],
    }
