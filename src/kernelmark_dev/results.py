"""Results with given times, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelmark import ops
from kernelmark.compare.history import History, Story
from kernelmark.compare.verdicts import Audit
from kernelmark.core.environment import Environment
from kernelmark.core.metric import Roof
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    Measurement,
    Result,
    ResultSet,
    Run,
    Status,
    StopReason,
)
from kernelmark.stores import SeriesPoint

# A block as it is, its samples in seconds, or its only sample.
Times = Block | Sequence[float] | float
_OURS = Environment(kernelmark_version="0")  # without a version, another tool measured


def _block(times: Times, number: int) -> Block:
    if isinstance(times, Block):
        return times
    samples = (times,) if isinstance(times, float | int) else tuple(times)
    return Block(process=0, allocation=number, samples_s=samples)


def make_measurement(*blocks: Times, **changes: Any) -> Measurement:
    """Return a measurement with these blocks, whose interval is that of their medians."""
    whole = tuple(_block(times, number) for number, times in enumerate(blocks))
    medians = [block.median_s for block in whole]
    measurement = Measurement(
        blocks=whole,
        low_s=min(medians),
        high_s=max(medians),
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=1,
        stop=StopReason.FIXED,
        warmup_s=0.0,
        timed_s=0.0,
    )
    return replace(measurement, **changes)


def make_case(problem: str, backend: str = "numpy", **changes: Any) -> Case:
    return Case(problem=ops.parse(problem), backend=backend, **changes)


def make_result(case: Case | str, *blocks: Times, **changes: Any) -> Result:
    """Return an ok result with these blocks; without any it has no measurement."""
    result = Result(
        case=make_case(case) if isinstance(case, str) else case,
        device="cpu",
        status=Status.OK,
        measurement=make_measurement(*blocks) if blocks else None,
    )
    return replace(result, **changes)


def make_check(**changes: Any) -> Check:
    """Return a passed check."""
    check = Check(positions=10, worst=0.1, max_abs=1e-6, unwritten=0, guards_intact=True)
    return replace(check, **changes)


def make_run(id: str = "run", **changes: Any) -> Run:
    return Run(**{"id": id, "started": 1.0, "environment": _OURS, **changes})


def make_set(*results: Result, id: str = "run", **changes: Any) -> ResultSet:
    """Return a run with these results; `changes` are fields of the run."""
    return ResultSet(run=make_run(id, **changes), results=results)


def make_roof(kind: Any, name: str, value: float, **changes: Any) -> Roof:
    """Return a roof of the CPU."""
    roof = Roof(
        device="cpu", arch="aarch64", kind=kind, name=name, value=value, how="a test", measured=1.0
    )
    return replace(roof, **changes)


def make_point(median_s: float | None = None, **changes: Any) -> SeriesPoint:
    """Return a point of a series; one without a time has crashed."""
    fields: dict[str, Any] = {
        "series": "gemm m=8 | a | {} | t | x",
        "run_id": "r",
        "started": 0.0,
        "status": Status.OK if median_s else Status.CRASHED,
        "device": "cuda:1",
        "fingerprint": "",
    }
    return SeriesPoint(median_s=median_s, **fields | changes)


def make_history(*stories: Story, **changes: Any) -> History:
    """Return the history of these series."""
    history = History(
        stories=stories,
        runs=(),
        changes={},
        moved=(),
        marked={},
        watched=True,
        audit=Audit(compared=0, alarms=0),
        baseline_name="",
        baseline={},
    )
    return replace(history, **changes)
