"""Winners in aiter's configs: only their own m, and never somebody else's shape."""

import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.aiter_config import BOUNDS, FAMILIES, STANDARD, bucket_of, lint, lookup
from kernelmark.tune.install.emitters import aiter as buckets
from kernelmark.tune.install.emitters.aiter import emitter
from kernelmark.tune.install.emitters.base import CannotWrite, Edit

FAMILY = "GEMM-A16W16"
DEFAULT = f"gemm/gfx950-{FAMILY}.json"
SPECIAL = f"gemm/gfx950-{FAMILY}-N=512-K=1024.json"


@pytest.fixture
def w(w_module):
    """The makers, with winners tuned as aiter launches them."""
    outcome = partial(w_module.outcome, config=w_module.AITER)
    return SimpleNamespace(**{**vars(w_module), "outcome": outcome})


@pytest.fixture
def root(w, tmp_path):
    w.put_json(tmp_path / DEFAULT, {"M_LEQ_64": w.OLD, "any": {**w.OLD, "num_stages": 3}})
    return tmp_path


def found(root, m, n=512, k=1024, family=FAMILY, batch=None):
    return lookup(root, family, "gfx950", m=m, n=n, k=k, batch=batch)


def applied(root, outcomes, **options):
    change = applying.prepare(emitter, outcomes, root, FrozenDict(options))
    applying.write(emitter, change, root, backup=False)
    return change


def test_a_new_file_has_the_default_s_other_buckets(w, root):
    before = (root / DEFAULT).read_text()
    change = applied(root, [w.outcome(problem=w.product(m=16))])
    assert [str(edit.path) for edit in change.edits] == [SPECIAL]
    assert (root / DEFAULT).read_text() == before
    assert found(root, 16).config["BLOCK_SIZE_M"] == 16
    assert found(root, 16).tuned
    assert found(root, 8).config == w.OLD  # M_LEQ_64 served it, and still does
    assert found(root, 17).config == w.OLD
    assert found(root, 100).config["num_stages"] == 3
    assert found(root, 16, n=100).config == w.OLD
    assert not lint(root).findings


def test_a_bucket_that_is_there_is_changed_in_place_and_nothing_else_in_the_text(w, root):
    special = {"_note": "by hand", "M_LEQ_16": w.OLD, "M_LEQ_8": w.OLD, "any": w.OLD}
    w.put_json(root / SPECIAL, special, indent=2)
    before = (root / SPECIAL).read_text().splitlines()
    applied(root, [w.outcome(problem=w.product(m=16))])
    after = (root / SPECIAL).read_text().splitlines()
    changed = [i for i, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    start = next(i for i, line in enumerate(before) if "M_LEQ_16" in line)
    assert changed
    assert set(changed) <= set(range(start + 1, start + 1 + len(w.OLD)))
    assert json.loads("\n".join(after)).keys() == special.keys()


def test_only_the_keys_that_differ_change(w, root):
    w.put_json(root / SPECIAL, {"M_LEQ_8": w.OLD, "M_LEQ_16": w.OLD, "any": w.OLD})
    applied(root, [w.outcome(problem=w.product(m=16))])
    config = found(root, 16).config
    assert list(config) == list(w.OLD)
    assert config["cache_modifier"] is None  # it was timed without one
    assert (config["NUM_KSPLIT"], config["waves_per_eu"]) == (1, 2)


def test_what_was_not_timed_with_is_left_out(w, root):
    old = {**w.OLD, "kpack": 2, "SPLITK_BLOCK_SIZE": 512, "GROUP_K": 128}
    w.put_json(root / SPECIAL, {"any": old})
    applied(root, [w.outcome(problem=w.product(m=16), config={**w.AITER, "split_k": 4})])
    config = found(root, 16).config
    assert "kpack" not in config
    assert "SPLITK_BLOCK_SIZE" not in config
    assert (config["GROUP_K"], config["NUM_KSPLIT"]) == (128, 4)


def test_an_edit_of_the_default_is_caught(w, root):
    """A planted harm: the winner in the default file, found by every other (N, K) too."""
    outcome = w.outcome(problem=w.product(m=16))
    honest = applying.prepare(emitter, [outcome], root)
    document = json.loads((root / DEFAULT).read_text())
    made = dict(lookup_config(honest))
    document = {"M_LEQ_8": document["M_LEQ_64"], "M_LEQ_16": made, **document}
    edit = Edit(path=Path(DEFAULT), before=None, after=json.dumps(document))
    harmful = dataclasses.replace(honest, edits=(edit,))
    with applying.staged(harmful, root) as copy:
        (error, *_) = emitter.check(harmful, copy)
    assert "n=7 k=7 m=9" in error


def lookup_config(change):
    after = json.loads(change.edits[0].after)
    return after["M_LEQ_16"]


def test_a_bucket_that_serves_more_than_what_was_timed_is_told(w, root):
    one, two = (w.outcome(f"BBS_TN_{m}", w.product(m=m)) for m in (16, 12))
    change = emitter.emit([one], root, FrozenDict())
    assert any(note.endswith("serves m=9 to 16, timed: 16") for note in change.notes)
    both = emitter.emit([one, two], root, FrozenDict())
    assert any(note.endswith("serves m=9 to 16, timed: 12, 16") for note in both.notes)
    alone = emitter.emit([w.outcome(problem=w.product(m=1))], root, FrozenDict())
    assert not any("serves" in note for note in alone.notes)


def test_two_winners_of_one_file(w, root):
    one = w.outcome("BBS_TN_0", w.product(m=16))
    two = w.outcome("BBS_TN_1", w.product(m=10000), config={**w.AITER, "num_warps": 8})
    change = applied(root, [one, two])
    assert len(change.edits) == 1
    assert found(root, 16).config["num_warps"] == 4
    assert (found(root, 10000).bucket, found(root, 10000).config["num_warps"]) == ("M_GEQ_8192", 8)
    assert found(root, 8192).config["num_stages"] == 3
    assert found(root, 64).config == w.OLD


def test_the_nested_layout(w, tmp_path):
    family = FAMILIES["afp4wfp4"]
    folder = tmp_path / "gfx950/triton/gemm" / family.lower().replace("-", "_")
    w.put_json(folder / "DEFAULT.json", {"any": w.OLD})
    problem = ops.registry.get("batched_gemm_quant").problem(
        scheme="afp4wfp4", batch=16, m=8, n=512, k=1024
    )
    applied(tmp_path, [w.outcome("F4_0", problem)])
    assert (folder / f"{family}-N=512-K=1024.json").is_file()  # k counts elements, not bytes
    assert found(tmp_path, 8, family=family).config["BLOCK_SIZE_M"] == 16
    assert found(tmp_path, 16, family=family).config == w.OLD


def test_a_batch_of_its_own_where_the_kernel_asks_for_it(w, tmp_path):
    family = FAMILIES["bf16"]
    w.put_json(tmp_path / f"gemm/gfx950-{family}.json", {"any": w.OLD})
    applied(tmp_path, [w.outcome(problem=w.product(batch=16), config=w.TRITON)])
    assert (tmp_path / f"gemm/gfx950-{family}-B=16-N=512-K=1024.json").is_file()
    assert found(tmp_path, 16, family=family, batch=16).config["num_warps"] == 4
    assert found(tmp_path, 16, family=family, batch=8).config == w.OLD


def test_batches_that_cannot_be_told_apart(w, tmp_path):
    family = FAMILIES["a8w8"]
    w.put_json(tmp_path / f"gemm/gfx950-{family}.json", {"any": w.OLD})
    quant = ops.registry.get("batched_gemm_quant")
    big, small = (
        quant.problem(scheme="a8w8", batch=batch, m=8, n=512, k=128) for batch in (64, 16)
    )
    outcomes = [w.outcome("I8_0", big), w.outcome("I8_1", small, kept=False)]
    change = emitter.emit(outcomes, tmp_path, FrozenDict())
    assert not change.edits
    assert "I8_1" in change.skipped[0].reason


def test_parts_that_aiter_would_add_up_wrongly_are_held_back(w, tmp_path):
    family = FAMILIES["a16wfp4"]
    w.put_json(tmp_path / f"gemm/gfx950-{family}.json", {"any": w.OLD})
    problem = ops.registry.get("batched_gemm_quant").problem(
        scheme="a16wfp4", batch=16, m=8, n=512, k=1024
    )
    split = w.outcome("F4_0", problem, config={**w.AITER, "split_k": 4})
    change = emitter.emit([split], tmp_path, FrozenDict())
    assert not change.edits
    assert family in change.skipped[0].reason
    whole = w.outcome("F4_0", problem)
    assert emitter.emit([whole], tmp_path, FrozenDict()).edits


def test_a_folder_given_by_dots_leaves_nothing_elsewhere(w, root, monkeypatch):
    place, below = root / "temporary", root / "gemm" / "below"
    place.mkdir()
    below.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.chdir(below)
    change = applying.prepare(emitter, [w.outcome(problem=w.product(m=16))], Path("../.."))
    assert change.edits
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("old", [{"BLOCK_M": 64}, {"kernel_type": "compute_bound"}])
def test_gluon_s_buckets_get_no_config_of_a_triton_kernel(w, root, old):
    w.put_json(root / "gemm/gfx1250-GEMM-A16W16.json", {"any": {**w.OLD, **old}})
    winner = w.outcome(problem=w.product(m=16))
    change = emitter.emit([winner], root, FrozenDict({"arch": "gfx1250"}))
    assert not change.edits
    assert [skipped.name for skipped in change.skipped] == [winner.name]


@pytest.mark.parametrize(
    "folder", ["gemm/gluon/gfx1250-BATCHED_GEMM-A16W16", "gfx1250/gluon/gemm/{}/DEFAULT"]
)
def test_a_family_that_aiter_runs_with_gluon_gets_no_file_that_it_never_reads(w, root, folder):
    w.put_json(root / "gemm/gfx1250-BATCHED_GEMM-A16W16.json", {"any": w.OLD})
    winner = w.outcome(problem=w.product(batch=16), config=w.TRITON)
    to = {"arch": "gfx1250"}
    assert emitter.emit([winner], root, FrozenDict(to)).edits
    path = folder.format("batched_gemm_a16w16")
    w.put_json(root / f"{path}.json", {"any": {"BLOCK_M": 64}})
    assert not emitter.emit([winner], root, FrozenDict(to)).edits
    called = FrozenDict({**to, "backend": "triton"})
    assert emitter.emit([winner], root, called).edits


@pytest.mark.parametrize(
    ("config", "k", "launched"),
    [
        ({"split_k": 3, "block_k": 256}, 640, (1, 256)),
        ({"split_k": 8, "block_k": 128}, 384, (2, 128)),
        ({"split_k": 1, "block_k": 128}, 64, (1, 64)),
        ({"split_k": 4, "block_k": 64}, 1024, (4, 64)),
        ({"split_k": 6, "block_k": 64}, 1408, (6, 64)),
        ({"split_k": 12, "block_k": 256}, 2880, (6, 256)),
        ({"xcds": 1}, 1024, None),
    ],
)
def test_what_aiter_would_launch_otherwise_is_not_written(w, root, config, k, launched):
    winner = w.outcome(problem=w.product(m=16, k=k), config={**w.AITER, **config})
    same = launched == (config.get("split_k"), config.get("block_k"))
    assert bool(emitter.emit([winner], root, FrozenDict()).edits) == same
    if launched:
        assert buckets.adjusted_split(config["split_k"], config["block_k"], k) == launched


@pytest.mark.parametrize(
    ("problem", "config", "arch", "shown"),
    [
        ({"tb": "n"}, {}, "gfx950", "tb=n"),
        ({}, {"persistent": True}, "gfx950", "persistent"),
        ({}, {"magic": 1}, "gfx950", "magic"),
        ({}, {}, "sm_90", "sm_90"),
        ({"dtype": "f32"}, {}, "gfx950", "gemm of f32"),
        ({}, {}, "gfx90a", f"{FAMILY} for gfx90a"),
    ],
)
def test_what_aiter_cannot_hold(w, root, problem, config, arch, shown):
    outcome = w.outcome(problem=w.product(**problem), config={**w.AITER, **config}, arch=arch)
    change = emitter.emit([outcome], root, FrozenDict())
    assert not change.edits
    assert shown in change.skipped[0].reason


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_written(w, root):
    (root / SPECIAL).write_text('{"any": ')
    with pytest.raises(UsageError, match=SPECIAL):
        emitter.emit([w.outcome(problem=w.product(m=16))], root, FrozenDict())


def test_a_family_that_does_not_split(w):
    with pytest.raises(CannotWrite, match=FAMILIES["a8w8"]):
        buckets.to_bucket({**w.AITER, "split_k": 2}, w.OLD, FAMILIES["a8w8"])
    bucket = buckets.to_bucket(w.AITER, {"BLOCK_SIZE_M": 1}, FAMILIES["a8w8_group"])
    assert "BLOCK_SIZE_K" not in bucket
    assert "NUM_KSPLIT" not in bucket


names = st.sampled_from(
    [*(f"M_LEQ_{x}" for x in STANDARD), *(f"M_GEQ_{x}" for x in STANDARD), "any"]
)
tables = st.dictionaries(names, st.integers(1, 4).map(lambda x: {"num_warps": x}), min_size=1)


@given(tables, st.integers(1, 20000), st.sampled_from([STANDARD, *BOUNDS.values()]))
def test_a_change_reaches_its_region_and_no_other_m(table, m, known):
    target = buckets.bucket_for(m, known)
    new = {"num_warps": 99}
    try:
        made = buckets.with_bucket(table, target, new, known)
    except CannotWrite:
        assert any(name.startswith("M_GEQ") for name in table)
        return
    for other in (*buckets.covering(known), m, m + 1, max(1, m - 1), 2 * m):
        name = bucket_of(table, other, known)
        if buckets.bucket_for(other, known) == target:
            assert made[bucket_of(made, other, known)] == new
        elif name is not None:
            assert made[bucket_of(made, other, known)] == table[name]


@given(
    st.fixed_dictionaries(
        {name: st.integers(1, 256) for name in ("block_m", "block_n", "num_warps", "num_stages")},
        optional={
            name: st.integers(2, 16)
            for name in ("block_k", "group_m", "split_k", "waves_per_eu", "kpack")
        },
    )
)
def test_a_config_in_aiter_s_words_and_back(config):
    assert buckets.to_config(buckets.to_bucket(config, {}, FAMILY)) == config
