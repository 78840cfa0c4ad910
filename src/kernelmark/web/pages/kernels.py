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
from kernelmark.report import figures
from kernelmark.report import history as history_report
from kernelmark.report.tables import date_text
from kernelmark.web.pages import parts
from kernelmark.web.pages.parts import Page, Params, Section, Urls, Values, table
from kernelmark.web.pages.runs import progress, result_url, runs_table
from kernelmark.web.source import RECENT, Kernel, Source, Summary
from kernelmark.workloads.suites import CANARIES, canary_keys

STATES = ("broken", "slower", "faster", "failed", "unsupported", "new", "steady")
CHANGED = ("broken", "slower", "faster")
_SPARK = 24  # points of a sparkline
_MOVERS = 12
_NEWEST_RUNS = 8
_FOUND = 50
_MOST_DRAWN = 200  # newest points; steps are searched in these
_FIRST_WAIT_S = 0.25  # for the first summary: a small store takes less


def overview(source: Source, urls: Urls, params: Params) -> Page:
    """Return the overview: what got slower, by how much, with what confidence."""
    summary = source.summary(_FIRST_WAIT_S)
    newest, total = source.store.find_runs(limit=_NEWEST_RUNS)
    running, _ = source.store.find_runs(limit=5, state=RunState.RUNNING.value)
    page: Page = {
        "title": "Overview",
        "answer": _pending(total) if summary is None else _answer(summary, urls),
        "updating": source.is_stale,
        "running": [progress(source, run, urls) for run in running],
        "tables": [runs_table(source, newest, urls, title="Newest runs")],
        "notes": [],
    }
    if summary is None or summary.history is None:
        return page
    moved = sorted(
        (kernel for kernel in summary.kernels if kernel.is_news), key=_rank, reverse=True
    )
    stories = [item.story for item in moved]
    held = sum(bool(kernel.story.held) for kernel in summary.kernels)
    return page | {
        "movers": _linked(
            _kernel_table(summary, moved[:_MOVERS], title="What changed, by impact", brief=True),
            urls,
        ),
        "more": urls("kernels", state="changed") if len(moved) > _MOVERS else None,
        "commands": history_report.confirmations(summary.history, stories),
        "grid": _grid(summary, urls),
        "notes": [
            *([f"{counted(held, 'alarm')} suppressed: a canary moved too"] if held else []),
            *history_report.notes(summary.history),
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
    found = {state: [new for new in news if new.state == state] for state in CHANGED}
    slower, broken, faster = found["slower"], found["broken"], found["faster"]
    bad = [f"{counted(len(slower), 'kernel')} got slower"] if slower else []
    bad += [f"{counted(len(broken), 'kernel')} broke"] if broken else []
    detail = (
        f"{len(summary.kernels)} series over {counted(len(history.runs), 'run')}; newest points "
        f"against the {100 * (1 - judging.SCREEN_ALPHA):g} % prediction interval of their level, "
        f"steps of the last {RECENT} runs by change points"
    )
    good = f"; {counted(len(faster), 'kernel')} got faster" if faster else ""
    made: Values = {
        "state": "bad" if bad else "good",
        "text": " and ".join(bad) if bad else "Nothing got slower",
        "detail": detail + good,
        **{state: len(ones) for state, ones in found.items()},
    }
    if slower:
        worst = max(slower, key=_rank)
        known = history_report.parts(worst.story)
        made["worst"] = {
            "problem": known["problem"],
            "backend": known["backend"],
            "ratio": worst.change,
            "reason": _evidence(worst),
            "since": worst.since,
            "href": _series_url(worst, urls),
        }
    return made


def _evidence(one: Kernel) -> str:
    """Return the evidence for the change."""
    step = one.step
    if one.story.screen.flagged or step is None:
        return str(one.story.screen.reason)
    return f"step with p = {step.p_value:.2g} on {date_text(step.started)}"


def _impact(one: Kernel) -> float | None:
    """Return the change in seconds per launch."""
    newest, ratio = judged_s(one.story.newest), one.change
    if not newest or not ratio or one.story.newest.metric:
        return None
    return abs(newest - newest / ratio)


def _rank(one: Kernel) -> float:
    """Return the sort key: broken series first, then recent changes by impact, then the rest."""
    if one.state == "broken":
        return 1e9
    return (1.0 if one.is_news else 0.0) + (_impact(one) or 0.0)


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


def _cell(op: str, backend: str, found: Sequence[Kernel], urls: Urls) -> Values:
    shares = [item.share.value for item in found if item.share and item.share.value > 0]
    ratios = [item.change for item in found if item.change and not item.story.held]
    states = [item.state for item in found]
    return {
        "cases": len(found),
        "share": statistics.geometric_mean(shares) if shares else None,
        "ratio": statistics.geometric_mean(ratios) if ratios else None,
        "slower": states.count("slower"),
        "faster": states.count("faster"),
        "failed": states.count("failed") + states.count("broken"),
        "unsupported": states.count("unsupported"),
        "new": states.count("new"),
        "href": urls("kernels", op=op, backend=backend) if found else None,
    }


def kernels(source: Source, urls: Urls, params: Params) -> Page:
    """Return all series of the newest runs with newest point, trend and state."""
    summary = source.summary(_FIRST_WAIT_S)
    every = summary.kernels if summary else ()
    found = [item for item in every if _is_wanted(item, params)]
    shown = parts.paged(
        _kernel_table(summary, found),
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


def _is_wanted(one: Kernel, params: Params) -> bool:
    for name in ("op", "backend", "arch"):
        if params.get(name) and params[name] != getattr(one, name):
            return False
    state = params.get("state", "")
    if state and one.state not in (CHANGED if state == "changed" else (state,)):
        return False
    return parts.has_words(one.story.series, params)


def rows_of(summary: Summary) -> dict[int, Values]:
    """Return the row of each kernel by id(kernel), without links; cached in the summary."""
    if "rows" not in summary.derived:
        timings = history_report.timings([kernel.story for kernel in summary.kernels])
        rows = {
            id(kernel): _kernel_row(kernel, timings[kernel.story.series])
            for kernel in summary.kernels
        }
        summary.derived["rows"] = rows
    made: dict[int, Values] = summary.derived["rows"]
    return made


def _kernel_table(
    summary: Summary | None, found: Sequence[Kernel], *, title: str = "", brief: bool = False
) -> Section:
    rows = rows_of(summary) if summary else {}
    shown = [rows[id(item)] for item in found]
    columns = [
        *("state:state", "problem:name", "backend"),
        "timing" if any(row["timing"] for row in shown) else "",
        "metric" if any(row["metric"] for row in shown) else "",
        *("value:value:newest", "ratio:change:change", "impact_s:time:impact"),
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
            "value": result_url(row["run"], row["case"], row["device"], urls),
        }
        if row["value"] is None:  # a failure has no time: link its state to the result
            links["state"] = links["value"]
        return {"links": links}

    return more


def _kernel_row(one: Kernel, timing: str) -> Values:
    known, newest = history_report.parts(one.story), one.story.newest
    return {
        "state": one.state,
        "problem": known["problem"],
        "backend": known["backend"],
        "timing": timing,
        "metric": newest.metric,
        "arch": one.arch,
        "device": str(getattr(newest, "device", "")),
        "case": one.case_id,
        "run": newest.run_id,
        "status": newest.status.value,
        "value": judged_s(newest),
        "unit": newest.unit or "s",
        "ratio": one.change,
        "since": one.since,
        "impact_s": _impact(one) if one.is_news else None,
        "rank": _rank(one),
        "share": one.share.value if one.share else None,
        "bound": one.share.bound if one.share else None,
        "trend": [
            judged_s(point) if point.status is Status.OK else None
            for point in one.story.points[-_SPARK:]
        ],
        "points": len(one.story.points),
        "started": newest.started,
        "why": _evidence(one),
        "suppressed": bool(one.story.held),
    }


def _series_url(one: Kernel, urls: Urls) -> str | None:
    return urls("series", one.case_id, arch=one.arch, metric=one.story.newest.metric)


def series(source: Source, urls: Urls, params: Params) -> Page:
    """Return one series over its runs: noise band, change points and environment changes."""
    found = _series(source, params["case_id"], params.get("arch", ""), params.get("metric", ""))
    story, known = found.story, history_report.parts(found.story)
    newest = judged_s(story.newest)
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
        "title": f"{known['problem']} by {known['backend']}",
        "state": found.state,
        "suppressed": bool(story.held),
        "lead": _lead(found),
        "facts": parts.facts(
            ("newest", value_text(newest, story.newest.unit or "s") if newest else "–"),
            ("metric", known["metric"] or "time of a launch"),
            ("architecture", found.arch),
            ("runs", str(len(story.points))),
            ("timing", known["timing"]),
            ("problem", story.problem),
        ),
        "figures": parts.figure(
            "History", lambda: figures.history([replace(story, points=story.points[-_MOST_DRAWN:])])
        ),
        "notes": [
            *([drawn] if len(story.points) > _MOST_DRAWN else []),
            *history_report.two_numbers([story]),
        ],
        "tables": [
            *([_steps_table(source, found, urls)] if story.steps else []),
            parts.paged(
                *(points, params, urls, "series", found.case_id),
                make=_point_row,
                more=_point_links(found, urls),
            ),
        ],
    }


def _series(source: Source, case_id: str, arch: str, metric: str) -> Kernel:
    """Return a series over all its runs, with what the summary adds to it."""
    points = source.store.history(case_id=case_id, arch=arch)
    mine = [point for point in points if point.metric == metric]
    summary = source.summary()
    recent = summary.kernel(case_id, arch, metric) if summary else None
    if not mine and recent is None:
        raise NothingToDo("there is no such series", hint="the page Kernels lists those there are")
    if recent is None:
        return Kernel(case_id=case_id, arch=arch, story=judging.story(mine))
    if not mine:  # a microbenchmark's series, which belongs to one machine of several
        return recent
    return replace(recent, story=replace(judging.story(mine), held=recent.story.held))


def _lead(found: Kernel) -> str:
    if found.change is None:
        return str(found.story.screen.reason)
    since = f", since run {found.since}" if found.since else ""
    words = "as expected" if found.state == "steady" else found.state
    return f"{100 * (found.change - 1):+.1f} %, {words}{since}: {_evidence(found)}"


def _steps_table(source: Source, found: Kernel, urls: Urls) -> Section:
    steps = found.story.steps
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
        "value": judged_s(point),
        "unit": point.unit or "s",
        "low_s": parts.finite(getattr(point, "low_s", None)),
        "high_s": parts.finite(getattr(point, "high_s", None)),
        "device": str(getattr(point, "device", "")),
        "environment": point.fingerprint[:8],
    }


def _point_links(found: Kernel, urls: Urls) -> Callable[[Point], Values]:
    """Return a function that returns what only the rows on the current page need."""

    def more(point: Point) -> Values:
        device = str(getattr(point, "device", ""))
        links = {
            "run": urls("run", point.run_id),
            "value": result_url(point.run_id, found.case_id, device, urls),
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
    found = [item for item in every if parts.has_words(item.story.series, params)]
    shown = [
        _linked(_kernel_table(summary, found[:_FOUND], title="Kernels"), urls),
        runs_table(source, runs, urls, title="Runs"),
    ]
    return {
        "title": f"Search: {text}" if text else "Search",
        "lead": f"{counted(len(found), 'kernel')}, {counted(total, 'run')}." if text else "",
        "filters": [parts.search_box(params)],
        "tables": shown if text else [],
        "more": urls("kernels", q=text) if len(found) > _FOUND else None,
    }
