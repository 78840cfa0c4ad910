"""Results made by hand, for tests of what is shown of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Roof
from kernelmark.core.result import KernelInfo, Result, ResultSet, Status, StopReason
from kernelmark.core.timing import Timing
from kernelmark_dev import results

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
    case = results.make_case(problem, backend, timing=timing or Timing(), config=config or {})
    op = ops.registry.get(case.problem.op)
    measurement = None
    if median_s is not None:
        measurement = results.make_measurement(
            *((median_s * f, median_s, median_s / f) for f in (0.99, 1.0, 1.01)),
            low_s=median_s * 0.98,
            high_s=median_s * 1.02,
            launches=2,
            sets=3,
            footprint_bytes=1000,
            stop=StopReason.PRECISE,
            warmup_s=0.1,
            timed_s=0.2,
            warnings=warnings,
        )
    result = results.make_result(
        case,
        status=status,
        arch="aarch64",
        flops=op.flops(case.problem),
        bytes=op.bytes(case.problem),
        measurement=measurement,
        check=results.make_check(),
        kernel=KernelInfo(name="sgemm", resources={"workspace_bytes": 64}),
        cost={"timed": 0.2, "total": 0.5},
    )
    return replace(result, **changes)


def gather(*found: Result) -> ResultSet:
    info = DeviceInfo(
        name="cpu", kind="cpu", model="a CPU", arch="aarch64", units=2, cache_bytes=32 << 20
    )
    environment = Environment(kernelmark_version="0", devices=(info,))
    return results.make_set(*found, id="20260101-000000-aaaaaa", environment=environment)


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    return make


@pytest.fixture(scope="session")
def make_set() -> Callable[..., ResultSet]:
    return gather


@pytest.fixture(scope="session")
def make_roof() -> Callable[..., Roof]:
    return functools.partial(results.make_roof, threads=2)
