"""Winners as a tuning spec: what shares a root op, and the proof by the compiler."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.backends.iree import compiler
from kernelmark.backends.iree.spec import parse_spec
from kernelmark.core.errors import UsageError
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.install.emitters.iree_spec import emitter

NO = {"verify": "no"}


@pytest.fixture
def winner(w):
    return w.WORLDS["iree_spec"].outcomes[0]


def held(change):
    return [one.name for one in change.held]


def test_it_is_known_by_its_name_with_a_dash():
    assert registry.get("iree-spec") is emitter


def test_a_file_is_of_one_architecture(winner, tmp_path):
    into = tmp_path / "spec.mlir"
    applying.write(emitter, applying.prepare(emitter, [winner], into, NO), into)
    other = dataclasses.replace(winner, name="OTHER", arch="y")
    assert held(emitter.emit([other], into, NO)) == ["OTHER"]


def test_a_problem_that_did_not_gain_keeps_its_root_op(w, winner, tmp_path):
    """A bias is added after the product: the root op is the same with and without."""
    biased = dataclasses.replace(
        winner, name="BIAS", kept=False, problem=w.product(m=64, dtype="f32", tb="n", bias=True)
    )
    change = emitter.emit([winner, biased], tmp_path / "spec.mlir", NO)
    assert held(change) == [winner.name]
    assert not change.edits


def test_an_edited_entry_is_no_longer_found(winner, tmp_path):
    into = tmp_path / "spec.mlir"
    applying.write(emitter, applying.prepare(emitter, [winner], into, NO), into)
    assert [one.config for one in emitter.read(into)] == [winner.tuned.config]
    into.write_text(into.read_text().replace("distribution = [64", "distribution = [32"))
    assert emitter.read(into) == []


def test_a_winner_that_the_compiler_does_not_apply_is_held(winner, tmp_path, monkeypatch):
    from kernelmark.backends.iree import choices

    monkeypatch.setattr("kernelmark.tune.install.emitters.iree_spec.compiler_present", lambda: True)
    monkeypatch.setattr(choices, "unapplied", lambda problem, choice, spec: list(choice.entries))
    assert held(emitter.emit([winner], tmp_path / "spec.mlir", {})) == [winner.name]
    monkeypatch.setattr(choices, "unapplied", lambda problem, choice, spec: [])
    assert emitter.emit([winner], tmp_path / "spec.mlir", {}).written == 1


def test_the_flags_of_a_winner_are_in_its_comment(winner, tmp_path):
    path = tmp_path / "spec.mlir"
    change = emitter.emit([winner], path, NO)
    (note, *_) = parse_spec(change.edits[0].after).notes.values()
    assert note["flags"] == [
        "--iree-input-demote-f64-to-f32=false",
        "--iree-opt-data-tiling=false",
    ]
    assert all(flag in change.notes[-1] for flag in note["flags"])


@pytest.mark.slow
@pytest.mark.skipif(
    not compiler.compiler_present(), reason="needs iree-base-compiler, which make test installs"
)
def test_the_compiler_proves_every_winner(w, tmp_path):
    change = emitter.emit(w.WORLDS["iree_spec"].outcomes, tmp_path / "spec.mlir", {})
    assert change.written == 2
    assert held(change) == []


def test_verify_is_yes_or_no(winner, tmp_path):
    with pytest.raises(UsageError):
        emitter.emit([winner], tmp_path / "spec.mlir", {"verify": "maybe"})
