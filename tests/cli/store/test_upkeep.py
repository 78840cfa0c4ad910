"""`kmark store`: check, migrate and prune."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_a_sound_store_and_a_damaged_one(kmark, tmp_path):
    assert kmark("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32",
                 "-a", "m=8", "-a", "n=8", "-a", "k=8", "--timing", "quick", "--roofs", "none",
                 "--jobs", "0").code == 0  # fmt: skip
    ended = kmark("store", "check", "--json", "-")
    assert ended.code == 0
    assert json.loads(ended.out)["problems"] == []
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as other, other:
        other.execute("UPDATE results SET median_s = median_s * 2")
    ended = kmark("store", "check", "--json", "-")
    assert ended.code == 3
    assert len(json.loads(ended.out)["problems"]) == 1
    assert kmark("show").code == 2
    assert kmark("export").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("drill", ["damaged stores", "pushes to a killed dashboard"])
def test_drills_of_the_store(drill):
    command = [sys.executable, "benchmarks/drills.py", "--quick", "--only", drill]
    subprocess.run(command, cwd=ROOT, check=True)
