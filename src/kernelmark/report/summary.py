"""What the results of a run say, in sentences: progress, the answer, failures, warnings, and how
often each occurred.
"""

from __future__ import annotations

import html
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelmark import ops
from kernelmark.core.micro import is_micro
from kernelmark.core.problem import Problem
from kernelmark.core.reason import TEXT, Reason, shorten, suffixed
from kernelmark.core.result import Measurement, Result, Status
from kernelmark.core.units import NOISY, counted, duration_text, is_noise, time_text, width_text
from kernelmark.ops.base import Parameter
from kernelmark.report.names import backend_text, first_names, rerun, short
from kernelmark.report.results import MARK, ResultRow, share_percent, share_text, status_counts
from kernelmark.report.tables import Column, Table, tabulate
from kernelmark.runners import events as e
from kernelmark.stats.interval import modes_text, t_quantile

# How a case ended.
_OUTCOMES = {
    "wrong": "is wrong",
    "impossible": "is impossibly fast",
    "compile_error": "did not compile",
    "runtime_error": "raised an error",
    "out_of_memory": "ran out of memory",
    "timeout": "timed out",
    "crashed": "crashed",
}
_LEAST_PROBLEMS = 3  # minimum for an interval of the geometric mean
_LEVEL = 0.95
_MOST_MULTIMODAL = 5  # maximum rows listed
_MOST_TEXTS = 5  # maximum warnings without a code listed
# Worker failures whose error text is mostly a stack trace of kernelmark's code.
_ENDED_WORKERS = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
# Ranks several warnings with the same code; default: by the first number.
_SEVERITY: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "clock-moved": lambda fields: fields["high_mhz"] - fields["low_mhz"],
    "few-samples": lambda fields: -fields["samples"],
    "few-blocks": lambda fields: -fields["blocks"],
    "blocks-disagree": lambda fields: (
        fields.get("interval_high_s", fields["high_s"])
        / (fields.get("interval_low_s") or fields["low_s"])
    ),
    "interval-above-target": lambda fields: fields["width"],
}

_GEMMS = ("gemm", "batched_gemm")
_Times = Mapping[str, Mapping[str, Measurement]]  # by backend, then by problem and device


def answer(rows: Sequence[ResultRow]) -> list[str]:
    """Return sentences that summarise the rows: which backends failed, which is fastest and by how
    much, and which result is furthest from its roof; [] if there is nothing to compare."""
    requested = [row for row in rows if not row.sentinel]
    known = [row for row in requested if row.ranks]
    ranked = [row for row in known if row.has_interval]
    compared = _compared(requested)
    failures = _failed([row for row in requested if _problem(row) in compared])
    failed = {_problem(row) for row in requested if row.result.status.failed}
    not_ranked = len(compared - _compared(known) - failed)
    unbounded = len(_compared(known) - _compared(ranked))
    parts = [_ranking(_shared_times(ranked))]
    parts.append(f"{counted(not_ranked, 'problem')} not ranked" if not_ranked else "")
    without = f"{counted(unbounded, 'problem')} not ranked, as times have no interval"
    parts.append(without if unbounded else "")
    sentences = [text for text in (failures, "; ".join(filter(None, parts))) if text]
    shares = [(row.share.value, row) for row in known if row.share is not None]
    if len({share_percent(row.share) for _, row in shares if row.share}) > 1:
        _, row = min(shares, key=lambda pair: pair[0])
        where = f"{row.problem} by {row.backend}, {share_text(row.share)}"
        sentences.append(f"furthest from its roof: {where}")
    return sentences


def _problem(row: ResultRow) -> str:
    return row.result.case.problem.key


def _compared(rows: Sequence[ResultRow]) -> set[str]:
    """Return the keys of the problems that rows of several backends have."""
    backends: dict[str, set[str]] = {}
    for row in rows:
        backends.setdefault(_problem(row), set()).add(row.backend)
    return {key for key, names in backends.items() if len(names) > 1}


def _failed(rows: Sequence[ResultRow]) -> str:
    """Return how each backend failed, `memo is wrong in 2 of 3 problems`."""
    problems: dict[str, set[str]] = {}
    failed: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        problems.setdefault(row.backend, set()).add(_problem(row))
        if row.result.status.failed:
            ended = _OUTCOMES.get(row.result.status.value, f"ended as {row.result.status.value}")
            failed.setdefault((row.backend, ended), set()).add(_problem(row))
    several = len(set(map(_problem, rows))) > 1
    return "; ".join(
        f"{name} {ended}"
        + (f" in {len(keys)} of {counted(len(problems[name]), 'problem')}" if several else "")
        for (name, ended), keys in failed.items()
    )


def _shared_times(rows: Sequence[ResultRow]) -> _Times:
    """Return measurements by backend and problem, for problems that several backends measured."""
    counts = Counter(map(_problem, rows))
    times: dict[str, dict[str, Measurement]] = {}
    for row in rows:
        if counts[_problem(row)] > 1 and row.measurement is not None:
            key = f"{_problem(row)} | {row.result.device}"
            times.setdefault(row.backend, {})[key] = row.measurement
    return times


def _ranking(times: _Times) -> str:
    """Return which backend is fastest, compared with the fastest other one; "" if fewer than two
    backends measured the same problem."""
    problems = list(dict.fromkeys(key for own in times.values() for key in own))
    winners = Counter(_clear_winner(times, key) for key in problems)

    def worth(name: str) -> tuple[int, int, float]:
        return winners[name], len(times[name]), -sum(map(_median_s, times[name].values()))

    first = max(times, key=worth, default="")
    ratios = {name: _ratios(times, first, name) for name in times if name != first}
    rivals = [name for name in ratios if ratios[name]]
    if not rivals:
        return ""
    rivals.sort(key=lambda name: (-len(ratios[name]), statistics.geometric_mean(ratios[name])))
    if len(problems) == 1:
        (key,) = problems
        return _one_problem(first, {name: times[name][key] for name in (first, *rivals)})
    mean = _geomean(first, rivals[0], ratios[rivals[0]], len(problems))
    whole = counted(len(problems), "problem")
    if winners[""] == len(problems):
        return f"no backend is fastest beyond the noise in any of {whole}; {mean}"
    text = f"{first} is fastest in {winners[first]} of {whole}"
    text += f", {rivals[0]} in {winners[rivals[0]]}" if winners[rivals[0]] else ""
    text += f" ({winners['']} within the noise)" if winners[""] else ""
    return f"{text}; {mean}"


def _clear_winner(times: _Times, key: str) -> str:
    """Return the fastest backend if its interval lies below the runner-up's, else ""."""
    names = sorted((n for n in times if key in times[n]), key=lambda n: times[n][key].median_s)
    if len(names) > 1 and not is_clear(times[names[0]][key], times[names[1]][key]):
        return ""
    return names[0]


def is_clear(fast: Measurement, slow: Measurement) -> bool:
    """Return whether the intervals are disjoint; else the table marks the ratio with ≈."""
    return fast.high_s < slow.low_s


def _one_problem(first: str, times: Mapping[str, Measurement]) -> str:
    """Compare the fastest backend with the others, which are in order of their times."""
    fast = times[first]
    second = next(name for name in times if name != first)
    ratio = times[second].median_s / fast.median_s
    width = math.hypot(_relative_width(fast), _relative_width(times[second]))
    noisy = is_noise(1 - width, 1 + width)
    tied = [name for name in times if name != first and not is_clear(fast, times[name])]
    if tied:
        most = max(times[name].median_s for name in tied) / fast.median_s
        medians = f" (medians: {'up to ' if len(tied) > 1 else ''}{_factor(most)} ×)"
        medians = f"; the ratio is {NOISY}" if noisy else medians
        return (
            f"{first} does not differ from {' and '.join(tied)} beyond the noise: their intervals "
            f"overlap{medians}"
        )
    if noisy:
        return f"{first} is faster than {second}; the ratio is {NOISY}"
    # As many decimals as two digits of the width need.
    half = ratio * width
    digits = min(3, max(0, 1 - math.floor(math.log10(half)))) if half else 3
    plus_minus = f"± {max(half, 10**-digits):.{digits}f}"
    return f"{first} ran {ratio:.{digits}f} {plus_minus} times as fast as {second}"


def _geomean(first: str, second: str, ratios: Sequence[float], problems: int) -> str:
    mean = statistics.geometric_mean(ratios)
    shared = "" if len(ratios) == problems else f" of {len(ratios)} that both measured,"
    where, interval = f"in the geomean{shared}", ""
    if len(ratios) >= _LEAST_PROBLEMS:
        logs = [math.log(ratio) for ratio in ratios]
        quantile = t_quantile(0.5 + _LEVEL / 2, len(logs) - 1)
        half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
        low, high = math.exp(-half) * mean, math.exp(half) * mean
        interval = f" ({100 * _LEVEL:.3g} % interval {_factor(low)} to {_factor(high)})"
        if low <= 1 <= high:
            differs = f"{first} does not clearly differ from {second}"
            return f"{where} {differs}: {_factor(mean)} ×{interval}"
    but = "but " if mean < 1 else ""
    return f"{but}{where} {first} is {_factor(mean)} × as fast as {second}{interval}"


def _factor(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else f"{value:.2g}"


def _ratios(times: _Times, first: str, second: str) -> list[float]:
    keys = times[first].keys() & times[second].keys()
    return [times[second][key].median_s / times[first][key].median_s for key in keys]


def _relative_width(measured: Measurement) -> float:
    return (measured.high_s - measured.low_s) / 2 / measured.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cases with the same status and reason. `cut`: the full reason is longer than `reason`."""

    status: Status
    reason: str
    rows: tuple[ResultRow, ...]
    cut: bool = False

    @property
    def backends(self) -> tuple[str, ...]:
        """The first backends of the cases; () if the reason has the backend as a field."""
        named = [row for row in self.rows if "backend" not in row.result.why.root.fields]
        return first_names(row.backend for row in named if not is_micro(row.result.case))

    @property
    def sentence(self) -> str:
        names = f" ({', '.join(self.backends)})" if self.backends else ""
        return f"{self.status.value}, {counted(len(self.rows), 'case')}{names}: {self.reason}"

    def commands(self, more: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the rerun command of each case that has one."""
        return tuple(filter(None, (rerun(row.result, more) for row in self.rows)))


def find_failures(rows: Iterable[ResultRow]) -> list[Failure]:
    """Return everything that is not ok, grouped by status and reason; failures come before
    unsupported and skipped cases."""
    groups: dict[tuple[Status, str], list[ResultRow]] = {}
    for row in rows:
        if row.result.status is not Status.OK:
            groups.setdefault((row.result.status, _reason(row.result)), []).append(row)
    failures = [
        Failure(
            status=status,
            reason=reason or "no reason was given",
            rows=tuple(group),
            cut=reason != str(group[0].result.why),
        )
        for (status, reason), group in groups.items()
    ]
    return sorted(failures, key=lambda f: not f.status.failed)


def _reason(result: Result) -> str:
    """Return the reason on one line; in full for compiler errors, where every line may matter."""
    brief = result.status in (Status.WRONG, *_ENDED_WORKERS)
    return shorten(result.why) if brief else str(result.why)


def mark_text(rows: Sequence[ResultRow]) -> str:
    """Return what the mark in a table of these rows means; "" if no row has it."""
    marked = sum(row.is_warned for row in rows)
    return f"{MARK} after ± marks {counted(marked, 'result')} with a warning" if marked else ""


def _multimodal(rows: Sequence[ResultRow]) -> list[Reason]:
    """Return the multimodal rows with their modes, limited to the first few."""
    reasons = [
        Reason(
            f"multimodal: {row.problem} by {row.backend}: "
            f"{modes_text(row.result.measurement.modes)}",
            "multimodal",
            problem=row.problem,
            backend=row.backend,
            modes=modes_text(row.result.measurement.modes),
        )
        for row in rows
        if row.result.measurement and row.result.measurement.modes
    ]
    rest = len(reasons) - _MOST_MULTIMODAL
    return (
        reasons
        if rest <= 0
        else [
            *reasons[:-rest],
            Reason(f"multimodal: {rest} more; kmark show --samples has all values"),
        ]
    )


def collect_warnings(rows: Sequence[ResultRow]) -> list[Reason]:
    """Return the warnings of the measurements, once per kind (code, or text without a code)."""
    groups: dict[object, list[Reason]] = {}
    rows_of: dict[object, set[int]] = {}  # each process of a result may have the same warning
    for number, row in enumerate(rows):
        for warning in row.result.measurement.warnings if row.result.measurement else ():
            labels = [v for v in warning.fields.values() if not isinstance(v, int | float)]
            kind = (warning.code, *labels, *([str(warning)] if warning.code == TEXT else ()))
            groups.setdefault(kind, []).append(warning)
            rows_of.setdefault(kind, set()).add(number)
    warnings = [
        _worst(ones)
        if len(rows_of[kind]) == 1
        else suffixed(_worst(ones), f" (the worst of {len(rows_of[kind])} results)")
        for kind, ones in groups.items()
    ]
    texts = [item for item in warnings if item.code == TEXT]
    if len(texts) > _MOST_TEXTS:
        warnings = [item for item in warnings if item not in texts[_MOST_TEXTS:]]
        warnings.append(
            Reason(
                f"{counted(len(texts) - _MOST_TEXTS, 'more warning')}; kmark show has all of them"
            )
        )
    warnings += _multimodal(rows)
    above = sum(row.is_above_roof for row in rows)
    return (
        [
            *warnings,
            Reason(
                f"{counted(above, 'result')} above 100 % of the roof: the kernel found"
                " data in a cache, or the roof was measured while other work ran;"
                " measure it again with --roofs fresh",
                "above-roof",
                count=above,
            ),
        ]
        if above
        else warnings
    )


def _worst(warnings: Sequence[Reason]) -> Reason:
    def badness(reason: Reason) -> float:
        numbers = (v for v in reason.fields.values() if isinstance(v, int | float))
        return (
            _SEVERITY[reason.code](reason.fields)
            if reason.code in _SEVERITY
            else next(numbers, 0.0)
        )

    return max(warnings, key=badness)


def status_summary(rows: Sequence[ResultRow]) -> str:
    """Return `12 ok, 2 unsupported, 1 crashed`."""
    counts = status_counts(row.result for row in rows)
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def lessons(rows: Sequence[ResultRow]) -> list[str]:
    """Return what a run shows, in at most three sentences: how many outputs were verified, who is
    fastest, and what is nearest to the limit of the device and farthest from it."""
    checked = sum(row.result.check is not None for row in rows)
    right = sum(row.result.check is not None and row.result.check.passed for row in rows)
    texts = []
    if checked:
        texts.append(f"{right} of {counted(checked, 'checked output')} agree with float64")
    ranked = [row for row in rows if row.ranks and not row.sentinel]
    if rows and not ranked:
        texts.append("no time is reliable enough to be ranked: measure again on a quieter machine")
    texts += [ranking] if (ranking := _ranking(_shared_times(ranked))) else []
    shared = sorted(
        (row for row in ranked if row.timed and row.share is not None),
        key=lambda row: row.share.value if row.share else 0.0,
    )
    if len(shared) > 1:
        near, far = (
            f"{row.problem} by {row.backend}, {share_text(row.share)}"
            for row in (shared[-1], shared[0])
        )
        texts.append(f"nearest to its roof: {near}; furthest: {far}")
    return texts


class _Wins(NamedTuple):
    """How often a backend is fastest in a category of problems."""

    op: str
    category: str
    backend: str
    problems: int
    wins: int
    ties: int
    speed_up: float


_WINS_COLUMNS = (
    Column("op", lambda row: row.op),
    Column("category", lambda row: row.category),
    Column("backend", lambda row: row.backend),
    Column("problems", lambda row: row.problems, type="integer"),
    Column("fastest in", lambda row: row.wins, type="integer"),
    Column("tied in", lambda row: row.ties, type="integer"),
    Column("share", align="right", text=lambda row: f"{100 * row.wins / row.problems:.0f} %"),
    Column("vs best other", align="right", text=lambda row: f"{row.speed_up:.2f} ×"),
)
# Measurements by backend, for one problem on one device in one timing.
_Field = dict[str, Measurement]


def category_names(problem: Problem) -> tuple[str, ...]:
    """Return the categories of a problem (docs/suites.md); () for ops without categories."""
    from kernelmark.workloads.generate import categories

    d = problem.dims
    if problem.op in _GEMMS:
        op = ops.registry.get(problem.op)
        values: dict[str, Parameter] = {**d, **problem.dtypes}
        kinds = categories(problem.op).items()
        return tuple(name for name, kind in kinds if kind.holds(op, values))
    if problem.op == "attention":
        if d["seq_q"] == 1:
            return ("decode",)
        return ("extend",) if d["seq_q"] < d["seq_kv"] else ("prefill",)
    if problem.op == "conv":
        if d["stride_h"] * d["stride_w"] > 1:
            return ("strided",)
        return ("pointwise",) if d["r"] * d["s"] == 1 else ("spatial",)
    return ()


def wins_table(rows: Sequence[ResultRow]) -> Table | None:
    """Return a table of how often each backend is fastest beyond the noise, how often it is tied
    with the fastest, and its geometric-mean speed-up over the best other backend; None if no
    problem was measured by several backends."""
    fields: dict[tuple[str, str, str], tuple[Problem, _Field]] = {}
    for row in rows:
        measured = row.result.measurement
        if not (row.ranks and row.has_interval) or row.sentinel or measured is None:
            continue
        case = row.result.case
        key = (case.problem.key, row.result.device, case.timing.identity)
        _, field = fields.setdefault(key, (case.problem, {}))
        median = field.get(row.backend, measured)
        field[row.backend] = min(median, measured, key=_median_s)
    groups: dict[tuple[str, str], list[_Field]] = {}
    for problem, field in fields.values():
        if len(field) > 1:
            for name in ("all", *category_names(problem)):
                groups.setdefault((problem.op, name), []).append(field)
    wins = [
        row for key, shared_fields in sorted(groups.items()) for row in _wins(key, shared_fields)
    ]
    return tabulate(_WINS_COLUMNS, wins, title="Fastest backend by category") if wins else None


def _wins(key: tuple[str, str], fields: Sequence[_Field]) -> list[_Wins]:
    """Return one row per backend, most wins first."""
    rows = []
    for backend in dict.fromkeys(name for field in fields for name in field):
        ratios, wins, ties = [], 0, 0
        for field in fields:
            if backend not in field:
                continue
            own = field[backend]
            best = min((field[name] for name in field if name != backend), key=_median_s)
            ratios.append(best.median_s / own.median_s)
            wins += is_clear(own, best)
            ties += not is_clear(own, best) and not is_clear(best, own)
        speed_up = statistics.geometric_mean(ratios)
        rows.append(_Wins(*key, backend, len(ratios), wins, ties, speed_up))
    return sorted(rows, key=lambda row: -row.wins)


def _median_s(measured: Measurement) -> float:
    return measured.median_s


Say = Callable[[str], object]


class ProgressLines:
    """Progress as lines: the estimated total time, and one line per finished case."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = False

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseStarted | e.CaseCompiled) and not self._begun:
            self._begun = True
            expected = duration_text(event.progress.remaining_s)
            self._say(f"{counted(event.progress.total, 'case')}, about {expected}")
        if isinstance(event, e.CaseFinished):
            done, total = event.progress.done, event.progress.total
            left = duration_text(event.progress.remaining_s)
            more = f"  (about {left} left)" if done < total else ""
            self._say(f"[{done:{len(str(total))}}/{total}] {outcome(event.result)}{more}")
        else:
            say_other(event, self._say)


class NotebookBar:
    """Progress in a notebook: a bar with the last finished case, replaced at each event; warnings
    and notes stay below it."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._shown = display(HTML(""), display_id=True)

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseFinished):
            done, total = event.progress.done, event.progress.total
            left = f"about {duration_text(event.progress.remaining_s)} left"
            last = html.escape(outcome(event.result))
            bar = f"<progress value={done} max={total}></progress> {done}/{total} {left}"
            text = f"{bar}<br><code>{last}</code>"
            self._shown.update(self._html(text if done < total else ""))
        else:
            say_other(event, print_line)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def outcome(result: Result) -> str:
    """Return a one-line summary of how a case ended."""
    name = f"{backend_text(result.case)}  {short(result.case.problem)}"
    measured = result.measurement
    if measured is None:
        reason = f": {result.error.splitlines()[0]}" if result.error else ""
        return f"{result.status.value:<11}  {name}{reason}"
    time = f"{time_text(measured.median_s):>9} ± {width_text(measured.rel_half_width)}"
    return f"{result.status.value:<11}  {time:<19}  {name}"


def say_other(event: e.Event, say: Say) -> None:
    """Report lost devices, waiting and notes."""
    if isinstance(event, e.DeviceLost):
        say(f"warning: {event.device} is lost: {event.reason}")
    elif isinstance(event, e.Waiting):
        if e.WAITS.is_due(event.device):
            say(str(event))
    elif isinstance(event, e.Note):
        say(f"note: {event.text}")
