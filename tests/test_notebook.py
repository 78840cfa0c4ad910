"""The magics, on a shell that does what IPython's does."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kernelmark
from kernelmark import notebook
from kernelmark.api.results import Results
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status

QUICK = "--timing quick"
CELL = """
def reference(x):
    return np.tanh(x)

def right(x):
    return np.tanh(x)

def wrong(x):
    return x * 0.5
"""


class Shell:
    def __init__(self):
        self.user_ns = {"np": np, "x": np.linspace(-1, 1, 4096, dtype=np.float32)}
        self.magics = {}

    def register_magic_function(self, call, kind, name):
        self.magics[name] = call

    def run_cell(self, cell):
        exec(cell, self.user_ns)
        return SimpleNamespace(raise_error=lambda: None)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    shown = SimpleNamespace(UsageError=RuntimeError)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.core", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.core.error", shown)
    made = Shell()
    kernelmark.load_ipython_extension(made)
    return made


def test_a_cell_is_measured_against_its_reference(shell):
    results = shell.magics["kmark"](QUICK, CELL)
    assert {one.case.backend: one.status for one in results} == {
        "right": Status.OK,
        "wrong": Status.WRONG,
    }


def test_names_on_the_line_select_kernels(shell):
    results = shell.magics["kmark"](f"right {QUICK}", CELL)
    assert [one.case.backend for one in results] == ["right"]


def test_what_a_cell_lacks_is_an_error(shell):
    with pytest.raises(RuntimeError, match="nothing"):
        shell.magics["kmark"](QUICK, "def right(nothing):\n    return nothing\n")
    with pytest.raises(RuntimeError):
        shell.magics["kmark"](QUICK, "y = 1\n")
    with pytest.raises(RuntimeError):
        shell.magics["kmark"]("--no-such-option", CELL)


def test_commands_print_and_run_returns_results(shell, capsys):
    assert shell.magics["kmark"]("list ops") is None
    assert "gemm" in capsys.readouterr().out
    line = "run -d fake -b fake -o gemm -a m=8 -a n=8 -a k=8 --dtype f32 --jobs 0 --no-store"
    results = shell.magics["kmark"](f"{line} --max-s 0.05 --warmup-s 0")
    assert isinstance(results, Results)
    assert len(results) == 1
    with pytest.raises(RuntimeError):
        shell.magics["kmark"]("run --no-such-option")


def test_a_live_chart_keeps_the_readings_and_stops():
    pytest.importorskip("anywidget")
    chart = notebook.watch("cpu", every=0.01)
    while len(chart.values["utilisation"]) < 3:
        chart.take()
    chart.stop()
    assert all(0 <= value <= 100 for value in chart.values["utilisation"])


def test_a_chart_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(UsageError):
        notebook.watch()


@pytest.mark.parametrize("cell", [None, CELL])
def test_an_open_quotation_is_shown_as_a_usage_error(shell, cell):
    with pytest.raises(RuntimeError, match="quotation"):
        shell.magics["kmark"]("run -b 'numpy", cell)
