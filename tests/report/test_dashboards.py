"""Runs in the JSON of other dashboards: every time once, by a name of its own."""

import dataclasses
import json

import pytest

from kernelmark.report import dashboards
from kernelmark.workloads import importers

TABLE = (
    "Validator,GCN_ARCH_NAME,gfx942\n"
    "GemmTunableOp_BFloat16_TN,tn_512_16_1024_ld_1024_1024_512,Gemm_Hipblaslt_9,0.0125\n"
    "GemmTunableOp_BFloat16_TN,tn_512_8_1024_ld_1024_1024_512,Default,0\n"
    "GemmTunableOp_BFloat16_TN,tn_512_4_1024_ld_1024_1024_512,Default,0.0325\n"
)


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    return importers.read(path, importers.Overrides()).results


@pytest.mark.parametrize("name", dashboards.FORMATS)
def test_every_time_that_is_ok_is_there(results, name):
    document = json.loads(json.dumps(dashboards.FORMATS[name](results), allow_nan=False))
    assert len(document) == 2


def test_times_are_in_the_unit_of_the_format(results):
    assert [each["latency"]["value"] for each in dashboards.bencher(results).values()] == [
        pytest.approx(12500),
        pytest.approx(32500),
    ]
    first = dashboards.github_action_benchmark(results)[0]
    assert (first["value"], first["unit"]) == (pytest.approx(12500), "ns")
    assert dashboards.pytorch_hud(results)[0]["metric"]["benchmark_values"] == [1.25e-05]


def test_records_fit_the_columns_of_the_database(results):
    """Tuples of the table oss_ci_benchmark_v3 of pytorch/test-infra; its maps have strings only."""
    columns = {
        "benchmark": {"name", "mode", "dtype", "extra_info"},
        "model": {"name", "type", "backend", "origins", "extra_info"},
        "metric": {"name", "benchmark_values", "target_value", "extra_info"},
    }
    records = dashboards.pytorch_hud([results[0], dataclasses.replace(results[0], device="hip:1")])
    for record in records:
        assert {name: set(record[name]) - columns[name] for name in record} == {
            name: set() for name in columns
        }
        assert all(isinstance(text, str) for text in record["benchmark"]["extra_info"].values())
    assert records[0] != records[1]


def test_results_of_one_name_keep_apart(results):
    assert len(dashboards.bencher([results[0], results[2], results[0]])) == 2
    other = dataclasses.replace(results[0], device="hip:1")
    assert len(dashboards.bencher([results[0], other])) == 2
