"""Results made by hand, for tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Roof
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    KernelInfo,
    Measurement,
    Result,
    ResultSet,
    Run,
    Status,
    StopReason,
)
from kernelmark.core.timing import Timing

GEMM = "gemm m=512 n=512 k=512 dtype=f32"


def make(
    problem: str = GEMM,
    *,
    backend: str = "numpy",
    median_s: float | None = 0.01,
    status: Status = Status.OK,
    timing: Timing | None = None,
    config: dict[str, Any] | None = None,
    warnings: tuple[str, ...] = (),
    **changes: Any,
) -> Result:
    """A result whose three blocks have medians around `median_s`."""
    parsed = ops.parse(problem)
    op = ops.registry.get(parsed.op)
    measurement = None
    if median_s is not None:
        blocks = tuple(
            Block(process=0, allocation=i, samples_s=(median_s * f, median_s, median_s / f))
            for i, f in enumerate((0.99, 1.0, 1.01))
        )
        measurement = Measurement(
            blocks=blocks,
            low_s=median_s * 0.98,
            high_s=median_s * 1.02,
            method="loop",
            launches=2,
            sets=3,
            footprint_bytes=1000,
            stop=StopReason.PRECISE,
            warmup_s=0.1,
            timed_s=0.2,
            warnings=warnings,
        )
    result = Result(
        case=Case(problem=parsed, backend=backend, timing=timing or Timing(), config=config or {}),
        device="cpu",
        status=status,
        arch="aarch64",
        flops=op.flops(parsed),
        bytes=op.bytes(parsed),
        measurement=measurement,
        check=Check(positions=10, worst=0.1, max_abs=1e-6, unwritten=0, guards_intact=True),
        kernel=KernelInfo(name="sgemm", resources={"workspace_bytes": 64}),
        cost={"timed": 0.2, "total": 0.5},
    )
    return replace(result, **changes)


def gather(*results: Result) -> ResultSet:
    info = DeviceInfo(
        name="cpu", kind="cpu", model="a CPU", arch="aarch64", units=2, cache_bytes=32 << 20
    )
    run = Run(id="20260101-000000-aaaaaa", started=1.0, environment=Environment(devices=(info,)))
    return ResultSet(run=run, results=results)


def roof(kind: Any, name: str, value: float, **changes: Any) -> Roof:
    made = Roof(
        device="cpu",
        arch="aarch64",
        kind=kind,
        name=name,
        value=value,
        how="a test",
        measured=1.0,
        threads=2,
    )
    return replace(made, **changes)


@pytest.fixture
def make_result() -> Callable[..., Result]:
    return make


@pytest.fixture
def make_set() -> Callable[..., ResultSet]:
    return gather


@pytest.fixture
def make_roof() -> Callable[..., Roof]:
    return roof
