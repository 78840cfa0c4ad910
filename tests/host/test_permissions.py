"""Folders that another user could have put code into."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kernelmark.host import permissions
from kernelmark.host.permissions import UnsafeFolder, find_unsafe, private_folder

OTHER = 33
root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, who can change the owner of a file"
)


def code(path: Path) -> str | None:
    unsafe = find_unsafe(path)
    return unsafe and unsafe.code


def made(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


def test_own_folder_is_safe_and_so_is_one_yet_to_be_made(tmp_path):
    assert code(tmp_path) is None
    assert code(tmp_path / "not" / "there") is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_folder_that_all_can_write_to_is_unsafe(tmp_path, mode):
    assert code(made(tmp_path / "all", mode)) == "writable-by-others"


def test_folder_below_one_that_all_can_write_to_is_unsafe(tmp_path):
    inner = made(tmp_path / "all" / "inner")
    inner.parent.chmod(0o777)
    unsafe = find_unsafe(inner)
    assert unsafe is not None
    assert (unsafe.code, unsafe.at, unsafe.path) == ("writable-by-others", inner.parent, inner)
    # As in /tmp: others cannot replace what is ours in it.
    inner.parent.chmod(0o1777)
    assert code(inner) is None


def test_group_that_others_are_in_is_unsafe(tmp_path, monkeypatch):
    shared = made(tmp_path / "shared", 0o775)
    monkeypatch.setattr(permissions, "_own_group", lambda number: False)
    assert code(shared) == "writable-by-others"
    monkeypatch.setattr(permissions, "_own_group", lambda number: True)
    assert code(shared) is None


def test_file_that_all_can_write_to_is_unsafe(tmp_path):
    file = tmp_path / "kernel.so"
    file.write_bytes(b"")
    assert code(file) is None
    file.chmod(0o666)
    assert code(file) == "writable-by-others"


@root_only
def test_folder_or_file_of_another_user_is_unsafe(tmp_path):
    folder = made(tmp_path / "theirs")
    os.chown(folder, OTHER, OTHER)
    unsafe = find_unsafe(folder / "inner")
    assert unsafe is not None
    assert (unsafe.code, unsafe.owner, unsafe.at) == ("foreign-owner", OTHER, folder)
    file = tmp_path / "kernel.so"
    file.write_bytes(b"")
    os.chown(file, OTHER, OTHER)
    assert code(file) == "foreign-owner"


@root_only
def test_link_of_another_user_is_unsafe_wherever_it_leads(tmp_path):
    made(tmp_path / "own")
    link = tmp_path / "link"
    link.symlink_to("own")
    assert code(link) is None
    os.lchown(link, OTHER, OTHER)
    assert code(link) == "foreign-link"
    assert code(link / "deeper") == "foreign-link"


def test_what_a_link_leads_to_is_judged_too(tmp_path):
    made(tmp_path / "all" / "inner")
    (tmp_path / "all").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "all" / "inner")
    assert code(tmp_path / "link") == "writable-by-others"
    # Dots behind a link lead to where the link leads, not to where it lies.
    assert code(tmp_path / "link" / ".." / "inner") == "writable-by-others"


def test_loop_of_links_ends(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert code(tmp_path / "a") == "link-loop"


def test_private_folder_is_for_this_user_alone(tmp_path):
    folder = private_folder(tmp_path / "above" / "own")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(folder) == folder


def test_private_folder_refuses_an_unsafe_one_as_an_os_error(tmp_path):
    with pytest.raises(UnsafeFolder) as raised:
        private_folder(made(tmp_path / "all", 0o777))
    assert isinstance(raised.value, OSError)
    assert raised.value.unsafe.code == "writable-by-others"


def test_root_of_a_container_that_maps_none_may_own_the_way_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(permissions, "_unmapped_root", lambda: OTHER)
    permissions._trusted.cache_clear()
    try:
        assert OTHER in permissions._trusted(way=True)
        assert OTHER not in permissions._trusted(way=False)
    finally:
        permissions._trusted.cache_clear()


def test_temporary_folder_is_private_and_the_same_each_time():
    folder = permissions.temporary_folder()
    assert permissions.temporary_folder() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert code(folder) is None
