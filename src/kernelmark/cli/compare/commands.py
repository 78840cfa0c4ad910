"""`kmark aa -- COMMAND` and `kmark ab -- COMMAND -- COMMAND`: benchmark commands of others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.units import counted, join_commas
from kernelmark.core.verdict import INTERRUPTED, NOTHING, REGRESSION, VerdictStatus
from kernelmark.host.signals import command_age_s

if TYPE_CHECKING:
    from kernelmark.api.commands import Command, Compared, EqualRuns, Rounds
    from kernelmark.report.tables import Column
    from kernelmark.stats.paired import Looks

READING = "Reading"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND…]",
        help="The command after --, with its options. {out.json} in it stands for a file that it "
        "writes; else what it prints is read.",
        show_default=False,
    ),
]
Pattern = Annotated[
    str | None,
    o.option(
        "--pattern REGEX",
        READING,
        help="Find times by this regular expression, with the groups time and perhaps name and "
        r"unit: '(?P<name>\w+): (?P<time>[\d.]+) (?P<unit>us|ms)'.",
        common=True,
    ),
]
Unit = Annotated[
    str, o.option("--unit UNIT", READING, help="The unit of times that --pattern finds.")
]
ReadAs = Annotated[
    str | None,
    o.option("--as FORMAT", READING, help="Read the output as this format of 'kmark import'."),
]
Runs = Annotated[
    int, o.option("--runs N", help="Run the command this often.", min=4, max=1000, common=True)
]
Seconds = Annotated[
    float | None,
    o.option("--budget S", help="Start no run that would end after this many seconds."),
]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(o.Options):
    """How the times of a command are read."""

    pattern: Pattern = None
    unit: Unit = "us"
    read_as: ReadAs = None


@dataclass(frozen=True, kw_only=True)
class AaOptions(ReadingOptions):
    """Options of `kmark aa`."""

    runs: Runs = 20
    budget: Seconds = None
    timeout: o.Timeout = 300.0
    quiet: o.Quiet = False


def aa(*, words: Words = None, options: AaOptions, outputs: o.Outputs) -> int:
    """Run a benchmark command against itself: its false alarms.

    Runs any command that reports times again and again, and shows how often two equal
    runs differ by more than 1, 2, 5 and 10 %, or by their own intervals; the least
    change that it can find; and whether that is drift, start-up or noise.

    For example: kmark aa -- python bench.py --json {out.json}

    Or: kmark aa --pattern '(?P<time>[\\d.]+) us' -- ./gemm_bench 4096
    """
    from kernelmark.api.commands import LEAST_RUNS, Rounds

    (command,) = _commands(words, options, options.timeout, 1)
    rounds = Rounds(
        [command],
        budget_s=math.inf if options.budget is None else options.budget - command_age_s(),
        on_run=_progress(options.quiet, options.runs, "run"),
    )
    rounds.measure(options.runs)
    _say_dropped(rounds)
    rows = rounds.equal_runs() if len(rounds.runs[0]) >= LEAST_RUNS else []
    if rows:
        _put(_equal_columns(), rows, outputs)
        for line in _findings(rows):
            say(line)
    if rounds.was_stopped:
        say(f"interrupted after {counted(len(rounds.runs[0]), 'run')}")
        return INTERRUPTED
    if not rows and len(rounds.runs[0]) >= LEAST_RUNS:
        raise NothingToDo("no time has the same name in every run")
    if not rows:
        raise NothingToDo(
            f"{counted(len(rounds.runs[0]), 'run')} in the time: {LEAST_RUNS} are needed",
            hint="a larger --budget",
        )
    return 0


def compare_commands(
    words: Sequence[str],
    reading: ReadingOptions,
    outputs: o.Outputs,
    looks: Looks,
    *,
    delta: float,
    budget_s: float | None,
    timeout_s: float,
    quiet: bool,
) -> int:
    """Measure two commands by turns, print the verdicts, and return the exit code."""
    from kernelmark.api.commands import Rounds, compare

    rounds = Rounds(
        _commands(words, reading, timeout_s, 2),
        budget_s=math.inf if budget_s is None else budget_s - command_age_s(),
        on_run=_progress(quiet, looks.last, "round"),
    )
    rows = compare(rounds, looks, delta)
    _say_dropped(rounds)
    if rows:
        _put(_compared_columns(), rows, outputs)
    done = counted(len(rounds.runs[0]), "round")
    if rounds.was_stopped:
        say(f"interrupted after {done}; the first test is after {looks.rounds[0]}")
        return INTERRUPTED
    if not rows:
        say(f"nothing was judged: {done} in the time, the first test is after {looks.rounds[0]}")
        return NOTHING
    slower = [row for row in rows if row.paired.status is VerdictStatus.SLOWER]
    say(f"{len(slower)} of {counted(len(rows), 'time')} slower, after {done}")
    return REGRESSION if slower else 0


def _put(columns: Sequence[Column], rows: Sequence[object], outputs: o.Outputs) -> None:
    """Print and write a table."""
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report.tables import csv_names, markdown, record, tabulate

    table = tabulate(columns, rows)
    if not outputs.stdout_taken:
        put_table(table)
    records = [record(columns, row) for row in rows]
    outputs.put(
        json=lambda: json_text(records),
        csv=lambda: csv_text(records, csv_names(columns)),
        md=lambda: markdown(table),
    )


def _commands(
    words: Sequence[str] | None, reading: ReadingOptions, timeout_s: float, count: int
) -> list[Command]:
    """Split words at `--` into this many commands."""
    from kernelmark.api.commands import Command

    parts: list[list[str]] = [[]]
    for word in words or ():
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) != count or not all(parts):
        wanted = "kmark aa -- COMMAND" if count == 1 else "kmark ab -- COMMAND -- COMMAND"
        raise UsageError(
            f"{counted(sum(map(bool, parts)), 'command')} instead of {count}",
            hint=f"{wanted}, each with its own options",
        )
    pattern = None
    if reading.pattern is not None:
        try:
            pattern = re.compile(reading.pattern, re.MULTILINE)
        except re.error as error:
            raise UsageError(f"--pattern is no regular expression: {error}") from None
        if "time" not in pattern.groupindex:
            raise UsageError(
                "--pattern has no group called time", hint=r"'(?P<time>[\d.]+) (?P<unit>us|ms)'"
            )
    return [
        Command(
            words=tuple(part),
            pattern=pattern,
            unit=reading.unit,
            file_format=reading.read_as,
            timeout_s=timeout_s,
        )
        for part in parts
    ]


def _progress(quiet: bool, total: int, what: str) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if not quiet:
            say(f"{what} {done} of {total}")

    return tell


def _say_dropped(rounds: Rounds) -> None:
    if others := rounds.names[1]:
        say(f"warning: not in every run, left out: {join_commas(others)}")


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def _share(name: str, value: Callable[[EqualRuns], float | None], meaning: str) -> Column:
    from kernelmark.report.tables import Column

    return Column(name, value, meaning, "number", text=lambda row: _percent(value(row)), show="any")


def _equal_columns() -> tuple[Column, ...]:
    from kernelmark.api.commands import THRESHOLDS
    from kernelmark.report.tables import Column

    alarms = tuple(
        _share(
            f"±{100 * threshold:.0f} %",
            methodcaller("alarms", threshold),
            f"share of comparisons of two runs that differ by more than {threshold}",
        )
        for threshold in THRESHOLDS
    )
    return (
        Column("name", "name", "what was timed"),
        Column("runs", "runs", "runs of the command", "integer"),
        Column("median", "median_s", "median over the runs", "number", "s"),
        _share("spread", lambda row: row.spread, "standard deviation between runs"),
        *alarms,
        _share(
            "own rule",
            lambda row: row.own_alarms,
            "share of comparisons of two runs whose own intervals do not meet",
        ),
        _share(
            "least change",
            lambda row: row.least_change,
            "that at most 1 % of the comparisons of two equal runs exceed",
        ),
        _share("in pairs", _in_pairs, "the slowdown that as many runs in pairs would find"),
        _share("drift", lambda row: row.drift, "share of the variance that neighbours share"),
        _share("start", lambda row: row.start, "share of the variance that is new in each run"),
        _share("inside", lambda row: row.inside, "share that samples or interval of a run explain"),
    )


def _in_pairs(row: EqualRuns) -> float | None:
    paired = row.paired
    return None if paired is None or math.isinf(paired.detectable) else paired.detectable


def _compared_columns() -> tuple[Column, ...]:
    from kernelmark.core.units import change_span, change_text
    from kernelmark.report.tables import Column

    def span(row: Compared) -> str:
        return change_span(row.paired.low, row.paired.high) if row.paired.low > 0 else "–"

    return (
        Column("name", "name", "what was timed"),
        Column("base", "base_s", "median of the first command", "number", "s"),
        Column("head", "head_s", "median of the second command", "number", "s"),
        Column(
            "ratio",
            "paired.ratio",
            "head over base",
            "number",
            title="change",
            text=lambda row: change_text(row.paired.ratio),
        ),
        Column("interval", None, text=span),
        Column("low", "paired.low", "lower end of the ratio", "number", title=""),
        Column("high", "paired.high", "upper end of the ratio", "number", title=""),
        Column("rounds", "paired.rounds", "rounds at the last test", "integer"),
        Column("verdict", lambda row: str(row.paired.status), "verdict"),
        Column("reason", lambda row: str(row.paired.reason), "why", title=""),
    )


def _findings(rows: Sequence[EqualRuns]) -> list[str]:
    """What the table means, in one or two sentences."""
    worst = max(rows, key=lambda row: row.least_change)
    alarms = max(row.alarms(0.05) for row in rows)
    lines = [
        f"two equal runs differ by more than 5 % in up to {_percent(alarms)} of comparisons; for "
        f"at most 1 % false alarms a change must exceed {_percent(worst.least_change)} "
        f"({worst.name})"
    ]
    parts = {"drift": worst.drift, "start-up or placement": worst.start}
    if worst.inside is not None:
        parts["noise inside a run"] = worst.inside
    main = max(parts, key=lambda name: parts[name])
    lines.append(f"most of that is {main} ({_percent(parts[main])} of the variance)")
    judged = [row.paired for row in rows if row.paired is not None]
    if judged:
        found = max(paired.detectable for paired in judged)
        wrong = sum(p.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER) for p in judged)
        text = _percent(found) if math.isfinite(found) else "no change"
        lines.append(
            f"in {judged[0].rounds} pairs of runs 'kmark ab' would find {text}; of these equal "
            f"runs it calls {wrong or 'none'} changed"
        )
    return lines
