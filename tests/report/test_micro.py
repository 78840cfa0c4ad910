"""Microbenchmarks as tables and figures."""

from __future__ import annotations

import dataclasses
import errno
import json
import os

import pytest

from kernelmark.compare import rules
from kernelmark.compare.verdicts import compare
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.metric import Metric, PointColumn, with_spreads
from kernelmark.core.micro import micro_case
from kernelmark.core.result import Status
from kernelmark.core.units import value_text
from kernelmark.micro import registry
from kernelmark.report import compare as report
from kernelmark.report import micro, vega
from kernelmark.report.detail import detail
from kernelmark.report.names import rerun, short
from kernelmark.report.results import result_records, result_rows
from kernelmark.report.tables import draw, text
from kernelmark.testing.micro import micro_result
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_roof, make_set

CACHE = micro_result(
    started=1.7e9,
    columns=tuple(
        PointColumn(name=c.name, unit=c.unit, limit=3.3e13 if c.name == "bytes_per_s" else None)
        for c in registry.get("cache").columns
    ),
    rows=tuple(
        {
            "windows": kind,
            "size_bytes": size,
            "bytes_per_s": rate,
            "bytes_per_clk": rate / 2.6e11,
            "clock_mhz": 1980.0,
            "spread": 0.01,
        }
        for kind, size, rate in (
            ("private", 4096, 3.2e13),
            ("private", 65536, 3.1e13),
            ("shared", 4096, 3.0e13),
            ("shared", 4194304, 9.9e12),
        )
    ),
    metrics=(
        Metric(name="l1_bytes_per_s", value=3.2e13, unit="B/s", limit=3.3e13),
        Metric(name="l1_size", value=212992.0, unit="B", headline=False),
    ),
)
FAILED = dataclasses.replace(
    CACHE, status=Status.CRASHED, rows=(), metrics=(), error="killed by signal 11\nmore"
)


def taken(result, benchmark="cache", mode="quick", parameters=None, threads=0, **fields):
    """The same result of another case."""
    case = micro_case(benchmark, mode, parameters or {}, threads)
    return dataclasses.replace(result, case=case, **fields)


def a_set(*results):
    return make_set(*results, id="r")


def judged(base, head):
    """Two lists of results compared by `robust`."""
    sides = make_set(*base, id="base"), make_set(*head, id="head")
    return compare(*sides, rule=rules.load_rule("robust"))


def verdicts(base, head):
    return {row.pair.metric: row.status.value for row in judged(base, head).rows}


def test_values_are_told_in_their_units():
    assert value_text(3.2e13, "B/s") == "32.00 TB/s"
    assert value_text(65536.0, "B") == "64.0 KiB"
    assert value_text(34.25, "cycles") == "34.25 cycles"
    assert value_text(123456.0, "") == "123456"


def test_headlines_with_their_share_of_the_limit():
    shown = text(micro.metrics_table([CACHE]))
    assert "32.00 TB/s" in shown
    assert "97.0 %" in shown
    assert "l1_size" not in shown
    assert "l1_size" in text(micro.metrics_table([CACHE], every=True))


@pytest.mark.parametrize(
    ("how", "status", "width"),
    [
        ({"spread": 0.0}, "ok", "0.0 %"),
        ({"spread": 0.02}, "ok", "1.0 %"),
        ({"spread": 0.6}, "disturbed", "30.0 %"),
        ({"steady": False}, "disturbed", "–"),
    ],
)
def test_disturbed_figures_are_marked_and_have_their_spread(how, status, width):
    one = Metric(name="x", value=1.0, unit="", **how)
    steady = Metric(name="y", value=1.0, unit="", spread=0.01)
    table = micro.metrics_table([dataclasses.replace(CACHE, metrics=(one, steady))])
    names = [column.name for column in table.columns]
    first, second = (dict(zip(names, row, strict=True)) for row in table.rows)
    assert (first["status"], first["±"]) == (status, width)
    assert second["status"] == "ok"
    failed = dataclasses.replace(CACHE, status=Status.WRONG, metrics=(one,))
    assert micro.metrics_table([failed]).rows[0][-1] == "wrong"


def test_a_failure_is_a_row_with_its_reason():
    shown = text(micro.metrics_table([CACHE, FAILED]))
    assert "killed by signal 11" in shown
    assert "more" not in shown


def test_points_keep_the_columns_order():
    table = micro.points_table(CACHE)
    assert [c.name for c in table.columns][:3] == ["windows", "size_bytes", "bytes_per_s"]
    assert table.rows[0][:3] == ("private", "4.0 KiB", "32.00 TB/s")
    assert table.rows[0][[c.name for c in table.columns].index("spread")] == "1.0 %"


def test_a_long_list_of_sizes_leaves_values_next_to_their_names():
    sizes = ",".join(str(4096 * i) for i in range(1, 40))
    one = result_rows(a_set(taken(CACHE, parameters={"sizes": sizes})))[0]
    case = detail(one)[0]
    without_command = tuple(row for row in case.rows if row[0] != "again")
    lines = [line.text for line in draw(dataclasses.replace(case, rows=without_command), 80)]
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("status") and line.endswith("ok") for line in lines)


def test_every_metric_that_both_have_is_a_row():
    other = dataclasses.replace(
        CACHE, metrics=(dataclasses.replace(CACHE.metrics[0], value=1.6e13), *CACHE.metrics[1:])
    )
    found = judged([CACHE], [other])
    assert [row.status.value for row in found.rows] == ["slower", "same"]
    assert found.rows[0].judgement.ratio == 0.5
    shown = report.table(found.rows)
    names = [column.name for column in shown.columns]
    assert shown.rows[0][names.index("metric")] == "l1_bytes_per_s"
    assert shown.rows[0][names.index("base") :][:3] == ("32.00 TB/s", "16.00 TB/s", "-50.0 %")
    (_, how) = report.explain(found.rows[0])
    assert dict(how.rows)["head"] == "16.00 TB/s"
    record = report.records(found)[0]
    assert (record["base_value"], record["head_value"], record["unit"]) == (3.2e13, 1.6e13, "B/s")
    assert verdicts([CACHE], [FAILED]) == {"": "broken"}
    assert verdicts([CACHE, FAILED], [CACHE]) == {"": "fixed"}  # a failure stands for all
    other = dataclasses.replace(CACHE, metrics=(Metric(name="new", value=1.0, unit=""),))
    assert verdicts([CACHE], [other]) == {"": "ignored"}


@pytest.mark.parametrize(
    ("device", "spreads", "ratio", "verdict"),
    [
        ("cuda:0", (0.001, 0.001), 1.019, "same"),
        ("cuda:0", (0.001, 0.001), 1.03, "faster"),
        ("cuda:0", (0.001, 0.2), 1.19, "unsure"),
        ("cuda:0", (0.2, 0.001), 1 / 1.19, "unsure"),
        ("cuda:0", (0.2, 0.001), 1 / 1.21, "slower"),
        ("cuda:0", (None, None), 1.03, "faster"),
        ("cuda:0", (None, 0.05), 1.04, "unsure"),
        ("cpu", (None, None), 1.09, "unsure"),
        ("cpu", (None, None), 1.11, "faster"),
        ("cpu", (0.001, 0.001), 1.09, "unsure"),
        ("cpu", (0.001, 0.2), 1.19, "unsure"),
        ("cpu", (0.001, 0.2), 1.21, "faster"),
        ("cpu", (None, None), 0.0, "slower"),
    ],
)
def test_a_difference_within_the_spread_is_unsure(device, spreads, ratio, verdict):
    def side(value, spread):
        row = {**CACHE.rows[0], "bytes_per_s": value, "spread": spread}
        rows = (row, {**row, "bytes_per_s": value / 2 + 1, "spread": 9.0})
        metric = dataclasses.replace(CACHE.metrics[0], value=value)
        metrics = with_spreads([metric], CACHE.columns, rows)
        return dataclasses.replace(CACHE, device=device, rows=rows, metrics=metrics)

    sides = [side(1e13, spreads[0])], [side(1e13 * ratio, spreads[1])]
    assert verdicts(*sides) == {"l1_bytes_per_s": verdict}


@pytest.mark.parametrize(
    ("name", "headline", "mode", "ratio", "verdict"),
    [
        ("graph_ns", True, "quick", 1.03, "slower"),
        ("graph_ns", True, "brief", 1.03, "slower"),
        ("graph_rate", False, "quick", 1.09, "unsure"),
        ("graph_rate", False, "quick", 1.11, "slower"),
        ("graph_rate", False, "brief", 1.25, "unsure"),
        ("plain_ns", False, "quick", 1.39, "unsure"),
        ("plain_ns", False, "quick", 1.41, "slower"),
    ],
)
def test_only_headlines_are_known_to_repeat_well(name, headline, mode, ratio, verdict):
    def side(value, mode):
        metric = Metric(
            name=name,
            value=value,
            unit="ns",
            better="lower",
            headline=headline,
            host_paced=name.startswith("plain"),
        )
        return taken(CACHE, "small-kernels", mode, metrics=(metric,))

    found = verdicts([side(1000.0, "quick")], [side(1000.0 * ratio, mode)])
    assert found == {name: verdict}


def test_what_has_no_better_direction_is_not_judged():
    size = dataclasses.replace(CACHE.metrics[1], better="")
    sides = [
        [dataclasses.replace(CACHE, metrics=(dataclasses.replace(size, value=value),))]
        for value in (1.0, 2.0)
    ]
    assert verdicts(*sides) == {"l1_size": "ignored"}


def test_a_benchmark_of_another_version_is_compared_too():
    old = taken(CACHE, "long-gone")
    assert set(verdicts([old], [old]).values()) == {"same"}
    assert short(old.case.problem) == "long_gone mode=quick"
    assert rerun(old) == ""


def test_what_was_taken_in_another_way_is_told():
    latency = taken(CACHE, "latency")
    brief = [taken(CACHE, name, "brief", {"a": 2}) for name in ("cache", "latency")]
    one, other = (
        report.notes(judged([CACHE, latency], [CACHE, latency])),
        report.notes(judged([CACHE, latency], brief)),
    )
    assert set(other) - set(one) == {"cache, latency: taken as quick and as brief"}
    cpu = dataclasses.replace(CACHE, device="cpu")
    plain = taken(cpu, parameters={"a": 1, "b": 3}, threads=1)
    different = taken(cpu, parameters={"a": 2, "b": 3}, threads=2)
    told = report.notes(judged([plain], [different]))
    assert "cache: taken with other a, with 1 and with 2 threads" in told


def test_only_what_a_side_has_once_is_joined_by_name():
    sizes = [taken(CACHE, parameters={"sizes": size}) for size in ("4096", "8192")]
    assert set(verdicts([CACHE], [sizes[0]]).values()) == {"same"}
    assert sorted(verdicts(sizes, sizes[:1]).values()) == ["gone", "same", "same"]


def test_a_case_reads_as_it_is_asked_for():
    usual = registry.get("cache").case_parameters("brief", {})
    many = ",".join(str(4096 * n) for n in range(1, 12))
    made = taken(CACHE, "cache", "brief", {**usual, "sizes": many, "samples": 99})
    assert short(made.case.problem) == "cache brief samples=99 sizes=4096,…,45056 (11)"
    assert rerun(made) == f"kmark micro cache --brief -d cuda:0 -p samples=99 -p sizes={many}"


def test_a_ceiling_of_a_cpu_is_no_limit_to_be_near_to():
    cpu = dataclasses.replace(CACHE, device="cpu")
    assert "of limit" not in text(micro.metrics_table([cpu]))
    mixed = micro.metrics_table([cpu, CACHE]).rows
    assert [row[-2] for row in mixed] == ["–", "97.0 %"]
    assert len(micro.micro_figure(cpu)["concat"][0]["layer"]) == 1


def test_flat_records():
    (first, *_) = micro.point_records(a_set(CACHE, FAILED))
    assert first["size_bytes"] == 4096
    assert first["benchmark"] == "cache"


def test_a_parameter_does_not_replace_a_column():
    named = taken(CACHE, parameters={"threads": 64, "sizes": 4096}, threads=2)
    record = result_records(result_rows(a_set(named)))[0]
    assert (record["threads"], record["sizes"], record["metric"]) == (2, 4096, "l1_bytes_per_s")
    assert record["param_threads"] == 64


def test_a_csv_without_points_has_a_header():
    columns = micro.point_columns(a_set(CACHE, FAILED))
    assert columns == [*micro.point_records(a_set(CACHE))[0]]
    assert "benchmark" in micro.point_columns(a_set())


def test_roofs_beside_the_data_sheet():
    from kernelmark.core.environment import DeviceInfo

    info = DeviceInfo(name="cuda:0", kind="cuda", model="NVIDIA H200", arch="sm_90", units=132)

    def roof(kind, name, value, unit=""):
        return make_roof(kind, name, value, device="cuda:0", arch="sm_90", unit=unit)

    roofs = [
        roof("bytes", "dram", 4.32e12),
        roof("flops", "bf16", 8.9e14, "matrix"),
        roof("launches", "graph", 1e6),
    ]
    table = micro.roofs_table(roofs, info)
    assert table.rows[0][3:6] == ("4.320 TB/s", "4.800 TB/s", "90 %")
    assert table.rows[1][4] == "989.5 TFLOP/s"
    assert table.rows[2][1:4] == ("graph launch", "launches", "1000 ns")
    assert "H200" in table.title
    assert micro.roofs_table(roofs).rows[0][4] == "–"
    assert "threads" not in [c.name for c in table.columns]
    own = [dataclasses.replace(roofs[0], device="cpu", threads=n) for n in (1, 2)]
    shown = micro.roofs_table(own)
    at = [c.name for c in shown.columns].index("threads")
    assert [row[at] for row in shown.rows] == ["1", "2"]


class TestFigures:
    def test_data_are_in_the_axes_units(self):
        design = registry.get("cache").figure
        points = micro.figure_data([CACHE], design, ["NVIDIA H200"])
        assert points[0] == {
            "size_bytes": 4.0,
            "bytes_per_s": 32.0,
            "bytes_per_clk": pytest.approx(3.2e13 / 2.6e11),
            "windows": "private",
            "who": "NVIDIA H200",
        }

    def test_the_limit_is_drawn_where_it_is_near(self):
        spec = micro.micro_figure(CACHE)
        assert len(spec["concat"][0]["layer"]) == 3
        assert len(spec["concat"][1]["layer"]) == 1

    def test_the_limit_is_drawn_once_whatever_the_points(self):
        _, line, word = micro.micro_figure(CACHE)["concat"][0]["layer"]
        assert [len(layer["data"]["values"]) for layer in (line, word)] == [1, 1]

    def test_the_last_label_of_a_crowded_axis_is_not_left_out(self, tmp_path):
        pytest.importorskip(
            "vl_convert", reason="needs vl-convert-python, which make test installs"
        )
        rows = tuple({**CACHE.rows[0], "size_bytes": 2**power} for power in range(16, 28))
        spec = micro.micro_figure(dataclasses.replace(CACHE, rows=rows))
        drawn = vega.save(spec, tmp_path / "cache.svg").read_text(encoding="utf-8")
        assert all(f'opacity="1">{label}<' in drawn for label in ("64", "65,536", "131,072"))

    def test_several_devices_share_a_figure(self):
        spec = micro.micro_figure([CACHE, CACHE], ["one", "another"])
        assert spec["concat"][0]["layer"][0]["encoding"]["strokeDash"]["field"] == "who"
        assert "another" in spec["title"]["text"]

    def test_nothing_to_draw_and_things_that_do_not_go_together(self):
        with pytest.raises(NothingToDo):
            micro.micro_figure(FAILED)
        with raises(UsageError, names=("cache", "latency")):
            micro.micro_figure([CACHE, taken(CACHE, "latency")])

    @pytest.mark.parametrize("name", registry.names())
    def test_every_benchmark_has_a_figure_that_draws(self, name):
        benchmark = registry.get(name)
        row = {c.name: 2.0 for c in benchmark.columns}
        row |= {w: "a" for w in (benchmark.figure.colour, benchmark.figure.facet) if w}
        row |= dict(benchmark.figure.where)
        if benchmark.figure.scale == "band":
            row[benchmark.figure.x] = "one"
        made = taken(
            CACHE,
            benchmark.name,
            columns=tuple(PointColumn(name=c.name) for c in benchmark.columns),
            rows=(row, row | {benchmark.figure.x: row[benchmark.figure.x]}),
            metrics=(),
        )
        spec = micro.micro_figure(made)
        assert len(spec["concat"]) == len(benchmark.figure.panels)
        json.dumps(spec)

    @pytest.mark.parametrize("ending", ["png", "svg", "html"])
    def test_files(self, tmp_path, ending):
        pytest.importorskip(
            "vl_convert", reason="needs vl-convert-python, which make test installs"
        )
        path = vega.save(micro.micro_figure(CACHE), tmp_path / f"figure.{ending}")
        data = path.read_bytes()
        if ending == "png":
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
        elif ending == "svg":
            assert data.startswith(b"<svg")
        else:
            page = data.decode()
            # Drawn already: nothing is loaded from anywhere.
            assert "<svg" in page
            assert "<script src=" not in page
            assert len(page) < 100_000

    def test_text_from_a_file_is_no_tag_in_a_page(self, tmp_path):
        pytest.importorskip(
            "vl_convert", reason="needs vl-convert-python, which make test installs"
        )
        evil = micro.micro_figure(CACHE, ["</script><script>alert(1)</script>"])
        page = vega.save(evil, tmp_path / "figure.html").read_text()
        assert "alert(1)" in page
        assert "<script>alert(1)" not in page

    def test_the_figure_as_json_needs_nothing(self, tmp_path):
        path = vega.save(micro.micro_figure(CACHE), tmp_path / "figure.json")
        assert json.loads(path.read_text())["data"]["values"]

    def test_a_missing_library_is_one_sentence_with_the_command(self, tmp_path, monkeypatch):
        import importlib

        real = importlib.import_module

        def refuse(name, *more):
            if name == "vl_convert":
                raise ImportError(name)
            return real(name, *more)

        monkeypatch.setattr(vega.importlib, "import_module", refuse)
        for work in (
            lambda: vega.save({}, tmp_path / "x.png"),
            lambda: vega.check_ready(tmp_path / "x.svg"),
        ):
            with raises(UsageError, name="vl-convert") as refused:
                work()
            assert refused.value.hint == 'pip install "kernelmark[plots]"'

    def test_names_that_cannot_be_drawn_are_refused(self, tmp_path):
        with raises(UsageError, file=str(tmp_path / "x.gif")):
            vega.check_name(tmp_path / "x.gif")
        with raises(UsageError, folder=str(tmp_path / "missing")):
            vega.check_name(tmp_path / "missing" / "x.png")

    def test_a_file_that_cannot_be_written_is_one_sentence(self, tmp_path, monkeypatch):
        def full(*given, **more):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(vega.Path, "write_bytes", full)
        path = tmp_path / "x.json"
        full_disk = os.strerror(errno.ENOSPC)
        with raises(UsageError, file=str(path), error=full_disk):
            vega.save({}, path)


@pytest.mark.parametrize("after_s", [86_400, 0.25, 0])
def test_two_results_of_one_device_are_told_apart(after_s):
    later = dataclasses.replace(CACHE, started=CACHE.started + after_s)
    points = micro.micro_figure([CACHE, later])["data"]["values"]
    assert len({point["who"] for point in points}) == 2


@pytest.mark.parametrize(
    ("rate", "title", "shown"),
    [(3.2e13, "TB/s", 32.0), (1.5e11, "GB/s", 150.0), (2e8, "MB/s", 200.0)],
)
def test_a_figure_is_in_units_that_can_be_read(rate, title, shown):
    row = {**CACHE.rows[0], "bytes_per_s": rate}
    drawn = micro.micro_figure(dataclasses.replace(CACHE, rows=(row,)))
    assert title in json.dumps(drawn["concat"][0])
    assert drawn["data"]["values"][0]["bytes_per_s"] == pytest.approx(shown)
