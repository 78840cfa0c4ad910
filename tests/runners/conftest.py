from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Locks and links of a test must not meet those of other tests or of the user."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELMARK_LOCKS", str(tmp_path))
