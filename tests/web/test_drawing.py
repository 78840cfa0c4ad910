"""Figures are drawn by another process."""

from __future__ import annotations

import os

import pytest

from kernelmark.core.errors import KernelmarkError
from kernelmark.report import vega
from kernelmark.web.drawing import Drawer

SPEC = {"data": {"values": [{"x": 1, "y": 2}]}, "mark": "point", "encoding": {"x": {"field": "x"}}}


@pytest.fixture
def drawer():
    made = Drawer()
    yield made
    if made._process is not None:
        made._process.kill()
        made._process.wait()
        made._process.stdout.close()


def test_it_draws_what_the_library_draws(drawer):
    assert drawer.svg(SPEC) == vega.svg(SPEC)
    first = drawer._process.pid
    assert first != os.getpid()
    drawer.svg(SPEC)
    assert drawer._process.pid == first


def test_a_process_that_ended_is_started_again(drawer):
    with pytest.raises(KernelmarkError):
        drawer.svg({"mark": 3})  # ends with an exception
    assert drawer.svg(SPEC) == vega.svg(SPEC)


def test_it_ends_with_its_server(drawer):
    drawer.svg(SPEC)
    drawer._process.stdin.close()
    assert drawer._process.wait(600) == 0
