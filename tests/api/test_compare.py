"""Comparing from Python: results at hand, files, and what needs a store."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.api.compare import compare, history
from kernelmark.api.results import Results, is_file, read_run
from kernelmark.core import codec
from kernelmark.core.errors import UsageError
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Case, KernelInfo, ResultSet
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import measured_interval
from kernelmark.stores import open_store
from kernelmark_dev.results import make_measurement, make_result, make_run, make_set

CASE = Case(problem=parse_key("gemm m=1 n=1 k=1"), backend="numpy")


def run(name: str, time_s: float) -> ResultSet:
    blocks = [time_s * f for f in (0.999, 1.0, 1.001)]
    result = make_result(CASE, measurement=make_measurement(*blocks, low_s=time_s, high_s=time_s))
    return make_set(result, id=name)


def test_results_compare_with_results_and_files(tmp_path):
    base, head = Results(run("a", 1e-3)), Results(run("b", 1.1e-3))
    (row,) = head.compare(base).rows
    assert row.status.value == "slower"
    assert row.verdict.ratio == pytest.approx(1.1)
    file = tmp_path / "a.json"
    base.to_json(file)
    assert head.compare(str(file)).rows[0].verdict == row.verdict
    (mirrored,) = base.compare(head.result_set, rule="ratio").rows
    assert mirrored.status.value == "same"


def test_history_counts_alarms_of_equal_binaries(tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        for number, (time_s, binary) in enumerate([(1e-3, "x"), (2e-3, "x"), (1e-3, "y"), (1, "")]):
            store.add_run(make_run(f"r{number}", started=1e9 + number))
            (result,) = run("", time_s).results
            kernel = KernelInfo(name="k", binary_hash=binary)
            store.add_results(f"r{number}", [dataclasses.replace(result, kernel=kernel)])
        audit = history(store, canaries="").audit
    assert (audit.compared, audit.alarms) == (1, 1)


FAST, SLOW = (69.9, 69.92, 69.94), (200.0, 201.0, 202.0)


@pytest.mark.parametrize(
    "head",
    [
        [FAST] * 5 + [(150.0, 151.0, 600.0)] * 4,
        [FAST * 6 + SLOW * 5, FAST * 3 + SLOW * 2, FAST * 2 + SLOW, FAST * 9 + SLOW * 8] * 2,
    ],
)
def test_compare_and_history_name_one_change_by_one_number(tmp_path, head):
    with open_store(tmp_path / "store.sqlite") as store:
        for number, blocks_us in enumerate(([(76.2, 76.21, 76.22)] * 9, head)):
            found = make_run(f"r{number}", started=1e9 + number)
            store.add_run(found)
            blocks_s = [[t * 1e-6 for t in times] for times in blocks_us]
            result = make_result(CASE, *blocks_s)
            interval = measured_interval(result.measurement.blocks)
            parts = {name: getattr(interval, name) for name in ("low_s", "high_s", "modes")}
            whole = dataclasses.replace(result.measurement, **parts)
            store.add_results(found.id, [dataclasses.replace(result, measurement=whole)])
        (row,) = compare("r0", "r1", store=store).rows
        (story,) = history(store).stories
    times = [point.median_s for point in story.points]
    assert (row.judgement.base_s, row.judgement.head_s) == pytest.approx(times)
    assert row.judgement.ratio == pytest.approx(times[1] / times[0])
    assert row.judgement.ratio < 1
    assert row.status is VerdictStatus.UNSURE


def test_what_is_a_file(tmp_path):
    assert all(map(is_file, ("a.json", "b.CSV", "./label", "~/x", "-")))
    assert not any(
        map(is_file, ("latest", "latest~1", "20260101-000000-abcdef", "v1.2", "feature/x"))
    )
    other = tmp_path / "exported"
    other.write_text(codec.dumps(run("a", 1.0)))
    assert read_run(str(other), None).run.id == "a"


def test_a_comparison_is_brief_at_a_prompt():
    base, head = Results(run("a", 1e-3)), Results(run("b", 1.1e-3))
    text = repr(head.compare(base))
    assert "samples_s" not in text
    assert len(text) < 200


def test_a_comparison_in_python_names_no_options_of_the_command_line():
    base, head = run("a", 1e-3), run("b", 1e-3)
    case = dataclasses.replace(
        base.results[0].case, problem=parse_key("gemm m=9 n=8 k=8 dtype=f32")
    )
    gone = dataclasses.replace(base.results[0], case=case)
    found = Results(head).compare(dataclasses.replace(base, results=(*base.results, gone)))
    assert found.counts[VerdictStatus.GONE] == 1
    assert "--" not in str(found).partition("gone")[2]
    assert type(found).__name__ == "Comparison"


@pytest.mark.parametrize("base", [3, None, ["a"], "latest"])
def test_what_is_no_run_is_refused_with_a_hint(base):
    with pytest.raises(UsageError) as caught:
        Results(run("b", 1.0)).compare(base)
    assert caught.value.hint
