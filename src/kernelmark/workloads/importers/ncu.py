"""ncu: kernel times in CSV of Nsight Compute: raw page, details page or summary.

The raw page has a row of names, a row of units and a row per launch; the details page has a row per
metric of a launch, including its time. A summary (--print-summary per-kernel) has means. Output of
ncu (==PROF==) and of the program precedes the table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.errors import CodecError, NothingToDo, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers._launches import SECONDS, Launch, found
from kernelmark.workloads.importers._lines import Row, header_of, lines_of, printed_rows
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    number,
    unexpected,
    whole,
)

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
_AMBIGUOUS = re.compile(r"[0-9]{1,3}\.[0-9]{3}\Z")
_Time = tuple[str, str]  # unit and value, as printed
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

    def recognizes(self, name: str, head: bytes) -> bool:
        return bool(_HEADER_BYTES.search(head)) or head.startswith(b"==PROF== ")

    def read(self, path: Path, given: Given) -> ResultSet:
        return build_run(path, given, _rows(path), method="ncu")


def _rows(path: Path) -> Iterator[Found]:
    header, rows = _table(path)
    if _METRIC not in header:
        launches = _raw(path, rows)
    elif _VALUE in header:
        launches = _details(path, rows)
    else:
        yield from _summaries(rows)
        return
    groups: dict[Launch, list[float]] = {}
    doubts: dict[Launch, str] = {}
    hosts: set[str] = set()
    for row, time in launches:
        hosts.add(row.cells.get("Host Name", ""))
        launch = _launch(row)
        groups.setdefault(launch, []).append(_seconds(time, row.place))
        doubts[launch] = row.doubt
    if len(hosts) > 1:
        reason = Reason("hosts-several", file=str(path), count=len(hosts))
        raise UsageError(reason, hint="import each alone")
    for launch, times in groups.items():
        yield found(launch, tuple(times), "ncu", timing=_TIMING, doubt=doubts[launch])


def _table(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the header and the rows of the table, skipping the output before it."""
    lines = lines_of(path)
    begin = next((i for i, line in enumerate(lines.texts) if _HEADER.match(line)), None)
    if begin is None:
        raise NothingToDo(Reason("no-kernel-table", file=str(path)), hint=_HINT)
    header = header_of(lines.texts[begin])
    # The row of a metric ends after its value: the remaining columns are for rules.
    last = next((name for name in (_VALUE, _MEAN) if name in header), "")
    if last and {_METRIC, _UNIT} <= set(header):
        least = 1 + max(map(header.index, (_METRIC, _UNIT, last)))
    elif _METRIC not in header and _TIME in header:
        least = len(header)
    else:
        raise UsageError(Reason("column-missing", file=str(path), column=_TIME), hint=_HINT)
    return header, printed_rows(path, lines, range(begin + 1, len(lines.texts)), header, least)


def _raw(path: Path, rows: Iterator[Row]) -> Iterator[tuple[Row, _Time]]:
    units = next(rows, None)
    if units is None or units.cells.get("ID"):
        first = ",".join(units.cells.values()) if units else None
        raise unexpected(str(path), "a row of units after the header", first, _HINT)
    for row in rows:
        for name, value in row.cells.items():
            if units.cells[name]:
                _check_locale(value, row.place)
        _whole(row.cells.get("ID"), f"{row.place}, ID")
        yield row, (units.cells[_TIME], row.cells[_TIME])


def _details(path: Path, rows: Iterator[Row]) -> Iterator[tuple[Row, _Time]]:
    launches: dict[tuple[str, int], Row] = {}
    times: dict[tuple[str, int], dict[str, _Time]] = {}
    for row in rows:
        cells = row.cells
        key = (cells.get("Process ID", ""), _whole(cells.get("ID"), f"{row.place}, ID"))
        launch = dataclasses.replace(launches.get(key, row), doubt=row.doubt)
        _check_locale(cells[_VALUE], row.place)
        name = cells[_METRIC]
        if name in (_TIME, _DURATION):
            time = (cells[_UNIT], cells[_VALUE])
            if times.setdefault(key, {}).setdefault(name, time) != time:
                reason = Reason("launch-times-differ", where=row.place, name=name)
                raise UsageError(reason, hint=_HINT)
        shape = next((one for one in _SIZES.values() if one[0] == name), None)
        if shape and name not in cells:  # before 2022 the launch shape was a metric only
            launch = dataclasses.replace(launch, cells={**launch.cells, shape[1]: cells[_VALUE]})
        launches[key] = launch
    for key, row in launches.items():
        known = times.get(key, {})
        if not known:
            where = f"{row.place}, launch {key[1]} of {row.cells.get('Kernel Name', '')[:60]}"
            raise CodecError(Reason("field-missing", where=where, name=_TIME), hint=_HINT)
        yield row, known.get(_TIME) or known[_DURATION]


def _summaries(rows: Iterator[Row]) -> Iterator[Found]:
    """Yield the means over the launches of each kernel, which are not samples."""
    for row in rows:
        cells = row.cells
        _check_locale(cells[_MEAN], row.place)
        if cells[_METRIC] not in (_TIME, _DURATION):
            continue
        also = {
            name: _seconds((cells[_UNIT], cells[key]), row.place)
            for name, key in _ALSO.items()
            if cells.get(key)
        }
        mean_s = _seconds((cells[_UNIT], cells[_MEAN]), row.place)
        yield found(_launch(row), (mean_s,), "ncu", timing=_TIMING, also=also, doubt=row.doubt)


def _launch(row: Row) -> Launch:
    cells = row.cells
    kernel = cells.get("Kernel Name")
    if not kernel:
        raise CodecError(Reason("field-missing", where=row.place, name="Kernel Name"), hint=_HINT)
    sizes: list[tuple[str, int]] = []
    for what, columns in _SIZES.items():
        text = next((cells[name] for name in columns if cells.get(name)), "")
        if match := _SHAPE.match(text):
            sizes += [
                (f"{what}_{axis}", int(n)) for axis, n in zip("xyz", match.groups(), strict=True)
            ]
        elif text:
            sizes.append((f"{what}_size", _whole(text, f"{row.place}, {what} size")))
        else:
            raise CodecError(
                Reason("field-missing", where=row.place, name=columns[0]),
                hint="add to ncu: --section LaunchStats, or print it with ncu 2023 or newer",
            )
    device = cells.get("Device")
    capability = _CAPABILITY.match(cells.get("CC", ""))
    return Launch(
        kernel=kernel,
        sizes=tuple(sizes),
        device=f"cuda:{whole(device, f'{row.place}, Device')}" if device else "",
        arch=f"sm_{capability[1]}{capability[2]}" if capability else "",
        process=cells.get("Process ID", ""),
    )


def _check_locale(value: str, place: str) -> None:
    if _COMMA.match(value):
        raise _foreign(value, place)


def _foreign(value: str, place: str) -> UsageError:
    return UsageError(
        Reason("decimal-comma", where=place, given=value[:40]),
        hint="print the table again: LC_ALL=C ncu --import REPORT --csv --page raw",
    )


def _seconds(time: _Time, place: str) -> float:
    unit, value = time
    if unit not in _UNITS:
        raise unexpected(place, "a unit of time", unit, _HINT)
    if not _PLAIN.match(value):
        raise unexpected(place, "a time", value, _HINT)
    # ncu prints whole nanoseconds: 4.256 ns is 4256 ns with a dot as thousands separator.
    if _UNITS[unit] == SECONDS["ns"] and _AMBIGUOUS.match(value):
        raise _foreign(value, place)
    return number(value.replace(",", ""), place) * _UNITS[unit]


def _whole(value: str | None, place: str) -> int:
    """Parse a whole number, with or without thousands separators."""
    return whole(value.replace(",", "") if value and _PLAIN.match(value) else value, place)


importer = Ncu()
