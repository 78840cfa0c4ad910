"""What is released: one version, no placeholder, and a wheel and an sdist that install and run."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
MOST_BYTES = 5_000_000
FIRST = "run -o gemm -b numpy -a m=64 -a n=64 -a k=64 --dtype f32 --timing quick --roofs none"


def test_one_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert CITATION["version"] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}\n" in changes


def test_one_address():
    """There may be none yet: then no file has an invented one."""
    address = PROJECT.get("urls", {}).get("Repository")
    assert CITATION.get("repository-code") == address
    files = [
        ROOT / "action.yml",
        ROOT / "CITATION.cff",
        ROOT / "mkdocs.yml",
        ROOT / "pyproject.toml",
    ]
    files += [*(ROOT / "scripts").glob("*-*"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    files += (ROOT / "examples").rglob("*.yml")
    for path in files:
        text = path.read_text(encoding="utf-8").replace(address or "\0", "")
        assert not re.search(r"\bOWNER\b|example\.invalid|github\.com/\w+/kernelmark", text), path


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The wheel and the sdist, built from the sources as they are."""
    folder = tmp_path_factory.mktemp("dist")
    venv.create(folder / "build", with_pip=True)
    python = folder / "build" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "hatchling"], check=True)
    words = ["hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run([python, "-m", *words], cwd=ROOT, check=True, capture_output=True)
    return {path.suffix: path for path in folder.glob("kernelmark-*")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "versions"), [(".whl", "newest"), (".gz", "newest"), (".whl", "lowest")]
)
def test_a_package_installs_and_runs(packages, suffix, versions, tmp_path):
    """In a clean environment, with what pip alone installs, away from the sources; also with the
    lowest versions that it declares."""
    package = packages[suffix]
    assert package.stat().st_size <= MOST_BYTES
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    lowest = [text.replace(">=", "==") for text in PROJECT["dependencies"]]
    asked = [str(package), *(lowest if versions == "lowest" else [])]
    subprocess.run([python, "-m", "pip", "install", "-q", *asked], check=True)
    hidden = ("PYTHONPATH", "KERNELMARK_STORE", "KERNELMARK_CACHE", "VIRTUAL_ENV")
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | home

    def ends(script, *words):
        done = subprocess.run(
            [python.parent / script, *words], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "kmark" in ends("kmark", "--help")
    assert "--accept" in ends("kmark", "history", "--help-all")
    assert PROJECT["version"] in ends("kernelmark", "--version")
    assert "gemm m=64" in ends("kmark", *FIRST.split())
    assert "gemm m=64" in ends("kmark", "show", "latest")


@pytest.mark.slow
def test_the_sdist_has_what_the_docs_name(packages):
    import tarfile

    with tarfile.open(packages[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"README.md", "Makefile", "docs/tutorial.md", "examples/gemm_numpy.py", "action.yml"}
    assert needed <= names
