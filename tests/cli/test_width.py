"""Every table fits a terminal of 80 columns."""

from __future__ import annotations

import platform
import re

import pytest

from kernelmark.cli.app import command
from kernelmark.core.metric import Roof
from kernelmark.stores import open_store

WIDTH = 80
TABLES = [
    "show latest",
    "show latest --samples",
    "compare latest latest --all",
    "history --all",
    "roofs --stored",
    *(
        f"list {what}"
        for what in ("ops", "backends", "devices", "suites", "runs", "emitters", "strategies")
    ),
    "list ops -o gemm",
    "list logs",
    "list dtypes",
    "doctor",
]


@pytest.fixture
def terminal(monkeypatch, stored):
    """Both streams are a terminal of 80 columns; a store has a run and a roof that says much."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("kernelmark.cli.output.fancy", lambda stream: True)
    roof = Roof(
        device="cpu", arch="x86_64", kind="bytes", name="dram", unit="bytes", value=2e10, threads=2,
        measured=1.0, how="kmark micro stream (read), brief, the best of read 34.12 GB/s, copy "
        "6.328 GB/s, triad 7.552 GB/s, not steady: other work ran",
    )  # fmt: skip
    with open_store() as store:
        store.add_roofs([roof], host=platform.node())


def too_wide(text):
    """Lines over the width. Commands to be copied and single words, such as paths, stay whole."""
    lines = [line for line in text.splitlines() if len(line) > WIDTH]
    return [
        line
        for line in lines
        if not line.startswith("  ") or ("  kmark " not in line and len(line.split()) > 1)
    ]


@pytest.mark.parametrize("words", TABLES)
def test_tables_fit(kmark, terminal, words):
    ended = kmark(*words.split())
    assert ended.code in (0, 1, 4), ended.err
    assert ended.out.strip()
    assert not too_wide(ended.out)
    assert not too_wide(ended.err)


@pytest.mark.parametrize("name", command().commands)
def test_help_fits(kmark, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert not too_wide(re.sub(r"\x1b\[[0-9;]*m", "", kmark(name, "--help").out))
