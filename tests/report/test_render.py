from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.api.results import Results
from kernelmark.core.files import csv_text
from kernelmark.core.problem import Problem
from kernelmark.core.reason import TEXT, Reason
from kernelmark.core.result import Mode, Status
from kernelmark.core.timing import Timing
from kernelmark.report.detail import detail
from kernelmark.report.results import result_columns, result_records, result_rows
from kernelmark.report.tables import Column, Table, html_table, markdown, text
from kernelmark_dev.results import make_check

CELLS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)


def test_text_is_aligned():
    table = Table(
        columns=(Column(name="name"), Column(name="value", align="right")),
        rows=(("a", "1.0 µs"), ("longer", "10 µs")),
    )
    assert text(table) == ("name     value\n------  ------\na       1.0 µs\nlonger   10 µs\n")


def test_markdown_escapes_pipes():
    table = Table(columns=(Column(name="a"),), rows=(("x|y",),))
    assert markdown(table).splitlines()[-1] == "| x\\|y |"


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_html_escapes_everything(cells):
    table = Table(columns=(Column(name="<b>"),), rows=tuple((cell,) for cell in cells))
    html = html_table(table)
    assert "<b>" not in html
    assert html.count("<tr>") == len(cells) + 1
    for cell in cells:
        if "<" in cell:
            assert f">{cell}</td>" not in html


def test_csv_is_flat_exact_and_keeps_failures(make_result, make_set, make_roof):
    results = make_set(
        make_result(median_s=0.1 + 0.2),
        make_result(
            "conv n=1 c=2 h=8 w=8 k=4 r=3 s=3 dtype=f32",
            median_s=None,
            status=Status.TIMEOUT,
            error='took "long", really\nlong',
        ),
    )
    made = result_rows(results, [make_roof("flops", "f32", 80e9)])
    rows = list(csv.DictReader(io.StringIO(csv_text(result_records(made)))))
    gemm, conv = rows
    assert float(gemm["median_s"]) == results.results[0].measurement.median_s
    assert (gemm["m"], gemm["h"], gemm["a"]) == ("512", "", "f32")
    assert (conv["m"], conv["h"], conv["layout"]) == ("", "8", "nchw")
    assert (conv["status"], conv["median_s"]) == ("timeout", "")
    assert conv["error"] == 'took "long", really\nlong'
    assert float(gemm["roof_share"]) > 0
    assert gemm["roof_bound"] == "compute"
    assert json.loads(gemm["warnings"]) == []


def test_csv_tells_how_a_time_was_taken_and_the_times_beside_it(make_result, make_set):
    timing = Timing(timer="profiler", strain="compute", duty="burst")
    found = make_result(median_s=2e-4, timing=timing)
    blocks = tuple(
        dataclasses.replace(block, clocks_mhz=(1400.0,) * len(block.samples_s))
        for block in found.measurement.blocks
    )
    also = {"hot_s": 1e-4, "profiler_at_clock_s": 3e-4}
    measured = dataclasses.replace(found.measurement, blocks=blocks, also=also)
    results = make_set(dataclasses.replace(found, measurement=measured))
    (row,) = csv.DictReader(io.StringIO(csv_text(result_records(result_rows(results)))))
    assert (row["timer"], row["strain"], row["duty"]) == ("profiler", "compute", "burst")
    assert (row["hot_s"], row["host_s"], row["profiler_at_clock_s"]) == ("0.0001", "", "0.0003")
    assert row["clock_mhz"] == "1400.0"


@pytest.mark.parametrize(
    ("cost", "other"),
    [
        ({"inputs": 1.0, "timed": 1.0, "device": 0.9, "total": 5.0}, "3.000 s"),
        ({"inputs": 1.0, "timed": 1.0, "device": 0.9, "total": 2.01}, None),
        ({"total": 5.0}, None),
    ],
)
def test_what_no_phase_has_is_told_beside_them(make_result, make_set, cost, other):
    row = result_rows(make_set(make_result(cost=cost)))[0]
    (found,) = (dict(t.rows) for t in detail(row) if t.title == "cost (wall time)")
    assert found.get("evictions, idle gaps, other") == other
    assert list(found)[-1] == "total"


def test_csv_without_results_has_the_header_of_every_run(make_result, make_set):
    full = make_set(make_result())
    record = result_records(result_rows(full))[0]
    names = result_columns([])
    assert list(record)[: len(names)] == names
    assert Results(make_set()).to_csv() == ",".join(names) + "\n"


def test_a_parameter_that_is_called_like_a_column_has_one_too(make_result, make_set):
    problem = Problem(
        op="own",
        dims={"samples": 64, "rows": 8},
        dtypes={"bytes": "f32"},
        options={"status": 3.0, "param_samples": 5.0, "unit": True},
    )
    found = make_result()
    results = make_set(
        dataclasses.replace(found, case=dataclasses.replace(found.case, problem=problem)), found
    )
    own, gemm = result_records(result_rows(results))
    assert (own["samples"], own["status"], own["rows"]) == (9, "ok", 8)
    assert own["param_param_samples"] == 64
    assert own["param_samples"] == 5
    assert (own["param_bytes"], own["param_status"], own["param_unit"]) == ("f32", 3, "yes")
    assert gemm["param_status"] is None
    assert list(own) == list(gemm) == result_columns(result_rows(results))


@pytest.mark.parametrize(
    ("error", "shown"),
    [("late write", ["reason"]), ("other", ["reason", "detail"]), ("", ["detail"])],
)
def test_detail_shows_the_reason_of_a_wrong_result_once(make_result, make_set, error, shown):
    found = make_result(status=Status.WRONG)
    check = make_check(worst=2.0, detail=Reason("late write", "late-write"))
    wrong = dataclasses.replace(
        found, check=check, error=Reason(error, "late-write" if error else TEXT)
    )
    tables_shown = detail(result_rows(make_set(wrong))[0])
    names = [name for table in tables_shown for name, *_ in table.rows]
    assert [name for name in names if name in ("reason", "detail")] == shown


def test_detail_shows_blocks_check_kernel_and_cost(make_result, make_set, make_roof):
    row = result_rows(make_set(make_result(config={"tile": 8})), [make_roof("flops", "f32", 8e10)])[
        0
    ]
    found = {table.title: table for table in detail(row)}
    assert set(found) == {
        "case",
        "measurement",
        "blocks",
        "samples",
        "check",
        "kernel",
        "cost (wall time)",
    }
    assert len(found["blocks"].rows) == 3
    assert dict(found["kernel"].rows)["workspace_bytes"] == "64"
    assert "a test" in dict(found["measurement"].rows)["roof"]
    for table in found.values():
        assert all(len(line) == len(table.columns) for line in table.rows)


def test_detail_of_a_failure(make_result, make_set):
    result = make_result(median_s=None, status=Status.CRASHED, error="signal 9", check=None)
    found = {t.title: t for t in detail(result_rows(make_set(result))[0], samples=False)}
    assert "measurement" not in found
    assert dict(found["case"].rows)["reason"] == "signal 9"


def test_a_cell_of_several_lines_goes_on_under_itself():
    columns = (Column(name="what"), Column(name="value"))
    shown = text(Table(columns=columns, rows=(("reason", "one\n  two"), ("end", ""))))
    assert shown.splitlines()[1:] == ["------  -----", "reason  one", "          two", "end"]


def test_modes_are_in_the_csv_and_the_detail(make_result, make_set):
    plain = make_result()
    modes = (Mode(value_s=1e-2, share=0.75), Mode(value_s=2e-2, share=0.25))
    mixed = make_result(
        backend="torch", measurement=dataclasses.replace(plain.measurement, modes=modes)
    )
    results = make_set(plain, mixed)
    made = result_rows(results)
    records = {record["backend"]: record for record in result_records(made)}
    assert records["numpy"]["modes"] is None
    assert json.loads(records["torch"]["modes"]) == [[0.01, 0.75], [0.02, 0.25]]
    shown = {row.backend: dict(detail(row)[1].rows) for row in made}
    assert "modes" not in shown["numpy"]
    assert shown["torch"]["modes"] == "10.00 ms (75 %), 20.00 ms (25 %)"
