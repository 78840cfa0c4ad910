"""What a store and a file say of a run: its roofs, and whether it still goes on."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.result import ResultSet, Run, RunState
from kernelmark.core.verdict import NOTHING
from kernelmark.report.results import result_columns
from kernelmark.stores import open_store


def test_a_killed_run_is_listed_as_interrupted(kmark):
    words = ["run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32"]
    words += ["-a", "m=8", "-a", "n=8", "-a", "k=8", "--config", "behaviour=hang"]
    started = subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words], stderr=subprocess.PIPE, text=True
    )

    def state() -> str:
        rows = json.loads(kmark("list", "runs", "--json", "-").out or "[]")
        return str(rows[0]["state"]) if rows else ""

    while (seen := state()) != "running" and started.poll() is None:
        time.sleep(0.1)
    assert seen == "running"
    started.kill()
    started.communicate()
    assert state() == "interrupted"


@pytest.mark.parametrize(
    ("state", "command", "hint"),
    [
        ("interrupted", "run", "kmark run --resume nothing"),
        ("interrupted", "ab", "kmark list runs"),
        ("running", "run", ""),
        ("done", "run", "kmark list runs"),
    ],
)
def test_a_run_without_results(kmark, refused, tmp_path, state, command, hint):
    with open_store(tmp_path / "store.sqlite") as store:
        run = Run(
            id="nothing",
            started=1.0,
            environment=Environment(),
            argv=(command, "-s", "demo"),
            state=RunState(state),
        )
        store.add_result_set(ResultSet(run=run, results=()))
    rows = list(csv.reader(io.StringIO(kmark("export", "--csv", "-").out)))
    assert rows == [result_columns([])]
    told = refused("show", code=4, run="nothing").err
    assert hint in told
    assert "kmark show" not in told


@pytest.mark.slow
def test_a_file_holds_the_roofs_it_was_compared_with(kmark, tmp_path):
    words = ("run", "-p", "gemm m=64 n=64 k=64 dtype=f32", "-b", "numpy", "--max-s", "0.05")
    assert kmark(*words, "--roofs", "fresh", "--warmup-s", "0.01").code == 0
    file = str(tmp_path / "run.json")
    assert kmark("export", "--json", file).code == 0
    stored, read = kmark("show"), kmark("show", file)
    assert re.search(r"\d %", stored.out.splitlines()[-1])
    assert read.out == stored.out
    document = json.loads(Path(file).read_text())
    assert {roof["kind"] for roof in document["roofs"]} >= {"flops", "bytes"}
    elsewhere = str(tmp_path / "elsewhere.sqlite")
    assert kmark("import", file, "--store", elsewhere).code == 0
    assert kmark("show", "--store", elsewhere).out == stored.out
    del document["roofs"]  # as an older kernelmark wrote it
    Path(file).write_text(json.dumps(document))
    assert kmark("show", file).code == 0


@pytest.mark.parametrize("form", ["bencher", "github-action-benchmark", "pytorch-hud"])
def test_a_run_without_a_time_is_no_empty_file(kmark, tmp_path, form):
    table, out = tmp_path / "matmul.csv", tmp_path / "out.json"
    table.write_text("M,cuBLAS (ms)\n8.000000,inf\n")
    assert kmark("import", str(table)).code == 0
    ended = kmark("export", "latest", "--as", form, "-o", str(out))
    assert (ended.code, ended.out, out.exists()) == (NOTHING, "", False)
    assert "hint: " in ended.err
