"""`kmark tune memory`: what searches start from, shown, added and exported."""

import json

import pytest

from kernelmark import ops
from kernelmark.api import tuning
from kernelmark.backends import _memory
from kernelmark.backends._memory import Searched
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Status, config_key
from kernelmark.tune.journal import Journal, Trial
from kernelmark_dev.tuning import fake_plans, make_folder, make_header

CONFIG = FrozenDict({"block_m": 64})


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "data" / "memory.json.gz"
    monkeypatch.setenv("KERNELMARK_MEMORY", str(path))
    return path


def searched(m, seconds=1e-5):
    problem = ops.parse(f"gemm m={m} n=64 k=64 dtype=bf16")
    times = {config_key(CONFIG): (CONFIG, seconds)}
    return Searched(problem=problem, backend="triton", arch="sm_90", times=times)


def test_times_are_added_shown_and_exported(kmark, file, tmp_path):
    given, out = tmp_path / "given.json", tmp_path / "out.json.gz"
    _memory.save(given, [searched(64), searched(128)])
    done = kmark("tune", "memory", str(given), "--json", "-")
    assert json.loads(done.out) == [
        {"backend": "triton", "arch": "sm_90", "op": "gemm", "problems": 2, "times": 2}
    ]
    _memory.save(given, [searched(128, 2e-5)])
    kmark("tune", "memory", str(given), "-o", str(out))
    assert [[s for _, s in each.times.values()] for each in _memory.load(out)] == [
        [pytest.approx(1e-5)],
        [pytest.approx(2e-5)],
    ]
    assert out.read_bytes() == file.read_bytes()


def test_a_tuning_folder_is_added(kmark, file, tmp_path):
    plan = fake_plans(1)[0]
    folder = make_folder(tmp_path / "t", [plan])
    folder.trials.mkdir()
    journal = Journal(folder.journal(plan.name))
    journal.begin(make_header(problem=plan.problem.key, backend="fake"))
    for seconds, status in ((3e-6, Status.OK), (None, Status.WRONG)):
        config = FrozenDict({"stages": 1 if seconds else 2})
        journal.record(Trial(config=config, step="short", status=status, seconds=seconds))
    journal.close()
    kmark("tune", "memory", str(folder.path))
    (known,) = tuning.memory()
    assert known.problem == plan.problem
    assert [seconds for _, seconds in known.times.values()] == [3e-6]


@pytest.mark.parametrize("data", [None, b"", b"\x1f\x8b broken"])
def test_what_is_no_memory_is_refused_and_nothing_is_lost(refused, kmark, file, tmp_path, data):
    _memory.save(tmp_path / "good.json", [searched(64)])
    kmark("tune", "memory", str(tmp_path / "good.json"))
    before = file.read_bytes()
    bad = tmp_path / "bad.json.gz"
    if data is not None:
        bad.write_bytes(data)
    refused("tune", "memory", str(bad))
    assert file.read_bytes() == before


def test_without_a_file_nothing_is_remembered(monkeypatch):
    monkeypatch.setenv("KERNELMARK_MEMORY", "")
    assert tuning.memory_path() is None
    assert tuning.memory([searched(64)]) == [searched(64)]
    assert tuning.memory() == []
