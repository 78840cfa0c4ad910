"""The page on microbenchmarks: up to date, and its example is a benchmark."""

import json
from pathlib import Path

import pytest

from kernelmark.api.results import read_file
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.metric import Metric
from kernelmark.core.result import ResultSet, Run, Status
from kernelmark.micro import session
from kernelmark.testing.micro import micro_result
from kernelmark_dev.raising import raises_code

PAGE = Path(__file__).parents[2] / "docs" / "micro-benchmarks.md"
FLAT = " ".join(PAGE.read_text("utf-8").split())


def test_the_number_of_compilations_is_what_the_page_says():
    assert f"together are {len(session.kernel_files())} compilations" in FLAT


@pytest.mark.parametrize("limits_too", [False, True])
def test_a_file_is_held_to_the_limits_that_it_has(tmp_path, limits_too):
    """The check finds mistakes, but not a file whose limits were edited too."""
    metric = Metric(name="l1", value=3e13, unit="B/s", limit=3.3e13)
    run = Run(id="r", started=1.0, environment=Environment())
    made = ResultSet(run=run, results=(micro_result(metrics=(metric,)),))
    document = codec.to_document(made)
    edited = document["results"][0]["metrics"][0]
    edited["value"] *= 1000
    edited["limit"] *= 1000 if limits_too else 1
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(document))
    if limits_too:
        assert read_file(str(file)).results[0].status is Status.OK
    else:
        with raises_code(KernelmarkError, "above-physical", name="l1"):
            read_file(str(file))
