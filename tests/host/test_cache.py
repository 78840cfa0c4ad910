from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmark.host.cache import DiskCache, cache_root, digest
from kernelmark.host.permissions import temporary_folder

MIB = 2**20


def entry(cache: DiskCache) -> Path:
    (path,) = cache.folder.glob("*/*.entry")
    return path


def age(cache: DiskCache, key: str, seconds: float) -> None:
    path = cache._path(key)
    then = time.time() - seconds
    os.utime(path, (then, then))


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(key=st.text(), payload=st.binary(max_size=4096))
def test_gives_back_what_was_put(tmp_path: Path, key: str, payload: bytes) -> None:
    cache = DiskCache(tmp_path, MIB)
    cache.put(key, payload)
    assert cache.get(key) == payload
    assert DiskCache(tmp_path, MIB).get(key) == payload
    assert cache.warning is None


@settings(suppress_health_check=list(HealthCheck), max_examples=40)
@given(where=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_a_miss(tmp_path: Path, where: int, flip: int) -> None:
    cache = DiskCache(tmp_path, MIB)
    cache.put("a", b"payload" * 20)
    path = entry(cache)
    data = bytearray(path.read_bytes())
    data[where % len(data)] ^= flip
    path.write_bytes(data)
    assert cache.get("a") is None
    assert not path.exists()


@pytest.mark.parametrize("keep", [0, 4, 39, 41, 100])
def test_a_truncated_entry_is_a_miss(tmp_path: Path, keep: int) -> None:
    cache = DiskCache(tmp_path, MIB)
    cache.put("a", bytes(200))
    path = entry(cache)
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.get("a") is None


def test_an_entry_under_another_name_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, MIB)
    cache.put("a", b"of a")
    target = cache._path("b")
    target.parent.mkdir(exist_ok=True)
    entry(cache).rename(target)
    assert cache.get("b") is None


def test_cap_removes_the_least_recently_used(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100_000)
    for i in range(9):
        cache.put(f"k{i}", bytes(10_000))
        age(cache, f"k{i}", 100 - i)
    assert cache.get("k0") is not None  # used now: the oldest by writing, not by use
    for i in range(9, 14):
        cache.put(f"k{i}", bytes(10_000))
    assert cache.total_bytes() <= 100_000
    assert cache.get("k0") is not None
    assert cache.get("k13") is not None
    assert cache.get("k1") is None


def test_an_entry_above_the_cap_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put("small", b"x")
    cache.put("big", bytes(2000))
    assert cache.get("big") is None
    assert cache.get("small") == b"x"


def test_stale_temporary_files_go_and_fresh_ones_stay(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    cache.put("a", b"x")
    stale, fresh = (entry(cache).parent / name for name in (".dead-1", ".live-2"))
    stale.write_bytes(b"")
    fresh.write_bytes(b"")
    os.utime(stale, (0, 0))
    assert cache.total_bytes() < 100
    assert fresh.exists()
    assert not stale.exists()


def test_unwritable_folder_works_without_cache_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache", MIB)
    cache.put("a", b"x")
    assert cache.get("a") is None
    assert cache.warning is not None
    assert str(cache.folder) in cache.warning


def test_a_folder_that_appears_during_a_failed_put_leaves_no_litter(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, MIB)
    cache._path("a").mkdir(parents=True)  # the rename cannot succeed
    cache.put("a", b"x")
    assert cache.warning is not None
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def hammer(folder: str, seed: int, failures: multiprocessing.Queue[str]) -> None:
    cache = DiskCache(folder, 60_000)
    for i in range(150):
        key = f"k{(i * 7 + seed * 3) % 23}"
        want = key.encode() * 500
        got = cache.get(key)
        if got is not None and got != want:
            failures.put(f"{key}: {got[:20]!r}")
        cache.put(key, want)
    if cache.warning:
        failures.put(cache.warning)


def test_many_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    workers = [
        context.Process(target=hammer, args=(str(tmp_path), seed, failures)) for seed in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0] * 6
    assert failures.empty()
    cache = DiskCache(tmp_path, 60_000)
    # Each process may run ahead of the others by a sixteenth before it looks again.
    assert cache.total_bytes() <= 60_000 * (1 + 6 / 16)
    assert [p for p in tmp_path.glob("*/.*") if p.is_file()] == []


def test_digest_tells_splits_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") != digest("ab", "")
    assert digest("a", b"b") == digest("a", "b")


def test_cache_root_follows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("KERNELMARK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == Path("/home/someone/.cache/kernelmark")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path("/home/someone/.cache/kernelmark")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/kernelmark")
    monkeypatch.setenv("KERNELMARK_CACHE", "~/mine")
    assert cache_root() == Path("/home/someone/mine")


def test_cache_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", MIB)
    cache.put("a", b"payload")
    assert cache.get("a") == b"payload"
    entry(cache).parent.chmod(0o777)
    assert cache.get("a") is None
    assert cache.warning is not None
    cache.put("a", b"other")
    assert cache.get("a") is None


def test_root_that_others_can_write_to_gives_way_to_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    assert cache_root() == tmp_path / "cache"
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    assert cache_root() == temporary_folder()
