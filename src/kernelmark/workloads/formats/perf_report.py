"""triton-perf-report: the CSV that triton.testing.perf_report writes to save_path.

    M,N,K,cuBLAS (ms),Triton (ms)
    256.000000,256.000000,256.000000,0.004096,0.005120

The last columns are the lines of the plot, `{line} ({ylabel})`; the columns before them are its x
values. What is plotted is up to the user's function: only columns whose unit is one of time are
read, and a table of rates is rejected. Older versions of Triton wrote no ylabel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers import (
    SECONDS,
    Importer,
    ResultFile,
    ResultRow,
    legal_name,
    name_words,
    problem_of,
)
from kernelmark.workloads.source import BadLine, parse_number

_LINE = re.compile(r"(.+) \(((?:[^()]|\([^()]*\))*)\)\Z")
# µ is one of two characters, and a letter: μs is not s.
_UNIT = re.compile(r"(?<![\w/'’])(ns|us|[µμ]s|ms|s|[kMGTP]?FLOPS?|[kKMGT]i?B)(?:/s)?(?![\w/])")
_TIMES = r"(?:ns|us|[µμ]s|ms|s)(?!\w)"
# What makes a unit another one: a logarithm, a factor, a letter of its own (m s), or a power.
_OTHER = re.compile(
    rf"\blog|(?:(?<!\w)(?:\d[\d.,]*\s*|\w\s+)|[*·×]\s*){_TIMES}|(?<!\w){_TIMES}\s*[*^²]"
)
_RATE = re.compile(r"(?:/|\bper\b)\s*(?:ns|us|µs|ms|s|sec|second)\b")
_PRINTED = re.compile(r"\d+\.\d{6}(?:,\d+\.\d{6})+\s")  # pandas' float_format="%.6f"
_RESULTS = ("inf", "-inf", "nan")  # of a function that could not be timed
# The column of pandas' index, if the table was saved with it, and again.
_INDEX = ("", "Unnamed: 0")
# do_bench flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)
_SET_YLABEL = "return times, and set ylabel to their unit: ms"


class PerfReport(Importer):
    name = "triton-perf-report"
    summary = "CSV of triton.testing.perf_report with times: a unit such as (ms) in each column"
    facts = FormatFacts(
        versions="Triton 3.1 to f4fca2c0 (2026-08)",
        exactness="every time; tables of rates, and columns without a unit, are rejected",
        checked="files that Triton's own perf_report wrote: every time",
    )
    method = "Triton perf_report"

    def recognizes(self, name: str, head: bytes) -> bool:
        first, _, second = head.decode("utf-8", "replace").partition("\n")
        x_names, lines = _columns(first.strip().split(","))
        # Without units it is known by its numbers, and refused.
        is_one = bool(x_names and lines) or _PRINTED.match(second) is not None
        return name.endswith(".csv") and is_one

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        columns, table = file.table()
        x_names, lines = _columns(columns)
        timed = {name: _unit(name) for name in lines if _unit(name) in SECONDS}
        labels = {_line(name)[1] for name in lines}
        # perf_report writes one ylabel: another one beside it is of no table that it wrote.
        if not x_names or not timed or (len(labels) > 1 and len(timed) < len(lines)):
            units = " or ".join(dict.fromkeys(_unit(name) or "no unit" for name in lines))
            raise UsageError(
                f"line 1: the columns are not all times: {units or 'no unit'}", hint=_SET_YLABEL
            )
        backends = _backends(timed)
        plot = f"perf_report_{'_'.join(name_words(file.name)) or 'plot'}"
        for number, cells in enumerate(table):
            if any(cells.text(name, str(number)) != str(number) for name in _INDEX):
                raise BadLine("the first column has no name, and does not count the rows")
            sizes = {name: _size(cells.required(name), name) for name in x_names}
            for column, unit in timed.items():
                text = cells.text(column).strip()
                no_time = not text or text.lower() in _RESULTS
                time_s = 0.0 if no_time else parse_number(text, column) * SECONDS[unit]
                status = Status.RUNTIME_ERROR if no_time else Status.OK
                yield ResultRow(
                    problem=problem_of(plot, sizes),
                    backend=backends[column],
                    samples_s=() if no_time else (time_s,),
                    timing=_TIMING,
                    # Without a value, the line was not measured at these sizes.
                    status=status if text else Status.SKIPPED,
                    error=Reason(f"the report has {text or 'no value'}") if no_time else NO_REASON,
                )


def _backends(columns: Iterable[str]) -> dict[str, str]:
    """Return the backends of lines: their names in legal letters, and a number where these are
    equal, as they are for names in other scripts."""
    names: dict[str, str] = {}
    for column in columns:
        name = wanted = legal_name(_line(column)[0])
        number = 1
        while name in names.values():
            number += 1
            name = f"{wanted}_{number}"
        names[column] = name
    return names


def _columns(columns: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of x values and those of lines; empty lists if it is another table."""
    columns = columns[1:] if columns and columns[0] in _INDEX else columns
    x_names = [name for name in columns if not _line(name)[1]]
    lines = [name for name in columns if _line(name)[1]]
    return (x_names, lines) if columns == [*x_names, *lines] else ([], [])


def _line(column: str) -> tuple[str, str]:
    """Return the name of a line and its ylabel; "" for the ylabel of another column."""
    match = _LINE.match(column)
    return (match[1], match[2]) if match else (column, "")


def _unit(column: str) -> str:
    """Return the unit of a line, which is in the ylabel, or, if that has several, in the name."""
    name, label = _line(column)
    for text in (label, name):
        units = dict.fromkeys(match[0] for match in _UNIT.finditer(text))
        if len(units) > 1:
            continue
        if not units or _RATE.search(text) or _OTHER.search(text):
            return text if units else ""
        return re.sub("[µμ]", "u", next(iter(units)))
    return ""


def _size(text: str, name: str) -> int | float | str:
    """Return an x value: pandas writes 384 as 384.000000."""
    try:
        number = parse_number(text, name)
    except UsageError:
        return text
    return int(number) if number.is_integer() else number


importers = (PerfReport(),)
