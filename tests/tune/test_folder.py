"""A tuning folder: what is one, what is remembered, and that files appear whole."""

import os

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.folder import FolderState, TuningFolder, digest, write_whole


def test_a_folder_with_a_workload_is_one(tmp_path):
    (tmp_path / "workload.csv").touch()
    folder = TuningFolder.open(tmp_path)
    assert folder.plan("BBS_TN_0") == tmp_path / "plans" / "BBS_TN_0.toml"
    assert folder.journal("BBS_TN_0") == tmp_path / "trials" / "BBS_TN_0.jsonl"


@pytest.mark.parametrize("name", ["absent", "file", "empty"])
def test_any_other_path_is_refused_with_what_to_do(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as refused:
        TuningFolder.open(tmp_path / name)
    assert refused.value.hint == f"kmark import LOG --workload {tmp_path / name}"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    with pytest.raises(UsageError, match=str(below)):
        TuningFolder.make(below)


def test_plans_are_in_natural_order(tmp_path):
    folder = TuningFolder(tmp_path)
    assert folder.names() == []
    for name in ("BBS_TN_10", "BBS_TN_2", "ATTN_BF16_0", "mine", "BBS_NN_0"):
        write_whole(folder.plan(name), "")
    assert folder.names() == ["ATTN_BF16_0", "BBS_NN_0", "BBS_TN_2", "BBS_TN_10", "mine"]


def test_the_state_is_remembered(tmp_path):
    folder = TuningFolder(tmp_path)
    assert folder.read_state() == FolderState()
    state = FolderState(
        names=FrozenDict({"gemm m=1": "A_0"}), written=FrozenDict({"A_0": digest("x")})
    )
    folder.write_state(state)
    assert folder.read_state() == state


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"names": 1, "written": {}}', '{"names"'])
def test_a_state_that_is_none_is_told(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=str(tmp_path / "state.json")):
        TuningFolder(tmp_path).read_state()


def test_a_file_appears_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=str(path)) as refused:
        write_whole(path, "after")
    assert refused.value.hint
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
