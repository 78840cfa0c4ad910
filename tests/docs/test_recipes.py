"""The files of the recipes in CONTRIBUTING.md are put into a copy of this tree, and nothing else is
edited; then the tests that see them are run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"```\w+\n# ((?:src|tests)/\S+)\n(.*?)```", flags=re.DOTALL)
# Run in the tree: of the tests that look at a registry, those of the whole of it, and those of what
# the recipes add.
CHOOSE = """
import inspect, re

NAMES = "[Aa]dd|[Ee]insum|onecore|vectors|empty|[Gg]emm[Ll]og|spread"
ADDED = re.compile(f"(?<![a-z_])({NAMES})(?![a-z_])|Test_?({NAMES})(?![a-z_])")

def pytest_collection_modifyitems(items):
    whole = lambda item: ".names()" in inspect.getsource(item.function)
    items[:] = [item for item in items if ADDED.search(item.nodeid) or whole(item)]
"""
MEASURE = """
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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipes():
    """Path to text of every block that names its file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(PLACE.findall(text))


@pytest.fixture(scope="module")
def tree(recipes, tmp_path_factory):
    """A copy of this tree with the recipes' files in it."""
    folder = tmp_path_factory.mktemp("tree") / "kernelmark"
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name in ("src", "tests", "docs", "scripts"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, folder / path.name, ignore=ignored)
        elif path.name == "README.md":  # write-docs changes it
            shutil.copy2(path, folder)
        elif path.name[0] != ".":
            (folder / path.name).symlink_to(path)
    for name, text in recipes.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(tree, *words):
    """What a Python process in the tree prints; it must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "KERNELMARK_STORE": str(tree / "s.sqlite"),
        },
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_there_is_a_recipe_for_each(recipes):
    folders = {path.rsplit("/", 1)[0] for path in recipes}
    assert folders == {
        "src/kernelmark/ops",
        "src/kernelmark/backends",
        "src/kernelmark/devices",
        "src/kernelmark/workloads/data",
        "src/kernelmark/workloads/formats",
        "src/kernelmark/micro/benchmarks",
        "src/kernelmark/tune/strategies",
        "tests/contract",
    }


def test_nothing_else_has_to_change(tree):
    (tree / "src" / "choose.py").write_text(CHOOSE)
    paths = [path for path in (tree / "tests").rglob("test_*.py") if "plugin_" not in path.name]
    files = [
        path for path in paths if re.search(r"\.names\(\)|Contract\)", path.read_text("utf-8"))
    ]
    names = [str(path.relative_to(tree)) for path in files]
    run(tree, "-m", "pytest", "-p", "choose", "-p", "no:cacheprovider", "-m", "not slow", *names)


def test_generated_pages_show_them(tree):
    run(tree, "scripts/write-docs")
    run(tree, "scripts/write-docs", "--check")
    text = "".join(path.read_text(encoding="utf-8") for path in (tree / "docs").glob("*.md"))
    assert all(f"`{name}`" in text for name in ("vectors", "gemmlog", "spread"))
    assert "### empty" in text
    assert ", einsum," in (tree / "README.md").read_text(encoding="utf-8")


def test_the_device_measures(tree):
    assert float(run(tree, "-c", MEASURE)) > 0


def test_the_suite_runs_by_the_backend(tree):
    words = ["-m", "kernelmark", "run", "-s", "vectors", "-b", "einsum", "--csv", "-", "--quiet"]
    words += ["--roofs", "none", "--max-s", "0.02", "--warmup-s", "0", "--cache", "hot"]
    rows = run(tree, *words, "--no-sentinels").splitlines()[1:]
    assert len(rows) == 6
    assert all("einsum" in row and "ok" in row for row in rows)


def test_the_files_pass_lint(tree, recipes):
    files = [path for path in recipes if path.endswith(".py")]
    run(tree, "-m", "ruff", "check", "--quiet", "--no-cache", *files)
    run(tree, "-m", "ruff", "format", "--check", "--no-cache", *files)
