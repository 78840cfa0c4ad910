"""Results as rows and tables: pure functions from values to text cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kernelmark.core.metric import Metric, Roof
from kernelmark.core.micro import is_micro
from kernelmark.core.reason import BRIEF, TEXT, Reason, format_reason
from kernelmark.core.result import Measurement, Result, ResultSet, Status
from kernelmark.core.text import printable
from kernelmark.core.units import counted, rate_text, time_text, width_text
from kernelmark.report.apart import apart
from kernelmark.report.names import backend_text, first_names, rerun, short
from kernelmark.report.percent import Known, Share, share
from kernelmark.stats.modes import modes_text

NONE = "–"
_SENTINELS = "canaries:"
_DISTURBED = "disturbed"  # an ok microbenchmark whose repetitions disagree
MARK = "!"  # after the ± of a result with a warning
_MOST_MULTIMODAL = 5  # maximum rows listed
_MOST_TEXTS = 5  # maximum warnings without a code listed
# Worker failures whose error text is mostly a stack trace of kernelmark's code.
ENDED_WORKERS = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
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
# Additional times of a kernel, in column order; a column is shown if any row has a value.
BESIDE = {
    "hot_s": "hot",
    "host_s": "eager",
    "profiler_s": "profiler",
    "profiler_at_clock_s": "at our clock",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The name and alignment of a column. Where a narrow terminal moves the column to lines below
    its rows, its values follow `label` (None: the name), and the value `usual` is left out. Columns
    to `keep` move only after all others."""

    name: str
    align: Literal["left", "right"] = "left"
    usual: str = ""
    label: str | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text cells under named columns; every row has as many cells as `columns`. Cells may come from
    files and contain no control characters."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        rows = tuple(tuple(map(printable, row)) for row in self.rows)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "title", printable(self.title))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result for display. `times_best` is its time over that of the fastest correct result for
    the same problem, None without another result. `tied`: its interval overlaps the fastest one's,
    so the ranking is within the noise. `sentinel`: it is a canary."""

    result: Result
    backend: str
    share: Share | None
    times_best: float | None = None
    tied: bool = False
    sentinel: bool = False

    @property
    def problem(self) -> str:
        """The short name, computed lazily: looking up an unknown op loads all plugins, 40 ms."""
        return short(self.result.case.problem)

    @property
    def timed(self) -> bool:
        """Whether the result is correct and has a time."""
        return self.result.status is Status.OK and self.result.measurement is not None

    @property
    def ranks(self) -> bool:
        """Whether the time may be compared with others."""
        return _ranks(self.result)

    @property
    def shown_share(self) -> Share | None:
        """The share of the roof to print; None for a wrong result, which did other work."""
        return None if self.result.status is Status.WRONG else self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cases with the same status and reason. `cut`: the full reason is longer than `reason`."""

    status: Status
    reason: str
    rows: tuple[Row, ...]
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


def rows(
    results: ResultSet, roofs: Sequence[Roof] = (), sentinels: Collection[str] = ()
) -> list[Row]:
    """Return one row per result in the requested order, grouped by problem. Canaries (`sentinels`:
    problem keys) come last."""
    infos = {info.name: info for info in results.run.environment.devices}
    best = _best(results.results)
    known: Known = {}
    return [
        _row(
            result,
            share(result, roofs, infos.get(result.device), known),
            best,
            sentinels,
        )
        for result in results.ordered(sentinels)
    ]


def divided(made: Sequence[Row]) -> list[Row | None]:
    """Return the rows with None as the separator in front of the canaries."""
    first = next((i for i, row in enumerate(made) if row.sentinel), 0)
    return [*made[:first], None, *made[first:]] if first else list(made)


def results_table(made: Sequence[Row]) -> Table:
    """Return the table printed by `run` and `show`."""
    several_devices = len({row.result.device for row in made}) > 1
    timings = _timings(made)
    marked = any(map(warned, made))
    compared = any(row.times_best is not None for row in made)
    beside = [name for name in BESIDE if any(name in _also(row) for row in made)]
    columns = [
        Column(name="problem"),
        Column(name="backend"),
        *([Column(name="device")] if several_devices else []),
        *([Column(name="timing")] if any(timings.values()) else []),
        Column(name="median", align="right"),
        Column(name="±", align="right"),
        Column(name="rate", align="right"),
        Column(name="of roof", align="right"),
        *(Column(name=BESIDE[name], align="right") for name in beside),
        *([Column(name="vs best", align="right")] if compared else []),
        Column(name="status", usual=Status.OK.value),
    ]
    cells = []
    for row in divided(made):
        if row is None:
            cells.append((_SENTINELS, *[""] * (len(columns) - 1)))
            continue
        line = [row.problem, row.backend]
        line += [row.result.device] if several_devices else []
        line += [timings[id(row)]] if any(timings.values()) else []
        line += [*_numbers(row, marked=marked)]
        line += [time_text(_also(row)[name]) if name in _also(row) else NONE for name in beside]
        line += [_times(row)] if compared else []
        cells.append((*line, _status(row)))
    return Table(columns=tuple(columns), rows=tuple(cells))


def _timings(made: Sequence[Row]) -> dict[int, str]:
    """Return the timing fields that distinguish rows with the same text, by id(row)."""
    found = apart(
        [(row.problem, row.backend, row.result.device) for row in made],
        [row.result.case.timing.identity for row in made],
    )
    return {id(row): text for row, text in zip(made, found, strict=True)}


def _also(row: Row) -> Mapping[str, float]:
    return row.result.measurement.also if row.result.measurement else {}


def _ranks(result: Result) -> bool:
    measured = result.measurement
    return result.status is Status.OK and measured is not None and measured.reliable


def _status(row: Row) -> str:
    words, measured = [row.result.status.value], row.result.measurement
    if measured is not None:
        words += [] if measured.reliable else ["unreliable"]
        words += ["launch-bound"] if measured.launch_bound else []
    return ", ".join(words)


def failures(made: Iterable[Row]) -> list[Failure]:
    """Return everything that is not ok, grouped by status and reason; failures come before
    unsupported and skipped cases."""
    groups: dict[tuple[Status, str], list[Row]] = {}
    for row in made:
        if row.result.status is not Status.OK:
            groups.setdefault((row.result.status, _reason(row.result)), []).append(row)
    found = [
        Failure(
            status=status,
            reason=reason or "no reason was given",
            rows=tuple(group),
            cut=reason != str(group[0].result.why),
        )
        for (status, reason), group in groups.items()
    ]
    return sorted(found, key=lambda f: not f.status.failed)


def _reason(result: Result) -> str:
    """Return the reason on one line; in full for compiler errors, where every line may matter."""
    brief = result.status in (Status.WRONG, *ENDED_WORKERS)
    return format_reason(result.why, BRIEF) if brief else str(result.why)


def warned(row: Row) -> bool:
    """Return whether the row has a warning."""
    found = row.result.measurement
    return _above(row) or bool(found and (found.warnings or found.modes))


def mark_text(made: Sequence[Row]) -> str:
    """Return what the mark in a table of these rows means; "" if no row has it."""
    marked = sum(map(warned, made))
    return f"{MARK} after ± marks {counted(marked, 'result')} with a warning" if marked else ""


def _above(row: Row) -> bool:
    return row.ranks and row.share is not None and row.share.value > 1.0


def _multimodal(made: Sequence[Row]) -> list[Reason]:
    """Return the multimodal rows with their modes, limited to the first few."""
    found = [
        Reason(
            "multimodal",
            problem=row.problem,
            backend=row.backend,
            modes=modes_text(row.result.measurement.modes),
        )
        for row in made
        if row.result.measurement and row.result.measurement.modes
    ]
    rest = len(found) - _MOST_MULTIMODAL
    return found if rest <= 0 else [*found[:-rest], Reason("multimodal-more", count=rest)]


def warnings(made: Sequence[Row]) -> list[Reason]:
    """Return the warnings of the measurements, once per kind (code, or text without a code)."""
    groups: dict[object, list[Reason]] = {}
    rows_of: dict[object, set[int]] = {}  # each process of a result may have the same warning
    for number, row in enumerate(made):
        for one in row.result.measurement.warnings if row.result.measurement else ():
            words = [v for v in one.fields.values() if not isinstance(v, int | float)]
            kind = (one.code, *words, *([str(one)] if one.code == TEXT else ()))
            groups.setdefault(kind, []).append(one)
            rows_of.setdefault(kind, set()).add(number)
    found = [
        _worst(ones)
        if len(rows_of[kind]) == 1
        else Reason("worst-of", cause=_worst(ones), count=len(rows_of[kind]))
        for kind, ones in groups.items()
    ]
    texts = [one for one in found if one.root.code == TEXT]
    if len(texts) > _MOST_TEXTS:
        found = [one for one in found if one not in texts[_MOST_TEXTS:]]
        found.append(Reason("warnings-more", count=len(texts) - _MOST_TEXTS))
    found += _multimodal(made)
    above = sum(map(_above, made))
    return [*found, Reason("above-roof", count=above)] if above else found


def _worst(warnings: Sequence[Reason]) -> Reason:
    def badness(reason: Reason) -> float:
        numbers = (v for v in reason.fields.values() if isinstance(v, int | float))
        return (
            _SEVERITY[reason.code](reason.fields)
            if reason.code in _SEVERITY
            else next(numbers, 0.0)
        )

    return max(warnings, key=badness)


def summary(made: Sequence[Row]) -> str:
    """Return `12 ok, 2 unsupported, 1 crashed`."""
    counts = status_counts(row.result for row in made)
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def status_counts(results: Iterable[Result]) -> dict[str, int]:
    """Return the number of results by status, in the order of `Status`. A microbenchmark is
    `disturbed` if one of its headline metrics is."""
    counts = Counter(status_text(result, result.headlines) for result in results)
    words = (Status.OK.value, _DISTURBED, *(status.value for status in Status))
    return {word: counts[word] for word in words if counts[word]}


def status_text(result: Result, metrics: Sequence[Metric]) -> str:
    """Return the status; `disturbed` if the repetitions of one of the metrics disagree."""
    disturbed = result.status is Status.OK and any(metric.disturbed for metric in metrics)
    return _DISTURBED if disturbed else result.status.value


def rate(result: Result, bound: str | None) -> str:
    """Return bytes/s for memory-bound results and ops without FLOPs, else FLOP/s."""
    if result.measurement is None or not (result.flops or result.bytes):
        return NONE
    if bound == "memory" or (result.flops == 0 and result.bytes):
        return rate_text(result.bytes_per_s or 0.0, "B/s")
    return rate_text(result.flops_per_s or 0.0, "FLOP/s")


def share_text(found: Share | None) -> str:
    """Return `87 % compute`; values above 100 % are not clamped."""
    return NONE if found is None else f"{share_percent(found)} % {found.bound}"


def share_percent(found: Share) -> str:
    """Return the percentage as it is rounded in tables."""
    percent = 100 * found.value
    return f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"


def _row(
    result: Result,
    of_roof: Share | None,
    best: dict[str, Measurement],
    sentinels: Collection[str],
) -> Row:
    fastest = best.get(result.case.problem.key)
    ratio, tied = None, False
    if _ranks(result) and result.measurement is not None and fastest is not None:
        ratio = result.measurement.median_s / fastest.median_s
        tied = result.measurement is not fastest and result.measurement.low_s <= fastest.high_s
    return Row(
        result=result,
        backend=backend_text(result.case),
        share=of_roof,
        times_best=ratio,
        tied=tied,
        sentinel=result.case.problem.key in sentinels,
    )


def _best(results: Iterable[Result]) -> dict[str, Measurement]:
    """Return the fastest measurement of each problem that has at least two comparable results."""
    found: dict[str, list[Measurement]] = {}
    for result in results:
        if _ranks(result) and result.measurement is not None:
            found.setdefault(result.case.problem.key, []).append(result.measurement)
    return {
        key: min(ones, key=lambda one: one.median_s) for key, ones in found.items() if len(ones) > 1
    }


def _numbers(row: Row, *, marked: bool) -> tuple[str, str, str, str]:
    measured = row.result.measurement
    if measured is None:
        return NONE, NONE, NONE, NONE
    return (
        time_text(measured.median_s),
        # Pad unmarked rows, so that the numbers stay aligned.
        width_text(measured.rel_half_width)
        + (f" {MARK if warned(row) else ' '}" if marked else ""),
        rate(row.result, row.share.bound if row.share else None),
        share_text(row.shown_share),
    )


def _times(row: Row) -> str:
    if row.times_best is None:
        return NONE
    if row.tied:
        return f"≈ {row.times_best:.2f} ×"
    return "best" if row.times_best == 1.0 else f"{row.times_best:.2f} ×"
