"""Results and runs made by hand, for tests of what is said about them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelmark.core.problem import parse_key
from kernelmark.core.result import Block, Case, KernelInfo, Measurement, Result, ResultSet, Status
from kernelmark.core.timing import Timing
from kernelmark.stats.interval import measured_interval
from kernelmark_dev import results


def measurement(processes: Sequence[Sequence[float]]) -> Measurement:
    """Block times in seconds, by process."""
    blocks = [
        Block(process=p, allocation=a, samples_s=(time_s,))
        for p, times in enumerate(processes)
        for a, time_s in enumerate(times)
    ]
    return results.make_measurement(*blocks, low_s=0.0, high_s=float("inf"))


def make(
    *blocks_us: float,
    problem: str = "gemm m=1 n=1 k=1",
    backend: str = "numpy",
    processes_us: Sequence[Sequence[float]] | None = None,
    status: Status = Status.OK,
    binary: str = "",
    config: dict[str, Any] | None = None,
    timing: Timing | None = None,
    **changes: Any,
) -> Result:
    """A result with blocks of these µs, in one process or in several."""
    by_process = processes_us or ([list(blocks_us)] if blocks_us else [])
    measured = (
        measurement([[t * 1e-6 for t in times] for times in by_process]) if by_process else None
    )
    return results.make_result(
        Case(
            problem=parse_key(problem),
            backend=backend,
            timing=timing or Timing(),
            config=config or {},
        ),
        **{"arch": "aarch64", "status": status, "measurement": measured}
        | {"kernel": KernelInfo(binary_hash=binary)}
        | changes,
    )


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    return make


@pytest.fixture(scope="session")
def make_set() -> Callable[..., ResultSet]:
    return functools.partial(results.make_set, id="one")


def mixed(
    rng: np.random.Generator,
    factor: float = 1.0,
    shares: Sequence[float] = (0.55, 0.2, 0.25),
    values_us: Sequence[float] = (35.2, 36.8, 38.2),
    **changes: Any,
) -> Result:
    """Four blocks of 30 samples that each draw their mode, `factor` times as long: noise of 0.35 %,
    and 0.5 % between blocks."""
    blocks = []
    for number in range(4):
        drawn = rng.choice(values_us, p=shares, size=30) * factor * 1e-6
        noise = 0.0035 * rng.standard_normal(30) + 0.005 * rng.standard_normal()
        times = tuple(float(t) for t in drawn * np.exp(noise))
        blocks.append(Block(process=0, allocation=number, samples_s=times))
    found = measured_interval(blocks)
    result = make(1.0, **changes)
    assert result.measurement is not None
    whole = replace(
        result.measurement,
        blocks=tuple(blocks),
        low_s=found.low_s,
        high_s=found.high_s,
        modes=found.modes,
    )
    return replace(result, measurement=whole)


@pytest.fixture(scope="session")
def make_mixed() -> Callable[..., Result]:
    return mixed
