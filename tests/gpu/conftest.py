"""A cache of its own for every test, and no pack or compiler remembered from another."""

import pytest

from kernelmark.gpu import rtc


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELMARK_PACK", raising=False)
    remembered = (rtc._cache, rtc._library)  # a test may replace them
    for function in remembered:
        function.cache_clear()
    yield tmp_path / "cache"
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def nvrtc(cache):
    reason = rtc.unavailable("cuda")
    if reason is not None:
        pytest.skip(reason)
