"""What a number from a file can be: no damaged or crafted file makes a result that cannot exist."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernelmark.core.errors import CodecError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Measurement, Result, ResultSet
from kernelmark.core.timing import MOST_S

MOST_SIZE = 2**48
MOST_COUNT = 2**63 - 1  # of bytes or FLOPs; what a store can hold
_MOST_CLOCK = 2.0**33  # seconds UTC: the year 2242


def is_time(seconds: float) -> bool:
    """Whether a launch can have taken so long."""
    return 0 < seconds < MOST_S


def is_moment(seconds: float | None) -> bool:
    """Whether something can have happened then, in seconds UTC."""
    return seconds is not None and 0 <= seconds < _MOST_CLOCK


def bad_size(problem: Problem) -> str:
    """The first dim that no problem can have, as `m=-1`; "" where all are possible. Which of them
    may be 0, as a padding may, only its op can tell."""
    sizes = problem.dims.items()
    return next((f"{n}={str(v)[:24]}" for n, v in sizes if not 0 <= v < MOST_SIZE), "")


def check_results(results: ResultSet) -> ResultSet:
    """Return a run from elsewhere, or raise CodecError for the first value that cannot be."""
    run = results.run
    if not is_moment(run.started) or not (run.finished is None or is_moment(run.finished)):
        raise CodecError("results.run: its time is none")
    if not 0 <= run.cases < MOST_SIZE:
        raise CodecError(f"results.run.cases: {run.cases} is not possible")
    for number, result in enumerate(results.results):
        check_result(result, f"results.results[{number}]")
    return results


def check_result(result: Result, where: str) -> None:
    """Raise CodecError for a value that no result can have."""
    fault = next(_faults(result), "")
    if fault:
        raise CodecError(f"{where}.{fault}", hint="is the file damaged, or not of kmark?")


def _faults(result: Result) -> Iterator[str]:
    if bad := bad_size(result.case.problem):
        yield f"case.problem: {bad} is not possible"
    if not is_moment(result.started):
        yield f"started: {result.started:g} is no time"
    for name in ("flops", "bytes"):
        if not 0 <= getattr(result, name) <= MOST_COUNT:
            yield f"{name}: {str(getattr(result, name))[:24]} is not possible"
    for name, value in result.cost.items():
        if not abs(value) < MOST_S * 10:  # a difference of clocks may be a little below 0
            yield f"cost.{name}: {value:g} is not possible"
    if result.measurement is not None:
        yield from (f"measurement.{fault}" for fault in _measured_faults(result.measurement))


def _measured_faults(measured: Measurement) -> Iterator[str]:
    if not measured.blocks or not all(block.samples_s for block in measured.blocks):
        yield "blocks: there are no samples"
        return
    for place, block in enumerate(measured.blocks):
        bad = next((time_s for time_s in block.samples_s if not is_time(time_s)), None)
        if bad is not None:
            yield f"blocks[{place}].samples_s: {bad:g} s is not possible"
    # An interval of few blocks may be open to one side.
    if not (0 <= measured.low_s <= measured.high_s) or not measured.low_s < math.inf:
        yield f"low_s: {measured.low_s:g} to {measured.high_s:g} is no interval"
    for name in ("launches", "sets", "footprint_bytes"):
        if not 0 <= getattr(measured, name) <= MOST_COUNT:
            yield f"{name}: {str(getattr(measured, name))[:24]} is not possible"
