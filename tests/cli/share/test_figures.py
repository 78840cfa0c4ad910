"""`--figure` of the commands that have one."""

from __future__ import annotations

import json
import platform
import time

import pytest

from kernelmark.core.metric import Metric
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.result import ResultSet, Run, RunState
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark_dev.results import make_roof


@pytest.fixture
def figure(tmp_path):
    path = tmp_path / "figure.json"
    return str(path), lambda: json.loads(path.read_text())


def test_compare_and_history_draw_what_they_show(kmark, stored, figure):
    path, read = figure
    assert kmark("compare", "mine", "mine", "--figure", path).code == 0
    assert {value["ratio"] for value in read()["data"]["values"]} == {1.0}
    assert kmark("history", "-f", path).code == 0
    assert len(read()["vconcat"]) == 2


@pytest.mark.parametrize(
    "words", [("compare", "a", "b"), ("history",), ("roofs",), ("tune", "show", "x")]
)
def test_a_figure_that_cannot_be_drawn_is_refused_first(refused, words):
    refused(*words, "-f", "figure.txt", file="figure.txt")


def test_roofs_are_drawn(kmark, tmp_path, figure):
    path, read = figure
    found = [
        make_roof(kind, name, value, device="cuda:0", arch="sm_90")
        for kind, name, value in (
            ("bytes", "dram", 4e12),
            ("bytes", "l2", 9e12),
            ("flops", "f32", 6e13),
        )
    ]
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_roofs(found, host=platform.node())
    assert kmark("roofs", "--stored", "-d", "cuda:0", "--figure", path).code == 0
    lines = read()["layer"][0]["data"]["values"]
    assert {value["roof"].split()[0] for value in lines} == {"dram", "l2", "f32"}


def test_a_roofline_has_the_levels_that_microbenchmarks_measured(kmark, stored, tmp_path, figure):
    path, read = figure
    with open_store(tmp_path / "store.sqlite") as store:
        here = store.run("mine").environment
        metric = Metric(name="l1", value=1e13, unit="B/s", roof="bytes l1")
        result = micro_result("cache", metrics=(metric,), device="fake", arch=here.devices[0].arch)
        run = Run(
            id="levels",
            started=time.time(),
            environment=here,
            suite=MICRO_SUITE,
            state=RunState.DONE,
        )
        store.add_result_set(ResultSet(run=run, results=(result,)))
    assert kmark("plot", "roofline", "mine", "-f", path).code == 0
    lines = read()["layer"][0]["data"]["values"]
    assert {value["roof"].split()[0] for value in lines} == {"l1"}


@pytest.mark.parametrize("command", [("show",), ("plot", "bars")])
def test_an_op_that_no_run_can_have_is_refused(refused, stored, command):
    refused(*command, "mine", "-o", "figure.png", what="op")
    refused(*command, "mine", "-o", "conv", code=4, what="result")
