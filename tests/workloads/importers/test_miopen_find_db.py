"""MIOpen's find-db as results: the times of its solvers."""

from __future__ import annotations

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

FORWARD = "16-32-30-3x5-64-32-15-8-1x2-1x2-1x1-0-NCHW-FP16-F"
BACKWARD = "64-32-15-3x5-16-32-30-8-1x2-1x2-1x1-0-NCHW-FP16-B"
NEW = "SolverA:0.05,1024,miopenConvolutionFwdAlgoDirect;SolverB:0.07,0,miopenConvolutionFwdAlgoGEMM"
OLD = "miopenConvolutionFwdAlgoGEMM:gemm,0.25,0,<unused>,<unused>"


def read(tmp_path, text, name="gfx90a68.HIP.3_2_0.ufdb.txt"):
    path = tmp_path / name
    path.write_text(text)
    importer = importers.recognized(path)
    assert importer is not None
    assert importer.name == "miopen-find-db"
    return importers.read(path, Overrides()).results


def test_every_solver_is_a_case(tmp_path):
    one, two = read(tmp_path, f"{FORWARD}={NEW}\n")
    assert (one.case.problem.op, one.case.backend, one.arch) == ("conv", "miopen", "gfx90a")
    assert [one.case.config["solver"], two.case.config["solver"]] == ["SolverA", "SolverB"]
    assert one.measurement.median_s == pytest.approx(5e-5)
    assert one.flops > 0


def test_a_backward_pass_is_named_by_the_sizes_of_the_forward_pass(tmp_path):
    (one, _) = read(tmp_path, f"{BACKWARD}={NEW}\n", "db.txt")
    assert one.case.problem.op == "miopen_conv_backward_data"
    assert {name: one.case.problem.dims[name] for name in ("c", "h", "w", "k")} == {
        "c": 16, "h": 32, "w": 30, "k": 64,
    }  # fmt: skip


def test_records_of_before_2(tmp_path):
    (one,) = read(tmp_path, f"{FORWARD}={OLD};{OLD.replace('0.25', '0.5')}\n")
    assert one.case.config == {"solver": "gemm"}
    assert one.measurement.median_s == pytest.approx(2.5e-4), "the first, as MIOpen reads it"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("gfx942130.HIP.fdb.txt", "gfx942"),
        ("gfx1030_36.HIP.fdb.txt", "gfx1030"),
        ("gfx90878.HIP.fdb.txt", "gfx908"),
        ("other.fdb.txt", ""),
    ],
)
def test_the_name_of_the_file_has_the_architecture(tmp_path, name, arch):
    assert read(tmp_path, f"{FORWARD}={NEW}\n", name)[0].arch == arch


@pytest.mark.parametrize(
    "broken",
    [
        FORWARD,
        f"{FORWARD}=",
        f"{FORWARD}=SolverA",
        f"{FORWARD}=SolverA:0.05",
        f"{FORWARD}=SolverA:x,0,y",
        f"{FORWARD}=:0.05,0,y",
        f"1{FORWARD[:20]}={NEW}",
        f"{FORWARD}={NEW}\nx",
    ],
)
def test_what_is_no_record_is_refused(tmp_path, broken):
    with pytest.raises(UsageError):
        read(tmp_path, broken + "\n")
