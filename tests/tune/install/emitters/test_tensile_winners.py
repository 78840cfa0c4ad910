"""Winners of a tuning folder in library logic: what a user says of force and no_eff holds."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters.tensile import emitter

INDEX = {"solution_index": 1}


@pytest.fixture
def prepared(w, tmp_path):
    """The change for winners of these m; that of m=16 is in the file already."""
    into = w.WORLDS["tensile"].base(tmp_path)

    def make(*sizes, **options):
        outcomes = [
            w.outcome(f"BBS_TN_{i}", w.product(m=m), "hipblaslt", INDEX, kernel="fast")
            for i, m in enumerate(sizes)
        ]
        return applying.prepare(emitter, outcomes, into, FrozenDict(options))

    return make


@pytest.mark.parametrize("options", [{}, {"force": "yes"}, {"no_eff": "yes"}])
def test_a_winner_replaces_what_is_there(prepared, options):
    change = prepared(16, **options)
    assert len(change.winners) == 1
    assert not change.skipped
    assert not any("any later merge replaces" in note for note in change.notes)
    assert any("[!] [512, 16, 1, 1024] efficiency 0.4 -> 0" in note for note in change.notes)


def test_without_force_only_new_sizes_are_added(prepared):
    change = prepared(16, 32, force="no")
    assert [lookup.winner for lookup in change.lookups if lookup.winner] == ["BBS_TN_1"]
    (held,) = change.skipped
    assert held.name == "BBS_TN_0"
    assert not prepared(16, force="no").edits


def test_the_efficiency_of_a_winner_cannot_be_asked_for(prepared):
    with pytest.raises(UsageError, match="no_eff=no"):
        prepared(16, no_eff="no")
