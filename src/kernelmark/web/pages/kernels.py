"""Pages about series: the overview, all kernels, and one series over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelmark.compare import history as judging
from kernelmark.compare.history import Point, judged_s
from kernelmark.core.environment import difference
from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import RunState, Status
from kernelmark.core.units import counted, value_text
from kernelmark.core.verdict import Mark
from kernelmark.report import figures
from kernelmark.report import history as history_report
from kernelmark.report.tables import date_text
from kernelmark.web.pages import parts
from kernelmark.web.pages.parts import Page, Params, Section, Urls, Values, table
from kernelmark.web.pages.runs import progress, result_url, runs_table
from kernelmark.web.source import RECENT, Kernel, Source, Summary
from kernelmark.workloads.suites import CANARIES, canary_keys

STATES = ("broken", "slower", "faster", "accepted", "failed", "unsupported", "new", "steady")
CHANGED = ("broken", "slower", "faster")
_SPARK = 24  # points of a sparkline
_MOVERS = 12
_NEWEST_RUNS = 8
_FOUND = 50
_MOST_DRAWN = 200  # newest points; steps are searched in these
_CHANGE_WORDS = (
    "change: newest time over the last good level; per launch: the seconds that it costs or saves; "
    "since: the first run with it; of roof: the part of the measured peak that bounds the kernel"
)
_FIRST_WAIT_S = 0.25  # for the first summary: a small store takes less


def overview(source: Source, urls: Urls, params: Params) -> Page:
    """Return the overview: what got slower, by how much, with what confidence."""
    summary = source.summary(_FIRST_WAIT_S)
    newest, total = source.store.find_runs(limit=_NEWEST_RUNS)
    running, _ = source.store.find_runs(limit=5, state=RunState.RUNNING.value)
    page: Page = {
        "title": "Overview",
        "answer": _pending(total),
        "updating": source.is_stale,
        "running": [progress(source, run, urls) for run in running],
        "tables": [runs_table(source, newest, urls, title="Newest runs")],
        "notes": [],
    }
    return page if summary is None else page | judged_parts(summary, urls)


def judged_parts(summary: Summary, urls: Urls) -> Page:
    """Return the parts of the overview that depend on the judged runs only; cached in the
    summary."""
    key = "overview", urls
    if key not in summary.derived:
        summary.derived[key] = _judged_parts(summary, urls)
    parts_of_page: Page = summary.derived[key]
    return parts_of_page


def _judged_parts(summary: Summary, urls: Urls) -> Page:
    page: Page = {"answer": _answer(summary, urls)}
    if summary.history is None:
        return page
    moved = sorted(
        (kernel for kernel in summary.kernels if kernel.is_news), key=_rank, reverse=True
    )
    stories, past = [item.story for item in moved], summary.history
    suppressed = sum(bool(kernel.story.held) for kernel in summary.kernels)
    return page | {
        "movers": _linked(
            _kernel_table(
                summary,
                moved[:_MOVERS],
                title="Open regressions and new speed-ups, most seconds a launch first",
                brief=True,
            )
            | {"words": _CHANGE_WORDS},
            urls,
        ),
        "figures": parts.figure(figures.TITLES["trend"], lambda: figures.trend(past)),
        "more": urls("kernels", state="changed") if len(moved) > _MOVERS else None,
        "commands": history_report.confirmations(past, stories),
        "grid": _grid(summary, urls),
        "notes": [
            *(
                [f"{counted(suppressed, 'alarm')} suppressed: a canary moved too"]
                if suppressed
                else []
            ),
            *history_report.notes(past),
        ],
    }


def _pending(runs: int) -> Values:
    if runs:
        return {"state": "pending", "text": "Judging the newest runs", "detail": ""}
    return {"state": "none", "text": "The store is empty", "detail": "kmark run adds results"}


def _answer(summary: Summary, urls: Urls) -> Values:
    history = summary.history
    if history is None:
        return {"state": "none", "text": "Nothing to judge yet", "detail": "kmark run adds results"}
    news = [kernel for kernel in summary.kernels if kernel.is_news]
    judged = [kernel for kernel in summary.kernels if kernel.change is not None]
    if not (news or judged):
        few = f"a series is judged from its {judging.LEAST_POINTS + 1}th run on"
        return {"state": "none", "text": "Too few runs to judge", "detail": few}
    kernels_by_state = {state: [new for new in news if new.state == state] for state in CHANGED}
    slower, broken, faster = (
        kernels_by_state["slower"],
        kernels_by_state["broken"],
        kernels_by_state["faster"],
    )
    bad = [f"{counted(len(broken), 'kernel')} broken"] if broken else []
    bad += [f"{counted(len(slower), 'kernel')} slower"] if slower else []
    detail = (
        f"{len(summary.kernels)} series over {counted(len(history.runs), 'run')}; newest points "
        f"against the {100 * (1 - judging.SCREEN_ALPHA):g} % prediction interval of their last "
        "good level, slower and broken until measured good again or accepted, "
        f"steps of the last {RECENT} runs by change points"
    )
    good = f"; {counted(len(faster), 'kernel')} got faster" if faster else ""
    values: Values = {
        "state": "bad" if bad else "good",
        "text": " and ".join(bad) if bad else "Nothing is slower",
        "detail": detail + good,
        **{state: len(ones) for state, ones in kernels_by_state.items()},
    }
    if slower:
        worst = max(slower, key=_rank)
        series_parts = history_report.parts(worst.story)
        values["worst"] = {
            "problem": series_parts["problem"],
            "backend": series_parts["backend"],
            "ratio": worst.change,
            "reason": _evidence(worst),
            "since": worst.since,
            "href": _series_url(worst, urls),
        }
    return values


def _evidence(kernel: Kernel) -> str:
    """Return the evidence for the change."""
    step = kernel.step
    if kernel.story.screen.flagged or step is None:
        return str(kernel.story.screen.reason)
    return f"step with p = {step.p_value:.2g} on {date_text(step.started)}"


def _impact(kernel: Kernel) -> float | None:
    """Return the change in seconds per launch."""
    newest, ratio = judged_s(kernel.story.newest), kernel.change
    if not newest or not ratio or kernel.story.newest.metric:
        return None
    return abs(newest - newest / ratio)


def _rank(kernel: Kernel) -> float:
    """Return the sort key: broken series first, then recent changes by impact, then the rest."""
    if kernel.state == "broken":
        return 1e9
    return (1.0 if kernel.is_news else 0.0) + (_impact(kernel) or 0.0)


def _grid(summary: Summary, urls: Urls) -> Values:
    """Return one cell per op and backend: percentage of the roof, change, failures. Canaries are
    left out: the launch-only canary is 0 % of the roof and would distort the mean of copies."""
    cells: dict[tuple[str, str], list[Kernel]] = {}
    canaries = set(canary_keys(CANARIES))
    for kernel in summary.kernels:
        if (
            kernel.is_recent
            and not kernel.story.newest.metric
            and kernel.story.problem not in canaries
        ):
            cells.setdefault((kernel.op, kernel.backend), []).append(kernel)
    backends = sorted({backend for _, backend in cells})
    return {
        "backends": backends,
        "rows": [
            {"op": op, "cells": [_cell(op, b, cells.get((op, b), ()), urls) for b in backends]}
            for op in sorted({op for op, _ in cells})
        ],
    }


def _cell(op: str, backend: str, kernels_of_cell: Sequence[Kernel], urls: Urls) -> Values:
    shares = [item.share.value for item in kernels_of_cell if item.share and item.share.value > 0]
    ratios = [item.change for item in kernels_of_cell if item.change and not item.story.held]
    states = [item.state for item in kernels_of_cell]
    return {
        "cases": len(kernels_of_cell),
        "share": statistics.geometric_mean(shares) if shares else None,
        "ratio": statistics.geometric_mean(ratios) if ratios else None,
        "slower": states.count("slower"),
        "faster": states.count("faster"),
        "failed": states.count("failed") + states.count("broken"),
        "unsupported": states.count("unsupported"),
        "new": states.count("new"),
        "href": urls("kernels", op=op, backend=backend) if kernels_of_cell else None,
    }


def kernels(source: Source, urls: Urls, params: Params) -> Page:
    """Return all series of the newest runs with newest point, trend and state."""
    summary = source.summary(_FIRST_WAIT_S)
    every = summary.kernels if summary else ()
    matching = [item for item in every if _is_wanted(item, params)]
    shown = parts.paged(
        _kernel_table(summary, matching),
        params,
        urls,
        "kernels",
        first="rank",
        more=_kernel_links(urls),
    )
    # Rows without a metric come first; drop the column if all its cells on the page are empty.
    if params.get("sort") != "metric" and not any(row["metric"] for row in shown["rows"]):
        shown["columns"] = [item for item in shown["columns"] if item["key"] != "metric"]
    return {
        "title": "Kernels",
        "lead": "Each problem by each backend, as last measured, against its own history.",
        "updating": source.is_stale,
        "filters": [
            parts.search_box(params),
            parts.choice("op", params, sorted({item.op for item in every})),
            parts.choice("backend", params, sorted({item.backend for item in every})),
            parts.choice(
                "arch", params, sorted({item.arch for item in every}), label="Architecture"
            ),
            parts.choice("state", params, ["changed", *STATES]),
        ],
        "tables": [shown],
    }


def _is_wanted(kernel: Kernel, params: Params) -> bool:
    for name in ("op", "backend", "arch"):
        if params.get(name) and params[name] != getattr(kernel, name):
            return False
    state = params.get("state", "")
    if state and kernel.state not in (CHANGED if state == "changed" else (state,)):
        return False
    return parts.has_words(kernel.story.series, params)


def rows_of(summary: Summary) -> dict[int, Values]:
    """Return the row of each kernel by id(kernel), without links; cached in the summary."""
    if "rows" not in summary.derived:
        timings = history_report.timings([kernel.story for kernel in summary.kernels])
        rows = {
            id(kernel): _kernel_row(kernel, timings[kernel.story.series])
            for kernel in summary.kernels
        }
        summary.derived["rows"] = rows
    rows_by_kernel: dict[int, Values] = summary.derived["rows"]
    return rows_by_kernel


def _kernel_table(
    summary: Summary | None,
    kernels_shown: Sequence[Kernel],
    *,
    title: str = "",
    brief: bool = False,
) -> Section:
    rows = rows_of(summary) if summary else {}
    shown = [rows[id(item)] for item in kernels_shown]
    columns = [
        *("state:state", "problem:name", "backend"),
        "timing" if any(row["timing"] for row in shown) else "",
        "metric" if any(row["metric"] for row in shown) else "",
        *("value:value:newest", "ratio:change:change", "impact_s:time:per launch"),
        "since" if brief else "",
        *("share:share:of roof", "trend:spark"),
        "arch::architecture" if len({row["arch"] for row in shown}) > 1 else "",
        *(() if brief else ("points:count:runs", "started:date:measured")),
    ]
    return table(columns, shown, title=title, empty="No kernel matches")


def _linked(of: Section, urls: Urls) -> Section:
    """Return the table with links in its rows."""
    more = _kernel_links(urls)
    return of | {"rows": [row | more(row) for row in of["rows"]]}


def _kernel_links(urls: Urls) -> Callable[[Values], Values]:
    def more(row: Values) -> Values:
        links = {
            "problem": urls("series", row["case"], arch=row["arch"], metric=row["metric"]),
            "started": urls("run", row["run"]),
            "since": urls("run", row["since"]) if row["since"] else None,
            "value": result_url(row["run"], row["case"], row["device"], urls),
        }
        if row["value"] is None:  # a failure has no time: link its state to the result
            links["state"] = links["value"]
        return {"links": links}

    return more


def _kernel_row(kernel: Kernel, timing: str) -> Values:
    series_parts, newest = history_report.parts(kernel.story), kernel.story.newest
    return {
        "state": kernel.state,
        "problem": series_parts["problem"],
        "backend": series_parts["backend"],
        "timing": timing,
        "metric": newest.metric,
        "arch": kernel.arch,
        "device": str(getattr(newest, "device", "")),
        "case": kernel.case_id,
        "run": newest.run_id,
        "status": newest.status.value,
        "value": history_report.shown_s(newest),
        "unit": newest.unit or "s",
        "ratio": kernel.change,
        "since": kernel.since,
        "impact_s": _impact(kernel) if kernel.is_news else None,
        "rank": _rank(kernel),
        "share": kernel.share.value if kernel.share else None,
        "bound": kernel.share.bound if kernel.share else None,
        "trend": [
            judged_s(point) if point.status is Status.OK else None
            for point in kernel.story.points[-_SPARK:]
        ],
        "points": len(kernel.story.points),
        "started": newest.started,
        "why": _evidence(kernel),
        "suppressed": bool(kernel.story.held),
    }


def _series_url(kernel: Kernel, urls: Urls) -> str | None:
    return urls("series", kernel.case_id, arch=kernel.arch, metric=kernel.story.newest.metric)


def series(source: Source, urls: Urls, params: Params) -> Page:
    """Return one series over its runs: noise band, change points and environment changes."""
    kernel = _series(source, params["case_id"], params.get("arch", ""), params.get("metric", ""))
    story, series_parts = kernel.story, history_report.parts(kernel.story)
    newest = history_report.shown_s(story.newest)
    drawn = f"the newest {_MOST_DRAWN} points are drawn, of {len(story.points)}"
    points = table(
        [
            *("started:date:when", "run:name", "status:state", "value:value", "low_s:time:low"),
            *("high_s:time:high", "device", "environment:code"),
        ],
        story.points[::-1],
        title="Points",
    )
    return {
        "title": f"{series_parts['problem']} by {series_parts['backend']}",
        "state": kernel.state,
        "suppressed": bool(story.held),
        "lead": _lead(kernel),
        "facts": parts.facts(
            ("newest", value_text(newest, story.newest.unit or "s") if newest else "–"),
            ("metric", series_parts["metric"] or "time of a launch"),
            ("architecture", kernel.arch),
            ("runs", str(len(story.points))),
            ("timing", series_parts["timing"]),
            ("problem", story.problem),
        ),
        "figures": parts.figure(
            "History",
            lambda: figures.history(
                [replace(story, points=story.points[-_MOST_DRAWN:])],
                [stored.environment for stored in source.store.environments()],
            ),
        ),
        "notes": [
            *([drawn] if len(story.points) > _MOST_DRAWN else []),
            *([_accepted(story.accepted)] if story.accepted else []),
            *history_report.two_numbers([story]),
        ],
        "decide": _decision(kernel),
        "tables": [
            *([_steps_table(source, kernel, urls)] if story.steps else []),
            parts.paged(
                *(points, params, urls, "series", kernel.case_id),
                make=_point_row,
                more=_point_links(kernel, urls),
            ),
        ],
    }


def _accepted(mark: Mark) -> str:
    return f"accepted by {mark.author} on {date_text(mark.created)}: {mark.reason}"


def _decision(kernel: Kernel) -> Values | None:
    """Return what a person may decide about the series; None if there is nothing."""
    story = kernel.story
    if not (story.is_regression or story.accepted):
        return None
    names = {"series": story.series, "id": history_report.series_id(story)}
    return names | {"action": "unaccept" if story.accepted else "accept"}


def _series(source: Source, case_id: str, arch: str, metric: str) -> Kernel:
    """Return a series over all its runs, with what the summary adds to it."""
    points = source.store.history(case_id=case_id, arch=arch)
    mine = [point for point in points if point.metric == metric]
    summary = source.summary()
    recent = summary.kernel(case_id, arch, metric) if summary else None
    if not mine and recent is None:
        raise NothingToDo("there is no such series", hint="the page Kernels lists those there are")
    marks = source.store.marks().get(mine[0].series, ()) if mine else ()
    if recent is None:
        return Kernel(case_id=case_id, arch=arch, story=judging.story(mine, marks=marks))
    if not mine:  # a microbenchmark's series, which belongs to one machine of several
        return recent
    suppressed = recent.story.held
    return replace(recent, story=replace(judging.story(mine, marks=marks), held=suppressed))


def _lead(kernel: Kernel) -> str:
    if kernel.change is None:
        return str(kernel.story.screen.reason)
    since = f", since run {kernel.since}" if kernel.since else ""
    state_text = "as expected" if kernel.state == "steady" else kernel.state
    return f"{100 * (kernel.change - 1):+.1f} %, {state_text}{since}: {_evidence(kernel)}"


def _steps_table(source: Source, kernel: Kernel, urls: Urls) -> Section:
    steps = kernel.story.steps
    ids = {run_id for step in steps for run_id in (step.before_id, step.run_id)}
    places = {run_id: source.store.run(run_id).environment for run_id in ids}
    rows = [
        {
            "started": step.started,
            "run": step.run_id,
            "ratio": step.ratio,
            "p_value": step.p_value,
            "what": history_report.changes_text(
                difference(places[step.before_id], places[step.run_id])
            ),
            "links": {
                "run": urls("run", step.run_id),
                "ratio": urls("compare", base=step.before_id, head=step.run_id),
            },
        }
        for step in reversed(steps)
    ]
    columns = ["started:date:when", "run:name", "ratio:change:change", "p_value:number:p"]
    columns.append("what::what changed in the environment")
    return table(columns, rows, title="Change points")


def _point_row(point: Point) -> Values:
    return {
        "run": point.run_id,
        "started": point.started,
        "status": point.status.value,
        "value": history_report.shown_s(point),
        "unit": point.unit or "s",
        "low_s": parts.finite(getattr(point, "low_s", None)),
        "high_s": parts.finite(getattr(point, "high_s", None)),
        "device": str(getattr(point, "device", "")),
        "environment": point.fingerprint[:8],
    }


def _point_links(kernel: Kernel, urls: Urls) -> Callable[[Point], Values]:
    """Return a function that returns what only the rows on the current page need."""

    def more(point: Point) -> Values:
        device = str(getattr(point, "device", ""))
        links = {
            "run": urls("run", point.run_id),
            "value": result_url(point.run_id, kernel.case_id, device, urls),
            "environment": urls("environment", point.fingerprint),
        }
        if judged_s(point) is None:
            links["status"] = links["value"]
        return {"links": links}

    return more


def search(source: Source, urls: Urls, params: Params) -> Page:
    """Return runs and series whose text contains all words."""
    text = params.get("q", "")
    runs, total = source.store.find_runs(limit=20, text=text) if text else ([], 0)
    summary = source.summary(_FIRST_WAIT_S)
    every = summary.kernels if summary and text else ()
    matching = [item for item in every if parts.has_words(item.story.series, params)]
    shown = [
        _linked(_kernel_table(summary, matching[:_FOUND], title="Kernels"), urls),
        runs_table(source, runs, urls, title="Runs"),
    ]
    return {
        "title": f"Search: {text}" if text else "Search",
        "lead": f"{counted(len(matching), 'kernel')}, {counted(total, 'run')}." if text else "",
        "filters": [parts.search_box(params)],
        "tables": shown if text else [],
        "more": urls("kernels", q=text) if len(matching) > _FOUND else None,
    }
