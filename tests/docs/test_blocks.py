"""The blocks of the tutorial, the how-tos and the Python page run, in order, in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("tutorial.md", "howto.md", "python.md", "assert-close.md")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(page):
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def test_every_page_has_blocks():
    assert all(len(blocks(page)) >= 1 for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, tmp_path):
    """A block of Python that begins with a file's name is that file. pip is not called: what is
    installed is what is tested."""
    places = {"KERNELMARK_STORE": "store.sqlite", "KERNELMARK_CACHE": "cache"}
    places = {name: str(tmp_path / place) for name, place in places.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for kind, text in blocks(page):
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / name[1]).write_text(text)
            continue
        lines = [
            # a comparison may find something, or nothing that it can compare on a busy machine
            f"{line} || [ $? -eq 1 -o $? -eq 4 ]" if line.startswith("kmark compare") else line
            for line in text.splitlines()
            if not line.startswith("pip install")
        ]
        words = ["sh", "-ec", "\n".join(lines)] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, **places, "PATH": path},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
