"""Runs in the JSON of other dashboards: every time once, by a name of its own."""

import dataclasses
import json

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.timing import Cache
from kernelmark.report import dashboards
from kernelmark.report.results import result_records, result_rows
from kernelmark.workloads import importers
from kernelmark_dev.raising import tells

TABLE = (
    "Validator,GCN_ARCH_NAME,gfx942\n"
    "GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Hipblaslt_9,0.0125\n"
    "GemmTunableOp_BFloat16_TN,tn_512_8_1024_ld_1024_1024_512,Default,0\n"
    "GemmTunableOp_BFloat16_TN,tn_512_4_1024_ld_1024_1024_512,Default,0.0325\n"
)


WITH = {"repository": "https://github.com/org/name", "commit": "abc"}


@pytest.fixture
def result_set(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    return importers.read(path, importers.Overrides(label="nightly"))


@pytest.fixture
def results(result_set):
    return result_set.results


@pytest.fixture
def written(result_set):
    def call(name, results=result_set.results):
        document = dashboards.FORMATS[name](results, result_set.run, WITH)
        return json.loads(json.dumps(document, allow_nan=False))

    return call


@pytest.mark.parametrize("name", dashboards.FORMATS)
def test_every_time_that_is_ok_is_there(written, name):
    assert len(written(name)) == 2


def test_times_are_in_the_unit_of_the_format(written):
    assert [each["latency"]["value"] for each in written("bencher").values()] == [
        pytest.approx(12500),
        pytest.approx(32500),
    ]
    first = written("github-action-benchmark")[0]
    assert (first["value"], first["unit"]) == (pytest.approx(12500), "ns")
    assert written("pytorch-hud")[0]["metric"]["benchmark_values"] == [1.25e-05]
    assert written("conbench")[0]["stats"] == {"data": [1.25e-05], "unit": "s"}


def test_records_fit_the_columns_of_the_database(results, written):
    """Tuples of the table oss_ci_benchmark_v3 of pytorch/test-infra; its maps have strings only."""
    columns = {
        "benchmark": {"name", "mode", "dtype", "extra_info"},
        "model": {"name", "type", "backend", "origins", "extra_info"},
        "metric": {"name", "benchmark_values", "target_value", "extra_info"},
    }
    two = [results[0], dataclasses.replace(results[0], device="hip:1")]
    records = written("pytorch-hud", two)
    for record in records:
        assert {name: set(record[name]) - columns[name] for name in record} == {
            name: set() for name in columns
        }
        assert all(isinstance(text, str) for text in record["benchmark"]["extra_info"].values())
    assert records[0] != records[1]


def test_results_of_one_name_keep_apart(results, written):
    assert len(written("bencher", [results[0], results[2], results[0]])) == 2
    other = dataclasses.replace(results[0], device="hip:1")
    assert len(written("bencher", [results[0], other])) == 2
    other = dataclasses.replace(results[0], arch="gfx950")
    assert len(written("bencher", [results[0], other])) == 2


@pytest.mark.parametrize(("name", "keys"), [("conbench", "tags"), ("pytorch-hud", "benchmark")])
def test_imported_results_with_another_timing_keep_apart(results, written, name, keys):
    hot = dataclasses.replace(results[0].case.timing, cache=Cache.HOT)
    other = dataclasses.replace(results[0], case=dataclasses.replace(results[0].case, timing=hot))
    first, second = (record[keys] for record in written(name, [results[0], other]))
    assert first != second


@pytest.mark.parametrize("name", ["conbench", "github-action-benchmark", "pytorch-hud"])
def test_the_timing_of_another_tool_is_unknown(written, result_set, name):
    text = json.dumps(written(name))
    assert "cache=" not in text
    assert tells(text, "unknown", method="TunableOp")
    ours = dataclasses.replace(result_set.run, environment=Environment(kernelmark_version="1"))
    document = dashboards.FORMATS[name](result_set.results, ours, WITH)
    assert "cache=cold" in json.dumps(document)


def test_settings_of_another_tool_are_unknown_in_csv(result_set):
    for row in result_records(result_rows(result_set)):
        names = ("cache", "timer", "strain", "duty", "threads")
        assert [row[name] for name in names] == ["unknown"] * 4 + [None]


def test_conbench_gets_the_fields_that_its_schema_requires(results, result_set, written):
    """_BenchmarkResultCreateSchema of conbench; results of one run_id are of one machine."""
    first, other = written(
        "conbench", [results[0], dataclasses.replace(results[0], device="hip:1")]
    )
    assert {"run_id", "batch_id", "timestamp", "tags", "context", "github"} <= set(first)
    assert set(first["cluster_info"]) == {"name", "info", "optional_info"}
    assert first["github"] == WITH
    assert first["run_tags"] == {"name": "nightly"}
    assert first["run_id"] != other["run_id"]
    assert first["batch_id"] == other["batch_id"]
    without = dashboards.conbench(results, result_set.run, {"repository": WITH["repository"]})
    assert without[0]["github"] == {"repository": WITH["repository"]}
    with pytest.raises(UsageError):
        dashboards.conbench(results, result_set.run, {})
