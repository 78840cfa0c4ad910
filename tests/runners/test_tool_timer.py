"""timer=iree-benchmark-module: what it refuses, and what becomes of the program's times."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kernelmark import backends, devices
from kernelmark.backends.iree.tools import Round
from kernelmark.core.errors import Unsupported
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.execute import execute
from kernelmark.runners.external_timers import check_case

IREE = backends.registry.get("iree")
HOT = Timing(
    cache="hot", timer="iree-benchmark-module", max_s=0.3, warmup_s=0.01, allocations=2, threads=1
)
OPTIONS = ("--cache hot", "--strain none", "--duty sustained")
GEMM = Case(problem=parse("gemm m=8 n=4 k=16 dtype=f32"), backend="iree", timing=HOT)
needs_iree = pytest.mark.skipif(
    IREE.available() is not None, reason=IREE.available() or "available"
)


@pytest.fixture
def cpu():
    opened = devices.registry.get("cpu").open(0, threads=1)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"backend": "numpy"}, "timer-of-iree"),
        ({"timing": dataclasses.replace(HOT, cache="cold")}, "timer-hot-only"),
        ({"timing": dataclasses.replace(HOT, strain="compute")}, "timer-hot-only"),
    ],
)
def test_a_case_that_the_program_cannot_time_is_unsupported(cpu, change, code, monkeypatch):
    monkeypatch.setattr(type(IREE), "available", lambda self: None)
    monkeypatch.setattr(type(IREE), "supports", lambda self, problem, info: None)
    result = execute(dataclasses.replace(GEMM, **change), cpu, 0, lambda phase: None)
    assert result.status is Status.UNSUPPORTED
    reason = result.error
    assert (reason.fields["cause"] if reason.code == "hinted" else reason).code == code


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"cache": "cold"}, ("--cache hot",)),
        ({"duty": "burst"}, ("--duty sustained",)),
        ({"cache": "cold", "strain": "compute"}, ("--cache hot", "--strain none")),
    ],
)
def test_the_hint_has_only_the_options_that_have_to_change(change, options):
    with pytest.raises(Unsupported) as caught:
        check_case(dataclasses.replace(GEMM, timing=dataclasses.replace(HOT, **change)), IREE)
    assert tuple(option for option in OPTIONS if option in caught.value.hint) == options


@needs_iree
def test_every_repetition_is_a_sample_and_every_process_a_block(cpu, monkeypatch):
    given = []

    def benchmark(self, problem, config, device, files, *, repetitions, **rest):
        given.append([np.fromfile(file, np.float32) for file in files])
        times = tuple((len(given) + at) * 1e-6 for at in range(repetitions))
        return Round(samples_s=times, dispatches={}, timed_s=0.2)

    monkeypatch.setattr(type(IREE), "benchmark", benchmark)
    result = execute(GEMM, cpu, 3, lambda phase: None)
    assert result.status is Status.OK
    measured = result.measurement
    assert measured.method == "iree-benchmark-module"
    assert [block.samples_s for block in measured.blocks] == [
        tuple((number + at) * 1e-6 for at in range(HOT.min_samples)) for number in (1, 2)
    ]
    assert {block.process for block in measured.blocks} == {3}
    assert measured.timed_s == pytest.approx(0.4)
    assert measured.footprint_bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    # The inputs are those of a measurement, the same for every process.
    assert [len(one) for one in given[0]] == [8 * 16, 16 * 4, 8 * 4]
    assert all(np.array_equal(a, b) for a, b in zip(given[0][:2], given[1][:2], strict=True))
    assert 0 < np.abs(given[0][0]).max() <= 1


@needs_iree
def test_the_program_times_the_module_that_was_checked(cpu):
    result = execute(GEMM, cpu, 0, lambda phase: None)
    assert (result.status, result.error) == (Status.OK, "")
    assert result.check.passed
    assert len(result.measurement.blocks) >= HOT.allocations
    assert all(len(block.samples_s) == HOT.min_samples for block in result.measurement.blocks)


@needs_iree
def test_a_program_that_fails_is_a_runtime_error(cpu, monkeypatch):
    monkeypatch.setattr(
        "kernelmark.backends.iree.command", lambda *given: ["/bin/sh", "-c", "exit 7", "--"]
    )
    result = execute(GEMM, cpu, 0, lambda phase: None)
    assert result.status is Status.RUNTIME_ERROR
    assert result.measurement is None
