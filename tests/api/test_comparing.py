"""Comparing from Python: results at hand, files, and what needs a store."""

from __future__ import annotations

import pytest

from kernelmark.api.comparing import compare
from kernelmark.api.reading import is_file, read_run
from kernelmark.api.results import Results
from kernelmark.api.sentinels import sentinel_keys
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.problem import parse_key
from kernelmark.core.result import (
    Block,
    Case,
    Measurement,
    Result,
    ResultSet,
    Run,
    Status,
    StopReason,
)


def run(name: str, time_s: float) -> ResultSet:
    blocks = tuple(
        Block(process=0, allocation=i, samples_s=(time_s * f,))
        for i, f in enumerate((0.999, 1.0, 1.001))
    )
    measured = Measurement(
        blocks=blocks,
        low_s=time_s,
        high_s=time_s,
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=0,
        stop=StopReason.FIXED,
        warmup_s=0.0,
        timed_s=0.0,
    )
    result = Result(
        case=Case(problem=parse_key("gemm m=1 n=1 k=1"), backend="numpy"),
        device="cpu",
        status=Status.OK,
        measurement=measured,
    )
    head = Run(id=name, started=1.0, environment=Environment())
    return ResultSet(run=head, results=(result,))


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


def test_a_run_of_a_store_needs_one():
    with pytest.raises(KernelmarkError, match="there is no store to look in"):
        compare("latest", run("b", 1.0))


def test_what_is_a_file(tmp_path):
    assert all(map(is_file, ("a.json", "b.CSV", "./label", "~/x", "-")))
    assert not any(
        map(is_file, ("latest", "latest~1", "20260101-000000-abcdef", "v1.2", "feature/x"))
    )
    other = tmp_path / "exported"
    other.write_text(codec.dumps(run("a", 1.0)))
    assert read_run(str(other), None).run.id == "a"


def test_sentinels_are_a_suite():
    assert len(sentinel_keys("sentinels")) == 3
    assert sentinel_keys("") == []


def test_a_comparison_is_brief_at_a_prompt():
    base, head = Results(run("a", 1e-3)), Results(run("b", 1.1e-3))
    text = repr(head.compare(base))
    assert "samples_s" not in text
    assert len(text) < 200


@pytest.mark.parametrize("base", [3, None, ["a"], "latest"])
def test_what_is_no_run_is_refused_with_a_hint(base):
    with pytest.raises(UsageError) as caught:
        Results(run("b", 1.0)).compare(base)
    assert caught.value.hint
