"""Logs of a few lines, written and read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelmark.workloads import logs
from kernelmark.workloads.logs import Reading

Reader = Callable[..., Reading]


@pytest.fixture
def read(tmp_path) -> Reader:
    """Read a log of this text: `read(text, name="a.log", arch=…)`."""

    def call(text: str | bytes, name: str = "a.log", **given: str) -> Reading:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return logs.read([str(path)], **given)

    return call


@pytest.fixture
def told() -> Callable[[Reading], list[tuple[int, str]]]:
    """Lines that were skipped, and why."""
    return lambda reading: [(one.line, str(one.reason)) for one in reading.skipped]
