"""The report of two sides: order, texts, and formats that read back."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo, Result, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.ab import (
    AbReport,
    audit,
    difference_table,
    other_load,
    remarks,
    restless,
    rows_table,
    summary,
    to_csv,
    to_json,
    to_md,
    two_numbers,
)
from kernelmark.runners.ab import Pair, Row, Rule
from kernelmark.stats.paired import paired_verdict
from kernelmark_dev.results import make_case, make_result, make_run


def side(m: int, times: list[float], hash_: str, config: dict | None = None) -> Result:
    case = make_case(f"gemm m={m} n=8 k=8 dtype=f32", "fake", config=config or {})
    if not times:
        return make_result(case, device="fake", status=Status.CRASHED, error="fell | over")
    kernel = KernelInfo(binary_hash=hash_)
    return make_result(case, *times, device="fake", kernel=kernel)


def row(m: int, factor: float | None, hash_: str = "b") -> Row:
    times = [1e-5 * (1 + 0.001 * (i % 3)) for i in range(10)]
    later = [] if factor is None else [t * factor for t in times]
    base, head = side(m, times, "a"), side(m, later, hash_)
    pair = Pair(base=base.case, head=head.case)
    if factor is None:
        status, reason, paired = VerdictStatus.BROKEN, "head is crashed: fell | over", None
    else:
        paired = paired_verdict(times, later)
        status, reason = paired.status, paired.reason
    return Row(
        pair=pair, status=status, reason=reason, base_s=tuple(times), head_s=tuple(later),
        base=base, head=head, paired=paired,
    )  # fmt: skip


@pytest.fixture
def report():
    environments = Environment(python="3.11"), Environment(python="3.12", dirty=True)
    runs = [
        make_run(f"r{i}", environment=one, argv=("ab", "-p", "gemm m=1"))
        for i, one in enumerate(environments)
    ]
    rows = (row(8, 1.0, "a"), row(16, 1.05), row(24, None), row(32, 0.9), row(40, 1.2))
    return AbReport(names=("old", "new"), base=runs[0], head=runs[1], rule=Rule(), rows=rows)


def test_what_differs(report):
    table = difference_table(report.changes, report.names)
    assert [c.name for c in table.columns] == ["environment", "old", "new"]
    assert ("python", "3.11", "3.12") in table.rows
    assert difference_table([], ("a", "b"), empty="nothing differs").rows[0][0] == "nothing differs"


def test_alarms_come_first_the_worst_before(report):
    verdicts = [cells[-1] for cells in rows_table(report).rows]
    assert verdicts == ["broken", "slower", "slower", "faster", "same"]
    changes = [cells[4] for cells in rows_table(report).rows]
    assert changes[1:4] == ["+20.0 %", "+5.0 %", "-10.0 %"]


def test_summary_and_audit(report):
    assert summary(report).startswith("1 broken, 2 slower, 1 faster, 1 same; ")
    assert summary(report).endswith(" at most 1 %")
    short = dataclasses.replace(
        report, base=dataclasses.replace(report.base, cases=len(report.rows) + 4)
    )
    assert short.unmeasured == json.loads(to_json(short))["unmeasured"] == 4
    assert ", 4 not measured" in summary(short)
    assert audit(report) == "1 pair ran the same binary on both sides: none called changed"


def with_clocks(result, clocks):
    blocks = tuple(
        dataclasses.replace(block, clocks_mhz=(clock,) * len(block.samples_s))
        for block, clock in zip(result.measurement.blocks, clocks, strict=True)
    )
    return dataclasses.replace(
        result, measurement=dataclasses.replace(result.measurement, blocks=blocks)
    )


@pytest.mark.parametrize(
    ("status", "low", "duty", "told"),
    [
        ("unsure", 1400.0, "sustained", "burst"),
        ("unsure", 1400.0, "burst", "lock the clock"),
        ("unsure", 1630.0, "sustained", ""),
        ("same", 1400.0, "sustained", ""),
    ],
)
def test_an_unsure_pair_whose_clock_moved_is_told_the_way_out(report, status, low, duty, told):
    found = report.rows[0]
    count = len(found.base.measurement.blocks)
    clocks = [low if i % 2 else 1640.0 for i in range(count)]
    cases = [
        dataclasses.replace(c, timing=dataclasses.replace(c.timing, duty=duty))
        for c in found.pair.cases
    ]
    found = dataclasses.replace(
        found,
        pair=Pair(base=cases[0], head=cases[1]),
        status=VerdictStatus(status),
        base=with_clocks(found.base, clocks),
        head=with_clocks(found.head, clocks),
    )
    line = restless(dataclasses.replace(report, rows=(found, *report.rows[1:])))
    assert told in line
    assert bool(line) is bool(told)
    if told:
        assert "1 unsure pair ran at a core clock that moved, between 1400 and 1640 MHz" in line


def test_other_load_is_reported_with_its_pairs_and_worst_value(report):
    assert other_load(report) == ""

    def loaded(result: Result, load: float) -> Result:
        warning = Reason(f"{load} cores", "other-load", load=load)
        measured = dataclasses.replace(result.measurement, warnings=(warning,))
        return dataclasses.replace(result, measurement=measured)

    first, second, *others = report.rows
    first = dataclasses.replace(first, base=loaded(first.base, 1.2), head=loaded(first.head, 1.9))
    second = dataclasses.replace(second, head=loaded(second.head, 0.4))
    line = other_load(dataclasses.replace(report, rows=(first, second, *others)))
    assert "2 pairs" in line
    assert "1.9" in line
    assert line in remarks(dataclasses.replace(report, rows=(first, second, *others)))


def test_csv_and_json_read_back(report):
    lines = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [line["status"] for line in lines] == ["same", "slower", "broken", "faster", "slower"]
    assert float(lines[1]["ratio"]) == pytest.approx(1.05)
    document = json.loads(to_json(report))
    assert document["rows"][1]["base_s"] == list(report.rows[1].base_s)
    assert document["rows"][2]["head_us"] is None
    assert document["runs"] == ["r0", "r1"]


def test_markdown_has_everything_for_a_comment(report):
    text = to_md(report)
    assert text.startswith("### kernelmark: 1 of 5 kernels stopped working and 2 got slower")
    assert text.index("| slower |") < text.index("<details>") < text.index("3.12")
    assert text.index("m=40") < text.index("m=16"), "the largest cost a call comes first"
    assert "kmark ab -p 'gemm m=1'" in text
    assert "kmark ab -p 'gemm m=40 n=8 k=8 dtype=f32' -b fake\n" in text, "repeats one row"
    assert "fell \\| over" in text


def test_verdicts_carry_the_runs(report):
    found = report.verdicts()
    assert {(v.base, v.head) for v in found} == {("r0", "r1")}
    assert found[2].ratio is None


def test_a_change_that_is_not_that_of_the_medians_is_explained(report):
    assert two_numbers(report) == ""
    # Rounds drift, and the head is 2 % slower in each but two: the medians go the other way.
    times = [1e-5 * (1 + 0.2 * i) for i in range(10)]
    later = [1.02 * t for t in times]
    later[4] = later[5] = 1e-5
    drifted = side(16, times, "a"), side(16, later, "b")
    paired = paired_verdict(times, later)
    base, head = (one.measurement.median_s for one in drifted)
    assert paired.ratio > 1 > head / base
    found = dataclasses.replace(report.rows[1], base=drifted[0], head=drifted[1], paired=paired)
    noted = dataclasses.replace(report, rows=(found, *report.rows))
    assert two_numbers(noted)
    assert two_numbers(noted) in to_md(noted)
