"""What every emitter keeps: it writes nothing itself, reads back what it says, and proves it."""

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.install.emitters.base import parse_options


@pytest.fixture(params=registry.names())
def case(request, w, tmp_path):
    """(emitter, outcomes, target, options) of a format."""
    world = w.WORLDS[request.param]
    emitter = registry.get(request.param)
    given = parse_options(
        emitter.name, emitter.options, [f"{name}={value}" for name, value in world.given.items()]
    )
    return emitter, world.outcomes, world.base(tmp_path), given


def texts(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {file: file.read_text() for file in files}


def test_it_says_what_it_is(case):
    emitter = case[0]
    assert emitter.name in registry.names()
    assert registry.get(emitter.name) is emitter
    assert emitter.summary
    assert emitter.backends
    assert all(emitter.options.values())
    assert all((emitter.facts.versions, emitter.facts.exactness, emitter.facts.checked))


def test_preparing_writes_nothing(case):
    emitter, outcomes, into, given = case
    before = texts(into)
    change = applying.prepare(emitter, outcomes, into, given)
    assert change.edits
    assert texts(into) == before


def test_every_winner_is_found_and_nothing_else_changes(case):
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    written = applying.write(emitter, change, into)
    assert written.files
    assert not change.skipped
    assert emitter.check(change, into) == []
    assert len(change.winners) == sum(outcome.kept for outcome in outcomes)
    assert emitter.read(into)
    for lookup in change.lookups:
        entry = emitter.find(into, lookup.key)
        assert (entry and entry.config) == lookup.config


def test_applying_twice_changes_nothing_more(case):
    emitter, outcomes, into, given = case
    applying.write(emitter, applying.prepare(emitter, outcomes, into, given), into)
    again = applying.prepare(emitter, outcomes, into, given)
    assert again.edits == ()
    assert again.winners


def test_a_difference_is_shown_and_its_end_is_what_is_written(case):
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    shown = change.diff(into)
    assert all(str(into / edit.path) in shown for edit in change.edits)
    assert any(line.startswith("+") and line[1:2] != "+" for line in shown.splitlines())


def test_a_change_that_says_something_else_is_undone(case):
    """What reads back wrong is restored, and the error names an outcome or a lookup."""
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    before = texts(into) if into.exists() else {}
    first = next(lookup for lookup in change.lookups if lookup.winner)
    wrong = dataclasses.replace(first, config=FrozenDict({"no": "such"}))
    lookups = tuple(wrong if lookup is first else lookup for lookup in change.lookups)
    with pytest.raises(KernelmarkError, match=f"{first.winner}: .*finds"):
        applying.write(emitter, dataclasses.replace(change, lookups=lookups), into, backup=False)
    assert (texts(into) if into.exists() else {}) == before


def test_harm_to_another_lookup_is_caught(case):
    """The winners' own text, with every winner taken for something that must not change."""
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    entries = [emitter.find(into, lookup.key) for lookup in change.lookups]
    kept = tuple(
        dataclasses.replace(lookup, winner="", config=entry and entry.config)
        for lookup, entry in zip(change.lookups, entries, strict=True)
    )
    with applying.staged(change, into) as copy:
        errors = emitter.check(dataclasses.replace(change, lookups=kept), copy)
    assert len(errors) >= len(change.winners)


def test_a_file_that_changed_meanwhile_is_not_overwritten(case):
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    stale = [dataclasses.replace(edit, before="something else\n") for edit in change.edits]
    with pytest.raises(UsageError, match=str(into)):
        applying.write(emitter, dataclasses.replace(change, edits=tuple(stale)), into)


def test_a_backup_has_what_was_there(case):
    emitter, outcomes, into, given = case
    applying.write(emitter, applying.prepare(emitter, outcomes[:1], into, given), into)
    change = applying.prepare(emitter, outcomes, into, given)
    before = [edit.before for edit in change.edits if edit.before is not None]
    written = applying.write(emitter, change, into)
    assert [copy.read_text() for copy in written.backups] == before
    assert all(copy.name.endswith(".bak") for copy in written.backups)


def test_what_another_backend_tuned_is_held_back(case, w):
    emitter, outcomes, into, given = case
    other = "triton" if emitter.takes("iree") else "iree"
    odd = w.outcome("ODD_0", outcomes[0].problem, backend=other, arch=outcomes[0].arch)
    change = emitter.emit([odd], into, given)
    assert not change.edits
    assert {other, emitter.name} <= {*change.skipped[0].reason.replace(",", "").split()}


def test_an_epilogue_is_in_the_question_or_refused_by_code(case):
    """A format that left it out would answer a plain GEMM with the winner of another problem."""
    emitter, outcomes, into, given = case
    key = "gemm_epilogue m=64 n=64 k=64 dtype=bf16 tb=t bias=yes"
    odd = [
        dataclasses.replace(outcomes[0], name=act, problem=ops.parse(f"{key} act={act}"))
        for act in ("relu", "gelu")
    ]
    change = emitter.emit(odd, into, given)
    if emitter.name in ("cublaslt", "python"):
        assert len({lookup.key for lookup in change.lookups if lookup.winner}) == 2
        assert not change.skipped
    else:
        assert [skipped.name for skipped in change.skipped] == ["relu", "gelu"]
        assert not change.edits


@pytest.mark.parametrize("change", [{"worst": 1.5}, {"config": FrozenDict()}])
def test_an_unverified_winner_and_a_default_are_skipped(case, change):
    emitter, outcomes, into, given = case
    tuned = dataclasses.replace(outcomes[0].tuned, **change)
    change = emitter.emit([dataclasses.replace(outcomes[0], tuned=tuned)], into, given)
    assert not change.edits
    assert [skipped.name for skipped in change.skipped] == [outcomes[0].name]


def test_the_same_question_with_no_gain_is_not_harmed(case):
    """Two outcomes that the library cannot tell apart, one of which did not gain."""
    emitter, outcomes, into, given = case
    other = dataclasses.replace(outcomes[0], name="OTHER_0", kept=False)
    change = emitter.emit([outcomes[0], other], into, given)
    assert not change.edits
    assert "OTHER_0" in change.skipped[0].reason


def test_the_same_question_with_two_winners_is_settled_by_neither(case):
    emitter, outcomes, into, given = case
    tuned = outcomes[0].tuned
    changed = {
        name: f"{value}1" if isinstance(value, str) else 8 for name, value in tuned.config.items()
    }
    other = dataclasses.replace(tuned, config=FrozenDict(changed))
    rival = dataclasses.replace(outcomes[0], name="OTHER_0", tuned=other)
    change = emitter.emit([outcomes[0], rival], into, given)
    assert not change.edits
    assert {skipped.name for skipped in change.skipped} == {outcomes[0].name, "OTHER_0"}


def test_unknown_options_are_refused(case):
    for argument in ("nonsense=1", "nonsense"):
        with pytest.raises(UsageError, match="nonsense"):
            parse_options(case[0].name, case[0].options, [argument])


def test_an_export_does_not_overwrite(case, tmp_path):
    emitter, outcomes, into, given = case
    change = applying.prepare(emitter, outcomes, into, given)
    to = tmp_path / "exported"
    assert len(applying.export(emitter, change, to)) == len(change.edits)
    with pytest.raises(UsageError, match=str(to)):
        applying.export(emitter, change, to)


def test_every_winner_is_written_or_has_a_reason(w):
    emitter = registry.get("python")
    group = [w.outcome(name="good"), w.outcome(name="unchecked", worst=2.0)]
    chosen = emitter.choose(group, lambda outcome: {"m": 1})
    assert chosen.winners == {}
    assert [skipped.name for skipped in chosen.skipped] == ["good", "unchecked"]
    assert "unchecked" in chosen.skipped[0].reason
