"""Every `kmark …` in README, docs and examples is one that kmark understands."""

import re
import shlex
from pathlib import Path

import pytest

from kernelmark import devices, ops
from kernelmark.api.selection import comma_list
from kernelmark.cli.app import command
from kernelmark.cli.main import prepared
from kernelmark.cli.measure.run import NEXT, RunOptions
from kernelmark.core.dtype import dtype
from kernelmark.workloads import select, suites

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(kmark [^`]+)`")
RECIPES = re.findall(  # backends that CONTRIBUTING.md adds; tests/docs/test_recipes.py runs them
    r"^# src/kernelmark/backends/(\w+)\.py$",
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
PLACEHOLDER = re.compile(r"…|(?<![\w-])[A-Z]{2,}(?![\w=])|\[RUN\]|COMMAND|OPTIONS")


def in_pages():
    """(where, command line) of every command in a block or in a sentence."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for _, body in BLOCK.findall(text):
            lines = body.replace("\\\n", " ").splitlines()
            found += [(page.name, one) for line in lines if (one := command_of(line))]
        found += [(page.name, " ".join(line.split())) for line in INLINE.findall(text)]
    for path in sorted((ROOT / "examples").glob("*.py")):
        lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        found += [(path.name, one) for line in lines if (one := command_of(line))]
    return [*found, *(("the demo's end", one) for one in NEXT)]


def command_of(line):
    """The line as a kmark command without variables before and a comment after; "" for another."""
    line = re.sub(r"\s#\s.*$", "", line.strip())
    line = re.sub(r"^([A-Z_]+=\S+ )*python3? -m kernelmark", "kmark", line)
    return line if line.startswith("kmark ") else ""


COMMANDS = in_pages()


def parsed(line):
    """The command's name and the parser's context; a usage error of the parser is raised."""
    words, _ = prepared(shlex.split(line)[1:])
    group = command()
    outer = group.make_context("kmark", list(words), resilient_parsing=True)
    name, *_ = words
    assert name in group.commands, f"no such command: {name}"
    found, rest = group.commands[name], words[1:]
    while hasattr(found, "commands"):
        word, *rest = rest
        assert word in found.commands, f"no such command: {line}"
        name, found = f"{name} {word}", found.commands[word]
    return name, found.make_context(name, rest, parent=outer)


def test_there_are_commands():
    pages = {name for name, _ in COMMANDS}
    assert {"README.md", "own-kernel.md", "gpu.md", "measuring.md", "suites.md"} <= pages
    assert {"gemm_numpy.py", "gemm_triton.py"} <= pages
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("kmark run --no-such-flag", "--no-such-flag"),
        ("kmark walk", "walk"),
        ("kmark run --cache warm", "warm"),
        ("kmark tune walk DIR", "walk"),
        ("kmark tune show DIR --no-such-flag", "--no-such-flag"),
    ],
)
def test_a_wrong_word_would_be_found(line, wrong):
    with pytest.raises(Exception, match=wrong):
        parsed(line)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_command_parses(page, line):
    if "COMMAND" in line or "[OPTIONS]" in line:
        return  # `kmark COMMAND …` speaks of all of them
    if re.fullmatch(r"kmark \w+", line):  # a command's name in a sentence
        assert line.split()[1] in command().commands
        return
    if re.fullmatch(r"kmark tune \w+", line):
        assert line.split()[2] in command().commands["tune"].commands
        return
    line = line.replace(" …", "").replace("OP -", "gemm -")
    name, context = parsed(line)
    if name == "tune plan":
        assert all(suites.load(suite).problems for suite in context.params["suite"] or ())
    if name != "run" or PLACEHOLDER.search(line) or context.params["resume"] is not None:
        return
    params = dict(context.params)
    if page == "CONTRIBUTING.md" and set(comma_list(params["backend"])) & set(RECIPES):
        params["backend"] = []
    selection = RunOptions.of(params).selection  # refuses unknown backends
    for device in selection.devices:
        # With a cluster, a device is also a model of GPU.
        named = device == "all" or device.partition(":")[0] in devices.registry
        assert named or params.get("runner") not in (None, "local")
    for word in selection.dtypes:
        dtype(word)
    for suite in selection.suites:
        assert suite.endswith(".toml") or suites.load(suite).problems
    own = any(ref.file for ref in selection.backends)  # a file that may define the op
    for text in selection.problems:
        assert (own and text.split()[0] not in ops.registry) or ops.parse(text)
    for op in selection.ops:
        assert op in ops.registry
        if selection.axes:
            assert select.expand(op, selection.axes, selection.dtypes)
