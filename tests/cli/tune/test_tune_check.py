"""`kmark tune check`, and what other commands say of a GPU that is not here."""

import csv
import importlib.util
import io

import pytest

from kernelmark import devices
from kernelmark_dev.tuning import fake_plans, make_folder

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which make test installs"
)


@pytest.fixture
def planned(kmark, tmp_path):
    place = str(tmp_path / "amd")
    ended = kmark(
        *("tune", "plan", place, "-b", "triton", "--arch", "gfx942"),
        *("-p", "gemm m=256 n=256 k=256 dtype=bf16 tb=t"),
    )
    assert ended.code == 0, ended.err
    assert f"next: kmark tune check {place}, and where there is a gfx942:" in ended.err
    return place


@pytest.mark.slow
@needs_triton
def test_it_tells_registers_and_spills_of_each_candidate(kmark, planned):
    ended = kmark("tune", "check", planned, "--candidates", "2", "--jobs", "1", "--csv", "-")
    assert ended.code == 0, ended.err
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert len(rows) == 2
    assert {row["arch"] for row in rows} == {"gfx942"}
    assert all(int(row["registers"]) > 0 and row["spilled_registers"] != "" for row in rows)
    assert "2 candidates of 1 plan compiled for gfx942" in ended.err


@needs_triton
@pytest.mark.skipif(
    devices.registry.get("hip").available() is None,
    reason="there is an AMD GPU: this tests what is said without one",
)
def test_a_run_without_the_gpu_says_what_can_be_done_here(refused, planned):
    ended = refused("tune", "run", planned)
    assert "gfx942" in ended.reason
    assert f"'kmark tune check {planned}'" in ended.err


@pytest.mark.skipif(
    devices.registry.get("hip").available() is None,
    reason="there is an AMD GPU: this tests what is said without one",
)
def test_a_run_of_what_check_refuses_does_not_point_to_it(kmark, refused, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "op = 'gemm'\nspace = {'rows': [1, 2]}\ndef prepare(problem, config, sets): return print\n"
    )
    place = str(tmp_path / "own")
    words = ("-b", str(mine), "--arch", "gfx942", "-p", "gemm m=8 n=8 k=8 dtype=f32")
    assert kmark("tune", "plan", place, *words).code == 0
    ended = refused("tune", "run", place)
    assert "gfx942" in ended.reason
    assert "kmark tune check" not in ended.err


def test_it_says_what_it_refuses(refused, tmp_path):
    folder = make_folder(tmp_path / "t", fake_plans(1))
    refused("tune", "check", str(folder.path), arch="fake")
    none = str(tmp_path / "none")
    refused("tune", "check", none, folder=none)
