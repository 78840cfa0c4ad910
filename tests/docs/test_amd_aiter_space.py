"""benchmarks/amd_aiter_space.py: tuned configs inside and outside the space."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "amd_aiter_space.py"
TILE = {"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 4}
TILE |= {"num_warps": 8, "num_stages": 2, "waves_per_eu": 2, "matrix_instr_nonkdim": 16}


def count(folder, **changed):
    pytest.importorskip("triton", reason="needs Triton, which make test installs")
    configs = folder / "gemm"
    configs.mkdir()
    for arch in ("gfx942", "gfx950"):
        buckets = {"M_LEQ_64": {**TILE, "BLOCK_SIZE_M": 64, "NUM_KSPLIT": 7}, "any": TILE | changed}
        (configs / f"{arch}-GEMM-A16W16-N=512-K=7168.json").write_text(json.dumps(buckets))
    result = folder / "results.json"
    command = [sys.executable, str(SCRIPT), str(configs), "-o", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(result.read_text())["figures"]["outside"]


def test_tuned_configs_are_in_the_space(tmp_path):
    assert count(tmp_path) == (0, [])


def test_a_config_outside_is_named(tmp_path):
    code, outside = count(tmp_path, BLOCK_SIZE_M=512)
    assert code == 1
    assert [row["bucket"] for row in outside] == ["any", "any"]


def test_a_folder_without_configs_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True)
    assert done.returncode == 2
