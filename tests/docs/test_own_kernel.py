"""The pages on kernel files are followed as written: their files, commands and claims."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelmark.backends import _file
from kernelmark.devices import registry as devices

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("own-kernel", "own-kernel-gpu", "bench", "own-kernel-reference")
TEXT = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
STEP = re.compile(
    r"(?:<!-- (?:exit: (?P<exit>\d+)|(?P<gpu>gpu)) -->\n)?"
    r"```(?P<kind>python|cuda|sh)\n(?P<body>.*?)```",
    flags=re.DOTALL,
)
# hot: thousands of cold sets of such small problems would take a minute
SHORT = ["--max-s", "0.05", "--warmup-s", "0", "--roofs", "none", "--cache", "hot"]


@dataclass(frozen=True)
class Ended:
    command: str
    code: int
    wanted: int
    out: str
    err: str


def follow(folder, *, gpu):
    """The files of the page are written, its commands for a CPU or for a GPU run, in order."""
    place = {"KERNELMARK_STORE": str(folder / "store.sqlite"), "COLUMNS": "200"}
    found = []
    for step in STEP.finditer(TEXT):
        body = step["body"]
        if step["kind"] == "cuda":
            (folder / "softmax.cu").write_text(body, encoding="utf-8")
        elif step["kind"] == "python":
            name = re.match(r"# (\w+\.py)\n", body)
            assert name, "a Python block begins with the name of its file"
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif bool(step["gpu"]) is gpu:
            for line in body.strip().splitlines():
                words = shlex.split(line)
                assert words[0] == "kmark"
                words += SHORT if words[1] == "run" and not gpu else []
                # beside much other work a launch may take seconds
                words += ["--timeout", "600"] if words[1:3] == ["tune", "run"] else []
                done = subprocess.run(
                    [sys.executable, "-m", "kernelmark", *words[1:]],
                    cwd=folder,
                    env={**os.environ, **place},
                    capture_output=True,
                    text=True,
                    timeout=600,
                    check=False,
                )
                wanted = int(step["exit"] or 0)
                found.append(Ended(line, done.returncode, wanted, done.stdout, done.stderr))
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("tutorial"), gpu=False)


def test_every_command_ends_as_the_page_says(ended):
    assert len(ended) == 12
    for one in ended:
        assert one.code == one.wanted, f"{one.command}\n{one.err}"


@pytest.mark.parametrize(
    ("number", "out", "err"),
    [
        (0, ("k×m",), ()),
        (2, ("wrong",), ("256 of 65536 elements of d not written", "positions are wrong")),
        (3, ("unsupported",), ("careful.py takes no transposed inputs",)),
        (4, ("[rows=64]",), ()),
        (5, ("[rows=256]",), ()),
        (6, (), ("kmark tune run tiled",)),
        (8, ("3 of ",), (" of 1 problem",)),
    ],
)
def test_a_command_shows_what_the_page_speaks_of(ended, number, out, err):
    assert all(words in ended[number].out for words in out)
    assert all(words in ended[number].err for words in err)


def test_the_op_explains_its_parameters_and_both_are_in_the_table(ended):
    told = [line.split() for line in ended[0].out.splitlines()]
    assert ["a", "in", "k×m", "a", "ta=t"] in told
    assert ["d", "out", "m×n", "c"] in told
    lines = [line for line in ended[1].out.splitlines() if line.startswith("gemm ")]
    assert len(lines) == 2
    assert sum("./mykernel.py" in line for line in lines) == 1
    # Other work on the machine may make blocks differ by factors, which is told.
    assert all(re.search(r"  ok(, unreliable)?$", line) for line in lines)
    head = ended[1].out.splitlines()[0]
    assert all(word in head for word in ("median", "±", "rate", "status"))


def test_the_scripted_clock_is_told(tmp_path):
    (tmp_path / "mine.py").write_text(re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)[0])
    words = ["run", "-b", "./mine.py", "-d", "fake", "-p", "gemm m=8 n=8 k=8 dtype=f32"]
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark", *words, "--no-store", *SHORT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "note: the clock of fake is scripted" in done.stderr


def test_the_table_of_names_is_that_of_the_loader():
    """Every name that the loader looks for is explained, and no other."""
    source = Path(_file.__file__).read_text(encoding="utf-8")
    looked_for = set(re.findall(r'getattr\((?:self\._)?module, "(\w+)"', source))
    looked_for |= {"prepare", "inputs", "reference", "output", "flops", "nbytes", "rtol", "atol"}
    explained = set(re.findall(r"^\| `(\w+)", TEXT, flags=re.MULTILINE))
    assert explained == looked_for
    assert all(f'`"{kind}"`' in TEXT for kind in _file._KINDS)


def test_an_own_op_is_run_by_both_files(ended):
    for one, rows in zip(ended[9:], (2, 1, 2), strict=True):
        table = [line.split() for line in one.out.splitlines() if line.startswith("softmax ")]
        assert [{"ok", "ok,"} & set(line) != set() for line in table] == [True] * rows


@pytest.mark.parametrize(
    ("name", "function"), [("bench_softmax", "softmax"), ("bench_rmsnorm", "by_hand")]
)
def test_the_python_examples_measure(name, function, tmp_path):
    text = next(s["body"] for s in STEP.finditer(TEXT) if s["body"].startswith(f"# {name}"))
    file = tmp_path / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{function} ")]
    assert len(lines) == 2
    # Other work on the machine may make blocks differ by factors; both are short for a GPU.
    assert all(re.search(r"  ok(, unreliable|, launch-bound)*$", line) for line in lines)


def test_the_commands_for_a_gpu(tmp_path):
    if reason := devices.get("cuda").available():
        pytest.skip(reason)
    ended = follow(tmp_path, gpu=True)
    assert len(ended) == 4
    assert [one.code for one in ended] == [0, 0, 0, 0], ended
