"""The commands with a PostgreSQL as their store, as with a file."""

from __future__ import annotations

import csv
import io
import json

import pytest

pytestmark = pytest.mark.slow

RUN = (
    *("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32"),
    *("-a", "m=[8,16]", "-a", "n=8", "-a", "k=8", "--max-s", "0.05", "--warmup-s", "0.01"),
)


@pytest.fixture
def stored(monkeypatch, postgres_place):
    monkeypatch.setenv("KERNELMARK_STORE", postgres_place)
    return postgres_place


def test_runs_are_kept_shown_compared_and_told_as_history(kmark, stored):
    for label, time_us in (("golden", "20.0"), ("tot", "30.0")):
        ended = kmark(*RUN, "--config", f"time_us={time_us}", "--label", label)
        assert ended.code == 0, ended.err
    listed = json.loads(kmark("list", "runs", "--json", "-").out)
    assert [run["label"] for run in listed] == ["tot", "golden"]
    rows = list(csv.DictReader(io.StringIO(kmark("show", "tot", "--csv", "-").out)))
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert float(rows[0]["median_s"]) == pytest.approx(30e-6, rel=0.2)
    compared = kmark("compare", "golden", "tot", "--match", "problem", "--json", "-")
    assert compared.code == 1
    assert {row["verdict"] for row in json.loads(compared.out)["rows"]} == {"slower"}
    assert kmark("history").code == 0


def test_failures_are_found_and_measured_again(kmark, stored):
    config = ("--config", "time_us=20.0", "--config", "behaviour=wrong")
    assert kmark(*RUN, *config, "--label", "part").code == 3
    again = kmark("run", "--resume", "part", "--retry-failed", "--json", "-")
    assert again.code == 3
    assert len(json.loads(again.out)["results"]) == 2


def test_a_database_that_is_not_there_is_told_in_one_sentence(refused, monkeypatch):
    store = "postgresql://nobody@127.0.0.1:1/none"
    monkeypatch.setenv("KERNELMARK_STORE", store)
    refused("list", "runs", store=store)
