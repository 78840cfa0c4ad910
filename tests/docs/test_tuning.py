"""docs/tuning.md says what the code does: files, defaults and limits; its example is run."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.report import tuning as report
from kernelmark.tune import accept
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plan import Acceptance

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())


def section(title: str) -> str:
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
    assert f"({100 * (1 - accept.ALPHA):g} %, Wilcoxon's signed ranks" in FLAT
    assert f"no better than ± {100 * report._WIDE:.0f} %" in FLAT


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
