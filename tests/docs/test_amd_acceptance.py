"""scripts/amd_acceptance.py: what it measures with and under which variables, on any machine."""

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

import pytest

from kernelmark import ops
from kernelmark.core.verdict import INTERRUPTED, REGRESSION, SOME_FAILED

SCRIPT = Path(__file__).parents[2] / "scripts" / "amd_acceptance.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("amd_acceptance", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["amd_acceptance"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def options(**more):
    """What main() would have been given."""
    few = {"problems": 1, "evaluations": 2, "validators": [], "tensile_logic": None}
    return argparse.Namespace(**few | more)


@pytest.fixture
def no_torch(script, monkeypatch):
    """A Python without PyTorch: to look for it, a process of its own imports it."""
    monkeypatch.setattr(script, "has_torch", lambda: False)


class Recorder:
    """A session that records its steps instead of running them."""

    def __init__(self, folder):
        self.folder = folder
        self.ran = {}
        self.good = {}
        self.shares = {}
        self.failed = []

    def run(self, name, *command, variables=None, good=(0,), share=1.0, **_):
        self.ran[name] = [str(word) for word in command], dict(variables or {})
        self.good[name] = good
        self.shares[name] = share
        return ""

    def add(self, name, *_, passed, **__):
        if not passed:
            self.failed.append(name)

    def limit_s(self, factor, share):
        return share * factor * 60

    def option(self, step, name):
        words = self.ran[step][0]
        return words[words.index(name) + 1]


def test_only_backends_that_are_available_are_measured(script, tmp_path):
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


def test_those_that_depend_on_an_installation_are_taken_if_there(script, tmp_path):
    rows = [
        {"backend": "aiter", "state": "ready", "devices": ["hip"]},
        {"backend": "iree", "state": "ready", "devices": ["cpu", "cuda", "hip"]},
        {"backend": "numpy", "state": "ready", "devices": ["cpu"]},
        {"backend": "torch", "state": "missing", "devices": ["cpu", "cuda", "hip"]},
        {"backend": "triton", "state": "no device", "devices": ["cuda", "hip"]},
    ]
    without, recorder = Recorder(tmp_path), Recorder(tmp_path)
    script.measure(without, "hip:0", "")
    assert (without.failed, without.ran) == (["suite"], {})
    (tmp_path / "backends.json").write_text(json.dumps(rows))
    script.measure(recorder, "hip:0", "")
    assert recorder.option("suite gemm", "-b") == "aiter,iree"


@pytest.mark.usefixtures("no_torch")
def test_rocblas_is_tuned_and_confirmed_without_hipblaslt(script, tmp_path):
    recorder = Recorder(tmp_path)
    for backend in script.WRITTEN:
        script.tune(recorder, "hip:0", backend, options(), 1)
    for step in ("tune-rocblas: plan", "rocblas: tune", "rocblas: confirm rocblas"):
        assert recorder.ran[step][1] == {"ROCBLAS_USE_HIPBLASLT": "0"}
    assert recorder.ran["hipblaslt: tune"][1] == {}
    # Tuning ends before its step is stopped.
    assert 0 < float(recorder.option("hipblaslt: tune", "--minutes")) < 3


@pytest.mark.usefixtures("no_torch")
def test_tuning_leaves_time_for_the_other_library_and_for_confirming(script, tmp_path):
    session = script.Session(tmp_path, 1000, step_seconds=600)
    left = 1000.0
    for number, backend in enumerate(script.WRITTEN):
        recorder = Recorder(tmp_path)
        script.tune(recorder, "hip:0", backend, options(), len(script.WRITTEN) - number)
        share = recorder.shares[f"{backend}: tune"]
        assert 0 < session.limit_s(3, share) <= share * 1000
        left -= share * left
    assert left > 150


def test_a_suite_with_a_wrong_result_is_a_failed_step(script, tmp_path):
    recorder = Recorder(tmp_path)
    script.measure(recorder, "hip:0", "hipblaslt")
    assert {"suite smoke", "suite gemm"} <= recorder.good.keys()
    assert all(SOME_FAILED not in good for good in recorder.good.values())


def test_the_log_has_the_gemms_that_are_tuned(script, tmp_path):
    log = tmp_path / "gemms.log"
    log.write_text(script.bench_log(len(script.SHAPES)), encoding="utf-8")
    command = [*script.KMARK, "import", log, "--workload", tmp_path / "work"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    with (tmp_path / "work" / "workload.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = [f"gemm m={m} n={n} k={k} dtype=bf16 tb=t" for m, n, k in script.SHAPES]
    assert {row["problem"] for row in rows} == {ops.parse(one).key for one in wanted}
    assert {(row["count"], row["lost"]) for row in rows} == {("1", "")}


def test_dispatch_costs_are_printed(script, tmp_path, rocm_folder, monkeypatch):
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))
    monkeypatch.setenv("KERNELMARK_PACK", str(rocm_folder / "pack"))
    session = script.Session(tmp_path, 300)
    out = session.run("dispatch costs", sys.executable, "-c", script.DISPATCH, "hip:0")
    assert session.failed == [], out
    assert [line.partition(":")[0] for line in out.splitlines()] == ["empty", "3 µs"]


@pytest.mark.slow
def test_a_log_is_tuned_written_and_confirmed_on_the_model_of_rocm(
    script, tmp_path, rocm_folder, monkeypatch
):
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
    given = options(evaluations=6, validators=validators)
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


def has_ended(pid: int) -> bool:
    """Whether a process that got its signal ends: init may let it wait as a zombie."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_an_interrupted_run_leaves_a_report_and_no_process(tmp_path):
    number, report = tmp_path / "number", tmp_path / "report.tar.gz"
    command = [sys.executable, "-c", WAITING, str(SCRIPT), str(number)]
    command += ["--folder", str(tmp_path / "work"), "-o", str(report)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as running:
        while not (number.exists() and number.read_text().strip()):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(600) == INTERRUPTED
    assert has_ended(int(number.read_text()))
    with tarfile.open(report) as file:
        written = file.extractfile("amd-acceptance/acceptance.json")
        assert written is not None
        facts = json.load(written)
    assert facts["failed"] == ["waiting"]


def test_a_folder_that_is_not_of_an_earlier_run_is_kept(tmp_path):
    folder, report = tmp_path / "thesis", tmp_path / "report.tar.gz"
    folder.mkdir()
    (folder / "chapter.txt").write_text("of mine")
    command = [sys.executable, "-c", WAITING, str(SCRIPT), str(tmp_path / "number")]
    command += ["--folder", str(folder), "-o", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert not report.exists()
    assert [one.name for one in folder.iterdir()] == ["chapter.txt"]


def test_without_an_amd_gpu_nothing_runs(tmp_path):
    """No GPU is visible here, whatever the machine has; an older report stays."""
    folder, report = tmp_path / "work", tmp_path / "report.tar.gz"
    folder.mkdir()
    (folder / "log.txt").write_text("of the run before")
    command = [sys.executable, str(SCRIPT), "-d", "hip:0", "--folder", folder, "-o", report]
    hidden = {**os.environ, "HIP_VISIBLE_DEVICES": "-1", "ROCM_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden, timeout=600)
    assert done.returncode == 2
    assert not report.exists()
    assert [one.name for one in folder.iterdir()] == ["log.txt"]
    assert "Traceback" not in done.stderr


def test_a_gpu_that_is_there_is_found(script, rocm_folder, monkeypatch):
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))
    assert script.missing_device("hip:0") == ""
    assert script.missing_device("hip:7")


def test_a_search_that_crashes_finds_no_gpu_and_what_it_prints_is_no_reason(script, monkeypatch):
    monkeypatch.setattr(script, "FIND_DEVICE", "import os; os.abort()")
    assert script.missing_device("hip:0")
    monkeypatch.setattr(script, "FIND_DEVICE", "print('a library talks')")
    assert script.missing_device("hip:0") == ""


@pytest.mark.parametrize(
    ("validators", "torch", "written"),
    [([], False, False), ([], True, True), (["PT_VERSION=2.9.1"], False, True)],
)
def test_tunableop_is_written_where_its_versions_are_known(
    script, tmp_path, monkeypatch, validators, torch, written
):
    monkeypatch.setattr(script, "has_torch", lambda: torch)
    recorder = Recorder(tmp_path)
    script.tune(recorder, "hip:0", "hipblaslt", options(validators=validators), 1)
    assert ("hipblaslt: write tunableop" in recorder.ran) == written
    assert ("hipblaslt: confirm tunableop" in recorder.ran) == torch


def test_rocprofv3_is_tried_where_it_is_installed(script, tmp_path, monkeypatch):
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
