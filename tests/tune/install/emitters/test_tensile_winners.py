"""Winners of a tuning folder in library logic: what a user says of force and no_eff holds."""

import pytest
import yaml

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


LOGIC = [
    {"MinimumRequiredVersion": "4.33.0"},
    *("gfx950", "gfx950", ["Device 0000"], {"DataType": 7, "TransposeA": True}),
    [
        {
            "SolutionIndex": 0,
            "SolutionNameMin": "Cijk_Alik_Bljk_BBS_Bias_HAS_MT64x64x64_GSU1",
            "KernelNameMin": "Cijk_Alik_Bljk_BBS_Bias_HAS_MT64x64x64",
            "DepthU": 64,
        }
    ],
    *([2, 3, 0, 1], [[[512, 16, 1, 1024], [0, 0.0]]], None, None, "DeviceEfficiency", "Equality"),
]


@pytest.mark.parametrize(
    ("existing", "target"),
    [
        ("", "gfx950_Cijk_Alik_Bljk_BBS_Bias_HAS.yaml"),
        ("old_Cijk_Alik_Bljk_BBS_BiasSB_HAS.yaml", "old_Cijk_Alik_Bljk_BBS_BiasSB_HAS.yaml"),
    ],
)
def test_a_generated_kernel_is_added_as_a_solution(w, tmp_path, monkeypatch, existing, target):
    monkeypatch.setattr(
        "kernelmark.tune.install.emitters.tensile.tensilelite.logic", lambda *_: LOGIC
    )
    folder = tmp_path / "Equality"
    folder.mkdir()
    if existing:
        other = {**LOGIC[5][0], "DepthU": 32}
        there = [*LOGIC[:5], [other], LOGIC[6], [[[64, 64, 1, 64], [0, 0.5]]], *LOGIC[8:]]
        (folder / existing).write_text(yaml.safe_dump(there), encoding="utf-8")
    found = w.outcome("BBS_TN_0", w.product(), "tensilelite", {"DepthU": 64}, kernel="made")
    change = applying.prepare(emitter, [found], tmp_path, FrozenDict())
    assert change.skipped == ()
    (edit,) = change.edits
    assert edit.path.name == target
    merged = yaml.safe_load(edit.after)
    assert [s["DepthU"] for s in merged[5]] == ([32, 64] if existing else [64])
    assert [512, 16, 1, 1024] in [size for size, _ in merged[7]]
