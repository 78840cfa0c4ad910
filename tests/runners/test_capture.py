from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys

import numpy as np

from kernelmark.core.environment import Environment
from kernelmark.runners import capture
from kernelmark.runners.targets import find


def git(folder, *words):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_this_machine_is_described():
    seen = capture.environment([find("cpu")[1]], ["numpy"])
    assert seen.host == platform.node()
    assert platform.python_version() in seen.python
    assert seen.libraries["numpy"] == np.__version__
    assert [device.kind for device in seen.devices] == ["cpu"]
    assert seen == capture.environment([find("cpu")[1]], ["numpy"])


def test_frameworks_are_not_imported_to_learn_their_version():
    code = (
        "import sys; from kernelmark.runners.capture import environment;"
        "from kernelmark.runners.targets import find;"
        "environment([find('cpu')[1]], ['torch', 'iree', 'triton', 'numpy']);"
        "print([m for m in ('torch', 'iree', 'triton', 'scipy', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_variables_that_matter_are_kept_and_no_others(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HSA_ENABLE_SDMA", "0")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    of_amd = (
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_MAX_HW_QUEUES"),
        *("AMD_SERIALIZE_KERNEL", "ROCBLAS_USE_HIPBLASLT", "HIPBLASLT_TUNING_OVERRIDE_FILE"),
        *("AMDGCN_USE_BUFFER_OPS", "AITER_CONFIG_GEMM_BF16", "PYTORCH_TUNABLEOP_ENABLED"),
    )
    for name in of_amd:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SOME_PASSWORD", "secret")
    monkeypatch.setenv("KERNELMARK_STORE", "/data/results.sqlite")
    kept = capture.variables()
    assert kept["OMP_NUM_THREADS"] == "3"
    assert kept["HSA_ENABLE_SDMA"] == "0"
    assert kept["LD_LIBRARY_PATH"] == "/opt/lib"
    assert {kept[name] for name in of_amd} == {"1"}
    assert "SOME_PASSWORD" not in kept
    assert "KERNELMARK_STORE" not in kept


def test_commit_and_changes_of_the_current_repository(tmp_path):
    assert capture.git_state(tmp_path) == ("", False)
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit, dirty = capture.git_state(tmp_path)
    assert len(commit) == 40
    assert not dirty
    (tmp_path / "untracked").write_text("")
    assert capture.git_state(tmp_path) == (commit, False)
    (tmp_path / "file").write_text("two")
    assert capture.git_state(tmp_path) == (commit, True)


def test_a_container_is_noticed(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert capture.container() == "kubernetes"
    monkeypatch.setenv("APPTAINER_NAME", "rocm.sif")
    assert capture.container() == "apptainer rocm.sif"


def test_what_a_worker_saw_completes_what_the_parent_knows():
    run = Environment(host="h", commit="c", dirty=True, python="3.11", libraries={"torch": "?"})
    seen = dataclasses.replace(
        Environment(), host="other", python="3.12", libraries={"torch": "2.4+cu121"}
    )
    whole = capture.merge_worker_environment(run, seen)
    assert (whole.host, whole.commit, whole.dirty) == ("h", "c", True)
    assert (whole.python, whole.libraries["torch"]) == ("3.12", "2.4+cu121")
