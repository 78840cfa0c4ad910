"""What is kept: verified, surely faster, by enough, and large enough to be judged."""

import csv
import dataclasses
import itertools
import json
import math

import pytest

from kernelmark import backends, ops
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo, Status
from kernelmark.devices.fake import FakeDevice
from kernelmark.tune import results
from kernelmark.tune.finals import (
    Score,
    decide,
    finalists,
    finals,
    neighbours,
    nothing_found,
    timings,
)
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.journal import SCREENING_STEP, Journal, Trial
from kernelmark.tune.plans import Acceptance
from kernelmark.tune.results import Choice, Metrics
from kernelmark_dev.tuning import fake_plans, make_outcome

ASKED = Acceptance()
PLAN = fake_plans(1)[0]
INFO = FakeDevice().info


RAIN = Reason("other work used 3 of 4 cores")
WRONG = Reason("wrong on x: bad")


def judged(
    reference_us=20.0,
    ratio=1.5,
    low=1.4,
    high=None,
    fault=None,
    reference_fault=None,
    rounds=6,
    disturbed=None,
):
    return decide(
        ASKED,
        reference=Choice(backend="r", median_s=reference_us * 1e-6),
        tuned=Choice(backend="t", median_s=reference_us / ratio * 1e-6),
        score=Score(ratio=ratio, low=low, high=high or 1.1 * ratio, rounds=rounds),
        fault=fault,
        reference_fault=reference_fault,
        disturbed=disturbed,
    )


def test_what_is_surely_and_clearly_faster_is_kept():
    kept, reason = judged()
    assert (kept, reason.code) == (True, "faster")
    shown = {"ratio": 1.5, "low": 1.4, "high": 1.65, "rounds": 6, "gain_s": 20e-6 / 3}
    assert dict(reason.fields) == pytest.approx({**shown, "reference_fault": None})
    kept, reason = judged(reference_fault=WRONG)
    assert (kept, WRONG in reason) == (True, True)


@pytest.mark.parametrize(
    ("given", "code", "fields"),
    [
        ({"fault": WRONG}, "text", {}),
        ({"reference_us": 3.9}, "text", {}),
        ({"low": 1.4, "high": 3.0}, "too-noisy", {"rounds": 6}),
        ({"disturbed": RAIN}, "disturbed", {"cause": RAIN}),
        ({"disturbed": RAIN, "low": 0.9}, "disturbed", {"cause": RAIN}),
        ({"low": 0.999}, "not-faster", {"rounds": 6}),
        ({"ratio": 0.2, "low": 0.1, "high": 0.3}, "slower", {"ratio": 0.2}),
        ({"low": 0.0, "rounds": 4}, "not-faster", {"rounds": 4}),
        ({"ratio": 1.02, "low": 1.01}, "gain-too-small", {"ratio": 1.02}),
        (
            {"ratio": 1.05, "low": 1.04, "reference_us": 5.0},
            "gain-too-small",
            {"gain_s": 5e-6 - 5e-6 / 1.05},
        ),
    ],
)
def test_anything_less_is_not(given, code, fields):
    kept, reason = judged(**given)
    assert not kept
    assert reason.code == code
    for name, value in fields.items():
        is_float = isinstance(value, float)
        assert reason.fields[name] == (pytest.approx(value) if is_float else value)
    assert "\n" not in reason


def played(
    path, say, configs=({"a": 1}, {"a": 2}), plan=PLAN, searched_us=20.0, load=None, info=INFO
):
    """A final over scripted answers: `say(side, round or problem)` gives µs and a status. `load`
    is what other work used of the cores meanwhile, in one trial after the other."""
    journal = Journal(path)
    reached = [
        Trial(config=c, step="full", status=Status.OK, seconds=1e-6 * (searched_us + i))
        for i, c in enumerate(configs)
    ]
    loads = itertools.cycle(load or [None])
    work = finals(plan, info, journal, reached, 2)
    try:
        while True:
            for request in next(work).requests:
                side = "ref" if not request.case.config else f"a{request.case.config['a']}"
                near = request.case.problem != plan.problem
                what = "near" if near else " ".join(request.step.split()[2:])
                us, status = say(side, what)
                journal.record(
                    Trial(
                        config=request.case.config,
                        step=request.step,
                        status=status,
                        seconds=us * 1e-6,
                        worst={Status.OK: 0.2, Status.WRONG: 7.0}.get(status),
                        error="" if status is Status.OK else "bad",
                        kernel=KernelInfo(name=f"{side} for {request.case.problem.key}"),
                        problem=request.case.problem.key if near else "",
                        load=next(loads),
                    )
                )
    except StopIteration as stop:
        return stop.value


TIMES = {"ref": 30.0, "a1": 25.0, "a2": 20.0}


def test_the_final_ranks_anew(tmp_path):
    outcome = played(tmp_path / "j", lambda side, what: (TIMES[side], Status.OK))
    assert outcome.kept
    assert dict(outcome.tuned.config) == {"a": 2}
    assert outcome.ratio == pytest.approx(1.5)
    assert outcome.tuned.worst == 0.2
    assert outcome.reference.median_s == pytest.approx(30e-6)
    # Of the problem, and not of a size next door.
    assert outcome.tuned.kernel.name == f"a2 for {PLAN.problem.key}"
    assert outcome.reference.kernel.name == f"ref for {PLAN.problem.key}"


def test_what_made_a_finalist_the_best_does_not_count_for_it(tmp_path):
    """Equal kernels: the luckier one in the screening is chosen; the final shows it was luck."""
    lucky = {"ref": 30.0, "a1": 30.0, "a2": 20.0}
    outcome = played(
        tmp_path / "j",
        lambda side, what: (lucky[side] if SCREENING_STEP in what else 30.0, Status.OK),
    )
    assert dict(outcome.tuned.config) == {"a": 2}
    assert outcome.ratio == pytest.approx(1.0)
    assert not outcome.kept


@pytest.mark.parametrize("status", [Status.WRONG, Status.IMPOSSIBLE])
@pytest.mark.parametrize("step", [SCREENING_STEP, "round 3", "near"])
def test_one_that_breaks_in_the_final_gives_way_to_the_next(tmp_path, step, status):
    def say(side, what):
        bad = side == "a2" and step in what
        us = 0.01 if status is Status.IMPOSSIBLE and side == "a2" else TIMES[side]
        return us, status if bad else Status.OK

    outcome = played(tmp_path / "j", say)
    assert outcome.kept
    assert dict(outcome.tuned.config) == {"a": 1}
    assert outcome.ratio == pytest.approx(1.2)


@pytest.mark.parametrize("most", [1, 2])
def test_the_timings_of_a_final_are_foretold(tmp_path, most):
    asked = []

    def say(side, what):
        asked.append(what)
        return 30.0, Status.OK

    plan = dataclasses.replace(PLAN, acceptance=Acceptance(finalists=most, neighbours=0, rounds=5))
    played(tmp_path / "j", say, plan=plan)
    assert len(asked) == timings(plan, 3)


def next_door(statuses):
    """Answers by which the tuned config is so on one size after another; how many were asked."""
    left, asked = iter(statuses), []

    def say(side, what):
        asked.extend([what] if what == "near" else [])
        us = 30.0 if side == "ref" else 10.0
        return us, next(left, Status.OK) if what == "near" else Status.OK

    return say, asked


@pytest.mark.parametrize("status", [Status.UNSUPPORTED, Status.COMPILE_ERROR, Status.SKIPPED])
def test_sizes_that_a_config_cannot_do_are_made_up_for_by_others(tmp_path, status):
    say, asked = next_door([status] * 3)
    outcome = played(tmp_path / "j", say, configs=({"a": 1},))
    assert len(asked) == 3 + PLAN.acceptance.neighbours
    assert outcome.kept
    assert outcome.tuned.verified
    assert outcome.reason.code == "faster"


def test_one_that_is_wrong_on_the_first_size_it_can_do_is_not_kept(tmp_path):
    say, _ = next_door([Status.UNSUPPORTED] * 4 + [Status.WRONG])
    outcome = played(tmp_path / "j", say, configs=({"a": 1},))
    assert not outcome.kept
    assert "wrong" in outcome.reason


@pytest.mark.parametrize("ran", [0, 1])
def test_one_that_can_do_too_few_sizes_next_door_is_kept_and_that_is_told(tmp_path, ran):
    every = len(neighbours(PLAN.problem))
    say, asked = next_door([Status.OK] * ran + [Status.UNSUPPORTED] * every)
    outcome = played(tmp_path / "j", say, configs=({"a": 1},))
    assert len(asked) == every
    assert outcome.kept
    assert outcome.tuned.verified
    assert str(ran) in outcome.reason
    assert "2" in outcome.reason


def test_an_own_op_has_no_sizes_next_door_and_nothing_is_told_of_them(tmp_path):
    # Its integers need not be sizes: an axis or a group size has no neighbours.
    file = tmp_path / "rows_and_m.py"
    file.write_text(
        "def inputs(rows=8, m=8): return {'x': ((rows, m), 'f32')}\n"
        "def reference(x): return x\n"
        "def prepare(problem, config, sets): ...\n"
    )
    backends.find(str(file))
    problem = ops.parse("rows_and_m rows=16")
    assert neighbours(problem) == []
    say, asked = next_door([])
    plan = dataclasses.replace(PLAN, problem=problem)
    outcome = played(tmp_path / "j", say, configs=({"a": 1},), plan=plan)
    assert not asked
    assert (outcome.kept, outcome.reason.code) == (True, "faster")


@pytest.mark.parametrize("load", [None, [2.0]])
def test_when_all_are_wrong_nothing_is_kept(tmp_path, load):
    def say(side, what):
        return 10.0 if side != "ref" else 30.0, Status.OK if side == "ref" else Status.WRONG

    outcome = played(tmp_path / "j", say, load=load)
    assert not outcome.kept
    assert not outcome.tuned.verified
    assert outcome.reason
    assert not outcome.disturbed  # nothing to come back for, whatever other work there was


def scripted_rounds(gains):
    """Answers where the reference is `gains[round]` times as slow, 1.0 in rounds beyond."""
    asked = []

    def say(side, what):
        number = int(what.split()[-1]) if what != "near" else 0
        asked.append((side, what))
        gain = gains[number] if number < len(gains) else gains[-1]
        return 20.0 * (gain if side == "ref" else 1.0), Status.OK

    return say, asked


def rounds_of(asked):
    return len({what for _, what in asked if what.startswith("round")})


@pytest.mark.parametrize(
    ("gains", "sets", "code"),
    [
        ([1.2, 0.95, 1.3, 1.1, 1.2, 1.15, 1.2], 2, "faster"),
        ([1.4, 0.8] * 20, 3, "not-faster"),  # never for ever
        ([1.02, 0.99, 1.01, 0.98, 1.0, 1.01], 1, "not-faster"),  # without a gain
    ],
)
def test_a_final_that_leaves_the_winner_open_is_played_on(tmp_path, gains, sets, code):
    say, asked = scripted_rounds(gains)
    outcome = played(tmp_path / "j", say, configs=({"a": 1},))
    assert rounds_of(asked) == sets * ASKED.rounds
    assert (outcome.kept, outcome.reason.code) == (code == "faster", code)
    assert outcome.reason.fields["rounds"] == sets * ASKED.rounds


def test_every_further_look_at_a_final_needs_more_certainty():
    ratios = [0.1, 0.12, 0.09, 0.2, 0.15, -0.01, 0.11, 0.12, 0.1, 0.05, 0.13, 0.09]
    first, third = Score.of(ratios), Score.of(ratios, looks=3)
    assert first.ratio == third.ratio
    assert third.low < first.low


# A machine that did other work


TWICE = {"ref": 40.0, "a1": 20.0, "a2": 25.0}
CPU = dataclasses.replace(INFO, units=2)


def doubled(path, **given):
    """A final that would be won by a factor of two."""
    return played(path, lambda side, what: (TWICE[side], Status.OK), **given)


@pytest.mark.parametrize("given", [{"load": [0.3, 0.9], "info": CPU}, {"searched_us": 0.2}])
def test_a_final_beside_other_work_is_not_judged(tmp_path, given):
    """Told by the load, or by a winner that is far slower than in the search."""
    outcome = doubled(tmp_path / "j", **given)
    assert not outcome.kept
    assert outcome.disturbed
    assert outcome.reason


@pytest.mark.parametrize(
    "given",
    [
        *({"load": load, "info": CPU} for load in (None, [0.0], [0.0, 0.3], [None, 0.1])),
        # CPU time is what it is beside other work.
        {"load": [0.9], "info": dataclasses.replace(INFO, kind="cpu", units=1)},
        # Times of the search are short, differ a little, and may have been disturbed.
        *({"searched_us": time_us} for time_us in (14.0, 20.0, 300.0)),
    ],
)
def test_a_little_other_work_is_in_every_interval(tmp_path, given):
    outcome = doubled(tmp_path / "j", **given)
    assert outcome.kept, outcome.reason
    assert not outcome.disturbed


@pytest.mark.parametrize(("us", "status"), [(10.0, Status.CRASHED), (0.01, Status.IMPOSSIBLE)])
def test_a_reference_that_fails_has_no_time_to_beat(tmp_path, us, status):
    def say(side, what):
        return (us, status) if side == "ref" else (20.0, Status.OK)

    outcome = played(tmp_path / "j", say, configs=({"a": 1},))
    assert not outcome.kept
    assert math.isnan(outcome.ratio) == (status is Status.IMPOSSIBLE)
    assert str(status) in outcome.reason


def test_finalists_were_timed_longest():
    def of(number, step, seconds):
        return Trial(config={"a": number}, step=step, status=Status.OK, seconds=seconds)

    reached = [of(1, "short", 1.0), of(2, "full", 3.0), of(3, "full", 2.0)]
    bad = dataclasses.replace(of(4, "full", 0.1), status=Status.WRONG)
    assert [t.config["a"] for t in finalists([*reached, bad], 3)] == [3, 2, 1]
    assert [t.config["a"] for t in finalists(reached, 2)] == [3, 2]


@pytest.mark.parametrize(
    "key",
    [
        "gemm m=1 n=48 k=64 dtype=f16",
        "batched_gemm batch=2 m=16 n=32 k=48 dtype=bf16 tb=t",
        "attention batch=1 heads=2 seq=32 dim=16 dtype=f16 causal=yes",
        "conv n=1 c=4 h=8 w=8 k=4 r=3 s=3 pad=1 dtype=f32",
    ],
)
def test_neighbours_are_other_problems_of_the_same_kind(key):
    problem = ops.parse(key)
    found = neighbours(problem)
    assert len({p.key for p in found}) == len(found) >= 4
    for one in found:
        assert one != problem
        assert (one.op, one.dtypes, one.options) == (problem.op, problem.dtypes, problem.options)


# Results


def outcome(name="A", ratio=2.0, *, kept=True, share=0.25, **changes):
    tuned = Choice(backend="fake", config={"tile_m": 32}, median_s=20e-6 / ratio, worst=0.25)
    fields = {"name": name, "problem": PLAN.problem, "tuned": tuned, "kept": kept, "count": 100}
    return make_outcome(ratio, **{**fields, "share": share, **changes})


def test_results_are_files_that_add_up(tmp_path):
    folder = TuningFolder.make(tmp_path)
    failed = outcome("C", math.nan, kept=False, tuned=Choice(backend="fake"))
    every = [outcome("A", 2.0), outcome("B", 1.25, share=0.5), failed]
    metrics = results.write(folder, every, retired={"D": "no space"})
    assert metrics == Metrics.of(every)
    raw = results.raw(folder).read_text().splitlines()
    final = results.final(folder).read_text().splitlines()
    assert (len(raw), len(final)) == (4, 3)
    assert raw[0] == final[0]
    first = dict(zip(raw[0].split(","), raw[1].split(","), strict=False))
    assert (first["us_reference"], first["us_tuned"], first["uplift_pct"]) == ("20", "10", "100")
    assert "nan" not in raw[3]
    told = json.loads(results.metrics_file(folder).read_text())
    assert told["weighted_uplift_pct"] == pytest.approx(22.5)
    assert told["coverage_pct"] == pytest.approx(75.0)
    assert told["retired"] == {"D": "no space"}
    again = results.read(folder)
    assert again[:2] == tuple(every[:2])
    assert results.dumps(again) == results.dumps(every)


def test_without_shares_no_part_of_the_workload_is_claimed(tmp_path):
    folder = TuningFolder.make(tmp_path)
    results.write(folder, [outcome("A", 2.0, share=0.0)])
    told = json.loads(results.metrics_file(folder).read_text())
    assert told["weighted_uplift_pct"] is None
    assert told["coverage_pct"] is None
    assert told["geomean_uplift_pct"] == pytest.approx(100)
    (row,) = csv.DictReader(results.raw(folder).open(encoding="utf-8"))
    assert (row["pct_of_total"], row["weighted_uplift_contribution_pct"]) == ("", "")


def test_a_changed_kernel_is_told_by_its_code(tmp_path):
    same = KernelInfo(name="k", binary_hash="x")
    one = outcome()
    both = dataclasses.replace(
        one,
        reference=dataclasses.replace(one.reference, kernel=same),
        tuned=dataclasses.replace(one.tuned, kernel=same),
    )
    assert results.row(one)["kernel_changed"] == "yes"
    assert results.row(both)["kernel_changed"] == "no"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("gemm m=64 n=64 k=64 dtype=f32", "square memory-bound"),
        ("gemm m=256 n=256 k=256 dtype=f32", "square"),
        ("gemm m=4 n=4096 k=4096 dtype=bf16", "skinny memory-bound"),
        ("gemm m=4096 n=4096 k=4096 dtype=bf16", "square compute-bound"),
        ("gemm m=300 n=500 k=400 dtype=f32", ""),
        ("attention batch=1 heads_q=1 heads_kv=1 seq_q=8 seq_kv=8 dim=64 dtype=f16", ""),
    ],
)
def test_categories_are_those_of_suites(key, words):
    assert results.row(outcome(problem=ops.parse(key)))["category"] == words


def test_the_layout_of_a_product_has_its_columns():
    row = results.row(outcome(problem=ops.parse("gemm m=16 n=24 k=16 dtype=f32 tb=t")))
    assert (row["trans_a"], row["trans_b"]) == ("n", "t")


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_damaged_outcomes_are_told_with_their_file(tmp_path, text):
    folder = TuningFolder.make(tmp_path)
    results.write(folder, [outcome()])
    results.outcomes_file(folder).write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as caught:
        results.read(folder)
    assert caught.value.message.startswith(f"{results.outcomes_file(folder)}: ")
    assert f"kmark tune run {folder.path} writes it anew" in caught.value.hint


def test_any_failure_of_the_machine_is_told_with_the_way_out(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.record(Trial(config={"a": 1}, step="short", status=Status.TIMEOUT))
    journal.record(Trial(config={"a": 2}, step="compile", status=Status.SKIPPED))
    assert nothing_found(PLAN, INFO, journal, 2).reason
