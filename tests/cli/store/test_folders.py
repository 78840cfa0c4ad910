"""Folders that other users can write to: named, and not used."""

from __future__ import annotations

import json
import stat

from tests.cli.conftest import FAKE


def folders(kmark, *words):
    found = json.loads(kmark("doctor", "--json", "-", *words).out)["folders"]
    return {(row["folder"], row["state"]) for row in found}


def test_a_safe_folder_has_no_reason(kmark):
    found = json.loads(kmark("doctor", "--json", "-").out)["folders"]
    assert {(row["state"], row["reason"]) for row in found} == {("safe", None)}


def test_doctor_names_unsafe_folders(kmark, tmp_path, monkeypatch):
    for name in ("KERNELMARK_PACK", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert folders(kmark) == {("cache", "safe"), ("store", "safe")}
    for name in ("cache", "pack", "triton", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path / "pack"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    store = str(tmp_path / "shared" / "results.sqlite")
    state = "writable-by-others"
    wanted = {(what, state) for what in ("cache", "pack", "Triton's cache", "store")}
    assert folders(kmark, "--store", store) == wanted


def test_run_leaves_an_unsafe_cache_alone_and_says_so(kmark, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    ended = kmark(*FAKE)
    assert ended.code == 0
    assert f"the cache {cache} is not used" in ended.err
    assert list(cache.iterdir()) == []
    cache.chmod(0o755)
    assert "is not used" not in kmark(*FAKE).err
    assert list(cache.iterdir())


def test_default_store_that_others_can_write_to_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    refused(*FAKE)
    assert not (tmp_path / "data" / "kernelmark").exists()


def test_new_store_is_for_this_user_alone(kmark, tmp_path, monkeypatch):
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "new"))
    place = tmp_path / "new" / "kernelmark" / "results.sqlite"
    assert kmark(*FAKE).code == 0
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    # One that a team shares stays as it is.
    place.chmod(0o664)
    assert kmark(*FAKE, "--store", str(place)).code == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o664
