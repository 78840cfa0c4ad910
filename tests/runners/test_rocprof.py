"""The profiler timer of AMD GPUs, on traces in each form that rocprofv3 writes them in."""

from __future__ import annotations

import re
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.ops import parse
from kernelmark.runners import external_timers
from kernelmark.runners.execute import execute
from kernelmark_dev.raising import raises_code

CASE = Case(problem=parse("gemm m=8 n=8 k=8 a=f16 b=f16"), backend="hipblaslt")
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
    with raises_code(CaseError, "profiler-kernels", seen=11, started=12):
        external_timers.read_trace(tmp_path, cases=2, launches=3)


def test_a_launch_without_kernels_and_a_missing_trace_are_refused(tmp_path: Path) -> None:
    with raises_code(CaseError, "profiler-no-trace"):
        external_timers.read_trace(tmp_path, cases=1, launches=1)
    write(tmp_path, "direct", [row for row in trace() if not row[0].startswith("Cijk")])
    with raises_code(CaseError, "profiler-no-kernel", launch=1):
        external_timers.read_trace(tmp_path, cases=2, launches=3)


def test_starts_that_are_no_whole_numbers_are_put_in_order(tmp_path: Path) -> None:
    head, rows = "Kernel_Name,Start_Timestamp,End_Timestamp\n", []
    for name, start in (("nothing", 30.5), ("add", 20.5), ("nothing", 10.5)):
        rows.append(f"{name},{start},{start + 4}\n")
    (tmp_path / "kmark_kernel_trace.csv").write_text(head + "".join(rows), encoding="utf-8")
    (found,) = external_timers.read_trace(tmp_path, cases=1, launches=1)
    assert found.kernels == ("add",)


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kmark_kernel_trace.csv").write_text('"Name","Calls"\n"a",3\n', encoding="utf-8")
    with pytest.raises(UsageError):
        external_timers.read_trace(tmp_path, cases=1, launches=1)


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
    _, plain = external_timers.profile_all([CASE, CASE], "hip:0")
    assert plain.seconds == pytest.approx((sum(times) / 3 + 0.5) * 1e-6)
    assert (plain.spread <= external_timers.STABLE) is stable
    assert not list(rocprof.iterdir())


def test_an_unstable_profile_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    found = external_timers.Profile(
        seconds=7e-6, between_s=(6e-6, 8e-6), metrics={}, kernels=("a",), spread=0.08
    )
    monkeypatch.setattr(external_timers, "find", lambda device: "rocprofv3")
    monkeypatch.setattr(external_timers, "profile", lambda case, device, timeout_s: found)
    timing = Timing.preset("quick", timer="profiler", max_s=0.05)
    case = Case(problem=parse("gemm m=16 n=16 k=16 dtype=f32"), backend="fake", timing=timing)
    result = execute(case, registry.get("fake").open(0), 0, lambda phase: None)
    assert result.measurement is not None, result.error
    assert result.measurement.also["profiler_s"] == 7e-6
    assert "profiler-unstable" in [one.code for one in result.measurement.warnings]
