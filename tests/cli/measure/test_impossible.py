"""Results that are faster than the device can be, from `kmark run` to `kmark history`."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import platform
import time

import pytest

import kernelmark as km
from kernelmark.core import codec
from kernelmark.core.metric import Metric
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.devices.fake import FakeDevice
from kernelmark.micro import session
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark.tune import journal
from kernelmark_dev.results import make_roof
from kernelmark_dev.tuning import fake_plans, make_folder

# 48 KiB of data in 20 µs are 2.4 GB/s, and in 2 ms 25 MB/s.
WORDS = (
    *("run", "-d", "fake", "-b", "fake", "-p", "gemm m=64 n=64 k=64 dtype=f32"),
    *("--max-s", "0.05", "--warmup-s", "0.01"),
)
FAST = ("--config", "time_us=20.0")
HONEST = ("--config", "time_us=2000.0")


@pytest.fixture
def dram(tmp_path):
    """A stored roof of the fake device, of 100 MB/s."""
    fields = {"device": "fake", "arch": "fake", "model": FakeDevice().info.model}
    roof = make_roof("bytes", "dram", 1e8, measured=time.time(), **fields)
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_roofs([roof], host=platform.node())
    return roof


def stored(tmp_path, ref="latest"):
    with open_store(tmp_path / "store.sqlite", readonly=True) as store:
        return store.result_set(store.run(ref).id)


def test_it_is_stored_never_ranked_and_ends_with_3(kmark, dram, tmp_path):
    ended = kmark(*WORDS, *FAST)
    assert ended.code == 3
    (result,) = stored(tmp_path).results
    assert result.status is Status.IMPOSSIBLE
    assert result.error
    assert result.measurement is not None
    assert result.measurement.median_s == pytest.approx(20e-6, rel=1e-6)
    assert kmark("show", "--status", "impossible").code == 0
    found = codec.loads(kmark("export", "--json", "-").out, ResultSet)
    assert [one.status for one in found.results] == [Status.IMPOSSIBLE]
    (row,) = csv.DictReader(io.StringIO(kmark("export", "--csv", "-").out))
    assert row["status"] == "impossible"
    assert float(row["median_s"]) == pytest.approx(20e-6, rel=1e-6)


def test_an_honest_one_is_ok_beside_it(kmark, dram, tmp_path):
    ended = kmark(*WORDS, *HONEST)
    assert ended.code == 0, ended.err
    assert [one.status for one in stored(tmp_path).results] == [Status.OK]


def test_without_roofs_nothing_is_judged(kmark, dram, tmp_path):
    assert kmark(*WORDS, *FAST, "--roofs", "none").code == 0
    assert [one.status for one in stored(tmp_path).results] == [Status.OK]
    # A run of before is shown as it was.
    assert kmark("show").code == 0
    # Those of the default store are read without storing anything.
    assert kmark(*WORDS, *FAST, "--no-store").code == 3


def test_compare_and_history_treat_it_as_broken(kmark, dram, tmp_path):
    for more in (HONEST, FAST):
        kmark(*WORDS, *more)
    ended = kmark("compare", "latest~1", "latest", "--match", "problem", "--json", "-")
    assert ended.code == 1
    assert [row["verdict"] for row in json.loads(ended.out)["rows"]] == ["broken"]


def test_a_cpu_is_judged_by_roofs_of_the_run_without_a_store(monkeypatch, tmp_path):
    info = registry.get("cpu").infos()[0]
    slow = Metric(name="copy", value=1e4, unit="B/s", roof="bytes dram")
    found = micro_result(
        "stream", threads=info.units, device="cpu", arch=info.arch, metrics=(slow,)
    )
    monkeypatch.setattr(session, "measure_roof_sources", lambda device, threads, tell: [found])
    timing = Timing(max_s=0.05, warmup_s=0.01, max_allocations=3)
    results = km.run("gemm", m=256, n=256, k=256, dtype="f32", backend="numpy", timing=timing)
    assert [one.status for one in results] == [Status.IMPOSSIBLE]
    assert results.failed
    assert not results.ok()
    assert not results.best()


def test_ab_and_tune_use_the_roofs_of_the_store(kmark, dram, tmp_path, monkeypatch):
    words = ("-d", "fake", "-b", "fake", "-p", "gemm m=64 n=64 k=64 dtype=f32")
    configs = ("--config", "base:time_us=2000.0", "--config", "head:time_us=20.0")
    ended = kmark("ab", *words, *configs)
    assert ended.code == 1, ended.err
    assert [one.status for one in stored(tmp_path).results] == [Status.IMPOSSIBLE]
    slower = dataclasses.replace(dram, value=1e6, measured=dram.measured + 1)
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_roofs([slower], host=platform.node())
    monkeypatch.setenv("KERNELMARK_FAKE_SCRIPT", '{"cache_bytes": 4096}')
    folder = make_folder(tmp_path / "t", fake_plans(1, evaluations=4))
    ended = kmark("tune", "run", str(folder.path), "--timeout", "120", "--jobs", "0")
    assert ended.code == 3
    (path,) = folder.trials.glob("*.jsonl")
    timed = [trial for trial in journal.read_journal(path)[1] if trial.seconds is not None]
    assert timed
    assert {trial.status for trial in timed} == {Status.IMPOSSIBLE}
