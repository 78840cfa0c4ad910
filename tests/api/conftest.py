"""Every test has a store and a cache of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELMARK_LOCKS", str(tmp_path))
