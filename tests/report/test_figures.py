"""Figures: each is drawn from plain results, and says why it cannot be."""

from __future__ import annotations

import dataclasses
import importlib.util
import math

import pytest

from kernelmark.compare.history import story
from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Run, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report import figures, tuning, vega
from kernelmark.report.changes import Change
from kernelmark.report.results import result_rows
from kernelmark.stores import SeriesPoint
from kernelmark.tune.journal import Trial
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_history, make_roof

ROOFS = [make_roof("bytes", "dram", 2e10), make_roof("flops", "f32", 1e11)]
needs_drawing = pytest.mark.skipif(
    importlib.util.find_spec("vl_convert") is None,
    reason="needs vl-convert-python, which make test installs",
)


@pytest.fixture
def made(make_result, make_set):
    """Rows of two backends over two dims; `two` is always twice as fast."""
    found = [
        make_result(
            f"gemm m={m} n={n} k=64 dtype=f32", backend=backend, median_s=factor * m * n * 1e-9
        )
        for m in (64, 128, 1024)
        for n in (32, 64)
        for backend, factor in (("one", 1.0), ("two", 0.5))
    ]
    return result_rows(make_set(*found), ROOFS)


def specs(made):
    return {
        "roofline": figures.roofline(made, ROOFS),
        "bars": figures.bars(made),
        "ecdf": figures.ecdf(made, "one"),
        "sweep": figures.sweep(made, "m"),
        "heatmap": figures.heatmap(made, "m", "n", "one", "two"),
        "samples": figures.samples(made),
    }


def test_every_kind_of_results_is_here(made):
    assert specs(made).keys() == figures.RESULT_KINDS.keys()


@needs_drawing
@pytest.mark.parametrize("dark", ["light", "dark"])
def test_every_kind_can_be_drawn(made, tmp_path, dark):
    for name, spec in specs(made).items():
        whole = figures.themed(spec, title=name, dark=dark == "dark")
        drawn = vega.save(whole, tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert "</svg>" in drawn
        assert "NaN" not in drawn


@needs_drawing
def test_names_from_files_may_hold_control_characters(made, tmp_path):
    evil = [dataclasses.replace(row, backend="\x1b[31m<b>\x00") for row in made]
    for kind in (".svg", ".html", ".json", ".png"):
        path = vega.save(figures.themed(figures.samples(evil), title="\x07"), tmp_path / f"a{kind}")
        drawn = path.read_bytes()
        assert drawn
        assert kind == ".png" or not {0, 7, 27} & set(drawn)


def test_points_of_a_roofline_lie_under_their_roofs(made):
    *lines, points = figures.roofline(made, ROOFS)["layer"]
    assert lines
    for point in points["data"]["values"]:
        assert point["y"] > 0
    roofs = {value["roof"] for value in lines[0]["data"]["values"]}
    assert len(roofs) == 2
    highest = max(value["y"] for value in lines[0]["data"]["values"])
    assert math.isclose(highest, 1e11)


def test_ratios_are_those_of_the_times(made):
    found = figures.heatmap(made, "m", "n", "one", "two")["data"]["values"]
    assert len(found) == 6
    assert all(math.isclose(value["ratio"], 2.0) for value in found)
    curve = figures.ecdf(made, "one")["layer"][0]["data"]["values"]
    assert {value["ratio"] for value in curve} == {2.0}
    assert curve[-1]["share"] == 1.0
    bars = figures.bars(made)["data"]["values"]
    assert {round(value["ratio"], 6) for value in bars} == {1.0, 2.0}


def test_an_interval_that_says_nothing_does_not_stretch_an_axis(made):
    (row, *_) = made
    wide = dataclasses.replace(row.result.measurement, low_s=1e-12, high_s=math.inf)
    result = dataclasses.replace(row.result, measurement=wide)
    spec = figures.sweep([dataclasses.replace(row, result=result), *made[1:]], "m")
    for value in spec["data"]["values"]:
        assert value["flops_high"] <= 2 * value["flops"]


@pytest.mark.parametrize(
    ("draw", "error"),
    [
        (lambda rows: figures.roofline([], ROOFS), NothingToDo),
        (lambda rows: figures.bars(rows[:1]), NothingToDo),
        (lambda rows: figures.ecdf(rows, "three"), UsageError),
        (lambda rows: figures.ecdf(rows[:1]), NothingToDo),
        (lambda rows: figures.sweep(rows, "q"), NothingToDo),
        (lambda rows: figures.sweep(rows[:1]), NothingToDo),
        (lambda rows: figures.heatmap(rows[:1]), NothingToDo),
        (lambda rows: figures.heatmap(rows, base="three"), UsageError),
        (lambda rows: figures.samples([]), NothingToDo),
        (lambda rows: figures.history([]), NothingToDo),
        (lambda rows: tuning.tuning_figure({"plan": []}), NothingToDo),
    ],
)
def test_what_cannot_be_drawn_is_told(made, draw, error):
    alone = [row for row in made if row.result.case.backend == "one"]
    with pytest.raises(error):
        draw(alone)


def trial(seconds, **config):
    return Trial(config=config, step="full", status=Status.OK, seconds=seconds)


def test_progress_and_importance_of_a_search():
    trials = [
        trial(4.0 if tile == 1 else 1.0, tile=tile, noise=i % 2)
        for i, tile in enumerate((1, 2, 1, 2))
    ]
    found = tuning.importance(trials)
    assert found["tile"] > 0.99
    assert found["noise"] > 0.99  # alternates with the tile
    spec = tuning.tuning_figure({"plan": trials})
    assert [value["us"] for value in spec["vconcat"][0]["data"]["values"]] == [4e6, 1e6, 1e6, 1e6]


def test_failures_are_drawn_in_a_history():
    good = SeriesPoint(
        series="gemm m=8 | numpy | {} | t | x", run_id="a", started=1.0, status=Status.OK,
        device="cpu", fingerprint="f", median_s=1e-3, low_s=1e-3, high_s=1e-3, flops=1, bytes=1,
    )  # fmt: skip
    bad = dataclasses.replace(
        good, run_id="b", started=2.0, status=Status.CRASHED, median_s=None, low_s=None, high_s=None
    )
    skipped = dataclasses.replace(bad, run_id="c", started=3.0, status=Status.SKIPPED)
    (panel,) = figures.history([story([good, bad, skipped])])["vconcat"]
    drawn = [layer["data"]["values"] for layer in panel["layer"] if "data" in layer]
    assert [(one["run"], one["state"]) for one in drawn[-1]] == [("b", "crashed")]


def test_the_ridge_is_drawn_beside_points_that_are_far_from_it(make_result, make_set):
    many = make_result("gemm m=4096 n=4096 k=4096 dtype=f32", median_s=1.0)
    spec = figures.roofline(result_rows(make_set(many), ROOFS), ROOFS)
    lines = spec["layer"][0]["data"]["values"]
    ridge = ROOFS[1].value / ROOFS[0].value
    assert min(one["x"] for one in lines) < ridge < max(one["x"] for one in lines)
    assert {one["kind"] for one in lines} == {"memory", "compute"}


def test_history_of_a_metric_is_drawn_in_its_unit():
    name = "gemm m=1 | a | {} | t | x"
    timed = SeriesPoint(
        run_id="r", started=1.0, status=Status.OK, device="cpu", fingerprint="f", series=name
    )
    metric = {"metric": "read", "value": 5e9, "unit": "B/s", "series": f"{name} | read"}
    points = [dataclasses.replace(timed, **given) for given in (metric, {"median_s": 2e-6})]
    drawn = figures.history([story([point]) for point in points])
    found = [
        (panel["layer"][0]["encoding"]["y"]["title"], panel["data"]["values"][0]["value"])
        for panel in drawn["vconcat"]
    ]
    assert found == [("B/s", 5e9), ("µs", pytest.approx(2.0))]


def change(m: int, ratio: float | None, status: str, **more) -> Change:
    bounds = {} if ratio is None else {"low": ratio * 0.98, "high": ratio * 1.02}
    given = {"base": 1e-5, "head": ratio and 1e-5 * ratio, **bounds, **more}
    return Change(
        problem=f"gemm m={m}",
        backend="numpy",
        status=VerdictStatus(status),
        reason=Reason.of(""),
        ratio=ratio,
        **given,
    )


def test_changes_are_drawn_by_what_they_cost_with_their_intervals():
    found = [
        change(1, 1.0, "same"),
        change(2, 1.1, "slower"),
        change(3, 1.5, "slower"),
        change(4, None, "broken"),
        change(5, 1.2, "slower", low=1e-9, high=1e9),
    ]
    values = figures.changes(found)["data"]["values"]
    assert [value["kernel"].split(",")[0] for value in values] == [
        *("gemm m=3", "gemm m=5", "gemm m=2", "gemm m=1")
    ]
    assert (values[0]["low"], values[0]["high"]) == (pytest.approx(1.47), pytest.approx(1.53))
    assert values[1]["low"] == values[1]["high"] == 1.2, "an interval that says nothing is left out"
    with raises(NothingToDo, what="row"):
        figures.changes([change(4, None, "broken")])


def level(name: str, value: float, kind: str = "bytes") -> Roof:
    return dataclasses.replace(ROOFS[0], name=name, value=value, kind=kind)


def test_every_memory_level_has_its_line():
    levels = [
        level("l1", 1e13),
        level("l2", 5e12),
        level("dram", 1e12),
        level("f16", 1e15, "flops"),
    ]
    layers = figures.ceilings(levels)["layer"]
    lines = layers[0]["data"]["values"]
    assert {value["roof"].split()[0] for value in lines} == {"l1", "l2", "dram", "f16"}
    tops = {v["roof"].split()[0]: v["y"] for v in lines}
    assert all(math.isclose(top, 1e15) for top in tops.values()), "each rises to the compute roof"
    with raises(NothingToDo, needs="a memory roof"):
        figures.ceilings([level("f16", 1e15, "flops")])


def search() -> list[Trial]:
    return [
        trial(1e-5 * (1 + tile / 64) * (1.1 if warps == 8 else 1.0), tile=tile, warps=warps, kind=k)
        for tile in (16, 32, 64, 128)
        for warps in (4, 8)
        for k in ("a", "b")
    ]


def test_parallel_coordinates_have_a_line_a_candidate_and_the_most_important_axis_first():
    spec = tuning.coordinates("plan", search())
    assert spec is not None
    lines, labels = (layer["data"]["values"] for layer in spec["layer"])
    assert spec["layer"][0]["encoding"]["x"]["sort"] == ["tile", "warps", "kind", "time"]
    assert len({value["line"] for value in lines}) == 16
    assert all(0 <= value["y"] <= 1 for value in lines)
    tiles = {label["value"]: label["y"] for label in labels if label["axis"] == "tile"}
    assert sorted(tiles, key=lambda name: tiles[name]) == ["16", "32", "64", "128"]
    assert lines[-1]["us"] == min(value["us"] for value in lines), "the fastest is drawn last"


def test_a_search_of_thousands_is_thinned_and_keeps_the_fastest():
    many = [trial(1e-5 * (1 + i), tile=i % 7, seed=i) for i in range(5000)]
    spec = tuning.coordinates("plan", many)
    assert spec is not None
    lines = spec["layer"][0]["data"]["values"]
    assert len({value["line"] for value in lines}) <= 400
    assert math.isclose(min(value["us"] for value in lines), 10.0)


@needs_drawing
def test_new_figures_can_be_drawn(tmp_path):
    specs = {
        "changes": figures.changes([change(2, 1.1, "slower"), change(3, 0.9, "faster")]),
        "roofs": figures.ceilings([level("l2", 5e12), level("f16", 1e15, "flops")]),
        "tuning": tuning.tuning_figure({"plan": search()}),
    }
    for name, spec in specs.items():
        drawn = vega.save(
            figures.themed(spec, title=figures.TITLES[name]), tmp_path / f"{name}.svg"
        ).read_text(encoding="utf-8")
        assert "NaN" not in drawn


def of(row, **changed):
    return dataclasses.replace(row, result=dataclasses.replace(row.result, **changed))


def test_where_everything_failed_there_is_nothing_to_draw(made):
    failed = [of(row, status=Status.CRASHED, measurement=None) for row in made]
    for kind, draw in figures.RESULT_KINDS.items():
        with pytest.raises(NothingToDo):
            draw(failed, **({"roofs": ROOFS} if kind == "roofline" else {}))


def test_what_failed_is_named_among_the_bars_and_has_no_time(made):
    first, second, *rest = made
    third = dataclasses.replace(second, backend="three")
    crashed = of(third, status=Status.CRASHED, measurement=None)
    spec = figures.bars([first, second, crashed, *rest])
    assert {value["backend"] for value in spec["data"]["values"]} == {"one", "two"}
    (failed,) = [layer["data"]["values"] for layer in spec["layer"] if "data" in layer]
    assert [(value["problem"], value["backend"]) for value in failed] == [(first.problem, "three")]
    assert len(figures.bars(made)["layer"]) == len(spec["layer"]) - 1


def without_time(row, status=Status.CRASHED):
    return of(row, status=status, measurement=None)


def test_a_failure_breaks_and_marks_the_line_of_a_sweep(made):
    broken = next(row for row in made if row.backend == "one" and "m=128" in row.problem)
    rows = [without_time(row) if row is broken else row for row in made]
    spec = figures.sweep(rows, "m")
    (gap,) = [value for value in spec["data"]["values"] if "flops" not in value]
    assert (gap["backend"], gap["x"]) == ("one", 128)
    assert gap["rest"] in {value["rest"] for value in spec["data"]["values"] if "flops" in value}
    for panel in spec["vconcat"]:
        area, line, _, cross = panel["layer"]
        assert area["mark"]["invalid"] == line["mark"]["invalid"] == "break-paths-filter-domains"
        assert [value["problem"] for value in cross["data"]["values"]] == [broken.problem]
    assert all(len(panel["layer"]) == 3 for panel in figures.sweep(made, "m")["vconcat"])


def test_what_is_unsupported_breaks_a_line_without_a_mark(made):
    rows = [without_time(made[0], Status.UNSUPPORTED), *made[1:]]
    spec = figures.sweep(rows, "m")
    assert sum("flops" not in value for value in spec["data"]["values"]) == 1
    assert all(len(panel["layer"]) == 3 for panel in spec["vconcat"])


def test_a_failure_among_many_lines_is_marked_and_is_no_gap_of_their_median(many):
    rows = [without_time(many[0]), *many[1:]]
    spec = figures.sweep(rows, "m")
    assert all("flops" in value for value in spec["data"]["values"])
    first = many[0].result.case.problem.dims["m"], many[0].backend
    counts = {(v["x"], v["backend"]): v["problems"] for v in spec["data"]["values"]}
    assert counts.pop(first) == 49
    assert set(counts.values()) == {50}
    assert len(spec["vconcat"][0]["layer"][-1]["data"]["values"]) == 1


def test_a_failed_cell_of_a_heatmap_is_marked(made):
    rows = [without_time(row) if row is made[0] else row for row in made]
    spec = figures.heatmap(rows, "m", "n", "one", "two")
    assert len(spec["data"]["values"]) == 5
    (failed,) = spec["layer"][-1]["data"]["values"]
    dims = made[0].result.case.problem.dims
    assert (failed["x"], failed["y"]) == (dims["m"], dims["n"])
    assert failed["backend"] == made[0].backend


def test_bars_of_several_runs_are_over_the_fastest_of_all(made):
    slow = [row for row in made if row.backend == "one"]
    again = [dataclasses.replace(row, backend="one (b)", times_best=1.0) for row in slow]
    fast = [row for row in made if row.backend == "two"]
    found = figures.bars([*slow, *again, *fast])["data"]["values"]
    ratios = {value["backend"]: value["ratio"] for value in found}
    assert ratios == {"one": 2.0, "one (b)": 2.0, "two": 1.0}


def test_ratios_are_found_by_the_names_that_are_shown(made):
    named = [dataclasses.replace(row, backend=f"{row.backend} [tile=8]") for row in made]
    spec = figures.heatmap(named, "m", "n", "one [tile=8]", "two [tile=8]")
    assert len(spec["data"]["values"]) == 6


def test_a_small_difference_is_not_shaded_like_a_large_one(make_result, make_set):
    found = [
        make_result(f"gemm m={m} n=8 k={k} dtype=f32", backend=backend, median_s=time_s)
        for m in (8, 16)
        for k in (8, 16)
        for backend, time_s in (("one", 1e-3), ("two", 1.02e-3))
    ]
    rect, *_ = figures.heatmap(result_rows(make_set(*found)))["layer"]
    assert rect["encoding"]["color"]["scale"]["domain"] == [1 / 1.25, 1.25]


def test_a_dim_of_two_ops_is_not_one_axis(make_result, make_set):
    found = [make_result(f"gemm m={m} n=8 k=8 dtype=f32", median_s=1e-3) for m in (8, 16, 32)]
    found += [make_result(f"copy n={n} dtype=f32", median_s=1e-3) for n in (8, 64)]
    made = result_rows(make_set(*found))
    assert {value["op"] for value in figures.sweep(made)["data"]["values"]} == {"gemm"}
    assert {value["op"] for value in figures.sweep(made, "n")["data"]["values"]} == {"gemm", "copy"}


def test_lines_of_one_backend_are_told_apart_by_what_varies(made):
    values = figures.sweep(made, "m")["data"]["values"]
    assert {value["rest"] for value in values} == {"n=32", "n=64"}


@pytest.fixture(scope="module")
def many(make_result, make_set):
    """2,500 problems of two backends; at every m the rate of `one` rises by the same with n."""
    found = [
        make_result(f"gemm m={8 * m} n={8 * n} k=64 dtype=f32", backend=backend, median_s=m * 1e-6)
        for m in range(1, 51)
        for n in range(1, 51)
        for backend in ("one", "two")
    ]
    return result_rows(make_set(*found), ROOFS)


def test_a_sweep_of_many_lines_is_their_median_and_its_band(many):
    values = figures.sweep(many, "m")["data"]["values"]
    assert len(values) == 2 * 50
    assert {value["problems"] for value in values} == {50}
    rates = sorted(
        row.result.flops_per_s
        for row in many
        if row.backend == "one" and row.result.case.problem.dims["m"] == 8
    )
    (value,) = (one for one in values if (one["backend"], one["x"]) == ("one", 8))
    assert value["flops"] == pytest.approx((rates[24] + rates[25]) / 2)
    assert (
        rates[4] <= value["flops_low"] <= rates[5] < rates[44] <= value["flops_high"] <= rates[45]
    )


def test_a_heatmap_of_many_cells_fits_a_screen(made, many):
    small, large = figures.heatmap(made, "m", "n"), figures.heatmap(many, "m", "n")
    assert [
        layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"]
        for layer in small["layer"]
    ] == ["rect", "text"]
    assert len(large["layer"]) == 1, "no ratio fits a cell"
    assert 50 * large["width"]["step"] <= 1280
    assert 50 * large["height"]["step"] <= 900


def test_bars_of_many_problems_are_spread_over_all(many):
    values = figures.bars(many)["data"]["values"]
    sizes = [value["problem"].split()[1] for value in values]
    assert len(values) == 2 * 40
    assert len(set(sizes)) == 40, "not the first ones, whose m is the same"


def test_a_backend_has_the_same_colour_over_another(made):
    layers = figures.ecdf(made, "one")["layer"]
    names = {value["backend"] for layer in layers for value in layer["data"]["values"]}
    assert {name.partition(":")[0] for name in names} == {"one", "two"}


def point(at: int, median_s: float = 1e-3, **more) -> SeriesPoint:
    given = {"status": Status.OK, "device": "cpu", "fingerprint": "old", **more}
    series = "gemm m=8 n=8 k=8 dtype=f32 | numpy | {} | t | x"
    return SeriesPoint(
        series=series, run_id=f"r{at}", started=60.0 * at, median_s=median_s, **given
    )


def test_the_time_of_a_wrong_result_is_not_drawn():
    (panel,) = figures.history([story([point(1), point(2, 9.0, status=Status.WRONG)])])["vconcat"]
    assert [value["run"] for value in panel["data"]["values"]] == ["r1"]


def test_noise_does_not_fill_the_axis_of_a_history():
    (panel,) = figures.history([story([point(1), point(2, 1.001e-3)])])["vconcat"]
    low, high = panel["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert high / low > 1.05


def test_environments_are_lanes_beneath_a_history():
    points = [point(1), point(2), point(3, fingerprint="new"), point(4)]
    (panel,) = figures.history([story(points)])["vconcat"]
    (lanes,) = [
        layer["data"]["values"]
        for layer in panel["layer"]
        if "environment" in layer.get("data", {}).get("values", [{}])[0]
    ]
    assert [lane["environment"] for lane in lanes] == ["old", "new", "old"]
    assert [lane["since"] for lane in lanes] == [60e3, 180e3, 240e3]
    assert [lane["until"] for lane in lanes[:-1]] == [180e3, 240e3]
    (plain,) = figures.history([story(points[:2])])["vconcat"]
    assert len(plain["layer"]) == len(panel["layer"]) - 1


def test_environments_that_differ_only_in_the_commit_are_one_lane():
    """And a lane is named by what changed, for the legend."""
    environments = [
        Environment(host="here", libraries={"torch": version}, commit=commit)
        for version, commit in (("2.10", "a"), ("2.10", "b"), ("2.11", "c"), ("2.11", "d"))
    ]
    points = [point(at, fingerprint=e.fingerprint) for at, e in enumerate(environments, 1)]
    (panel,) = figures.history([story(points)], environments)["vconcat"]
    (lanes,) = [
        layer["data"]["values"]
        for layer in panel["layer"]
        if "environment" in layer.get("data", {}).get("values", [{}])[0]
    ]
    assert [lane["since"] for lane in lanes] == [60e3, 180e3]
    assert "2.10" in lanes[1]["environment"]
    assert "2.11" in lanes[1]["environment"]


def test_the_trend_of_a_suite_is_a_geometric_mean_that_does_not_move_with_its_problems():
    """The second run lacks the slow problem; in the third, one of two takes 4 times as long."""
    small, large = "gemm m=8 n=8 k=8 dtype=f32", "gemm m=9 n=8 k=8 dtype=f32"
    runs = tuple(
        Run(id=f"r{at}", started=60.0 * at, suite="s", environment=Environment(), cases=2)
        for at in range(1, 6)
    )
    stories = [
        story(
            dataclasses.replace(
                point(at, 4 * time_s if at == 3 and gone else time_s), series=series
            )
            for at in range(1, 6)
            if not (at == 2 and gone)
        )
        for time_s, gone, problem in ((1e-3, False, small), (1.0, True, large))
        for series in (f"{problem} | numpy | {{}} | t | x",)
    ]
    spec = figures.trend(make_history(*stories, runs=runs))
    low, high = spec["encoding"]["y"]["scale"]["domain"]
    assert 0.5 < low < 1  # a ratio far above 1 does not open the axis below 0
    assert 2 < high < 3
    drawn = {v["run"]: v["ratio"] for v in spec["data"]["values"]}
    assert drawn == pytest.approx({"r1": 1, "r2": 1, "r3": 2, "r4": 1, "r5": 1})
    with pytest.raises(NothingToDo):
        figures.trend(make_history())
