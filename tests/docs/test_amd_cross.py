"""benchmarks/amd_cross.py: arguments by which nothing would be compiled."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "amd_cross.py"


@pytest.mark.parametrize("words", [["--only", "nonsense"], ["--arch", "gfx999"], ["--arch"]])
def test_nothing_is_written_if_nothing_is_compiled(tmp_path, words):
    pytest.importorskip("triton", reason="needs Triton, which make test installs")
    result = tmp_path / "results.json"
    command = [sys.executable, str(SCRIPT), *words, "-o", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not result.exists()
