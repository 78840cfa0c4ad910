"""Which kernel a library runs once a file of winners is installed."""

import subprocess

import pytest

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import KernelInfo
from kernelmark.tune.install import apply
from kernelmark.tune.install import apply as confirming
from kernelmark.tune.install.apply import Proof, confirm, logged_names
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.results import Choice
from kernelmark_dev.tuning import make_outcome

LT = "Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x1_SN"
OWN_CHOICE = "Cijk_Ailk_Bljk_SB_MT32x64x16_MI32x32x1_SN"
TENSILE = "Cijk_Ailk_Bljk_SB_MT64x32x8_SE_K1"


def winner(key, backend, name, index, version):
    kernel = KernelInfo(name=name, resources={"solution_index": index})
    tuned = Choice(
        backend=backend,
        config={"solution": name},
        median_s=14e-6,
        kernel=kernel,
        worst=0.1,
        version=version,
    )
    return make_outcome(1.4, problem=ops.parse(key), device="hip:0", arch="gfx90a", tuned=tuned)


def written(form, outcome, path):
    emitter = registry.get(form)
    change = apply.prepare(emitter, [outcome], path)
    assert not change.skipped
    apply.write(emitter, change, path)
    return path


@pytest.mark.parametrize(
    ("form", "name", "index", "version"),
    [("hipblaslt", LT, 3, "100202-fa4e0000"), ("rocblas", TENSILE, -13, "5.2.0.fa4e0000")],
)
@pytest.mark.parametrize("key", ["gemm m=6 n=4 k=8 dtype=f32", "batched_gemm batch=2 m=6 n=4 k=8"])
def test_a_library_runs_what_its_file_says_or_ignores_it(
    rocm, tmp_path, monkeypatch, form, name, index, version, key
):
    if "dtype" not in key:
        key += " dtype=f32 tb=t"
    outcome = winner(key, form, name, index, version)
    path, emitter = written(form, outcome, tmp_path / "tuned"), registry.get(form)
    (found,) = confirm(emitter, [outcome], path)
    assert (found.proof, found.ran) == (Proof.CONFIRMED, name), found.detail
    # Another build has another solution under the index: the library does not complain.
    monkeypatch.setenv("FAKE_ROCM_BUILD", "1")
    (found,) = confirm(emitter, [outcome], path)
    assert found.proof is Proof.IGNORED
    assert found.ran != name


@pytest.mark.parametrize("form", ["hipblaslt", "rocblas"])
def test_a_winner_without_its_entry_is_told_from_an_ignored_one(rocm, tmp_path, form):
    name, index = (LT, 3) if form == "hipblaslt" else (TENSILE, -13)
    version = "100202-fa4e0000" if form == "hipblaslt" else "5.2.0.fa4e0000"
    there = winner("gemm m=6 n=4 k=8 dtype=f32", form, name, index, version)
    path = written(form, there, tmp_path / "tuned")
    other = winner("gemm m=7 n=4 k=8 dtype=f32", form, name, index, version)
    moved = winner("gemm m=6 n=4 k=8 dtype=f32", form, name, index - 1, version)
    # hipBLASLt's number in rocBLAS's file, and one that hipBLASLt's reader skips.
    unfit = winner("gemm m=6 n=4 k=8 dtype=f32", form, LT, 4 if form == "rocblas" else 0, version)
    found = list(confirm(registry.get(form), [other, moved, unfit, there], path))
    assert [one.proof for one in found] == [Proof.ABSENT] * 3 + [Proof.CONFIRMED]


@pytest.mark.parametrize("build", ["0", "1"])
def test_a_kernel_that_runs_without_the_file_too_proves_nothing_of_the_file(
    rocm, tmp_path, monkeypatch, build
):
    """The library's own choice has index 1, and index 2 in the next build."""
    version = "100202-fa4e0000"
    outcome = winner("gemm m=6 n=4 k=8 dtype=f32", "hipblaslt", OWN_CHOICE, 1, version)
    path = written("hipblaslt", outcome, tmp_path / "tuned")
    # An override that the user has set already must not be taken for the library's own choice.
    monkeypatch.setenv("HIPBLASLT_TUNING_OVERRIDE_FILE", str(path))
    monkeypatch.setenv("FAKE_ROCM_BUILD", build)
    (found,) = confirm(registry.get("hipblaslt"), [outcome], path)
    proof = Proof.UNPROVEN if build == "0" else Proof.IGNORED
    assert found.proof is proof, found
    assert (found.ran == OWN_CHOICE) == (build == "0")


@pytest.mark.parametrize(
    ("with_file", "alone", "code", "proof"),
    [
        (f"Running kernel: {TENSILE}\n", "", 0, Proof.CONFIRMED),
        (f"Running kernel: {TENSILE}\n", "", 1, Proof.UNKNOWN),
        ("", "", 0, Proof.UNKNOWN),
    ],
)
def test_a_library_that_logs_no_kernel_without_the_file_runs_another_one(
    tmp_path, monkeypatch, with_file, alone, code, proof
):
    """rocBLAS has kernels of its own for vectors, which Tensile does not log."""
    outcome = winner("gemm m=1 n=4 k=8 dtype=f32", "rocblas", TENSILE, -13, "5.2.0.fa4e0000")
    path = written("rocblas", outcome, tmp_path / "tuned")

    def run(command, *, env, **_):
        is_set = "ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH" in env
        out = (with_file if is_set else alone).encode()
        return subprocess.CompletedProcess(command, 0 if is_set else code, out, b"failed\n")

    monkeypatch.setattr(confirming, "run_child", run)
    (found,) = confirm(registry.get("rocblas"), [outcome], path)
    assert found.proof is proof, found.detail


def test_a_run_that_fails_proves_nothing(rocm, tmp_path, monkeypatch):
    outcome = winner("gemm m=6 n=4 k=8 dtype=f32", "hipblaslt", LT, 3, "100202-fa4e0000")
    path = written("hipblaslt", outcome, tmp_path / "tuned")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))  # where there is none
    (found,) = confirm(registry.get("hipblaslt"), [outcome], path)
    assert found.proof is Proof.UNKNOWN
    assert found.detail
    assert not found.detail.startswith(KernelmarkError.__module__)


def test_what_cannot_be_installed_is_refused(tmp_path):
    with pytest.raises(UsageError):
        confirm(registry.get("python"), [], tmp_path)
    with pytest.raises(UsageError):
        confirm(registry.get("hipblaslt"), [], tmp_path / "nothing")


def test_a_missing_library_is_built_and_not_exported(tmp_path):
    """What `kmark export --as tensile` writes is not the library that is confirmed."""
    hints = {}
    for name in ("hipblaslt", "tensile"):
        with pytest.raises(UsageError) as refused:
            confirming.check_file(registry.get(name), tmp_path / "none")
        hints[name] = refused.value.hint
    assert "kmark export" in hints["hipblaslt"]
    assert "kmark export" not in hints["tensile"]


def test_a_library_must_have_been_built_from_tensile_logic(tmp_path):
    emitter, file = registry.get("tensile"), tmp_path / "gfx90a" / "TensileLibrary_lazy_gfx90a.dat"
    file.parent.mkdir()
    (file.parent / "aldebaran_Cijk_Ailk_Bljk_SB.yaml").touch()
    with pytest.raises(UsageError):
        confirm(emitter, [], tmp_path)
    file.touch()
    assert list(confirm(emitter, [], tmp_path)) == []


def test_names_are_those_of_the_call():
    call = {"m": "8", "n": "4", "k": "2", "transA": "T", "transB": "N", "batch_count": "1"}
    line = (
        "- { function: matmul, M: 8, N: 4, K: 2, transA: T, transB: N, batch_count: 1, "
        "solution_index: 5, solution_Name: Cijk_A, kernel_name: Cijk_B, call_count: 2 }\n"
    )
    other = line.replace("M: 8", "M: 9").replace("Cijk_A", "Cijk_C")
    without = line.replace("solution_Name: Cijk_A, ", "")
    assert logged_names(other + line + without, call) == ["Cijk_A"]
