"""Check numbers from files, so that a damaged or crafted file cannot make an impossible result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kernelmark.core.errors import CodecError
from kernelmark.core.metric import Roof
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Measurement, Result, ResultSet
from kernelmark.core.timing import MOST_S

MOST_SIZE = 2**48
MOST_COUNT = 2**63 - 1  # bytes or FLOPs; the largest integer of a store
_INDEX = "solution_index"  # may be negative: rocBLAS uses negative indices for Tensile solutions
_MOST_CLOCK = 2.0**33  # seconds UTC: the year 2242


def is_time(seconds: float) -> bool:
    """Return whether this is a possible duration of a launch."""
    return 0 < seconds < MOST_S


def is_moment(seconds: float | None) -> bool:
    """Return whether this is a possible time of a run, in seconds since the epoch."""
    return seconds is not None and 0 <= seconds < _MOST_CLOCK


def bad_size(problem: Problem) -> str:
    """Return the first impossible dim, such as `m=-1`; "" if all are possible. 0 is accepted: only
    the op can decide which dims may be 0, such as a padding."""
    sizes = problem.dims.items()
    return next((f"{n}={str(v)[:24]}" for n, v in sizes if not 0 <= v < MOST_SIZE), "")


def check_results(results: ResultSet) -> ResultSet:
    """Return a run from a file unchanged; raise CodecError for the first impossible value."""
    _check(results.run, "results.run")
    for number, result in enumerate(results.results):
        check_result(result, f"results.results[{number}]")
    for number, roof in enumerate(results.roofs):
        _check(roof, f"results.roofs[{number}]")
    return results


def check_result(result: Result, where: str) -> None:
    """Raise CodecError for the first impossible value."""
    _check(result, where)


def _check(value: object, where: str) -> None:
    for place, bad in _faults(value, where, ""):
        raise CodecError(
            f"{place}: {bad} is not possible", hint="is the file damaged, or not of kmark?"
        )


def _faults(value: Any, where: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield (path, value) of every impossible part of `value`, which is in a field `name`."""
    if isinstance(value, Case):  # timing and config are checked on construction
        if bad := bad_size(value.problem):
            yield f"{where}.problem", bad
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            called = "roof" if isinstance(value, Roof) and field.name == "value" else field.name
            one = getattr(value, field.name)
            if not _is_fine(one, called):
                yield from _faults(one, f"{where}.{field.name}", called)
        if isinstance(value, Measurement) and not value.low_s <= value.high_s:
            yield f"{where}.low_s", f"{value.low_s:g} to {value.high_s:g}"
    elif isinstance(value, Mapping):
        for key, one in value.items():
            called = key if key == _INDEX else name
            if not _is_fine(one, called):
                yield from _faults(one, f"{where}.{key}", called)
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            if not _is_fine(one, name):
                yield from _faults(one, f"{where}[{number}]", name)
    elif isinstance(value, int | float) and not _is_possible(value, name):
        yield where, str(value)[:24] if isinstance(value, int) else f"{value:g}"


def _is_fine(value: Any, name: str) -> bool:
    """Return whether a value needs no closer look. Most of a result is numbers, and building the
    path of each would be slow."""
    if isinstance(value, int | float):
        return _is_possible(value, name)
    return value is None or isinstance(value, str)


def _is_possible(value: float, name: str) -> bool:
    """Return whether a number is possible in the field `name` of a run, a result or a roof."""
    if isinstance(value, int):  # a count, an index or a bool
        return abs(value) < 2**31 if name == _INDEX else 0 <= value <= MOST_COUNT
    if name in ("started", "finished", "measured", "paused_s"):  # a pause may last years
        return is_moment(value)
    if name in ("samples_s", "value_s"):
        return is_time(value)
    if name == "low_s":
        return 0 <= value < MOST_S
    if name == "high_s":  # the interval of few blocks may be wide or unbounded
        return value >= 0
    # A difference of clocks may be a little below 0.
    if name in ("cost", "also") or name.endswith("_s"):
        return abs(value) < MOST_S * 10
    if name in ("worst", "max_abs"):  # a kernel's output may be infinite or NaN
        return not value < 0
    if name == "roof":  # a divisor
        return 0 < value < MOST_COUNT
    return abs(value) < MOST_COUNT  # clocks, power, temperature, ratios
