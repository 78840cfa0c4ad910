"""What problems cost: shares, order, threshold, and a file that reads back."""

import csv
import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case, Status
from kernelmark.tune.summary import Basis, Cost, counts, read, records, summary, timed, write
from kernelmark.workloads.workload import Call, Workload
from kernelmark_dev.results import make_check, make_result

BASIS = Basis(
    backend="torch", version="2.9", model="H200", arch="sm_90", timing="quick", device="cuda:0"
)


def problem(m):
    return ops.parse(f"gemm m={m} n=16 k=32 dtype=bf16")


def cost(m, count, seconds):
    return Cost(problem=problem(m), count=count, status=Status.OK, time_s=seconds)


def put(path, record):
    """A summary of one row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(record))
        writer.writeheader()
        writer.writerow(record)


def result(status, *, error="", seconds=None, detail=""):
    case = Case(problem=problem(1), backend="torch")
    if seconds is None:
        return make_result(case, status=status, error=error)
    check = make_check(worst=9.0 if detail else 0.1, detail=detail)
    return make_result(case, seconds, status=status, error=error, check=check)


def test_contribution_is_count_times_time_and_the_largest_is_first():
    found = summary(BASIS, [cost(1, 10, 1e-6), cost(2, 1, 30e-6), cost(3, 60, 1e-6)])
    assert [c.problem.dims["m"] for c in found.costs] == [3, 2, 1]
    assert [c.share for c in found.costs] == pytest.approx([0.6, 0.3, 0.1])
    assert [c.cumulative for c in found.costs] == pytest.approx([0.6, 0.9, 1.0])
    assert found.total_s == pytest.approx(100e-6)


def test_the_threshold_is_in_percent():
    costs = [cost(1, 1, 989e-6), cost(2, 1, 10e-6), cost(3, 1, 1e-6)]
    assert [c.problem.dims["m"] for c in summary(BASIS, costs, thr=1.0).selected] == [1, 2]
    assert [c.problem.dims["m"] for c in summary(BASIS, costs, thr=0.1).selected] == [1, 2, 3]
    assert summary(BASIS, costs, thr=1.0).coverage == pytest.approx(0.999)


def test_what_failed_has_a_reason_and_no_share():
    bad = timed(problem(2), 1000, result(Status.UNSUPPORTED, error="no\nsuch dtype"))
    wrong = timed(problem(3), 1000, result(Status.WRONG, seconds=1.0, detail="off by 9"))
    found = summary(BASIS, [cost(1, 1, 1e-6), bad, wrong], thr=0.1)
    assert [c.share for c in found.costs] == [1.0, 0.0, 0.0]
    assert [c.reason for c in found.failed] == ["no such dtype", "off by 9"]
    assert [c.problem for c in found.selected] == [problem(1)]
    assert wrong.time_s == 1.0
    assert wrong.total_s == 0.0


def test_a_threshold_of_nothing_keeps_all():
    untimed = Cost(problem=problem(2), count=1)
    found = summary(BASIS, [cost(1, 1, 1e-6), untimed], thr=0.0)
    assert len(found.selected) == 2
    assert sum(cost.status is None for cost in found.costs) == 1
    assert [c.share for c in summary(BASIS, [untimed]).costs] == [0.0]  # no division by zero


def test_calls_that_share_a_problem_are_one():
    calls = (
        Call(problem=problem(1), count=3, blas={"lda": "16"}),
        Call(problem=problem(2), count=4),
        Call(problem=problem(1), count=5, blas={"lda": "32"}, lost=("lda",)),
    )
    assert counts(Workload(name="x", calls=calls)) == {problem(1): 8, problem(2): 4}


times = st.floats(1e-9, 1e3)
costs = st.lists(
    st.builds(
        Cost,
        problem=st.integers(1, 50).map(problem),
        count=st.integers(1, 10**6),
        status=st.sampled_from([Status.OK, Status.CRASHED, Status.UNSUPPORTED, None]),
        time_s=times,
        low_s=times,
        high_s=st.one_of(times, st.just(math.nan)),
        reason=st.text("abc, \"'é\n", max_size=9),
        run=st.sampled_from(["", "20300102-a"]),
    ),
    unique_by=lambda c: c.problem,
    min_size=1,
)


@given(costs, st.floats(0, 100))
def test_shares_add_up(given_costs, thr):
    found = summary(BASIS, given_costs, thr=thr)
    timed_ones = [c for c in found.costs if c.status is Status.OK]
    assert sum(c.share for c in found.costs) == pytest.approx(1.0 if timed_ones else 0.0)
    assert [c.total_s for c in found.costs] == sorted(
        (c.total_s for c in found.costs), reverse=True
    )
    assert all(c.selected == (100 * c.share >= thr) for c in found.costs)


@given(costs)
def test_the_file_reads_back(tmp_path_factory, given_costs):
    path = tmp_path_factory.mktemp("summary") / "summary.csv"
    found = summary(BASIS, given_costs, thr=1.0)
    write(path, found)
    again = read(path)
    assert again.basis == found.basis
    assert again.basis.device == found.basis.device
    for one, other in zip(found.costs, again.costs, strict=True):
        assert (one.problem, one.count, one.status) == (other.problem, other.count, other.status)
        assert (one.reason, one.run, one.selected) == (other.reason, other.run, other.selected)
        assert other.time_s == pytest.approx(one.time_s, abs=1e-12)
        assert other.high_s == pytest.approx(one.high_s, abs=1e-12, nan_ok=True)
        assert other.share == pytest.approx(one.share, abs=1e-8)


def test_columns_have_their_units(tmp_path):
    write(tmp_path / "summary.csv", summary(BASIS, [cost(1, 10, 2e-6)]))
    (row,) = csv.DictReader((tmp_path / "summary.csv").open())
    assert float(row["time_us"]) == pytest.approx(2.0)
    assert float(row["total_us"]) == pytest.approx(20.0)
    assert float(row["pct_of_total"]) == pytest.approx(100.0)
    assert row["low_us"] == ""


@pytest.mark.parametrize(("thr", "cell"), [(0.1, "0.1"), (0.0, "0.0"), (None, "")])
def test_the_file_says_by_which_threshold_it_was_selected(tmp_path, thr, cell):
    path = tmp_path / "summary.csv"
    write(path, summary(BASIS, [cost(1, 10, 2e-6), cost(2, 1, 2e-6)], thr=thr))
    assert [row["threshold_pct"] for row in csv.DictReader(path.open())] == [cell, cell]
    again = read(path)
    assert again.thr == thr
    path.write_text(path.read_text().replace(f",yes,{cell},", ",yes,many,"))
    with pytest.raises(UsageError, match="many"):
        read(path)


def test_a_file_of_old_has_no_threshold(tmp_path):
    (record,) = records(summary(BASIS, [cost(1, 10, 2e-6)], thr=3.0))
    del record["threshold_pct"]
    put(tmp_path / "summary.csv", record)
    again = read(tmp_path / "summary.csv")
    assert again.thr is None
    assert again.costs[0].count == 10


def test_another_version_or_timing_is_another_basis_but_another_index_is_not():
    assert dataclasses.replace(BASIS, version="2.10") != BASIS
    assert dataclasses.replace(BASIS, timing="full") != BASIS
    assert dataclasses.replace(BASIS, device="cuda:3") == BASIS


def test_a_table_of_something_else_is_told(tmp_path):
    assert read(tmp_path / "summary.csv") is None
    (tmp_path / "summary.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="problem"):
        read(tmp_path / "summary.csv")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("selected", "maybe"),
        ("count", "many"),
        ("count", "-1"),
        ("time_us", "soon"),
        ("low_us", "inf"),
        ("pct_of_total", ""),
        ("status", "fine"),
        ("problem", "gemm m=0"),
    ],
)
def test_a_row_that_is_none_is_told_with_its_line(tmp_path, column, cell):
    path = tmp_path / "summary.csv"
    (record,) = records(summary(BASIS, [cost(1, 10, 2e-6)]))
    put(path, record | {column: cell})
    with pytest.raises(UsageError, match=f"{path}.*2.*{column}") as refused:
        read(path)
    assert refused.value.hint
    assert "DIR" not in refused.value.hint


def test_an_interval_is_told_as_that_of_a_measurement():
    cost = Cost(problem=problem(1), count=1, time_s=10e-6, low_s=4e-6, high_s=36e-6)
    assert cost.rel_half_width == pytest.approx(32 / 2 / 12)
    assert math.isinf(Cost(problem=problem(1), count=1).rel_half_width)
