"""Times by other programs: ncu, rocprofv3 and iree-benchmark-module."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kernelmark import backends, devices
from kernelmark.backends.iree.compiler import ToolRound
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.ops import parse
from kernelmark.runners import external_timers
from kernelmark.runners.execute import execute, failure
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Limits
from kernelmark.runners.protocol import MARK, Message
from kernelmark.runners.worker import Server
from kernelmark_dev.raising import raises, raises_code

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
    ("text", "fields"),
    [
        (f"{MARK}1\n", {}),
        (f"{MARK}1\n" + csv(("a", "1", "1"), ("b", "1", "1")), {"seen": 2, "started": 1}),
    ],
)
def test_a_list_that_does_not_fit_is_refused(text: str, fields: dict[str, int]):
    with raises(CaseError, **fields):
        external_timers.parse(text, launches=1)


@pytest.mark.parametrize("cell", ["n/a", "", "(!) n/a", "nan", "inf"])
def test_a_cell_without_a_number_is_refused(cell: str):
    with raises(CaseError, cell=cell):
        external_timers.parse(f"{MARK}1\n" + csv(("a", "1", cell)), launches=1)


def test_other_devices_and_a_missing_profiler_are_told(monkeypatch: pytest.MonkeyPatch):
    with raises_code(Unsupported, "timer-unsupported", device="cpu", timer="profiler"):
        external_timers.profile(CASE, "cpu")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with raises(Unsupported, profiler="ncu"):
        external_timers.profile(CASE, "cuda:0")
    with raises(Unsupported, profiler="rocprofv3"):
        external_timers.profile(CASE, "hip:0")


def profile(**changes: object) -> external_timers.Profile:
    cycles = {external_timers.CYCLES: 14000.0}
    found = external_timers.Profile(
        seconds=7e-6, between_s=(7e-6, 7e-6), metrics=cycles, kernels=("a",)
    )
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def cross_checked(device: FakeDevice, **options: float) -> Result:
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    case = Case(problem=parse("gemm m=16 n=16 k=16 a=f32 b=f32"), backend="fake", timing=timing)
    result = execute(case, device, 0, lambda phase: None, **options)
    assert result.measurement is not None, result.error
    assert result.case.timing.timer == "profiler"
    return result


@pytest.mark.parametrize(
    ("found", "clocks", "also", "warning"),
    [
        (profile(), (), {"profiler_s": 7e-6}, ""),  # the fake device has no clock
        (profile(), (1400.0,), {"profiler_s": 7e-6, "profiler_at_clock_s": 10e-6}, ""),
        (profile(spread=0.08), (), {"profiler_s": 7e-6}, "profiler-unstable"),
        (CaseError("ncu saw no kernel", hint="has it permission?"), (), {}, "not-cross-checked"),
        (ValueError("odd"), (), {}, "not-cross-checked"),
    ],
)
def test_the_profiler_timer_keeps_the_headline_and_adds_a_time(
    monkeypatch, found, clocks, also, warning
):
    timers = []

    def answer(case: Case, device: str, timeout_s: float) -> external_timers.Profile:
        timers.append(str(case.timing.timer))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(external_timers, "find", lambda device: "ncu")
    monkeypatch.setattr(external_timers, "profile", answer)
    measured = cross_checked(FakeDevice(script=Script(clock_mhz=clocks))).measurement
    names = ("profiler_s", "profiler_at_clock_s")
    assert {n: v for n, v in measured.also.items() if n in names} == pytest.approx(also)
    assert warning in ["", *(one.code for one in measured.warnings)]
    assert timers == ["auto"]


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

    ncu(f"sleep 100000 & echo $! > {tmp_path}/watched; wait")
    device = FakeDevice()
    device.info = dataclasses.replace(device.info, name="cuda:0")
    result = cross_checked(device, profile_s=5.0)
    assert "not-cross-checked" in [one.code for one in result.measurement.warnings]
    watched = Path(f"/proc/{(tmp_path / 'watched').read_text().strip()}/stat")
    end = time.monotonic() + 600
    while watched.exists() and watched.read_text().split()[2] != "Z":
        assert time.monotonic() < end, "what ncu watched goes on"
        time.sleep(0.05)


def test_the_profiler_has_the_time_limit_of_a_case_and_an_account_of_its_own(monkeypatch):
    limits = Limits(timeout_s=7.0)
    account, most_s = limits.of("profile")
    assert account not in {limits.of(phase)[0] for phase in ("start", "load", "timing", "check")}
    assert most_s is not None
    assert most_s > 7.0, "the worker must have time to end ncu and tell what it measured"
    given: list[float] = []

    def executed(case, device, process, on_phase, *, profile_s, cutoff_s):
        given.append(profile_s)
        assert cutoff_s is None
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


HIP_CASE = Case(problem=parse("gemm m=8 n=8 k=8 a=f16 b=f16"), backend="hipblaslt")
MAIN = "Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_MI32x32x1_SN_GSU4"
REDUCE = "Cijk_HHS_PostGSU4"
# Kind, agent, queue, …: the columns of ROCm 7, and of rocpd's own conversion, which differ.
DIRECT = (
    *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
    *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size"),
    *("Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"),
    *(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"),
)
CONVERTED = (
    "Guid",
    *(re.sub("LDS|[VS]GPR", lambda found: found[0].capitalize(), name) for name in DIRECT),
)
KINDS = ("direct", "converted", "database")


def trace(main_us: float = 10.0, mark: str = "nothing") -> list[tuple[str, int, int]]:
    """Three launches of two cases in the order of time: fills before, marks around each."""
    rows, now = [("generate_all_2", 3000)], 1_700_000_000_000_000_000
    for launch in range(6):
        split = [(REDUCE, 2000)] if launch < 3 else []
        extra = 500 * (launch % 3)
        rows += [("evict", 9000), (mark, 700), (MAIN, int(main_us * 1000) + extra), *split]
        rows.append((mark, 800))
    found = []
    for name, lasts in rows:
        found.append((name, now, now + lasts))
        now += lasts + 1500
    return found


def write(folder: Path, kind: str, rows: list[tuple[str, int, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "database":
        with sqlite3.connect(folder / "kmark_results.db") as connection:
            connection.execute("CREATE TABLE dispatches (name, start, end, agent_abs_index)")
            connection.execute("CREATE VIEW kernels AS SELECT * FROM dispatches")
            stored = [(*row, 4) for row in reversed(rows)]
            connection.executemany("INSERT INTO dispatches VALUES (?, ?, ?, ?)", stored)
        connection.close()
        return
    columns = DIRECT if kind == "direct" else CONVERTED
    lines = [",".join(f'"{name}"' for name in columns)]
    for name, start, end in reversed(rows):  # the tool sorts by nothing in particular
        cells = dict.fromkeys(columns, "1") | {"Kind": '"KERNEL_DISPATCH"'}
        cells |= {"Kernel_Name": f'"{name}"', "Start_Timestamp": str(start)}
        cells["End_Timestamp"] = str(end)
        lines.append(",".join(cells.values()))
    # In a folder of the host's name, unless told otherwise.
    (folder / "host").mkdir()
    text = "\n".join(lines) + "\n"
    (folder / "host" / "kmark_kernel_trace.csv").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mark", ["nothing", "nothing.kd", "nothing()"])
def test_kernels_of_a_launch_are_summed(tmp_path: Path, kind: str, mark: str) -> None:
    write(tmp_path, kind, trace(mark=mark))
    split, plain = external_timers.read_trace(tmp_path, cases=2, launches=3)
    assert (split.kernels, plain.kernels) == ((MAIN, REDUCE), (MAIN,))
    assert split.seconds == pytest.approx(12.5e-6)
    assert split.between_s == pytest.approx((12e-6, 13e-6))
    assert plain.seconds == pytest.approx(10.5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_that_does_not_fit_is_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind, trace()[:-1])
    with raises(CaseError, seen=11, started=12):
        external_timers.read_trace(tmp_path, cases=2, launches=3)


def test_a_launch_without_kernels_and_a_missing_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError):
        external_timers.read_trace(tmp_path, cases=1, launches=1)
    write(tmp_path, "direct", [row for row in trace() if not row[0].startswith("Cijk")])
    with raises(CaseError, launch=1):
        external_timers.read_trace(tmp_path, cases=2, launches=3)


def test_starts_that_are_no_whole_numbers_are_put_in_order(tmp_path: Path) -> None:
    head, rows = "Kernel_Name,Start_Timestamp,End_Timestamp\n", []
    for name, start in (("nothing", 30.5), ("add", 20.5), ("nothing", 10.5)):
        rows.append(f"{name},{start},{start + 4}\n")
    (tmp_path / "kmark_kernel_trace.csv").write_text(head + "".join(rows), encoding="utf-8")
    (found,) = external_timers.read_trace(tmp_path, cases=1, launches=1)
    assert found.kernels == ("add",)


@pytest.fixture
def rocprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rocprofv3 that writes the next recorded trace where it is told to."""
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, shutil, sys\n"
        "words = sys.argv[1:]\n"
        "own = words[: words.index('--')]\n"
        "assert own[:3] == ['--kernel-trace', '--output-format', 'csv'], own\n"
        "assert 'kernelmark.runners.profiled' in words\n"
        f"runs = sorted(pathlib.Path({str(tmp_path / 'recorded')!r}).iterdir())\n"
        "shutil.move(runs[0], own[own.index('-d') + 1])\n",
        encoding="utf-8",
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return tmp_path / "recorded"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("last_us", "stable"), [(10.4, True), (10.9, False)])
def test_three_runs_are_averaged(rocprof: Path, kind: str, last_us: float, stable: bool) -> None:
    times = (10.0, 10.2, last_us)
    for number, main_us in enumerate(times):
        write(rocprof / str(number), kind, trace(main_us))
    _, plain = external_timers.profile_all([HIP_CASE, HIP_CASE], "hip:0")
    assert plain.seconds == pytest.approx((sum(times) / 3 + 0.5) * 1e-6)
    assert (plain.spread <= external_timers.STABLE) is stable
    assert not list(rocprof.iterdir())


IREE = backends.registry.get("iree")
HOT = Timing(
    cache="hot", timer="iree-benchmark-module", max_s=0.3, warmup_s=0.01, allocations=2, threads=1
)
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
    "change",
    [
        {"backend": "numpy"},
        {"timing": dataclasses.replace(HOT, cache="cold")},
        {"timing": dataclasses.replace(HOT, strain="compute")},
    ],
)
def test_a_case_that_the_program_cannot_time_is_unsupported(cpu, change, monkeypatch):
    monkeypatch.setattr(type(IREE), "available", lambda self: None)
    monkeypatch.setattr(type(IREE), "supports", lambda self, problem, info: None)
    result = execute(dataclasses.replace(GEMM, **change), cpu, 0, lambda phase: None)
    assert result.status is Status.UNSUPPORTED
    reason = result.error
    assert reason.fields["cause"] if reason.code == "hinted" else reason


@needs_iree
def test_every_repetition_is_a_sample_and_every_process_a_block(cpu, monkeypatch):
    given = []

    def benchmark(self, problem, config, device, files, *, repetitions, **rest):
        given.append([np.fromfile(file, np.float32) for file in files])
        times = tuple((len(given) + at) * 1e-6 for at in range(repetitions))
        return ToolRound(samples_s=times, dispatches={}, timed_s=0.2)

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
