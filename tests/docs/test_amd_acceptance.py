"""scripts/amd_acceptance.py: what it measures with and under which variables, on any machine."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelmark import ops
from kernelmark.core.verdict import INTERRUPTED, REGRESSION, SOME_FAILED

SCRIPT = Path(__file__).parents[2] / "scripts" / "amd_acceptance.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("amd_acceptance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["amd_acceptance"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_torch(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without PyTorch: to look for it, a process of its own imports it."""
    monkeypatch.setattr(script, "has_torch", lambda: False)


class Recorder:
    """A session that records its steps instead of running them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: dict[str, tuple[list[str], dict[str, str]]] = {}
        self.good: dict[str, Any] = {}
        self.shares: dict[str, float] = {}
        self.failed: list[str] = []

    def run(
        self,
        name: str,
        *command: object,
        variables: Any = None,
        good: Any = (0,),
        share: float = 1.0,
        **_: object,
    ) -> str:
        self.ran[name] = [str(word) for word in command], dict(variables or {})
        self.good[name] = good
        self.shares[name] = share
        return ""

    def add(self, name: str, *_: object, passed: bool, **__: object) -> None:
        if not passed:
            self.failed.append(name)

    def limit_s(self, factor: float, share: float) -> float:
        return share * factor * 60

    def option(self, step: str, name: str) -> str:
        words = self.ran[step][0]
        return words[words.index(name) + 1]


def test_only_backends_that_are_available_are_measured(script: ModuleType, tmp_path: Path) -> None:
    session = script.Session(tmp_path, 300)
    listed = tmp_path / "backends.json"
    session.run("backends", *script.KMARK, "list", "backends", "--json", listed)
    assert not session.failed
    here = script.available(listed, "cpu")
    assert "numpy" in here
    assert "hipblaslt" not in here
    recorder = Recorder(tmp_path)
    script.measure(recorder, "cpu", "")
    assert recorder.option("suite smoke", "-b") == ",".join(here)


def test_those_that_depend_on_an_installation_are_taken_if_there(
    script: ModuleType, tmp_path: Path
) -> None:
    rows = [
        {"backend": "aiter", "state": "ready", "devices": ["hip"]},
        {"backend": "iree", "state": "ready", "devices": ["cpu", "cuda", "hip"]},
        {"backend": "numpy", "state": "ready", "devices": ["cpu"]},
        {"backend": "torch", "state": "missing", "devices": ["cpu", "cuda", "hip"]},
        {"backend": "triton", "state": "no device", "devices": ["cuda", "hip"]},
    ]
    (tmp_path / "backends.json").write_text(json.dumps(rows))
    recorder = Recorder(tmp_path)
    script.measure(recorder, "hip:0", "")
    assert recorder.option("suite gemm", "-b") == "aiter,iree"


def test_without_a_backend_the_suite_fails(script: ModuleType, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    script.measure(recorder, "hip:0", "")
    assert recorder.failed == ["suite"]
    assert not recorder.ran


@pytest.mark.usefixtures("no_torch")
def test_rocblas_is_tuned_and_confirmed_without_hipblaslt(
    script: ModuleType, tmp_path: Path
) -> None:
    given = argparse.Namespace(problems=1, evaluations=2, validators=[], tensile_logic=None)
    recorder = Recorder(tmp_path)
    for backend in script.WRITTEN:
        script.tune(recorder, "hip:0", backend, given, 1)
    for step in ("tune-rocblas: plan", "rocblas: tune", "rocblas: confirm rocblas"):
        assert recorder.ran[step][1] == {"ROCBLAS_USE_HIPBLASLT": "0"}
    assert recorder.ran["hipblaslt: tune"][1] == {}


def test_tuning_ends_before_its_step_is_stopped(script: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(problems=1, evaluations=2, validators=[], tensile_logic=None)
    recorder = Recorder(tmp_path)
    script.tune(recorder, "hip:0", "hipblaslt", given, 1)
    assert 0 < float(recorder.option("hipblaslt: tune", "--minutes")) < 3


@pytest.mark.usefixtures("no_torch")
def test_tuning_leaves_time_for_the_other_library_and_for_confirming(
    script: ModuleType, tmp_path: Path
) -> None:
    session = script.Session(tmp_path, 1000, step_seconds=600)
    left = 1000.0
    for number, backend in enumerate(script.WRITTEN):
        recorder = Recorder(tmp_path)
        given = argparse.Namespace(problems=1, evaluations=2, validators=[], tensile_logic=None)
        script.tune(recorder, "hip:0", backend, given, len(script.WRITTEN) - number)
        share = recorder.shares[f"{backend}: tune"]
        assert 0 < session.limit_s(3, share) <= share * 1000
        left -= share * left
    assert left > 150


def test_a_suite_with_a_wrong_result_is_a_failed_step(script: ModuleType, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    script.measure(recorder, "hip:0", "hipblaslt")
    assert {"suite smoke", "suite gemm"} <= recorder.good.keys()
    assert all(SOME_FAILED not in good for good in recorder.good.values())


def test_the_log_has_the_gemms_that_are_tuned(script: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "gemms.log"
    log.write_text(script.bench_log(len(script.SHAPES)), encoding="utf-8")
    command = [*script.KMARK, "import", log, "--workload", tmp_path / "work"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with (tmp_path / "work" / "workload.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = [f"gemm m={m} n={n} k={k} dtype=bf16 tb=t" for m, n, k in script.SHAPES]
    assert {row["problem"] for row in rows} == {ops.parse(one).key for one in wanted}
    assert {(row["count"], row["lost"]) for row in rows} == {("1", "")}


@pytest.mark.slow
def test_a_log_is_tuned_written_and_confirmed_on_the_model_of_rocm(
    script: ModuleType, tmp_path: Path, rocm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps with their real commands; in f32 and small, which is what the model can compute."""
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))
    monkeypatch.setenv("KERNELMARK_PACK", str(rocm_folder / "pack"))
    monkeypatch.setattr(script, "SHAPES", ((6, 4, 8),))
    log = script.bench_log
    monkeypatch.setattr(script, "bench_log", lambda n: log(n).replace("bf16_r", "f32_r"))
    monkeypatch.setattr(script, "has_torch", lambda: False)
    session = script.Session(tmp_path / "work", 3600)
    versions = ("HIPBLASLT_VERSION=100202-fa4e0000", "ROCBLAS_VERSION=5.2.0.fa4e0000")
    validators = ["PT_VERSION=2.9.1", "HIP_VERSION=702", "GCN_ARCH_NAME=gfx90a:sramecc+", *versions]
    given = argparse.Namespace(problems=1, evaluations=6, validators=validators, tensile_logic=None)
    for backend in script.WRITTEN:
        script.tune(session, "hip:0", backend, given, 1)
    assert session.failed == [], (session.folder / "log.txt").read_text()
    assert {"hipblaslt: confirm hipblaslt", "rocblas: confirm rocblas"} <= {
        step.name for step in session.steps
    }
    session.write("acceptance.json")
    script.collect(session.folder, tmp_path / "report.tar.gz")
    with tarfile.open(tmp_path / "report.tar.gz") as file:
        names = {Path(name).name for name in file.getnames()}
    written = {f"{name}.{form}" for name, forms in script.WRITTEN.items() for form in forms}
    assert {"log.txt", "acceptance.json", *written} - {"hipblaslt.tensile"} <= names
    # A library that ignores the file must not pass.
    monkeypatch.setenv("FAKE_ROCM_BUILD", "1")
    place = session.folder / "hipblaslt.hipblaslt"
    folder = session.folder / "tune-hipblaslt"
    confirm = (*script.KMARK, "tune", "confirm", folder, "--as", "hipblaslt", "--to", place)
    session.run("confirm in the next build", *confirm)
    assert session.failed == ["confirm in the next build"]
    assert session.steps[-1].code == REGRESSION


# main() with one step that waits until it is ended.
WAITING = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("amd_acceptance", sys.argv.pop(1))
script = importlib.util.module_from_spec(spec)
sys.modules["amd_acceptance"] = script
spec.loader.exec_module(script)
command = ("sh", "-c", f"echo $$ > {sys.argv.pop(1)}; exec sleep 600")
script.missing_device = lambda device: ""
script.describe_machine = lambda session: session.run("waiting", *command)
script.main()
"""


def test_an_interrupted_run_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    number, report = tmp_path / "number", tmp_path / "report.tar.gz"
    command = [sys.executable, "-c", WAITING, str(SCRIPT), str(number)]
    command += ["--folder", str(tmp_path / "work"), "-o", str(report)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as running:
        while not (number.exists() and number.read_text().strip()):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    with tarfile.open(report) as file:
        written = file.extractfile("amd-acceptance/acceptance.json")
        assert written is not None
        facts = json.load(written)
    assert facts["failed"] == ["waiting"]


def test_a_folder_that_is_not_of_an_earlier_run_is_kept(tmp_path: Path) -> None:
    folder, report = tmp_path / "thesis", tmp_path / "report.tar.gz"
    folder.mkdir()
    (folder / "chapter.txt").write_text("of mine")
    command = [sys.executable, "-c", WAITING, str(SCRIPT), str(tmp_path / "number")]
    command += ["--folder", str(folder), "-o", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert not report.exists()
    assert [one.name for one in folder.iterdir()] == ["chapter.txt"]


def test_few_problems_have_one_that_every_library_tunes(script: ModuleType) -> None:
    """rocBLAS has nothing to tune for vectors on gfx90a."""
    assert min(script.SHAPES[0]) > 1


@pytest.mark.parametrize("device", ["hip:0", "cpu"])
def test_without_an_amd_gpu_nothing_runs(tmp_path: Path, device: str) -> None:
    """No GPU is visible here, whatever the machine has; an older report stays."""
    folder, report = tmp_path / "work", tmp_path / "report.tar.gz"
    folder.mkdir()
    (folder / "log.txt").write_text("of the run before")
    command = [sys.executable, str(SCRIPT), "-d", device, "--folder", folder, "-o", report]
    hidden = {**os.environ, "HIP_VISIBLE_DEVICES": "-1", "ROCM_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden, timeout=120)
    assert done.returncode == 2
    assert not report.exists()
    assert [one.name for one in folder.iterdir()] == ["log.txt"]
    assert "Traceback" not in done.stderr


def test_a_gpu_that_is_there_is_found(
    script: ModuleType, rocm_folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))
    assert script.missing_device("hip:0") == ""
    assert script.missing_device("hip:7")


def test_a_search_that_crashes_finds_no_gpu_and_what_it_prints_is_no_reason(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "FIND_DEVICE", "import os; os.abort()")
    assert script.missing_device("hip:0")
    monkeypatch.setattr(script, "FIND_DEVICE", "print('a library talks')")
    assert script.missing_device("hip:0") == ""


@pytest.mark.parametrize(
    ("validators", "torch", "written"),
    [([], False, False), ([], True, True), (["PT_VERSION=2.9.1"], False, True)],
)
def test_tunableop_is_written_where_its_versions_are_known(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: Any,
    validators: Any,
    torch: bool,
    written: bool,
) -> None:
    monkeypatch.setattr(script, "has_torch", lambda: torch)
    given = argparse.Namespace(problems=1, evaluations=2, validators=validators, tensile_logic=None)
    recorder = Recorder(tmp_path)
    script.tune(recorder, "hip:0", "hipblaslt", given, 1)
    assert ("hipblaslt: write tunableop" in recorder.ran) == written
    assert ("hipblaslt: confirm tunableop" in recorder.ran) == torch


def test_rocprofv3_is_tried_where_it_is_installed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    recorder = Recorder(tmp_path)
    script.measure(recorder, "hip:0", "hipblaslt")
    assert "profiler" not in recorder.ran
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.touch(0o755)
    script.measure(recorder, "hip:0", "hipblaslt")
    assert recorder.option("profiler", "--timer") == "profiler"
