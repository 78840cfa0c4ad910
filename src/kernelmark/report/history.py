"""History as tables, records and JSON, and the commands that confirm its alarms."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelmark import backends, ops
from kernelmark.compare.history import History, Point, SeriesStep, Story, is_reliable, judged_s
from kernelmark.core import codec
from kernelmark.core.files import Cell
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Status
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted, value_text
from kernelmark.core.verdict import Mark, VerdictStatus
from kernelmark.report.changes import TWO_NUMBERS
from kernelmark.report.compare import change_text, moved_text
from kernelmark.report.names import config_text, distinguishing, option_text, short
from kernelmark.report.results import modes_json
from kernelmark.report.tables import (
    NONE,
    Column,
    Table,
    date_text,
    file_column,
    markdown,
    record,
    tabulate,
)

_BARS = "▁▂▃▄▅▆▇█"
_FAILED = "×"
_SHOWN_POINTS = 20
# A series with less range than this is drawn flat, so that noise is not magnified.
_FLAT = 0.02
_USUAL = Timing()
_MOST_CHANGES = 3
_VARIABLE = "variable "  # prefix of environment variables in the keys of `difference`
_LIBRARY = "library "
_HASH = re.compile(r"[0-9a-f]{40}\Z")
_HASH_LENGTH = 10
_HARM = (VerdictStatus.BROKEN, VerdictStatus.SLOWER, VerdictStatus.FASTER)


def table(history: History, shown: Sequence[Story]) -> Table:
    """Return a table with one row per series: trend, newest value, its status and the last step.
    Rows of a problem follow each other, problems are in the order of their first series."""
    by_problem: dict[str, list[Story]] = {}
    for story in shown:
        by_problem.setdefault(story.problem, []).append(story)
    shown = [story for stories in by_problem.values() for story in stories]
    has_metrics = any(story.newest.metric for story in shown)
    is_cut = any(len(story.points) > _SHOWN_POINTS for story in shown)
    return tabulate(
        SERIES_COLUMNS,
        shown,
        texts={
            "timing": list(timings(shown).values()),
            "metric": [story.newest.metric or "time" if has_metrics else "" for story in shown],
            "baseline": [_baseline_cell(history, story) for story in shown],
        },
        titles={
            "trend": f"trend (newest {_SHOWN_POINTS})" if is_cut else "trend",
            "baseline": f"against {history.baseline_name}",
        },
    )


def _baseline_cell(history: History, story: Story) -> str:
    if not history.baseline_name:
        return ""
    newest, base = judged_s(story.newest), history.baseline.get(story.series)
    return change_text(newest / base if newest and base else None)


def shown_s(point: Point) -> float | None:
    """Return the value that a table shows: the median, as every command prints it. A multimodal
    point is judged by another one."""
    return judged_s(point) if point.metric else point.median_s


def _newest_cell(story: Story) -> str:
    newest = shown_s(story.newest)
    return NONE if newest is None else value_text(newest, story.newest.unit or "s")


def _state_cell(story: Story) -> str:
    status = story.screen.status
    state = status.value if status is not VerdictStatus.SAME else "steady"
    state += ", multimodal" if story.newest.modes else ""
    state += "" if is_reliable(story.newest) else ", unreliable"
    state += ", accepted" if story.accepted else ""
    return f"{state}, suppressed" if story.held else state


def _last_step_cell(story: Story) -> str:
    if not story.steps:
        return NONE
    last = story.steps[-1]
    return f"{change_text(last.ratio)} on {date_text(last.started)}"


# Short histories have neither a level nor a step.
SERIES_COLUMNS = (
    Column("problem", text=lambda story: parts(story)["problem"]),
    Column("backend", text=lambda story: parts(story)["backend"]),
    Column("arch", text=lambda story: parts(story)["arch"], show="several"),
    Column("timing", show="any"),
    Column("metric", show="any"),
    Column("runs", lambda story: len(story.points), type="integer"),
    Column("trend", text=lambda story: trend(story.points)),
    Column("newest", align="right", text=_newest_cell),
    Column(
        "against level",
        align="right",
        # The first points are compared with too few others to expect anything.
        text=lambda story: change_text(story.screen.ratio if story.screen.low_s else None),
        show="any",
    ),
    Column("baseline", show="any"),
    Column("state", text=_state_cell),
    Column("last step", text=_last_step_cell, show="any"),
)


def steps(history: History, shown: Sequence[Story]) -> Table:
    """Return a table of all steps with the environment changes at each, newest first."""
    rows = [(step, story) for story in shown for step in story.steps]
    rows.sort(key=lambda pair: (-pair[0].started, -_worsening(pair[1], pair[0].ratio)))
    timing_of = timings(shown)
    why = [(step.run_id, _why(history, step)) for step, _ in rows]
    texts = {
        "timing": [timing_of[story.series] for _, story in rows],
        # One cause of several steps is written once.
        "why": ["as above" if i and why[i - 1] == why[i] else why[i][1] for i in range(len(why))],
    }
    return tabulate(_STEP_COLUMNS, rows, title="steps", texts=texts)


_STEP_COLUMNS = (
    Column("when", text=lambda row: date_text(row[0].started)),
    Column("run", text=lambda row: row[0].run_id),
    Column(
        "problem", text=lambda row: f"{parts(row[1])['problem']} {row[1].newest.metric}".rstrip()
    ),
    Column("backend", text=lambda row: parts(row[1])["backend"]),
    Column("timing", show="any"),
    Column("change", text=lambda row: change_text(row[0].ratio)),
    Column("why", title="what changed in the environment"),
)


def timings(shown: Sequence[Story]) -> dict[str, str]:
    """Return by series the timing fields that distinguish it from series with the same text."""
    # Keys are as distinct as the texts of problems, which take longer.
    split = [_split(story.series, story.newest.metric) for story in shown]
    texts = distinguishing(
        [
            (key, backend, config, arch, story.newest.metric)
            for story, (key, backend, config, _, arch) in zip(shown, split, strict=True)
        ],
        [timing for _, _, _, timing, _ in split],
    )
    return {story.series: text for story, text in zip(shown, texts, strict=True)}


def by_worry(shown: Sequence[Story]) -> list[Story]:
    """Return the series by urgency: alarms (even suppressed) by harm, then steps, then the
    newest."""
    return sorted(
        shown,
        key=lambda item: (
            _harm(item) if item.alarm or item.held else (len(_HARM), 0.0),
            not item.steps,
            -item.newest.started,
        ),
    )


def _harm(story: Story) -> tuple[int, float]:
    """Return the sort key of an alarm: broken, slower, faster; each by the size of the change."""
    status = story.screen.status
    rank = _HARM.index(status) if status in _HARM else len(_HARM)
    return rank, -abs(math.log(story.screen.ratio or 1.0))


def _worsening(story: Story, ratio: float) -> float:
    """Return the logarithm of a change: positive if it is for the worse."""
    is_reversed = story.newest.metric and story.newest.better == "higher"
    return -math.log(ratio) if is_reversed else math.log(ratio)


def series_id(story: Story) -> str:
    """Return a short id of a series, for command lines."""
    return hashlib.sha256(story.series.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def notes(history: History, shown: Sequence[Story] | None = None) -> list[str]:
    """Return notes on canaries that moved, on multimodal points of the `shown` series (default:
    all), and on the rate of false alarms."""
    lines = [
        f"canary moved in run {history.runs[-1].id}: {moved_text(text)}; its alarms are suppressed"
        for text in history.moved
    ]
    lines += [
        f"canary moved with run {run_id}: {moved_text(text)}; changes there may be the machine's"
        for run_id, texts in history.marked.items()
        for text in texts
    ]
    lines += [
        f"accepted: {parts(story)['problem']} by {parts(story)['backend']}: {mark.reason} "
        f"({mark.author}, {date_text(mark.created)}; undo: "
        f"kmark history --unaccept {series_id(story)})"
        for story in (history.stories if shown is None else shown)
        if (mark := story.accepted) is not None
    ]
    if not history.watched:
        lines.append(
            f"run {history.runs[-1].id} has no canaries, so a change of the machine cannot be "
            "distinguished from one of the code: kmark run -s SUITE measures them with the suite"
        )
    lines += two_numbers(history.stories if shown is None else shown)
    rate = history.audit.rate
    if rate is not None:
        lines.append(
            "same binary in runs that follow each other: "
            f"{counted(history.audit.compared, 'comparison')}, "
            f"{counted(history.audit.alarms, 'false alarm')} ({100 * rate:.1f} %)"
        )
    return lines


def two_numbers(stories: Sequence[Story]) -> list[str]:
    """Return a note if points are judged by other values than the medians that tables show."""
    notes = []
    for story in stories:
        mean_s, median_s = judged_s(story.newest), story.newest.median_s
        if story.newest.modes and mean_s and median_s:
            notes.append((abs(mean_s / median_s - 1), mean_s, median_s, story))
    differing = [item for item in notes if item[0] > TWO_NUMBERS]
    if not differing:
        return []
    _, mean_s, median_s, story = max(differing, key=lambda item: item[0])
    most = f" (the largest difference of {len(differing)} series)" if len(differing) > 1 else ""
    return [
        "times are medians; multimodal results are judged by the mean of their modes, as a median "
        f"jumps between modes: {value_text(mean_s, 's')}, where the median is "
        f"{value_text(median_s, 's')}, for {parts(story)['problem']} by {parts(story)['backend']}"
        f"{most}"
    ]


def alarm_lines(history: History, alarms: Sequence[Story], shown: Sequence[Story]) -> list[str]:
    """Return the alarms, worst first: a line for each, below a line for the cause if several have
    the same one."""
    timing_of = timings(shown)
    causes: dict[tuple[str, str], list[Story]] = {}
    for story in sorted(alarms, key=_harm):
        cause = _cause(history, story)
        key = (story.screen.status.value, cause or story.series)
        causes.setdefault(key, []).append(story)
    lines = []
    for (status, cause), stories in causes.items():
        if len(stories) > 1:
            lines.append(f"{cause}: {counted(len(stories), 'kernel')} {status}{_span(stories)}")
            lines += [f"  {_alarm_line(story, timing_of)}" for story in stories]
            continue
        (story,) = stories
        alarm_cause = _cause(history, story)
        since = f"; changed with it: {alarm_cause}" if alarm_cause else ""
        lines.append(f"{status}: {_alarm_line(story, timing_of)}{since}")
    return lines


def _cause(history: History, story: Story) -> str:
    """Return what changed in the environment when the alarm began; "" if nothing is known."""
    changes = history.changes.get(story.change, ())
    return _changes_text(changes) if changes else ""


def _span(stories: Sequence[Story]) -> str:
    ratios = sorted(story.screen.ratio for story in stories if story.screen.ratio)
    ends = dict.fromkeys(change_text(ratio) for ratio in (ratios[-1:] + ratios[:1]))
    return f", {' to '.join(ends)}" if ends else ""


def _alarm_line(story: Story, timing_of: Mapping[str, str]) -> str:
    series_parts, screen = parts(story), story.screen
    backend = f"{series_parts['backend']} {timing_of[story.series]}".rstrip()
    metric = f", {series_parts['metric']}" if series_parts["metric"] else ""
    change = "" if screen.ratio is None else f", {_alarm_change(story)}"
    since = story.change[1]
    first = f"; since run {since}" if since != story.newest.run_id else ""
    return f"{series_parts['problem']} by {backend}{metric}{change}; {screen.reason}{first}"


def acceptances(alarms: Sequence[Story], more: Sequence[str] = ()) -> list[str]:
    """Return the command that accepts each open regression, with `more` arguments."""
    worse = sorted((story for story in alarms if story.is_regression), key=_harm)
    return [
        shlex.join(["kmark", "history", "--accept", series_id(story), "--reason", "…", *more])
        for story in worse
    ]


def _alarm_change(story: Story) -> str:
    """Return `+8.1 % against the median of 12 runs`, and against the last run if that differs."""
    screen, before = story.screen, story.since_before
    text = change_text(screen.ratio)
    if screen.runs:
        text += f" against the median of {counted(screen.runs, 'run')}"
    if before and not screen.since and screen.ratio and abs(before - screen.ratio) > TWO_NUMBERS:
        text += f" ({change_text(before)} against run {story.change[0]} alone)"
    return text


def markdown_page(
    history: History,
    shown: Sequence[Story],
    alarms: Sequence[Story],
    tables: Sequence[Table],
    more: Sequence[str] = (),
) -> str:
    """Return Markdown: tables, alarms with confirmation commands (and `more` arguments), notes."""
    blocks = ["\n".join(map(markdown, tables))]
    blocks += [f"- {line}" for line in alarm_lines(history, alarms, shown)]
    if commands := confirmations(history, alarms, more):
        blocks += ["", "Confirm by paired rounds:", "", "```sh", *commands, "```"]
    if text := unconfirmed(alarms):
        blocks += ["", f"{text}."]
    if lines := notes(history, shown):
        blocks += ["", *(f"- {line}" for line in lines)]
    return "\n".join(blocks).rstrip() + "\n"


def confirmations(history: History, alarms: Sequence[Story], more: Sequence[str] = ()) -> list[str]:
    """Return commands that measure flagged series in paired rounds, largest change first: one
    command for all problems with the same options, with `more` arguments appended."""
    flagged = [story for story in alarms if story.screen.flagged and _can_run(story)]
    flagged.sort(key=lambda story: -abs(math.log(story.screen.ratio or 1.0)))
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for story in flagged:
        problems = alike.setdefault((_sides(history, story), _options(story)), [])
        if (problem := parts(story)["problem"]) not in problems:
            problems.append(problem)
    return [
        shlex.join([*sides, *(word for item in problems for word in ("-p", item)), *how, *more])
        for (sides, how), problems in alike.items()
    ]


def unconfirmed(alarms: Sequence[Story]) -> str:
    """Return which flagged series no `kmark ab` command can confirm; "" if all can be."""
    flagged = [story for story in alarms if story.screen.flagged]
    again = {parts(story)["problem"].split()[0]: None for story in flagged if story.newest.metric}
    foreign = [story for story in flagged if not story.newest.metric and not _can_run(story)]
    if again and not foreign:
        return f"to confirm, measure again: kmark micro {' '.join(again)}"
    if not foreign:
        return ""
    names = dict.fromkeys(parts(story)["bare_backend"] for story in foreign)
    return (
        f"{counted(len(foreign), 'alarm')} cannot be confirmed here, as another tool measured it "
        f"or its backend is not installed: {', '.join(names)}"
    )


class _SeriesPoint(NamedTuple):
    point: Point
    step_ratio: float | None


# Every column of the CSV of points.
COLUMNS = (
    file_column("series", "point.series", "problem, backend, config, timing and architecture"),
    file_column("run", "point.run_id", "id of the run"),
    file_column("started", "point.started", "when the run began", "number", "date"),
    file_column("status", "point.status.value", "status of the result"),
    file_column("median_s", "point.median_s", "median of the result", "number", "s"),
    file_column("metric", lambda row: row.point.metric or "time", "name of the metric, or `time`"),
    file_column(
        "value",
        lambda row: judged_s(row.point),
        "value that is judged: median, mean of the modes, or metric",
        "number",
        "`unit`",
    ),
    file_column("unit", lambda row: row.point.unit or "s", "unit of value"),
    file_column(
        "modes",
        lambda row: modes_json(row.point.modes) if row.point.modes else None,
        "[time, fraction] of each mode, if there are several",
        "JSON",
        "s",
    ),
    file_column("fingerprint", "point.fingerprint", "hash of the environment"),
    file_column(
        "step_ratio", "step_ratio", "new level / old level, if a step begins here", "number"
    ),
)


def records(shown: Sequence[Story]) -> list[dict[str, Cell]]:
    """Return one flat record per point of a series, in seconds."""
    return [
        record(COLUMNS, _SeriesPoint(point, starts.get(point.run_id)))
        for story in shown
        for starts in [{step.run_id: step.ratio for step in story.steps}]
        for point in story.points
    ]


def document(history: History, shown: Sequence[Story]) -> dict[str, Any]:
    """Return the history as plain JSON values."""
    return {
        "kernelmark": "history",
        "version": codec.VERSION,
        "runs": [
            {"id": run.id, "label": run.label, "started": run.started} for run in history.runs
        ],
        "sentinels_moved": list(history.moved),
        "runs_marked": {run_id: list(map(str, texts)) for run_id, texts in history.marked.items()},
        "same_binary": {"compared": history.audit.compared, "alarms": history.audit.alarms},
        "baseline": history.baseline_name or None,
        "series": [_series_document(history, story) for story in shown],
    }


def parts(story: Story) -> Mapping[str, str]:
    """Return the components of a series key, formatted for display."""
    return _parts(story.series, story.newest.metric)


@functools.lru_cache(maxsize=4096)
def _parts(series: str, metric: str) -> Mapping[str, str]:
    key, backend, config, timing, arch = _split(series, metric)
    chosen = config_text(json.loads(config))
    return FrozenDict(
        {
            "problem": short(parse_key(key)),
            "backend": f"{backend} [{chosen}]" if chosen else backend,
            "bare_backend": backend,
            "config": config,
            "timing": timing,
            "arch": arch,
            "metric": metric,
        }
    )


def _split(series: str, metric: str) -> tuple[str, str, str, str, str]:
    """Return problem, backend, config, timing and architecture of a series key."""
    key, backend, rest = series.split(" | ", 2)
    if metric:
        rest = rest.removesuffix(f" | {metric}")
    rest, arch = rest.rsplit(" | ", 1)
    config, timing = rest.rsplit(" | ", 1)
    return key, backend, config, timing, arch


def trend(points: Sequence[Point]) -> str:
    """Return a sparkline of the newest points with its minimum and maximum; × is a failure."""
    newest = points[-_SHOWN_POINTS:]
    times = [time_s for p in newest if p.status is Status.OK and (time_s := judged_s(p))]
    if not times:
        return _FAILED * len(newest)
    low, high = math.log(min(times)), math.log(max(times))
    spare = max(_FLAT - (high - low), 0.0) / 2
    low, high = low - spare, high + spare

    def bar(point: Point) -> str:
        time_s = judged_s(point)
        if not time_s or point.status is not Status.OK:
            return _FAILED
        position = (math.log(time_s) - low) / (high - low)
        return _BARS[min(int(position * len(_BARS)), len(_BARS) - 1)]

    unit = newest[-1].unit or "s"
    ends = dict.fromkeys(value_text(value, unit) for value in (min(times), max(times)))
    return f"{''.join(map(bar, newest))} {' to '.join(ends)}"


def changes_text(changes: Sequence[tuple[str, str, str]]) -> str:
    """Return `torch 2.12 → 2.13; commit a1b2 → c3d4`, limited to the first few changes."""
    return _changes_text(changes) or "nothing that was recorded"


def _changes_text(changes: Sequence[tuple[str, str, str]]) -> str:
    # Versions explain more than commits and hosts.
    ordered = sorted(changes, key=lambda change: not change[0].startswith(_LIBRARY))
    shown = [
        f"{what.removeprefix(_LIBRARY)} {_short(base)} → {_short(head)}"
        for what, base, head in ordered
    ]
    if len(shown) > _MOST_CHANGES:
        shown = [*shown[:_MOST_CHANGES], f"and {len(shown) - _MOST_CHANGES} more"]
    return "; ".join(shown)


def _short(value: str) -> str:
    return value[:_HASH_LENGTH] if _HASH.match(value) else value or NONE


def _why(history: History, step: SeriesStep) -> str:
    changes = changes_text(history.changes.get((step.before_id, step.run_id), ()))
    return f"{changes}; a canary moved too" if step.run_id in history.marked else changes


def _can_run(story: Story) -> bool:
    """Return whether kernelmark can measure the series: known backend, device and op."""
    backend = parts(story)["bare_backend"]
    is_runnable = backend in backends.registry or backends.is_file(backend)
    return (
        is_runnable and _device(story) != "unknown" and parse_key(story.problem).op in ops.registry
    )


def _device(story: Story) -> str:
    return str(getattr(story.newest, "device", "cpu"))


def _sides(history: History, story: Story) -> tuple[str, ...]:
    """Return the start of the `kmark ab` command: the environments before and after the change. If
    more than variables changed, the user has to fill in the interpreters."""
    changes = history.changes.get(story.change, ())
    variables = [change for change in changes if change[0].startswith(_VARIABLE)]
    python = "" if changes and len(variables) == len(changes) else "=PYTHON"
    arguments = ["kmark", "ab", "--env", f"before{python}", "--env", f"after{python}"]
    for what, *values in variables:
        name = what.removeprefix(_VARIABLE)
        for side, value in zip(("before", "after"), values, strict=True):
            arguments += ["--set", f"{side}:{name}={value}"] if value else []
        if not all(values):
            # Unset it, so that the side without the variable does not inherit it from the shell.
            arguments = ["env", "-u", name, *arguments]
    return tuple(arguments)


def _options(story: Story) -> tuple[str, ...]:
    """Return the end of the command: backend, device, config and timing."""
    series_parts = parts(story)
    arguments = ["-b", series_parts["bare_backend"]]
    if (device := _device(story)) != "cpu":
        arguments += ["-d", device]
    for name, value in sorted(json.loads(series_parts["config"]).items()):
        arguments += ["--config", f"{name}={option_text(value)}"]
    timing = dict(word.split("=", 1) for word in series_parts["timing"].split())
    for name in ("cache", "threads"):
        if name in timing and timing[name] != str(getattr(_USUAL, name)):
            arguments += [f"--{name}", timing[name]]
    return tuple(arguments)


def _mark_document(mark: Mark | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {"run": mark.run_id, "reason": mark.reason, "by": mark.author, "at": mark.created}


def _series_document(history: History, story: Story) -> dict[str, Any]:
    screen = story.screen
    return {
        "series": story.series,
        "metric": story.newest.metric or "time",
        "unit": story.newest.unit or "s",
        "id": series_id(story),
        "state": screen.status.value,
        "alarm": story.alarm,
        "since": story.change[1] if story.is_regression else None,
        "before": story.change[0] if story.is_regression else None,
        "accepted": _mark_document(story.accepted),
        "confirmed": _mark_document(story.confirmed),
        "reason": screen.reason,
        "ratio": screen.ratio,
        "expected_s": None if screen.low_s is None else [screen.low_s, screen.high_s],
        "held": story.held or None,
        "baseline_s": history.baseline.get(story.series),
        "steps": [
            {
                "run": step.run_id,
                "before": step.before_id,
                "started": step.started,
                "ratio": step.ratio,
                "p_value": step.p_value,
                "environment": [
                    {"what": what, "base": base, "head": head}
                    for what, base, head in history.changes.get((step.before_id, step.run_id), ())
                ],
            }
            for step in story.steps
        ],
        "points": [
            {
                "run": point.run_id,
                "started": point.started,
                "status": point.status.value,
                "median_s": point.median_s,
                "value": judged_s(point),
                "modes": [[mode.value_s, mode.share] for mode in point.modes],
            }
            for point in story.points
        ],
    }
