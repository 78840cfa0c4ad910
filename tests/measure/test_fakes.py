"""Kernel files that do not do the work of every launch are refused; honest ones are not.

In process and on one core, with a cache that is assumed small so that cold timing has few sets.
What only its time gives away is judged by the thread's CPU time, as other work on the machine takes
none of it: on a wall clock, beside five busy processes, a fake passed now and then. Each set is
launched often, also where each launch takes long: a fake that skips later launches of a set is
honest until then.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernelmark.backends.numpy import set_threads
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.devices.cpu import CpuDevice
from kernelmark.ops import registry
from kernelmark.runners.execute import execute

TESTS = Path(__file__).parent.parent
EXAMPLE = TESTS.parent / "examples" / "gemm_numpy.py"
CACHE_BYTES = 2**20
# By value: a fake may also be faster than the hardware can be.
REFUSED = ("wrong", "impossible")


def _listing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fakes_list", TESTS / "fakes" / "_list.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


LISTING = _listing()
FAKES: list[Any] = list(LISTING.fakes("cpu"))
# The state that takes longer, of fakes that take a second; the other one is tried by `make test`.
LONGER = {
    "cpu_background": Cache.HOT,
    "cpu_collector": Cache.COLD,
    "cpu_dense_skipped": Cache.COLD,
    "cpu_honest_once_audited": Cache.COLD,
    "cpu_marked_input": Cache.COLD,
    "half_the_keys": Cache.HOT,
    "slow_after_pause": Cache.HOT,
}
# What the most modest fake gains, and how often a fake is measured at most.
LEAST_GAIN, ATTEMPTS = 0.05, 5
HONEST = [*sorted((TESTS / "fakes" / "honest").glob("*.py")), EXAMPLE]


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    cores = len(os.sched_getaffinity(0))
    device = CpuDevice(1)
    device.info = dataclasses.replace(device.info, cache_bytes=CACHE_BYTES)
    set_threads(1)  # two BLAS threads on one core wait for each other
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(**{**vars(time), "perf_counter_ns": time.thread_time_ns})
        patch.setattr("kernelmark.devices.cpu.time", clock)
        yield device
    set_threads(cores)
    device.close()


def run(device: CpuDevice, path: Path, problem: Problem, cache: Cache) -> Result:
    timing = Timing(
        cache=cache,
        threads=1,
        allocations=1,
        max_allocations=1,
        min_samples=16,
        min_sample_s=0.002,
        max_s=0.06,
        warmup_s=0.01,
    )
    case = Case(problem=problem, backend=str(path), timing=timing)
    return execute(case, device, 0, lambda phase: None)


def marks(path: Path, cache: Cache) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if LONGER.get(path.stem) is cache else []


@pytest.mark.parametrize(
    "fake", [pytest.param(f, id=f.name, marks=marks(f.path, f.cache)) for f in FAKES]
)
def test_a_fake_is_refused(device: CpuDevice, fake: Any) -> None:
    """A gain within the interval is not refused, nor seen by anybody, and what the audit could not
    repeat is not ranked: where other work does that, the fake is measured again."""
    for _ in range(ATTEMPTS):
        result = run(device, fake.path, fake.problem, fake.cache)
        if result.status.value in REFUSED:
            return
        measured = result.measurement
        assert measured is not None, result.error
        assert not measured.reliable or measured.rel_half_width > LEAST_GAIN, result
    pytest.skip("other work on this machine leaves no interval that is narrow enough")


@pytest.mark.parametrize(
    ("path", "cache"),
    [
        pytest.param(path, cache, id=f"{path.stem}-{cache}", marks=marks(path, cache))
        for path in HONEST
        for cache in (Cache.HOT, Cache.COLD)
    ],
)
def test_an_honest_kernel_is_not(device: CpuDevice, path: Path, cache: Cache) -> None:
    problem = registry.get("gemm").problem(dtype="f32", **LISTING.SHAPES["cpu"]["gemm"])
    result = run(device, path, problem, cache)
    assert result.status is Status.OK, result.error


@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.parametrize("op", ["batched_gemm", "attention", "conv"])
def test_nor_of_another_op(device: CpuDevice, op: str, cache: str) -> None:
    problem = registry.get(op).problem(dtype="f32", **LISTING.SHAPES["cpu"][op])
    result = run(device, TESTS / "fakes" / "honest" / "plain.py", problem, Cache(cache))
    assert result.status is Status.OK, result.error


def test_every_fake_is_tried_hot_and_cold() -> None:
    tried = {(fake.path.stem, str(fake.cache)) for fake in FAKES}
    assert len({stem for stem, _ in tried}) >= 20
    assert {"hot", "cold"} == {cache for _, cache in tried}
