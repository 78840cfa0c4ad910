"""A cache of its own for every test, and no pack or compiler remembered from another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmark.gpu import rtc


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELMARK_PACK", raising=False)
    remembered = (rtc._cache, rtc._library)  # a test may replace them
    for function in remembered:
        function.cache_clear()
    yield tmp_path / "cache"
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def nvrtc(cache: Path) -> None:
    reason = rtc.unavailable("cuda")
    if reason is not None:
        pytest.skip(reason)
