"""The pages on tuning say what the code does: files, defaults and limits; its example is run."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.report import tuning as report
from kernelmark.runners.targets import find
from kernelmark.tune import plans
from kernelmark.tune.evaluate import CLIMBING, ladder
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import ALPHA, Acceptance

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tuning", "tuning-search", "tuning-files")
TEXT = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
FLAT = " ".join(TEXT.split())


def section(title):
    return TEXT.split(f"\n## {title}")[1].split("\n## ")[0]


def test_the_files_are_those_of_a_folder():
    folder = TuningFolder(Path("x"))
    places = (folder.workload, folder.summary, folder.plan("BBS_TN_0"), folder.journal("BBS_TN_0"))
    for path in (*places, folder.state):
        assert f"| `{path.relative_to('x').as_posix()}` |" in TEXT
    assert f"| `{folder.results.name}/` |" in TEXT


def test_defaults_are_those_of_a_plan():
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", section("What kept means"), flags=re.M))
    assert told == {k: f"{v:g}" for k, v in dataclasses.asdict(Acceptance()).items()}


def test_limits_are_those_of_the_code():
    assert f"at least {GoldenTot().ignore_below_us:g} µs" in FLAT
    assert f"({100 * (1 - ALPHA):g} %, Wilcoxon's signed ranks" in FLAT
    assert f"no better than ± {100 * report._MAX_HALF_WIDTH:.0f} %" in FLAT
    assert f"less than {plans.LEAST_ROUNDS} cannot be significant" in FLAT


def test_the_steps_of_a_candidate_are_those_of_the_code():
    look, short, full = ladder(find("cpu")[1])
    assert [step.name for step in ladder(find("fake")[1])] == [short.name, full.name]
    assert f"within {100 * (short.within - 1):.0f} % of the best so far" in FLAT
    assert pytest.approx(1 / 3) == CLIMBING
    assert "while fewer than a third had one" in FLAT
    assert f"more than {100 * (look.within - 1):.0f} % slower" in FLAT


def test_strategies_that_were_compared_are_counted():
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "search.json"
    found = json.loads(path.read_text())["figures"]["strategies"]
    of = Counter(one.partition(" ")[0] for one in found)
    counted = (
        f"{of['kernel_tuner']} strategies of Kernel Tuner, {of['optuna']} of Optuna and "
        f"{of['pyatf']} of pyATF"
    )
    assert f"ahead of {counted} after" in FLAT
    assert {f"Each ran with {one['seeds']} seeds" in FLAT for one in found.values()} == {True}
    assert not [one for one in found if "skopt" in one]


def test_the_recorded_space_is_searched(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```(\w+)\n(.*?)```", section("Strategies on"), flags=re.DOTALL)
    (tmp_path / "recorded.json").write_text(dict(blocks)["json"])
    monkeypatch.chdir(tmp_path)
    exec(dict(blocks)["python"], {})
    told = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(told) == ["kmark", "genetic", "random"]
    assert all(0.0 < float(value) <= 1.0 for value in told.values())


@pytest.mark.slow
def test_the_example_on_the_scripted_device_keeps_winners(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    lines = [line for line in TEXT.splitlines() if re.match(r"kmark tune \w+ try\b", line)]
    assert [line.split()[2] for line in lines] == ["plan", "run"]
    for line in lines:
        words = [sys.executable, "-m", "kernelmark", *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    final = (tmp_path / "try" / "results" / "final_results.csv").read_text().splitlines()
    assert len(final) == 3
