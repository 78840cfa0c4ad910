"""README.md shows what kmark really prints and names what is really there."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kernelmark import backends, ops
from kernelmark.workloads import suites

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.search(
    r"```sh\n(kmark run [^\n]*--threads 1)\n```\n\n```text\n(.*?)```\n", TEXT, flags=re.DOTALL
)


def cells(table):
    """A table as kmark prints it, cut at the columns under its dashes."""
    lines = table.strip("\n").splitlines()
    spans = [match.span() for match in re.finditer(r"-+", lines[1])]
    return [[line[a:b].strip() for a, b in spans] for line in [lines[0], *lines[2:]]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints now, measured as shortly as can be."""
    assert SHOWN, "README.md shows no command with its output"
    folder = tmp_path_factory.mktemp("readme")
    short = ["--max-s", "0.05", "--warmup-s", "0", "--max-blocks", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark", *shlex.split(SHOWN[1])[1:], *short],
        env={**os.environ, "KERNELMARK_STORE": str(folder / "store.sqlite")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_table_has_the_columns_that_kmark_prints(printed):
    """Beside much other work no row is reliable enough to be ranked."""
    assert SHOWN
    now, shown = cells(printed)[0], cells(SHOWN[2])[0]
    assert now == [name for name in shown if name != "vs best" or name in now]


@pytest.mark.slow
def test_the_table_has_the_rows_that_kmark_prints(printed):
    """The same problems by the same backends, all right; who is faster may differ."""
    assert SHOWN
    then, now = cells(SHOWN[2]), cells(printed)
    assert sorted(row[:2] for row in then) == sorted(row[:2] for row in now)
    assert {row[-1] for row in then[1:]} == {"ok"}


@pytest.mark.slow
def test_the_python_example_runs():
    examples = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(examples) == 1
    done = subprocess.run(
        [sys.executable, "-c", examples[0]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("gemm m=")]
    assert len(rows) == 2


def test_ops_and_backends_that_it_names_exist():
    section = " ".join(TEXT.split("## Ops, backends and commands")[1].split("##")[0].split())
    told_ops = re.search(r"Ops: (.*?), in ", section)
    told_backends = re.search(r"Backends: (.*?), and ", section)
    assert told_ops
    assert told_backends
    assert {*re.split(", | and ", told_ops[1])} <= {*ops.registry.names()}
    untried = re.search(r"docs/amd.md\): (.*?)\. ", section)
    assert untried
    # `write-docs --check` compares the whole list, so that a new backend is no more than its file.
    named = {*told_backends[1].split(", "), *untried[1].split(", ")}
    assert {"numpy", "hipblaslt"} <= named <= {*backends.registry.names()} - {"fake"}
    assert len(suites.names()) > 30  # "over thirty"


def test_make_and_pip_know_what_it_tells_to_type():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = TEXT + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for goal in re.findall(r"^make ([\w-]+)", pages, flags=re.MULTILINE):
        assert re.search(rf"^{goal}:", makefile, flags=re.MULTILINE), f"make {goal}"
    for extra in re.findall(r'pip install "(?:kernelmark|\.)\[([\w,]+)\]"', pages):
        assert {*extra.split(",")} <= {*project["project"]["optional-dependencies"]}, extra
    assert project["project"]["requires-python"] == ">=3.11"
