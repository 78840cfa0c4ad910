"""A real tuning run on this machine's CPU: IREE's tile sizes for one small product."""

import pytest

from kernelmark import backends, ops
from kernelmark.runners.local import LocalRunner
from kernelmark.tune import journal
from kernelmark.tune.driver import Driver
from kernelmark.tune.plans import Acceptance, Budget, TunePlan

pytestmark = pytest.mark.slow


def test_tiles_of_a_small_product_are_tuned(tmp_path, monkeypatch):
    missing = backends.find("iree").available()
    if missing is not None:
        pytest.skip(missing)
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    plan = TunePlan(
        name="SSS_NN_0",
        problem=ops.parse("gemm m=64 n=64 k=64 dtype=f32"),
        backend="iree",
        reference_backend="iree",
        strategy="random",
        budget=Budget(evaluations=6),
        acceptance=Acceptance(finalists=1, rounds=2, neighbours=1),
    )
    driver = Driver([plan], LocalRunner(["cpu"]), tmp_path / "trials")
    driver.run()
    assert driver.retired == {}
    outcome = driver.outcomes["SSS_NN_0"]
    assert outcome.evaluations == 6
    assert outcome.tuned.verified
    assert outcome.reference.verified
    assert outcome.tuned.median_s > 0
    assert outcome.reference.kernel.binary_hash != outcome.tuned.kernel.binary_hash
    _, trials, _ = journal.read_journal(tmp_path / "trials" / "SSS_NN_0.jsonl")
    timed = [trial for trial in trials if trial.step == "look" and trial.ok]
    assert len({trial.kernel.binary_hash for trial in timed}) == len(timed)
    assert any(trial.step == "near" and trial.ok for trial in trials)
