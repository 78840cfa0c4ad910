"""Real workers on the fake device: every plan to its outcome, whatever candidates do."""

import dataclasses
import signal
import time
from collections import Counter

import pytest

from kernelmark import ops
from kernelmark.backends import fake
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Status, config_key
from kernelmark.devices.fake import FakeDevice
from kernelmark.runners.events import DeviceLost
from kernelmark.runners.impossible import MARGINS
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.process import LocalWorkers
from kernelmark.tune import evaluate, journal
from kernelmark.tune.driver import Driver
from kernelmark.tune.evaluate import static_reason
from kernelmark.tune.plans import Budget
from kernelmark.tune.progress import Began, Ended, Evaluated, Retired
from kernelmark_dev.results import make_roof
from kernelmark_dev.tuning import fake_plans, left, make_folder, start

# Of a candidate: some in the fake space hang, and all others take milliseconds.
PATIENCE_S = 5


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))


def run(tmp_path, plans, devices=("fake",), jobs=1, timeout_s=PATIENCE_S, **given):
    heard = []
    driver = Driver(
        plans,
        LocalRunner(list(devices), timeout_s=timeout_s, jobs=jobs),
        tmp_path / "trials",
        on_event=heard.append,
        **given,
    )
    driver.run()
    return driver, heard


def trials(tmp_path, name):
    return journal.read_journal(tmp_path / "trials" / f"{name}.jsonl")[1]


def test_every_plan_comes_to_a_verified_outcome(tmp_path, monkeypatch):
    plans = fake_plans(2, evaluations=10)
    driver, heard = run(tmp_path, plans, jobs=2)
    assert driver.outcomes.keys() == {plan.name for plan in plans}
    assert not driver.retired
    for plan in plans:
        outcome = driver.outcomes[plan.name]
        assert outcome.evaluations == 10
        assert outcome.tuned.verified
        assert outcome.reference.verified
        factor = fake.tiled(plan.problem, outcome.tuned.config).factor
        assert outcome.ratio == pytest.approx(1 / factor, rel=1e-6)
        counts = Counter(t.key for t in trials(tmp_path, plan.name))
        assert max(counts.values()) == 1
    last = [event for event in heard if isinstance(event, Evaluated)][-1]
    assert last.progress.candidates_done == 20
    assert sum(isinstance(event, Ended) for event in heard) == 2
    # Again, nothing is left to do, and no worker is started for it.
    monkeypatch.setattr(LocalWorkers, "start", lambda self, spec: pytest.fail("started"))
    again, _ = run(tmp_path, plans)
    assert again.outcomes == driver.outcomes


def test_hopeless_candidates_are_cut_off_and_never_win(tmp_path, monkeypatch):
    (plan,) = fake_plans(1, evaluations=30)
    driver, _ = run(tmp_path / "cut", [plan])
    search = [t for t in trials(tmp_path / "cut", plan.name) if t.of_search]
    cut = [t for t in search if t.is_cut]
    assert cut
    best_s = min(t.seconds for t in search if t.ok and not t.is_cut)
    assert all(t.ok and t.worst is not None and t.seconds > 1.5 * best_s for t in cut)
    monkeypatch.setattr(evaluate, "CUTOFF", 1e6)
    whole, _ = run(tmp_path / "whole", [plan])
    assert not any(t.is_cut for t in trials(tmp_path / "whole", plan.name))
    tuned = driver.outcomes[plan.name].tuned
    assert tuned.config == whole.outcomes[plan.name].tuned.config


def test_a_candidate_beyond_a_roof_is_impossible_and_never_wins(tmp_path, monkeypatch):
    # A cache so small that the argument sets of these products are cold.
    monkeypatch.setenv("KERNELMARK_FAKE_SCRIPT", '{"cache_bytes": 4096}')
    (plan,) = fake_plans(1, evaluations=10)
    free, _ = run(tmp_path / "free", [plan])
    best = free.outcomes[plan.name].tuned
    moved = ops.registry.get(plan.problem.op).bytes(plan.problem)
    per_s = moved / best.median_s / MARGINS["memory"] / 1.001
    about = {"device": "fake", "arch": "fake", "model": FakeDevice().info.model}
    dram = make_roof("bytes", "dram", per_s, **about)
    held, _ = run(tmp_path / "held", [plan], roofs=[dram])
    found = trials(tmp_path / "held", plan.name)
    assert {t.status for t in found if t.config == best.config} == {Status.IMPOSSIBLE}
    outcome = held.outcomes[plan.name]
    assert outcome.tuned.config != best.config
    assert outcome.tuned.median_s > best.median_s


def bad_configs():
    """A config of the fake space for each way to fail that its model has."""
    problem = fake_plans(1)[0].problem
    found = {}
    for config in fake.space():
        cost = fake.tiled(problem, config)
        if cost.fault:
            found.setdefault(cost.fault, config)
        elif cost.resources["stack_bytes"] > 1000:
            found.setdefault("spills", config)
    return found


def test_candidates_fail_in_every_way_and_are_data(tmp_path):
    wanted = bad_configs()
    assert set(wanted) == {"compile_error", "wrong", "raise", "crash", "hang", "spills"}
    plans = []
    for fault, config in wanted.items():
        plan = fake_plans(1, evaluations=1)[0]
        space = {name: (value,) for name, value in config.items()}
        plans.append(dataclasses.replace(plan, name=f"X_{fault}", space=space))
    hangs = [plan for plan in plans if plan.name == "X_hang"]
    driver, _ = run(tmp_path, [plan for plan in plans if plan not in hangs])
    hung, _ = run(tmp_path, hangs, timeout_s=0.5)  # no patience with what never ends
    seen = {plan.name[2:]: trials(tmp_path, plan.name)[0] for plan in plans}
    assert {fault: trial.status for fault, trial in seen.items()} == {
        "compile_error": Status.COMPILE_ERROR,
        "wrong": Status.WRONG,
        "raise": Status.RUNTIME_ERROR,
        "crash": Status.CRASHED,
        "hang": Status.TIMEOUT,
        "spills": Status.SKIPPED,
    }
    assert seen["spills"].seconds is None
    assert "spills" in seen["spills"].error
    outcomes = [*driver.outcomes.values(), *hung.outcomes.values()]
    assert len(outcomes) == len(plans)
    for outcome in outcomes:
        assert not outcome.kept
        assert not outcome.tuned.verified


@pytest.mark.parametrize("met", [False, True])
def test_a_reference_that_spills_is_timed(tmp_path, met):
    """A candidate like it is not worth a timing; what is to be beaten is, whatever it uses, and
    whether or not the search met it too."""
    spills = {**fake.DEFAULT, "tile_m": 128, "tile_n": 128, "warps": 2}
    plan = fake_plans(1, evaluations=8 if met else 1, finalists=2 if met else 1)[0]
    space = {name: (value,) for name, value in fake.DEFAULT.items()}
    if met:
        space = {k: tuple(dict.fromkeys((v, spills[k]))) for k, v in fake.DEFAULT.items()}
    plan = dataclasses.replace(plan, reference_config=spills, space=space)
    cost = fake.tiled(plan.problem, spills)
    assert static_reason(cost.resources, FakeDevice().info)
    driver, _ = run(tmp_path, [plan])
    outcome = driver.outcomes[plan.name]
    assert "skipped" not in outcome.reason
    if not met:
        assert outcome.ratio == pytest.approx(cost.factor, rel=1e-6)
        assert outcome.kept, outcome.reason
        assert outcome.reference.verified


def test_plans_are_shared_by_devices_and_retired_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "2")
    good = fake_plans(2, evaluations=3, rounds=2)
    bad = dataclasses.replace(good[0], name="BAD", space={"no_such": (1,)})
    driver, heard = run(tmp_path, [*good, bad], devices=("fake", "fake:1"))
    assert driver.outcomes.keys() == {plan.name for plan in good}
    assert "no_such" in driver.retired["BAD"]
    assert {e.device for e in heard if isinstance(e, Began)} == {"fake", "fake:1"}
    assert [e.name for e in heard if isinstance(e, Retired)] == ["BAD"]


def test_a_dead_devices_plans_move_to_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "2")
    plans = fake_plans(2, evaluations=3, rounds=2)
    heard = []
    runner = LocalRunner(["fake", "fake:1"], timeout_s=PATIENCE_S, jobs=1)
    driver = Driver(plans, runner, tmp_path / "trials", on_event=heard.append)
    # The second device goes away once its facts are known.
    lost = driver.pool.devices[1]
    lost.spec = dataclasses.replace(lost.spec, variables={"KERNELMARK_FAKE_DEVICES": "1"})
    driver.run()
    assert driver.outcomes.keys() == {plan.name for plan in plans}
    assert [e.device for e in heard if isinstance(e, DeviceLost)] == ["fake:1"]


def test_without_any_device_it_says_so(tmp_path):
    driver = Driver(
        fake_plans(1),
        LocalRunner(["fake"], variables={"KERNELMARK_FAKE_DEVICES": "0"}, jobs=0),
        tmp_path / "trials",
    )
    with pytest.raises(KernelmarkError):
        driver.run()


def test_minutes_end_a_run_which_goes_on_later(tmp_path, time_up_after):
    plans = fake_plans(8, evaluations=400, rounds=2)
    with time_up_after(12):
        driver, _ = run(tmp_path, plans, minutes=1.0)
    begun = {path.stem for path in (tmp_path / "trials").glob("*.jsonl")}
    assert driver.outcomes.keys() == begun
    assert len(begun) < len(plans)
    assert all(outcome.evaluations < 400 for outcome in driver.outcomes.values())
    assert set(driver.cut) == begun
    name = next(iter(begun))
    few = len(trials(tmp_path, name))
    plan = next(plan for plan in plans if plan.name == name)
    more = driver.outcomes[name].evaluations + 2
    again, _ = run(tmp_path, [dataclasses.replace(plan, budget=Budget(evaluations=more))])
    assert again.outcomes[name].evaluations == more
    assert again.cut == []
    assert len(trials(tmp_path, name)) > few


def test_minutes_end_a_final_too_which_goes_on_later(tmp_path, time_up_after):
    """As it must if the final takes longer than the search led to expect."""
    (plan,) = fake_plans(1, evaluations=10)
    whole, _ = run(tmp_path / "whole", [plan])
    steps = [t.step for t in trials(tmp_path / "whole", plan.name)]
    final = next(n for n, step in enumerate(steps) if step.startswith("final "))
    with time_up_after(final + 3, whole=True):
        driver, _ = run(tmp_path, [plan], minutes=1.0)
    assert not driver.outcomes
    assert not driver.retired
    assert [t.step for t in trials(tmp_path, plan.name)] == steps[: final + 3]
    again, _ = run(tmp_path, [plan])
    tuned = again.outcomes[plan.name].tuned
    assert tuned.config == whole.outcomes[plan.name].tuned.config
    assert max(Counter(t.key for t in trials(tmp_path, plan.name)).values()) <= 2


def test_winners_are_starts_of_later_plans(tmp_path, monkeypatch):
    monkeypatch.setattr("kernelmark.tune.driver.OPEN", 1)
    plans = fake_plans(2, evaluations=6, rounds=2)
    driver, _ = run(tmp_path, plans)
    first, second = driver.plans
    header = journal.read_journal(tmp_path / "trials" / f"{second.name}.jsonl")[0]
    won = config_key(driver.outcomes[first.name].tuned.config)
    assert won in [config_key(config) for config in header.starts]
    assert len(journal.read_journal(tmp_path / "trials" / f"{first.name}.jsonl")[0].starts) == 1


# Kills


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path):
    plans = fake_plans(2, evaluations=8)
    words = ("--timeout", str(PATIENCE_S), "-q", "--jobs", "1")
    right = make_folder(tmp_path / "right", plans)
    start(right, *words).communicate()
    folder = make_folder(tmp_path / "killed", plans)
    for count in (2, 9):  # in the first searches, and when some are over
        process = start(folder, *words)
        assert wait_for_lines(folder, process, count), process.communicate()
        process.kill()
        process.communicate()
    assert start(folder, *words).wait(600) in (0, 3)
    undisturbed, found = left(right), left(folder)
    assert found.winners == undisturbed.winners
    assert found.twice == []
    assert found.evaluated.keys() == undisturbed.evaluated.keys()


@pytest.mark.usefixtures("default_signals")
def test_a_signal_ends_with_130_and_leaves_everything(tmp_path):
    folder = make_folder(tmp_path / "t", fake_plans(2, evaluations=300))
    process = start(folder, "--timeout", str(PATIENCE_S))
    assert wait_for_lines(folder, process, 3), process.communicate()
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 130, told
    assert "goes on" in told
    for path in folder.trials.glob("*.jsonl"):
        journal.Journal(path).close()


def wait_for_lines(folder, process, count):
    """Wait for so many lines in the journals; False if the run has ended before."""
    while process.poll() is None:
        if sum(path.read_text().count("\n") for path in folder.trials.glob("*.jsonl")) >= count:
            return True
        time.sleep(0.01)
    return False
