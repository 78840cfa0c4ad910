"""The recipes of CONTRIBUTING.md are carried out, each in a package of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
PLACE = re.compile(r"```\w+\n# ((?:src|tests)/\S+)\n(.*?)```", flags=re.DOTALL)
CONTRACTS = """
import pytest
from kernelmark.testing import BackendContract
from kernelmark.testing.devices import DeviceContract

class TestEinsum(BackendContract):
    backend = "einsum"

@pytest.mark.parametrize("kind_name", ["onecore"])
class TestOneCore(DeviceContract):
    pass
"""
MEASURE = """
import dataclasses
from kernelmark import backends, devices, ops
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners.execute import execute

einsum = backends.registry.get("einsum")
einsum.device_kinds = ("cpu", "onecore")
case = Case(
    problem=ops.parse("gemm m=32 n=32 k=32 dtype=f32"),
    backend="einsum",
    timing=Timing(max_s=0.02, warmup_s=0.0, cache="hot"),
)
device = devices.registry.get("onecore").open(0)
result = execute(case, device, 0, lambda phase: None)
assert result.status == "ok", result.error
assert result.device == "onecore"
print(result.measurement.median_s)
"""


@pytest.fixture(scope="module")
def recipes() -> dict[str, str]:
    """Path to text of every block that names its file."""
    return dict(PLACE.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def site(recipes, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A folder with the recipes' modules as plugins, and the variables to see it with."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "recipes-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes\nVersion: 1\n")
    lines = []
    for path, text in recipes.items():
        match = re.fullmatch(r"src/kernelmark/(ops|backends|devices)/(\w+)\.py", path)
        if match:
            (folder / f"recipe_{match[2]}.py").write_text(text, encoding="utf-8")
            attribute = {"ops": "op", "backends": "backend", "devices": "kind"}[match[1]]
            lines += [f"[kernelmark.{match[1]}]", f"{match[2]} = recipe_{match[2]}:{attribute}"]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "KERNELMARK_STORE": str(folder / "store.sqlite"),
    }
    return folder, variables


def run(site, *words: str) -> subprocess.CompletedProcess[str]:
    folder, variables = site
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_there_is_a_recipe_for_each(recipes):
    folders = {path.rsplit("/", 1)[0] for path in recipes}
    assert folders == {
        "src/kernelmark/ops",
        "src/kernelmark/backends",
        "src/kernelmark/devices",
        "src/kernelmark/workloads/data",
        "tests/contract",
    }


def test_the_op_keeps_its_contract(site, recipes):
    folder, _ = site
    (folder / "check_add.py").write_text(recipes["tests/contract/test_add.py"], encoding="utf-8")
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "check_add.py")
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_backend_and_device_keep_their_contracts(site):
    folder, _ = site
    (folder / "check_rest.py").write_text(CONTRACTS, encoding="utf-8")
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "check_rest.py")
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_device_measures(site):
    done = run(site, "-c", MEASURE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_the_suite_runs_by_the_backend(site, recipes):
    folder, _ = site
    suite = folder / "vectors.toml"
    suite.write_text(recipes["src/kernelmark/workloads/data/vectors.toml"], encoding="utf-8")
    words = ["-m", "kernelmark", "run", "-s", str(suite), "-b", "einsum", "--csv", "-", "--quiet"]
    words += ["--roofs", "none", "--max-s", "0.02", "--warmup-s", "0", "--cache", "hot"]
    done = run(site, *words, "--no-canaries")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[1:]
    assert len(rows) == 6
    assert all("einsum" in row and "ok" in row for row in rows)


@pytest.mark.parametrize("words", [["check", "--quiet"], ["format", "--check"]])
def test_the_recipes_would_pass_lint(recipes, words):
    """They follow the rules of the page that they are on."""
    for path, text in recipes.items():
        if path.endswith(".py"):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *words, "--stdin-filename", path, "-"],
                cwd=PAGE.parent,
                input=text,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{path}\n{done.stdout}{done.stderr}"
