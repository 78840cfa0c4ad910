"""ncu: kernel times in CSV of Nsight Compute: raw page, details page or summary.

The raw page has a row of names, a row of units and a row per launch; the details page has a row per
metric of a launch, including its time. A summary (--print-summary per-kernel) has means. Output of
ncu (==PROF==) and of the program precedes the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.registry import FormatFacts
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers import (
    SECONDS,
    Importer,
    Launch,
    Launches,
    ResultFile,
    ResultRow,
    mean_row,
)
from kernelmark.workloads.source import BadLine, Fields, parse_number, parse_whole, unexpected

_TIME = "gpu__time_duration.sum"
_DURATION = "Duration"  # the same metric in the section of the details page
_METRIC, _UNIT, _VALUE, _MEAN = "Metric Name", "Metric Unit", "Metric Value", "Average"
_ALSO = {"min_s": "Minimum", "max_s": "Maximum"}
# By default, ncu flushes the caches before each pass (--cache-control all).
_TIMING = Timing(cache=Cache.FLUSH, timer=Timer.PROFILER)
# Before 2023 the units were spelled nsecond.
_UNITS = {**SECONDS, **{f"{unit}econd": seconds for unit, seconds in SECONDS.items()}}
_HEADER = re.compile(r'"?(?:ID"?,"?)?Process ID"?,')
_HEADER_BYTES = re.compile(rb'^"?(?:ID"?,"?)?Process ID"?,.*Kernel Name', re.MULTILINE)
_SHAPE = re.compile(r"\(?\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*\)?\Z")
_SIZES = {"grid": ("Grid Size", "launch__grid_size"), "block": ("Block Size", "launch__block_size")}
_CAPABILITY = re.compile(r"([0-9]+)\.([0-9]+)\Z")
_PLAIN = re.compile(
    r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?\Z"
)
# ncu prints numbers by the locale: 13.490.336 and 6,72 are from one with a decimal comma.
_COMMA = re.compile(
    r"[0-9.\s']*[0-9],(?:[0-9]{1,2}|[0-9]{4,})\Z|[0-9]{1,3}(?:[.\s'][0-9]{3}){2,}\Z"
)
_AMBIGUOUS = re.compile(r"[0-9]{1,3}(?:\.|,)[0-9]{3}\Z")
_HINT = f"ncu --csv --page raw --metrics {_TIME} PROGRAM"


class Ncu(Importer):
    name = "ncu"
    summary = "CSV of Nsight Compute, ncu --csv: every launch, by name and launch shape"
    facts = FormatFacts(
        versions="Nsight Compute 2020 to 2026: raw and details page, --print-summary per-kernel",
        exactness="every launch as printed; launches without a time or launch shape, and numbers "
        "with a decimal comma, are rejected",
        checked="compared with its manual and with printed tables of ten projects; samples of "
        "our own in tests",
    )
    method = "ncu"

    def recognizes(self, name: str, head: bytes) -> bool:
        return bool(_HEADER_BYTES.search(head)) or head.startswith(b"==PROF== ")

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        header, rows = _table(file)
        if _METRIC in header and _VALUE not in header:
            yield from _summaries(rows)
            return
        launches, hosts = Launches("ncu", _TIMING), set()
        times = _details(file, rows) if _METRIC in header else _raw(file, rows)
        for cells, seconds, doubt in times:
            hosts.add(cells.get("Host Name", ""))
            launches.add(_launch(cells), seconds, doubt)
        if len(hosts) > 1:
            raise UsageError(f"the launches are of {len(hosts)} hosts", hint="import each alone")
        file.at = ""
        yield from launches.rows()


def _table(file: ResultFile) -> tuple[list[str], Iterator[Fields]]:
    """Return the header and the rows of the table, skipping the output before it."""
    begin = next((i for i, line in enumerate(file.texts) if _HEADER.match(line)), None)
    if begin is None:
        raise NothingToDo("the file has no table of kernels", hint=_HINT)
    header, rows = file.table(begin)
    # The row of a metric ends after its value: the remaining columns are for rules.
    last = next((name for name in (_VALUE, _MEAN) if name in header), "")
    if last and {_METRIC, _UNIT} <= set(header):
        least = 1 + max(map(header.index, (_METRIC, _UNIT, last)))
        return file.table(begin, least=least)
    if _METRIC in header or _TIME not in header:
        raise UsageError(f"the table has no column {_TIME}", hint=_HINT)
    return header, rows


def _raw(file: ResultFile, rows: Iterator[Fields]) -> Iterator[tuple[Fields, float, str]]:
    units = next(rows, None)
    if units is None or units.get("ID"):
        first = ",".join(units.values()) if units else None
        raise unexpected("the header", "a row of units after it", first, _HINT)
    for cells in rows:
        for name, value in cells.items():
            if units[name]:
                _check_locale(value)
        _whole(cells.get("ID"), "ID")
        yield cells, _seconds(units[_TIME], cells[_TIME]), file.doubt


def _details(file: ResultFile, rows: Iterator[Fields]) -> Iterator[tuple[Fields, float, str]]:
    launches: dict[tuple[str, int], dict[str, str]] = {}
    times: dict[tuple[str, int], dict[str, float]] = {}
    positions: dict[tuple[str, int], tuple[str, str]] = {}
    for cells in rows:
        key = cells.text("Process ID"), _whole(cells.get("ID"), "ID")
        launch = launches.setdefault(key, dict(cells))
        name, value = cells[_METRIC], cells[_VALUE]
        _check_locale(value)
        if name in (_TIME, _DURATION):
            seconds = _seconds(cells[_UNIT], value)
            if times.setdefault(key, {}).setdefault(name, seconds) != seconds:
                raise BadLine(f"the launch has two times {name}", hint=_HINT)
        shape = next((names for names in _SIZES.values() if names[0] == name), None)
        if shape and name not in cells:  # before 2022 the launch shape was a metric only
            launch[shape[1]] = value
        positions[key] = positions.get(key, (file.at, ""))[0], file.doubt
    for key, launch in launches.items():
        file.at, doubt = positions[key]
        if key not in times:
            kernel = launch.get("Kernel Name", "")[:60]
            raise BadLine(f"launch {key[1]} of {kernel} has no {_TIME}", hint=_HINT)
        seconds = times[key][_TIME if _TIME in times[key] else _DURATION]
        yield Fields(launch), seconds, doubt


def _summaries(rows: Iterator[Fields]) -> Iterator[ResultRow]:
    """Yield the means over the launches of each kernel, which are not samples."""
    for cells in rows:
        _check_locale(cells[_MEAN])
        if cells[_METRIC] in (_TIME, _DURATION):
            unit = cells[_UNIT]
            also = {
                name: _seconds(unit, cells[key]) for name, key in _ALSO.items() if cells.get(key)
            }
            mean_s = _seconds(unit, cells[_MEAN])
            yield mean_row(_launch(cells), (mean_s,), "ncu", timing=_TIMING, also=also)


def _launch(cells: Fields) -> Launch:
    kernel = cells.get("Kernel Name")
    if not kernel:
        raise BadLine("Kernel Name is missing", hint=_HINT)
    sizes: list[tuple[str, int]] = []
    for what, columns in _SIZES.items():
        text = next((cells[name] for name in columns if cells.get(name)), "")
        if match := _SHAPE.match(text):
            axes = zip("xyz", match.groups(), strict=True)
            sizes += [(f"{what}_{axis}", int(n)) for axis, n in axes]
        elif text:
            sizes.append((f"{what}_size", _whole(text, f"{what} size")))
        else:
            raise BadLine(
                f"{columns[0]} is missing",
                hint="add to ncu: --section LaunchStats, or print it with ncu 2023 or newer",
            )
    capability = _CAPABILITY.match(cells.text("CC"))
    return Launch(
        kernel=kernel,
        sizes=tuple(sizes),
        device=f"cuda:{cells.whole('Device')}" if cells.get("Device") else "",
        arch=f"sm_{capability[1]}{capability[2]}" if capability else "",
        process=cells.text("Process ID"),
    )


def _check_locale(value: str) -> None:
    if _COMMA.match(value):
        raise _foreign(value)


def _foreign(value: str) -> BadLine:
    return BadLine(
        f"{value[:40]!r} has a decimal comma, or dots between thousands",
        hint="print the table again: LC_ALL=C ncu --import REPORT --csv --page raw",
    )


def _seconds(unit: str, value: str) -> float:
    if unit not in _UNITS:
        raise unexpected(_UNIT, "a unit of time", unit, _HINT)
    if not _PLAIN.match(value):
        raise unexpected(_TIME, "a time", value, _HINT)
    # ncu prints whole nanoseconds, and fractions of other units: 4.256 ns is 4256 ns with a dot as
    # thousands separator, and 4,256 us is 4.256 us with a decimal comma.
    separator = "." if _UNITS[unit] == SECONDS["ns"] else ","
    if separator in value and _AMBIGUOUS.match(value):
        raise _foreign(value)
    return parse_number(value.replace(",", ""), _TIME) * _UNITS[unit]


def _whole(value: str | None, what: str) -> int:
    """Parse a whole number, with or without thousands separators."""
    return parse_whole(value.replace(",", "") if value and _PLAIN.match(value) else value, what)


importers = (Ncu(),)
