"""Winners as a tuning spec: what shares a root op, and the proof by the compiler."""

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.backends.iree import compiler
from kernelmark.backends.iree.spec import PREPROCESSING_FLAG, parse_spec
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.install.emitters.iree_spec import emitter, file_flags, gain_modules

NO = {"verify": "no"}


@pytest.fixture
def winner(w):
    return w.WORLDS["iree_spec"].outcomes[0]


def held(change):
    return [one.name for one in change.skipped]


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
    monkeypatch.setattr(
        choices, "unapplied", lambda problem, choice, spec, flags: list(choice.entries)
    )
    assert held(emitter.emit([winner], tmp_path / "spec.mlir", {})) == [winner.name]
    monkeypatch.setattr(choices, "unapplied", lambda problem, choice, spec, flags: [])
    assert len(emitter.emit([winner], tmp_path / "spec.mlir", {}).winners) == 1


def test_the_flags_of_a_winner_are_in_its_comment(winner, tmp_path):
    path = tmp_path / "spec.mlir"
    change = emitter.emit([winner], path, NO)
    (note, *_) = parse_spec(change.edits[0].after).notes.values()
    assert note["flags"] == ["--iree-input-demote-f64-to-f32=false", "--iree-opt-data-tiling=false"]
    assert all(flag in change.notes[-1] for flag in note["flags"])


LEFT = {"data_tiling": True, "ukernels": True}


def packed(w, winner, name="PACKED", m=128, **flags):
    """A winner without tiles of its own."""
    config = dict.fromkeys(winner.tuned.config, 0) | LEFT | flags
    problem = w.product(m=m, dtype="f32", tb="n")
    tuned = dataclasses.replace(winner.tuned, config=FrozenDict(config))
    return dataclasses.replace(winner, name=name, problem=problem, tuned=tuned)


def test_tiles_and_packed_operands_are_in_one_file(w, winner, tmp_path):
    into = tmp_path / "spec.mlir"
    change = applying.prepare(emitter, [winner, packed(w, winner)], into, NO)
    assert len(change.winners) == 2
    assert held(change) == []
    spec = parse_spec(change.edits[0].after)
    assert len(spec.packs) == 1
    assert file_flags(spec) == (
        "--iree-input-demote-f64-to-f32=false",
        "--iree-opt-data-tiling=true",
        "--iree-llvmcpu-enable-ukernels=all",
    )
    applying.write(emitter, change, into)
    assert {entry.config for entry in emitter.read(into)} == {
        winner.tuned.config,
        packed(w, winner).tuned.config,
    }


def test_a_packing_that_was_removed_is_no_longer_found(w, winner, tmp_path):
    into = tmp_path / "spec.mlir"
    applying.write(emitter, applying.prepare(emitter, [packed(w, winner)], into, NO), into)
    assert len(emitter.read(into)) == 1
    text = into.read_text()
    into.write_text(text.replace("-> @pack_operands", "-> @keep_default"))
    assert emitter.read(into) == []


def test_winners_that_need_other_flags_are_held(w, winner, tmp_path):
    """One set of flags is for the whole file: that of the winners which save most together."""
    outcomes = [packed(w, winner, f"ALL_{m}", m) for m in (32, 48)]
    slow = dataclasses.replace(winner.reference, median_s=2.5e-5)
    other = dataclasses.replace(packed(w, winner, "OTHER", 96, ukernels=False), reference=slow)
    change = emitter.emit([*outcomes, other], tmp_path / "spec.mlir", NO)
    (one,) = change.skipped
    assert one.name == "OTHER"
    assert "ukernels=yes" in one.reason
    assert len(change.winners) == 2


def test_the_flags_of_a_file_that_is_there_decide(w, winner, tmp_path):
    into = tmp_path / "spec.mlir"
    first = packed(w, winner, "FIRST", 96, ukernels=False)
    applying.write(emitter, applying.prepare(emitter, [first], into, NO), into)
    change = emitter.emit([packed(w, winner), winner], into, NO)
    assert held(change) == ["PACKED"]
    assert len(change.winners) == 1
    again = packed(w, winner, "FIRST", 96)  # tuned anew: what it replaces does not decide
    assert held(emitter.emit([packed(w, winner), again], into, NO)) == []


def test_a_convolution_has_its_named_op_rewritten(w, winner, tmp_path):
    problem = ops.parse("conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc")
    into = tmp_path / "spec.mlir"
    change = emitter.emit([dataclasses.replace(winner, problem=problem)], into, NO)
    spec = parse_spec(change.edits[0].after)
    assert (len(spec.rewrites), len(spec.packs)) == (2, 0)  # both orders of filters
    assert f"{PREPROCESSING_FLAG}=FILE" in change.notes[-1]
    assert PREPROCESSING_FLAG in change.edits[0].after


def test_of_convolutions_with_the_same_gemm_one_is_in_the_file(winner, tmp_path):
    into = tmp_path / "spec.mlir"
    keys = [
        f"conv n=1 c=16 h={h} w={w} k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc"
        for h, w in ((14, 14), (28, 7), (7, 28))
    ]
    outcomes = [
        dataclasses.replace(winner, name=f"CONV_{i}", problem=ops.parse(key))
        for i, key in enumerate(keys)
    ]
    change = applying.prepare(emitter, outcomes, into, NO)
    spec = parse_spec(change.edits[0].after)
    assert (len(spec.pairs), len(spec.rewrites)) == (1, 2)
    assert len(held(change)) == 2
    applying.write(emitter, change, into)
    assert applying.prepare(emitter, outcomes, into, NO).edits == ()


@pytest.mark.slow
@pytest.mark.skipif(
    not compiler.compiler_present(), reason="needs iree-base-compiler, which make test installs"
)
def test_the_compiler_proves_every_winner(w, tmp_path):
    key = "conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32"
    outcomes = w.WORLDS["iree_spec"].outcomes
    pack = packed(w, outcomes[0])
    conv = dataclasses.replace(packed(w, outcomes[0], "CONV"), problem=ops.parse(key))
    change = emitter.emit([*outcomes, pack, conv], tmp_path / "spec.mlir", {})
    assert len(change.winners) == 4
    assert held(change) == []


def test_the_gain_is_measured_in_what_saves_most_as_a_model_has_it(w, winner):
    conv = ops.parse("conv n=1 c=16 h=14 w=14 k=32 r=3 s=3 pad=1 dtype=f32 layout=nhwc")
    outcomes = [dataclasses.replace(winner, name=f"{n}", count=n) for n in range(1, 7)]
    outcomes.append(dataclasses.replace(winner, name="CONV", problem=conv, count=100))
    modules, target = gain_modules(outcomes)
    assert len(modules) == 5
    assert "linalg.conv_2d_nhwc_fhwc" in modules[0]
    assert not target.gpu


def test_verify_is_yes_or_no(winner, tmp_path):
    with pytest.raises(UsageError):
        emitter.emit([winner], tmp_path / "spec.mlir", {"verify": "maybe"})
