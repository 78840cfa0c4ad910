"""The page on microbenchmarks: up to date, and its example is a benchmark."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kernelmark.core.result import Status
from kernelmark.micro import build_ahead
from kernelmark.micro.execute import execute, open_rig
from kernelmark.testing import emulator

PAGE = Path(__file__).parents[2] / "docs" / "micro.md"


def test_the_example_runs(tmp_path, monkeypatch):
    if not shutil.which("c++"):
        pytest.skip("there is no C++ compiler here")
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (example,) = (block for block in blocks if "class Empty" in block)
    space: dict[str, object] = {}
    exec(example, space)
    with emulator.emulated(block=64):
        rig = open_rig("cuda:0")
        result = execute(space["benchmark"], rig, "quick")
        rig.close()
    assert result.status is Status.OK, result.error
    assert len(result.rows) == 5


def test_the_number_of_compilations_is_what_the_page_says():
    assert "ten compilations" in " ".join(PAGE.read_text("utf-8").split())
    assert len(build_ahead.files()) == 10
