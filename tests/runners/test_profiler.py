from __future__ import annotations

import dataclasses
import io
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.result import Case, Status
from kernelmark.ops import parse
from kernelmark.runners import external_timers
from kernelmark.runners.execute import failure
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Limits
from kernelmark.runners.protocol import MARK, Message
from kernelmark.runners.worker import Server
from kernelmark_dev.raising import raises_code

CASE = Case(problem=parse("gemm m=8 n=8 k=8 a=f16 b=f16"), backend="triton")
HEAD = '"ID","Kernel Name","gpu__time_duration.sum","sm__cycles_elapsed.max"\n"","","us","cycle"\n'


def csv(*rows: tuple[str, str, str]) -> str:
    lines = [f'"{i}","{name}","{us}","{cycles}"' for i, (name, us, cycles) in enumerate(rows)]
    return "==PROF== Connected\n" + HEAD + "\n".join(lines) + "\n"


def test_kernels_of_a_launch_are_summed_and_launches_give_a_median():
    text = f"{MARK}2\n" + csv(
        ("main", "10.0", "1,000"),
        ("reduce", "2.0", "200"),
        ("main", "11.0", "1,100"),
        ("reduce", "2.0", "200"),
        ("main", "30.0", "3,000"),
        ("reduce", "2.0", "200"),
    )
    (found,) = external_timers.parse(text, launches=3)
    assert found.seconds == pytest.approx(13e-6)
    assert found.metrics[external_timers.CYCLES] == 1300
    assert found.kernels == ("main", "reduce")


def test_cases_are_cut_by_their_marks():
    text = f"{MARK}1\n{MARK}2\n" + csv(("a", "1", "1"), ("b", "2", "2"), ("c", "3", "3"))
    first, second = external_timers.parse(text, launches=1)
    assert (first.kernels, second.kernels) == (("a",), ("b", "c"))
    assert second.seconds == pytest.approx(5e-6)


def test_units_are_those_the_profiler_names():
    text = f"{MARK}1\n" + csv(("a", "1.5", "1")).replace('"us"', '"ms"')
    assert external_timers.parse(text, launches=1)[0].seconds == pytest.approx(1.5e-3)


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        (f"{MARK}1\n", "profiler-no-kernel", {}),
        (
            f"{MARK}1\n" + csv(("a", "1", "1"), ("b", "1", "1")),
            "profiler-kernels",
            {"seen": 2, "started": 1},
        ),
    ],
)
def test_a_list_that_does_not_fit_is_refused(text: str, code: str, fields: dict[str, int]):
    with raises_code(CaseError, code, **fields):
        external_timers.parse(text, launches=1)


@pytest.mark.parametrize("cell", ["n/a", "", "(!) n/a", "nan", "inf"])
def test_a_cell_without_a_number_is_refused(cell: str):
    with raises_code(CaseError, "profiler-cell", cell=cell):
        external_timers.parse(f"{MARK}1\n" + csv(("a", "1", cell)), launches=1)


@pytest.mark.parametrize("name", ["Kernel Name", external_timers.TIME])
def test_a_table_without_a_column_is_refused(name: str):
    text = f"{MARK}1\n" + csv(("a", "1", "1")).replace(f'"{name}"', '"other"')
    with raises_code(CaseError, "profiler-column", column=name):
        external_timers.parse(text, launches=1)


def test_a_row_that_is_too_short_is_refused():
    text = f"{MARK}1\n" + csv(("a", "1", "1")).replace(',"1"\n', "\n")
    with raises_code(CaseError, "profiler-row", cells=3, columns=4):
        external_timers.parse(text, launches=1)


def test_other_devices_and_a_missing_profiler_are_told(monkeypatch: pytest.MonkeyPatch):
    with raises_code(Unsupported, "timer-unsupported", device="cpu", timer="profiler"):
        external_timers.profile(CASE, "cpu")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with raises_code(Unsupported, "profiler-missing", profiler="ncu"):
        external_timers.profile(CASE, "cuda:0")
    with raises_code(Unsupported, "profiler-missing", profiler="rocprofv3"):
        external_timers.profile(CASE, "hip:0")


def test_the_profiler_timer_keeps_the_headline_and_adds_a_time(monkeypatch: pytest.MonkeyPatch):
    from kernelmark.core.timing import Timing
    from kernelmark.devices import registry
    from kernelmark.runners.execute import execute

    seen = []

    def profile(case: Case, device: str, timeout_s: float) -> external_timers.Profile:
        seen.append(str(case.timing.timer))
        cycles = {external_timers.CYCLES: 14000.0}
        return external_timers.Profile(
            seconds=7e-6, between_s=(7e-6, 7e-6), metrics=cycles, kernels=("a",)
        )

    monkeypatch.setattr(external_timers, "find", lambda device: "ncu")
    monkeypatch.setattr(external_timers, "profile", profile)
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    problem = parse("gemm m=16 n=16 k=16 a=f32 b=f32")
    case = Case(problem=problem, backend="fake", timing=timing)
    result = execute(case, registry.get("fake").open(0), 0, lambda phase: None)
    assert result.measurement is not None, result.error
    assert result.measurement.also["profiler_s"] == 7e-6
    assert "profiler_at_clock_s" not in result.measurement.also, "the fake device has no clock"
    assert (result.case.timing.timer, seen) == ("profiler", ["auto"])


def test_its_cycles_are_told_as_a_time_at_the_clock_that_we_measured(monkeypatch):
    from kernelmark.core.timing import Timing
    from kernelmark.devices.fake import FakeDevice, Script
    from kernelmark.runners.execute import execute

    cycles = {external_timers.CYCLES: 14000.0}
    found = external_timers.Profile(
        seconds=7e-6, between_s=(7e-6, 7e-6), metrics=cycles, kernels=("a",)
    )
    monkeypatch.setattr(external_timers, "find", lambda device: "ncu")
    monkeypatch.setattr(external_timers, "profile", lambda case, device, timeout_s: found)
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    problem = parse("gemm m=16 n=16 k=16 a=f32 b=f32")
    case = Case(problem=problem, backend="fake", timing=timing)
    device = FakeDevice(script=Script(clock_mhz=(1400.0,)))
    result = execute(case, device, 0, lambda phase: None)
    assert result.measurement is not None, result.error
    assert result.measurement.also["profiler_at_clock_s"] == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            CaseError("ncu saw no kernel", hint="does the profiler have permission?"),
            "not cross-checked: ncu saw no kernel (does the profiler have permission?)",
        ),
        (ValueError("odd"), "not cross-checked: ValueError: odd"),
    ],
)
def test_what_was_measured_is_kept_when_the_profiler_fails(monkeypatch, error, told):
    from kernelmark.core.timing import Timing
    from kernelmark.devices import registry
    from kernelmark.runners.execute import execute

    def profile(case: Case, device: str, timeout_s: float) -> external_timers.Profile:
        raise error

    monkeypatch.setattr(external_timers, "find", lambda device: "ncu")
    monkeypatch.setattr(external_timers, "profile", profile)
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    case = Case(problem=parse("gemm m=16 n=16 k=16 a=f32 b=f32"), backend="fake", timing=timing)
    result = execute(case, registry.get("fake").open(0), 0, lambda phase: None)
    assert result.measurement is not None, result.error
    assert any(warning.startswith(told) for warning in result.measurement.warnings)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a shell script where ncu would be."""

    def made(script: str) -> None:
        path = tmp_path / "ncu"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return made


def test_a_profiler_that_takes_too_long_leaves_the_measurement_and_no_process(ncu, tmp_path):
    from kernelmark.core.timing import Timing
    from kernelmark.devices.fake import FakeDevice
    from kernelmark.runners.execute import execute

    ncu(f"sleep 100000 & echo $! > {tmp_path}/watched; wait")
    device = FakeDevice()
    device.info = dataclasses.replace(device.info, name="cuda:0")
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    case = Case(problem=parse("gemm m=16 n=16 k=16 a=f32 b=f32"), backend="fake", timing=timing)
    result = execute(case, device, 0, lambda phase: None, profile_s=5.0)
    assert result.measurement is not None, result.error
    assert "not-cross-checked" in [one.code for one in result.measurement.warnings]
    watched = Path(f"/proc/{(tmp_path / 'watched').read_text().strip()}/stat")
    end = time.monotonic() + 600
    while watched.exists() and watched.read_text().split()[2] != "Z":
        assert time.monotonic() < end, "what ncu watched goes on"
        time.sleep(0.05)


def test_a_profiler_that_does_not_start_is_told(ncu):
    ncu("")
    profiler_path = Path(external_timers.find("cuda:0"))
    profiler_path.write_text("no program")
    with raises_code(CaseError, "not-started", program="ncu"):
        external_timers.profile(CASE, "cuda:0")


def test_the_profiler_has_the_time_limit_of_a_case_and_an_account_of_its_own(monkeypatch):
    limits = Limits(timeout_s=7.0)
    account, most_s = limits.of("profile")
    assert account not in {limits.of(phase)[0] for phase in ("start", "load", "timing", "check")}
    assert most_s is not None
    assert most_s > 7.0, "the worker must have time to end ncu and tell what it measured"
    given: list[float] = []

    def executed(case, device, process, on_phase, *, profile_s):
        given.append(profile_s)
        return failure(case, device.info, Status.UNSUPPORTED, "no", started=0.0)

    monkeypatch.setattr("kernelmark.runners.execute.execute", executed)
    sent: list[Message] = []
    workers = SimpleNamespace(start=lambda spec: SimpleNamespace(send=sent.append))
    pool = LocalRunner(["fake"], timeout_s=7.0, workers=workers).pool()
    pool.submit(pool.devices[0], MeasureCase(case=CASE))
    server = Server(device="fake", threads=0, out=io.BytesIO())
    server.open(touch=True)
    server.serve(sent[0])
    assert given == [7.0]


def test_without_a_profiler_nothing_is_measured_for_it(monkeypatch):
    from kernelmark.core.timing import Timing
    from kernelmark.devices import registry
    from kernelmark.runners.execute import execute

    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    case = Case(problem=parse("gemm m=16 n=16 k=16 a=f32 b=f32"), backend="fake", timing=timing)
    phases: list[str] = []
    result = execute(case, registry.get("fake").open(0), 0, phases.append)
    assert result.status == "unsupported"
    assert phases == ["load"]
