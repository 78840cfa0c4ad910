"""Files planted where kmark runs are never executed: in the current folder, in TMPDIR, in the cache
and in a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.host.processes import own_command

MARK = "import os\nwith open({log!r}, 'a') as log: log.write({name!r} + '\\n')\n"
MODULES = (
    *("numpy.py", "json.py", "ctypes.py", "secrets.py", "torch.py", "scipy.py", "pip.py"),
    *("kernelmark.py", "kernelmark/__init__.py", "kernelmark/devices/cpu.py", "kernelmark_dev.py"),
    *("sitecustomize.py", "usercustomize.py", "conftest.py", "runpy.py", "planted.pth"),
)
LIBRARIES = ("numpy.so", "secrets.so", "kernelmark.so")  # to load them is an error
PLANTED = (*MODULES, *LIBRARIES)
KERNEL = """
import neighbour
import numpy as np
op = "gemm"
def prepare(problem, config, sets):
    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    return launch
"""
GEMM = ("-o", "gemm", "-a", "m=4", "-a", "n=4", "-a", "k=4", "--dtype", "f32", "-d", "fake")
RUN = ("run", *GEMM, "--timing", "quick", "--roofs", "none", "--no-store")


def plant(folder: Path, log: Path) -> None:
    for name in MODULES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = MARK.format(log=str(log), name=name)
        file.write_text(text.replace("\n", "; ", 1) if name.endswith(".pth") else text)
    for name in LIBRARIES:
        (folder / name).write_bytes(b"not a library")


def write_kernel(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "k.py").write_text(KERNEL)
    (folder / "neighbour.py").write_text("")


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def prepared(places: str, root: Path, log: Path) -> tuple[Path, dict[str, str], tuple[str, ...]]:
    """Plant the files, and return working folder, variables and arguments of kmark."""
    work, cache = root / "work", root / "cache"
    write_kernel(work)
    variables = {"KERNELMARK_CACHE": str(cache), "PYTHONPATH": ""}
    if places == "checkout and working tree":
        git(work, "init", "-q")
        plant(work, log)
        git(work, "add", ".")
        git(work, "commit", "-q", "-m", "base")
        words = ("gate", "--base", "HEAD", "--head", ".", "-b", "k.py", *GEMM, "--no-store")
        return work, variables, (*words, "--rounds", "2", "--alpha", "0.5")
    plant(work, log)
    if places == "empty entry of PYTHONPATH":
        variables["PYTHONPATH"] = f"{root / 'none'}:"
    else:
        plant(root / "tmp", log)
        variables["TMPDIR"] = str(root / "tmp")
        plant(cache, log)
        plant(cache / "import", log)
        cache.chmod(0o700)
    return work, variables, (*RUN, "-b", "k.py,fake")


PLACES = (
    *("current folder, TMPDIR and cache", "checkout and working tree"),
    "empty entry of PYTHONPATH",
)


def execute(place: str, root: Path) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """The planted files that ran beside a command, and how it ended."""
    log = root / "log"
    folder, variables, words = prepared(place, root, log)
    # kmark is a script, and so are its children; `python -m kernelmark` is Python's own affair.
    command = [sys.executable, "-P", "-m", "kernelmark", *words]
    if place == "empty entry of PYTHONPATH":
        command = [sys.executable, "-I", *own_command("kernelmark", *words)[2:]]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True
    )
    return log.read_text().split() if log.exists() else [], done


@pytest.fixture(scope="module", params=PLACES)
def executed(request, tmp_path_factory):
    return execute(request.param, tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_file_is_not_run(executed, name):
    ran, done = executed
    assert name not in ran
    assert done.returncode in (0, 4), done.stderr  # gate: too few rounds to decide
