"""The names that kernel files go by in history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmark.backends._lineage import (
    change_notes,
    check_names,
    former_name,
    identify,
    place_of,
    remember,
)
from kernelmark.core.errors import UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))


def write(path, text="op = 'gemm'\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def measured(path):
    (found,) = identify([path])
    remember([found])
    return found


def test_a_file_goes_by_its_name_from_any_folder(tmp_path, monkeypatch):
    path = write(tmp_path / "a" / "mine.py")
    assert measured(path).name == "./mine.py"
    monkeypatch.chdir(tmp_path / "a")
    assert measured(path).name == "./mine.py"


def test_a_changed_file_is_the_same_kernel_and_is_told(tmp_path):
    path = write(tmp_path / "mine.py")
    assert not measured(path).changed
    assert not measured(path).changed
    write(path, "op = 'conv'\n")
    (found,) = identify([path])
    assert (found.name, found.changed) == ("./mine.py", True)
    assert identify([path])[0].changed, "what is only planned is not measured"
    remember([found])
    assert not measured(path).changed


def test_a_file_outside_a_repository_goes_by_its_file_name(tmp_path):
    first = measured(write(tmp_path / "a" / "mine.py"))
    other = measured(write(tmp_path / "c" / "mine.py", "op = 'conv'\n"))
    assert first.name == other.name == "./mine.py"
    assert (first.replaces, other.replaces) == (False, True)


def test_two_files_of_a_name_cannot_share_a_run(tmp_path):
    files = [write(tmp_path / folder / "mine.py") for folder in "ab"]
    kernels = dict(zip("ab", identify(files), strict=True))
    with pytest.raises(UsageError):
        check_names(kernels)


def test_a_file_in_a_repository_goes_by_its_path_there(tmp_path, monkeypatch):
    for clone, mark in (("clone", Path.mkdir), ("worktree", Path.touch)):
        path = write(tmp_path / clone / "kernels" / "mine.py", f"op = '{clone}'\n")
        mark(tmp_path / clone / ".git")
        monkeypatch.chdir(path.parent)
        assert measured(path).name == "./kernels/mine.py"
    assert former_name(path) == "./mine.py"


@pytest.mark.parametrize("text", ["", '{"./mine.py": {"path": "/other/mine.py", "digest": "0"}}'])
def test_a_name_does_not_depend_on_the_cache(tmp_path, text):
    write(tmp_path / "cache" / "kernels.json", text)
    (kernel,) = identify([write(tmp_path / "mine.py")])
    assert kernel.name == "./mine.py"


def test_a_series_of_an_older_version_can_be_continued(tmp_path):
    (kernel,) = identify([write(tmp_path / "a" / "mine.py", 'name = "./mine.py"\n')])
    assert kernel.name == "./mine.py"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("mine.py", 'name = "soft/max-v2"\nop = "x"\n'),
        ("mine.cu", '/* kmark\nname = "soft/max-v2"\nop = "gemm"\n*/\n'),
    ],
)
def test_a_declared_name_is_that_of_its_series_wherever_the_file_is(tmp_path, file, text):
    for folder in "ab":
        assert measured(write(tmp_path / folder / file, text)).name == "soft/max-v2"


@pytest.mark.parametrize("name", ['"a | b"', '"-x"', "7", '" "'])
def test_what_is_no_name_is_refused(tmp_path, name):
    with pytest.raises(UsageError):
        identify([write(tmp_path / "mine.py", f"name = {name}\n")])


@pytest.mark.parametrize("text", ["", "[]", '{"./mine.py": 3}', '{"./mine.py": {}}'])
def test_damaged_memories_are_none(tmp_path, text):
    write(tmp_path / "cache" / "kernels.json", text)
    assert measured(write(tmp_path / "mine.py")).name == "./mine.py"
    assert list(json.loads((tmp_path / "cache" / "kernels.json").read_text())) == ["./mine.py"]


def test_a_kernel_is_named_by_its_file_below_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine" / "k.py"
    file.parent.mkdir()
    file.write_text("x = 1")
    (kernel,) = identify([file])
    remember([kernel])
    monkeypatch.chdir(tmp_path)
    assert place_of(kernel.name) == "./mine/k.py"
    monkeypatch.chdir(file.parent)
    assert place_of(kernel.name) == "./k.py"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert place_of(kernel.name) == kernel.name
    assert place_of("unknown") == "unknown"


def test_a_second_file_of_a_name_is_noted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.py").write_text(f"x = '{folder}'")
    notes = []
    for folder in "abb":
        kernels = identify([tmp_path / folder / "k.py"])
        notes.append(len(change_notes(kernels)))
        remember(kernels)
    assert notes == [0, 1, 0]
