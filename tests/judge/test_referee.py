"""The referee refuses attacks and accepts honest kernels, whatever the load of the machine."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.judge import referee
from kernelmark.judge.referee import Question, judge
from kernelmark.judge.values import inputs_of
from kernelmark_dev.attacks import FOLDER, PROBLEM, Attack, attacks, honest

ATTACKS = {attack.name: attack for attack in attacks()}
# One of each way of being found; `make test-all` tries the others.
SOME = {
    "memo_by_set": {"projection-wrong", "values-wrong"},
    "thread_queue": {"late-write", "not-written"},
    "fork_helper": {"raised"},
    "out_of_bounds": {"guards-overwritten"},
    "batch_of_all_sets": {"stray-write"},
    "ring_early": {"crashed", "late-write", "not-written"},
    "mutate_inputs": {"raised", "worker-signalled"},
    "segfault": {"worker-signalled"},
    "exit_success": {"worker-exited"},
    "assume_bounded": {"values-wrong"},
}


@pytest.fixture(autouse=True)
def _few_sets(monkeypatch):
    monkeypatch.setattr(referee, "_MOST_SETS", 24)


@pytest.mark.parametrize("name", SOME)
def test_an_attack_is_refused_for_what_it_does(name):
    question = dataclasses.replace(ATTACKS[name].question(limit_s=120.0), reference=None)
    verdict = judge(question)
    assert not verdict.accepted
    assert verdict.code in SOME[name]
    assert verdict.measurement is None


def test_a_counter_example_can_be_computed_again():
    verdict = judge(dataclasses.replace(ATTACKS["assume_bounded"].question(), reference=None))
    example = verdict.counter_example
    assert example is not None
    assert example.family in ("times-10", "plus-5", "large")
    problem = ops.parse(example.problem)
    tensors = ops.registry.get("gemm").tensors(problem)
    found = inputs_of(tensors, bytes.fromhex(example.seed), example.number)
    assert abs(found["a"]).max() > 1
    again = judge(
        dataclasses.replace(
            ATTACKS["assume_bounded"].question(), reference=None, seed=bytes.fromhex(verdict.seed)
        )
    )
    assert again.counter_example == example


def test_sizes_of_its_own_are_found():
    question = ATTACKS["fixed_depth"].question(rounds=4)
    verdict = judge(dataclasses.replace(question, reference=None))
    assert verdict.code == "projection-wrong"
    assert verdict.counter_example is not None
    assert verdict.counter_example.problem != question.problem.key


def test_an_honest_kernel_is_accepted_and_timed_against_the_reference():
    kernel = FOLDER / "honest" / "matmul.py"
    problem = ops.parse("gemm m=48 n=32 k=64 dtype=f32")
    verdict = judge(
        Question(kernel=str(kernel), problem=problem, reference="numpy", threads=1, rounds=4)
    )
    assert verdict.accepted, verdict.reason
    assert verdict.measurement is not None
    assert verdict.reference_measurement is not None
    assert verdict.ratio is not None
    assert verdict.document()["verdict"] == "accepted"
    mine, theirs = verdict.results()
    assert (mine.case.backend, theirs.case.backend) == (str(kernel), "numpy")
    assert mine.case.timing.timer == "outside"


def test_a_kernel_that_says_what_it_does_not_support_is_accepted_for_the_rest():
    kernel = FOLDER / "honest" / "one_size.py"
    question = Question(kernel=str(kernel), problem=ops.parse("gemm m=32 n=8 k=8 dtype=f32"))
    verdict = judge(dataclasses.replace(question, threads=1, rounds=4))
    assert verdict.accepted, verdict.reason
    assert any("m must be a multiple of 16" in note for note in verdict.notes)
    odd = dataclasses.replace(question, problem=ops.parse("gemm m=33 n=8 k=8 dtype=f32"))
    assert judge(odd).status == "unsupported"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in SOME])
def test_no_other_attack_wins(name, monkeypatch):
    monkeypatch.undo()  # as many sets as usual
    attack = ATTACKS[name]
    assert not attack.won(judge(attack.question()))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", honest()[::9], ids=lambda k: f"{k.name} {k.problem}")
def test_honest_kernels_are_not_refused(kernel: Attack):
    verdict = judge(kernel.question(rounds=4))
    assert verdict.accepted or verdict.status == "unsupported", verdict.reason


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("library_call", {"worker-signalled"}),
        ("memo_some_tiles", {"projection-wrong", "values-wrong"}),
        ("memo_tenth_of_depth", {"projection-wrong", "values-wrong"}),
        ("library_copy", {"library-used", "worker-signalled"}),
        ("stale_arguments", {"not-written"}),
        ("scribble_pages", {"stray-write", "guards-overwritten"}),
    ],
)
@pytest.mark.slow
def test_what_was_added_to_the_corpus_is_refused_for_what_it_does(name, codes):
    question = dataclasses.replace(ATTACKS[name].question(limit_s=120.0), reference=None)
    assert judge(question).code in codes


@pytest.mark.slow
def test_a_kernel_without_libraries_is_accepted_where_they_are_forbidden():
    kernel = Attack(path=FOLDER / "honest" / "einsum.py", problem=PROBLEM, reference="numpy")
    verdict = judge(kernel.question(limit_s=120.0, reference=None, forbid_libraries=True))
    assert verdict.accepted, verdict.reason
    assert {"no libraries", "unaligned tensors"} <= set(verdict.passed)
    assert verdict.precision == "f32"
    assert verdict.resources["threads"] >= 1
    assert verdict.resources["peak_memory_bytes"] > 1 << 20
