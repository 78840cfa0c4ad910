"""Every block of sh and Python of README and docs runs, or a comment before it says why not.

`<!-- gpu -->`: it needs a GPU. `<!-- not run: WHY -->`: another test, or what only a reader has.
`<!-- exit: N -->`: it ends with this code.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# These have tests of their own: test_own_kernel.py, test_tuning.py.
ELSEWHERE = {"own-kernel", "own-kernel-gpu", "own-kernel-reference", "bench", "tuning-search"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if page.stem not in ELSEWHERE]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>gpu|not run: [^\n]+|exit: \d+) -->\n)?"
    r"```(?P<kind>sh|python)\n(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
# A comparison may find something, or nothing that it can compare on a busy machine.
UNSURE = ("kmark compare", "kmark gate", "kmark ab", "kmark iree ab")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    exit: int = 0


def blocks(page):
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark = match["mark"] or ""
        if not mark or mark.startswith("exit"):
            code = int(mark.removeprefix("exit: ") or 0)
            found.append(Block(kind=match["kind"], text=match["text"], exit=code))
    return found


RUN = [page for page in PAGES if blocks(page)]


def test_the_pages_of_the_first_hour_are_run():
    names = {page.stem for page in RUN}
    assert {"README", "tutorial", "howto", "python", "iree", "tuning", "micro"} <= names
    assert all(len(blocks(page)) >= 2 for page in RUN if page.stem in ("README", "tutorial"))


def shell(block):
    """The commands of a block. pip is not called: what is installed is what is tested."""
    lines = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith(("pip install", "kmark serve")):  # serves until it is stopped
            continue
        # beside much other work a launch may take seconds
        line = line.replace("kmark tune run", "kmark tune run --timeout 600")
        unsure = line.startswith(UNSURE) and not block.exit
        lines.append(f"{line} || [ $? -eq 1 -o $? -eq 4 ]" if unsure else line)
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path):
    """As in a clone: a repository of two commits, with the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    for words in (("init", "-q"), ("add", "."), *2 * (("commit", "-q", "--allow-empty", "-mx"),)):
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a page measures for minutes, and waits while others measure
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_blocks_run(page, folder):
    """A block of Python that begins with a file's name is that file."""
    places = {"KERNELMARK_STORE": "store.sqlite", "KERNELMARK_CACHE": "cache"}
    places = {name: str(folder / place) for name, place in places.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks(page):
        if block.kind == "python" and (name := re.match(r"# (\w+\.py)\n", block.text)):
            (folder / name[1]).write_text(block.text)
            continue
        words = ["sh", "-ec", shell(block)]
        words = [sys.executable, "-c", block.text] if block.kind == "python" else words
        done = subprocess.run(
            words, cwd=folder, env={**os.environ, **places, "PATH": path},
            capture_output=True, text=True, check=False, timeout=3600,
        )  # fmt: skip
        assert done.returncode == block.exit, f"{block.text}\n{done.stdout}\n{done.stderr}"
