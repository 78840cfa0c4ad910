"""What is shown of a comparison."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kernelmark.compare.rules.golden_tot import rule as golden_tot
from kernelmark.compare.rules.ratio import rule as ratio
from kernelmark.compare.rules.robust import rule as robust
from kernelmark.compare.verdicts import compare
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.files import csv_text, json_text
from kernelmark.core.result import KernelInfo, Status
from kernelmark.core.timing import Timing
from kernelmark.report import compare as report
from kernelmark.report.tables import text
from kernelmark_dev import results
from kernelmark_dev.results import make_set

KEYS = [f"gemm m={m} n=8 k=8 dtype=f32" for m in (8, 16, 32, 64)]


def run(name, *results, libraries=None, devices=()):
    environment = Environment(libraries=libraries or {"triton": "3.4"}, devices=devices)
    return make_set(*results, id=name, environment=environment, label=f"the {name}")


@pytest.fixture
def found(make_result):
    same = KernelInfo(binary_hash="abc")
    base = run("golden", *(make_result(key, median_s=1e-5, kernel=same) for key in KEYS))
    head = run(
        "tot",
        make_result(KEYS[0], median_s=1e-5, kernel=same),
        make_result(KEYS[1], median_s=2e-5),
        make_result(KEYS[2], median_s=None, status=Status.COMPILE_ERROR, error="no such | tile"),
        libraries={"triton": "3.5"},
    )
    return compare(base, head, rule=ratio)


def test_table_and_summary(found):
    shown = text(report.table(found.rows))
    assert "+100.0 %" in shown
    assert "compile_error: no such | tile" in shown
    assert report.summary(found) == "4 rows by ratio: 1 slower, 1 same, 1 gone, 1 broken"


def at_clock(result, clock_mhz):
    blocks = tuple(
        dataclasses.replace(block, clocks_mhz=(clock_mhz,) * len(block.samples_s))
        for block in result.measurement.blocks
    )
    return dataclasses.replace(
        result, measurement=dataclasses.replace(result.measurement, blocks=blocks)
    )


def test_a_change_with_the_clock_is_told_in_cycles_too(make_result):
    base = run("golden", *(at_clock(make_result(key, median_s=1e-5), 1600.0) for key in KEYS))
    quick = Timing.preset("quick")
    head = run(
        "tot",
        at_clock(make_result(KEYS[0], median_s=1.25e-5, timing=quick), 1280.0),
        at_clock(make_result(KEYS[1], median_s=1.25e-5, timing=quick), 1599.0),
        at_clock(make_result(KEYS[2], median_s=1e-5, timing=quick), 1280.0),
        make_result(KEYS[3], median_s=1.25e-5, timing=quick),
    )
    made = compare(base, head, rule=ratio)
    reasons = [row[-1] for row in report.table(made.rows).rows]
    assert reasons[0].endswith("; 1600 → 1280 MHz: +0.0 % in cycles")
    assert not any("MHz" in reason for reason in reasons[1:])
    (told,) = (note for note in report.notes(made) if "core clock" in note)
    assert told.startswith("1 changed row ran at another core clock in head")
    assert "Base was warmed up for up to 0.5 s, head for 0.1 s" in told
    explained = [text(report.explain(row)[0]) for row in made.rows]
    assert "1600 → 1599 MHz: +24.9 % in cycles" in explained[1]
    assert "MHz" not in explained[3], "head did not measure its clock"
    assert [r["head_mhz"] for r in report.records(made)] == [1280.0, 1599.0, 1280.0, None]


def test_the_best_of_each_side_may_be_timed_in_another_way_and_that_is_told(make_result):
    base = run("golden", make_result(KEYS[0], median_s=1e-5))
    head = run("tot", make_result(KEYS[0], median_s=1e-5, timing=Timing(duty="burst")))
    made = compare(base, head, rule=ratio, by="problem")
    (told,) = (note for note in report.notes(made) if "timed in another way" in note)
    assert told.startswith("1 row was timed in another way in head: ")
    assert "duty=sustained" in told.partition(" → ")[0]
    assert "duty=burst" in told.partition(" → ")[2]
    assert "duty=sustained threads=0 → cache=cold" in text(report.explain(made.rows[0])[0])
    (record,) = report.records(made)
    assert "duty=sustained" in record["base_timing"]
    assert record["base_config"] == "{}"


def test_the_text_of_a_change_caps_a_half_width_that_means_nothing():
    assert report.change_text(0.5) == "-50.0 %"
    assert report.change_text(None) == "–"
    assert report.change_text(1.0, 0.0, float("inf")) == "+0.0 %"
    assert report.change_text(1.031, 1.027, 1.035) == "+3.1 % ±0.4"
    assert report.change_text(0.118, 1e-9, 8.7e10) == "too noisy"
    assert report.change_text(31.0, 30.9, 31.1) == "+3000.0 % ±10.0"


def test_comment_lists_only_what_changed(found):
    made = report.comment(found, command="kmark compare golden tot", failed=True)
    assert made.startswith("### kernelmark: 1 of 4 kernels stopped working and 1 got slower; ")
    assert "`the golden`" in made
    assert "m=16" in made
    assert "no such \\| tile" in made
    assert "m=8 n=8" not in made
    assert "| library triton | 3.4 | 3.5 |" in made
    assert "kmark compare golden tot\nkmark run -p 'gemm m=32" in made
    assert made.index("m=32") < made.index("m=16"), "what is broken comes first"


def test_comment_of_nothing(make_result):
    side = [run(name, make_result(KEYS[0])) for name in ("a", "b")]
    made = report.comment(compare(*side, rule=ratio), command="x", failed=False)
    assert made.startswith("### kernelmark: nothing got slower in 1 kernel\n")
    assert "The environments do not differ." in made


def test_environments_that_nobody_recorded_are_not_called_equal(make_result):
    bare = [
        dataclasses.replace(side, run=dataclasses.replace(side.run, environment=Environment()))
        for side in (run(name, make_result(KEYS[0])) for name in ("a", "b"))
    ]
    made = report.comment(compare(*bare, rule=ratio), command="x", failed=False)
    assert "- the environments were not recorded\n" in made
    known = run("b", make_result(KEYS[0]))
    one = compare(bare[0], known, rule=ratio)
    assert "base" in report.unrecorded(one)
    assert "head" in report.unrecorded(compare(known, bare[0], rule=ratio))
    assert report.unrecorded(compare(known, known, rule=ratio)) == ""
    assert "do not differ" not in report.comment(one, command="x", failed=False)


def test_rows_that_are_gone_are_in_the_headline_where_they_fail(make_result):
    base = run("a", *(make_result(key) for key in KEYS[:3]))
    found = compare(base, run("b", make_result(KEYS[0])), rule=ratio)
    made = report.comment(found, command="x", failed=True, gone_fails=True)
    assert "2 missing in head\n\nIt fails, as --fail-on asks. " in made
    assert "- 2 rows of base are not in head\n" in made


def test_a_long_comment_is_cut(make_result):
    keys = [f"gemm m={m} n=8 k=8 dtype=f32" for m in range(1, 80)]
    sides = [
        run(name, *(make_result(key, median_s=time) for key in keys))
        for name, time in (("a", 1e-5), ("b", 2e-5))
    ]
    made = report.comment(compare(*sides, rule=ratio), command="x", failed=True)
    assert "and 29 more changed rows." in made
    assert len(made) < 65536


def test_json_and_csv_hold_every_row(found):
    made = json.loads(json_text(report.document(found)))
    assert made["counts"] == {"slower": 1, "same": 1, "gone": 1, "broken": 1}
    assert made["rule"]["fail"] == 1.15
    assert [row["verdict"] for row in made["rows"]] == ["same", "slower", "broken", "gone"]
    assert made["rows"][1]["ratio"] == pytest.approx(2.0)
    assert [row["reason"] for row in made["rows"]] == [row.judgement.reason for row in found.rows]
    assert made["rows"][2]["head_status"] == "compile_error"
    assert made["environment"] == [{"what": "library triton", "base": "3.4", "head": "3.5"}]
    lines = csv_text(report.records(found)).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("number,base_run,head_run,op,problem,backend")


def test_notes(make_result, found):
    audit = "1 row was the same binary on both sides, which tests the rule itself: 0 false alarms"
    gone = "1 row of base is not in head"
    assert report.notes(found) == [
        audit,
        f"{gone}; to fail on that too: --fail-on slower,broken,gone",
    ]
    assert report.notes(found, gone_fails=True) == [audit, gone]
    sides = [run(name, make_result(KEYS[0])) for name in ("a", "b")]
    (single,) = report.notes(compare(*sides, rule=robust))
    assert "measured in one process" in single
    other = run("b", make_result(KEYS[0], arch="sm_90"))
    assert "the devices differ: aarch64 and sm_90" in report.notes(
        compare(sides[0], other, rule=ratio)
    )
    moved = compare(
        sides[0],
        run("b", make_result(KEYS[0], median_s=1.0)),
        rule=ratio,
        sentinels=[sides[0].results[0].case.problem.key],
    )
    assert len(moved.moved) == 1
    assert report.moved_text(moved.moved[0]) in report.notes(moved)[0]


@pytest.mark.parametrize(
    ("factor", "status", "marks"),
    [
        (1.004, "same", []),
        (1.03, "unsure", ["6 rows changed by +3.0 %", "leave out"]),
        (1.12, "slower", ["6 rows changed by +12.0 %", "include"]),
    ],
)
def test_what_all_rows_on_a_cpu_have_in_common_is_noted(make_result, factor, status, marks):
    calm = (100e-6, 100.1e-6, 99.9e-6)
    problems = [f"gemm m={m} n=8 k=8 dtype=f32" for m in range(1, 7)]
    sides = [
        run(name, *(results.make_result(p, *(t * by for t in calm)) for p in problems))
        for name, by in (("golden", 1.0), ("tot", factor))
    ]
    compared = compare(*sides, rule=robust)
    noted = [note for note in report.notes(compared) if "in common" in note]
    assert len(noted) == bool(marks)
    assert all(mark in note for note in noted for mark in marks)
    rows = json.loads(json_text(report.document(compared)))["rows"]
    assert {row["verdict"] for row in rows} == {status}
    assert [row["common"] for row in rows] == [pytest.approx(factor)] * 6


def test_rows_of_another_gpu_of_the_same_model_are_noted(make_result):
    """Over 60 cases two H200s differed by 1.3 % in the median and by up to 6 %."""
    gpus = [
        DeviceInfo(name=f"cuda:{index}", kind="cuda", model="H200", arch="sm_90", uuid=uuid)
        for index, uuid in enumerate(("11111111aaaa", "22222222bbbb"))
    ]
    base, head = (
        run(
            name,
            *(make_result(key, device="cuda:0", arch="sm_90") for key in KEYS[:2]),
            devices=devices,
        )
        for name, devices in (
            ("golden", tuple(gpus)),
            ("tot", (dataclasses.replace(gpus[1], name="cuda:0"),)),
        )
    )
    shown = [note for note in report.notes(compare(base, head, rule=ratio)) if "GPU" in note]
    assert len(shown) == 1
    assert shown[0].startswith("2 rows were measured on another GPU")
    assert not [note for note in report.notes(compare(base, base, rule=ratio)) if "GPU" in note]
    differing = {name: (one, two) for name, one, two in compare(base, head, rule=ratio).environment}
    assert "11111111" in differing["device cuda:0"][0]
    assert "22222222" in differing["device cuda:0"][1]


def test_both_backends_are_named_where_they_differ(make_result):
    base = run("golden", make_result(KEYS[0], backend="rocblas", median_s=1e-5))
    head = run("tot", make_result(KEYS[0], backend="hipblaslt", median_s=2e-5))
    found = compare(base, head, rule=ratio, by="problem")
    assert "rocblas → hipblaslt" in text(report.table(found.rows))
    assert any("rocblas → hipblaslt" in text(made) for made in report.explain(found.rows[0]))
    (record,) = report.records(found)
    assert (record["base_backend"], record["backend"]) == ("rocblas", "hipblaslt")


def test_what_cannot_be_measured_again_has_no_command(make_result):
    sides = [
        run(name, make_result(KEYS[0], device="unknown", median_s=time_s))
        for name, time_s in (("golden", 1e-5), ("tot", 2e-5))
    ]
    found = compare(*sides, rule=ratio)
    assert "kmark run" not in report.comment(found, command="kmark compare a b", failed=True)
    assert not any("again" in text(made) for made in report.explain(found.rows[0]))


def with_blocks(result, *medians):
    blocks = tuple(
        dataclasses.replace(block, samples_s=(median_s,))
        for block, median_s in zip(result.measurement.blocks, medians, strict=True)
    )
    whole = dataclasses.replace(result.measurement, blocks=blocks)
    return dataclasses.replace(result, measurement=whole)


def test_a_change_that_is_not_that_of_the_medians_is_explained(make_result):
    base = run("golden", *(make_result(key, median_s=1e-5) for key in KEYS[:2]))
    skewed = with_blocks(make_result(KEYS[1]), 1e-5, 1e-5, 1.2e-5)
    head = run("tot", make_result(KEYS[0], median_s=2e-5), skewed)
    found = compare(base, head, rule=golden_tot)
    plain, apart = found.rows
    assert report.change_of_medians(plain) is None
    assert report.change_of_medians(apart) == pytest.approx(1.0)
    assert apart.judgement.ratio == pytest.approx(3.2 / 3)
    without = compare(base, run("tot", head.results[0]), rule=golden_tot)
    assert len(report._two_numbers(found)) == 1
    assert not report._two_numbers(without)
    assert not report._two_numbers(compare(base, head, rule=robust))
