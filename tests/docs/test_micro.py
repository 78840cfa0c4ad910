"""The page on microbenchmarks: up to date, and its example is a benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernelmark.api import micro as api
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.micro import MicroMetric, MicroResult
from kernelmark.core.result import Status
from kernelmark.micro import build_ahead, registry
from kernelmark.micro.execute import execute, open_rig
from kernelmark.report.micro_figure import figure
from kernelmark.testing import emulator
from kernelmark.testing.micro import MicroContract

PAGE = Path(__file__).parents[2] / "docs" / "micro.md"
FLAT = " ".join(PAGE.read_text("utf-8").split())


@pytest.fixture
def example(compiler, tmp_path, monkeypatch):
    """The benchmark of the recipe, known as if its file were there."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (text,) = (block for block in blocks if "class Empty" in block)
    space: dict[str, object] = {}
    exec(text, space)
    monkeypatch.setitem(registry._loaded, "empty", space["benchmark"])
    return space["benchmark"]


def test_the_example_runs_and_is_drawn(example):
    with emulator.emulated(block=64):
        rig = open_rig("cuda:0")
        result = execute(example, rig, "quick")
        rig.close()
    assert result.status is Status.OK, result.error
    assert len(result.rows) == 5
    assert len(figure(result)["data"]["values"]) == 5


@pytest.mark.parametrize("test", [name for name in dir(MicroContract) if name.startswith("test_")])
def test_the_example_keeps_the_contract(example, test):
    getattr(MicroContract(), test)("empty")


def test_the_number_of_compilations_is_what_the_page_says():
    assert f"together are {len(build_ahead.files())} compilations" in FLAT


@pytest.mark.parametrize("limits_too", [False, True])
def test_a_file_is_held_to_the_limits_that_it_has(tmp_path, limits_too):
    """The check finds mistakes, but not a file whose limits were edited too."""
    made = MicroResult(
        benchmark="cache",
        device="cuda:0",
        arch="sm_90",
        status=Status.OK,
        started=1.0,
        metrics=(MicroMetric(name="l1", value=3e13, unit="B/s", limit=3.3e13),),
    )
    (document,) = json.loads(api.to_json([made]))
    document["metrics"][0]["value"] *= 1000
    document["metrics"][0]["limit"] *= 1000 if limits_too else 1
    file = tmp_path / "edited.json"
    file.write_text(json.dumps([document]))
    if limits_too:
        assert api.read(file)[0].status is Status.OK
    else:
        with pytest.raises(KernelmarkError, match="above the physical limit"):
            api.read(file)
