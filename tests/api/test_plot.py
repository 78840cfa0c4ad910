"""plot: the figures of `kmark plot`, from Python."""

from __future__ import annotations

import dataclasses
import html
import importlib.util
import subprocess
import sys

import pytest

import kernelmark as km
from kernelmark import ops
from kernelmark.api.plot import KINDS
from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case, ResultSet, Run, RunState
from kernelmark.testing.stores import measured
from kernelmark_dev.raising import raises


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def results(place):
    """Two backends over two dims, stored as run `first`."""
    cases = [
        Case(problem=ops.parse(f"gemm m={m} n={n} k=8 dtype=f32"), backend=backend)
        for m in (8, 16)
        for n in (8, 16)
        for backend in ("one", "two")
    ]
    made = tuple(
        dataclasses.replace(measured(case, (1e-3 * number,)), flops=1000, bytes=100)
        for number, case in enumerate(cases, 1)
    )
    run = Run(id="first", started=1.79e9, environment=Environment(), state=RunState.DONE)
    with km.open_store(place) as store:
        store.add_result_set(ResultSet(run=run, results=made))
    return km.load("first", store=place)


def values_of(figure):
    found = [figure.spec.get("data"), *(one.get("data") for one in figure.spec.get("layer", ()))]
    return [value for data in found if data for value in data["values"]]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("history", "tuning")])
def test_results_at_hand_and_stored_ones_are_drawn_alike(results, place, kind):
    assert km.plot(kind, results).spec == km.plot(kind, "first", store=place).spec


def test_a_figure_is_saved_as_its_file_name_asks(results, tmp_path):
    saved = km.plot("bars", results).save(tmp_path / "bars.json")
    assert saved == tmp_path / "bars.json"
    if importlib.util.find_spec("vl_convert") is not None:
        assert km.plot("bars", results)._repr_mimebundle_()["image/svg+xml"].startswith("<svg")


def test_a_backend_of_two_runs_is_told_apart(results, place):
    run = dataclasses.replace(results.run, id="second")
    second = km.Results(dataclasses.replace(results.result_set, run=run))
    values = values_of(km.plot("sweep", results, second, x="m"))
    found = {value["backend"] for value in values}
    assert found == {f"{name} ({run})" for name in ("one", "two") for run in ("first", "second")}


def test_history_draws_the_series_of_a_store(results, place):
    assert len(km.plot("history", store=place).spec["vconcat"]) == 8


@pytest.mark.parametrize(
    ("words", "options", "fields"),
    [
        (("pie",), {}, {"what": "figure", "name": "pie"}),
        (("bars",), {"x": "m"}, {"what": "option", "name": "x", "of": "bars"}),
        (("history", "first"), {}, {"figure": "history"}),
        (("history",), {"store": False}, {"figure": "history"}),
        (("tuning",), {}, {"figure": "tuning"}),
        (("roofline", "nosuch"), {}, {"name": "nosuch"}),
    ],
)
def test_arguments_that_a_figure_does_not_take(results, place, words, options, fields):
    with raises(UsageError, **fields):
        km.plot(*words, **{"store": place, **options})


def test_figures_of_results_load_no_statistics_and_no_runner():
    code = "import sys, kernelmark.api.plot as p; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0
    assert not {"scipy", "numpy", "kernelmark.runners.ab"} & set(loaded.stdout.split())


def test_a_page_has_the_figure_and_its_tooltips_without_scripts(results, tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert-python, which make test installs")
    figure = km.plot("bars", results)
    page = figure.save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<svg" in page
    text = html.unescape(page)
    assert all(f"again: {value['again']}" in text for value in values_of(figure))


def test_results_add_up_to_one_figure(results):
    every = results.result_set
    first, rest = (
        km.Results(dataclasses.replace(every, results=part))
        for part in (every.results[:2], every.results[2:])
    )
    assert km.plot("sweep", first + rest, x="m").spec == km.plot("sweep", results, x="m").spec
    assert list(first + rest) == list(sum((first, rest))) == list(results)
    with pytest.raises(TypeError):
        first + list(rest)
    elsewhere = dataclasses.replace(every.run, environment=Environment(host="elsewhere"))
    with pytest.raises(UsageError):
        first + km.Results(dataclasses.replace(every, run=elsewhere))
