"""Logs of a few lines, written and read."""

from collections.abc import Callable

import pytest

from kernelmark.workloads import logs
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.logs import LogReading

Reader = Callable[..., LogReading]


@pytest.fixture
def read(tmp_path):
    """Read a log of this text: `read(text, name="a.log", arch=…)`."""

    def call(text, name="a.log", *, form=None, **options):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return logs.read([str(path)], form=form, options=LogOptions(**options))

    return call


@pytest.fixture
def told():
    """Lines that were skipped, and why."""
    return lambda reading: [(one.line, str(one.reason)) for one in reading.skipped]
