"""The page on microbenchmarks: up to date, and its example is a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmark.api import micro as api
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.micro import MicroMetric, MicroResult
from kernelmark.core.result import Status
from kernelmark.micro import session

PAGE = Path(__file__).parents[2] / "docs" / "micro.md"
FLAT = " ".join(PAGE.read_text("utf-8").split())


def test_the_number_of_compilations_is_what_the_page_says():
    assert f"together are {len(session.kernel_files())} compilations" in FLAT


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
