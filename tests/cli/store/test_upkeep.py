"""`kmark store`: check, migrate and prune."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import FAKE

ROOT = Path(__file__).parents[3]


def test_a_sound_store_and_a_damaged_one(kmark, tmp_path):
    assert kmark("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32",
                 "-a", "m=8", "-a", "n=8", "-a", "k=8", "--timing", "quick", "--roofs", "none",
                 "--jobs", "0").code == 0  # fmt: skip
    ended = kmark("store", "check", "--json", "-")
    assert ended.code == 0
    assert json.loads(ended.out)["problems"] == []
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as other, other:
        other.execute("UPDATE results SET median_s = median_s * 2")
    ended = kmark("store", "check", "--json", "-")
    assert ended.code == 3
    assert len(json.loads(ended.out)["problems"]) == 1
    assert kmark("show").code == 2
    assert kmark("export").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("drill", ["damaged stores", "pushes to a killed dashboard"])
def test_drills_of_the_store(drill):
    command = [sys.executable, "benchmarks/drills.py", "--quick", "--only", drill]
    subprocess.run(command, cwd=ROOT, check=True)


def test_a_store_is_copied_twice_and_a_damaged_run_left_out(kmark, tmp_path):
    store, target = str(tmp_path / "store.sqlite"), str(tmp_path / "copy.sqlite")
    new = str(tmp_path / "new.sqlite")
    assert kmark(*FAKE, "--label", "one").code == 0
    assert kmark(*FAKE, "--label", "two").code == 0
    ended = kmark("store", "migrate", store, target, "--json", "-")
    runs = json.loads(ended.out)
    assert (ended.code, runs["added"], runs["known"]) == (0, runs["added"], 0)
    again = json.loads(kmark("store", "migrate", store, target, "--json", "-").out)
    assert (again["runs"], again["added"], again["known"]) == (0, 0, runs["added"])
    assert kmark("store", "check", "--store", target).code == 0
    shown = kmark("show", "one", "--json", "-", "--store", target)
    assert json.loads(shown.out) == json.loads(kmark("show", "one", "--json", "-").out)
    with contextlib.closing(sqlite3.connect(store)) as other, other:
        other.execute("UPDATE results SET median_s = 1 WHERE no = (SELECT max(no) FROM results)")
    ended = kmark("store", "migrate", store, new, "--json", "-")
    assert ended.code == 3
    assert len(json.loads(ended.out)["problems"]) == 1
    assert kmark("store", "check", "--store", new).code == 0


def test_copies_that_cannot_be_made_are_refused(refused, tmp_path, kmark):
    missing, copy, store = (str(tmp_path / f"{name}.sqlite") for name in ("none", "copy", "store"))
    refused("store", "migrate", missing, copy, reason="store-missing", store=missing)
    assert not (tmp_path / "copy.sqlite").exists()
    assert kmark(*FAKE).code == 0
    refused("store", "migrate", store, store, store=store)
    url = "postgresql://nobody@127.0.0.1:1/none"
    refused("store", "migrate", store, url, store=url)


def test_old_runs_are_pruned_after_a_dry_run(kmark, refused, tmp_path):
    for label in ("one", "two"):
        assert kmark(*FAKE, "--label", label).code == 0
    assert kmark(*FAKE, "--label", "one").code == 0
    refused("store", "prune")
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as other:
        ids = [
            row[0]
            for row in other.execute("SELECT id FROM runs WHERE label = 'one' ORDER BY started")
        ]
    prune = ("store", "prune", "--runs", "1e-9")
    dry = kmark(*prune, "--dry-run")
    assert (dry.code, ids[1] in dry.err, ids[0] in dry.err) == (0, True, False)
    refused(*prune)  # no terminal to ask on
    assert kmark(*prune, "-y").code == 0
    left = [run["label"] for run in json.loads(kmark("list", "runs", "--json", "-").out)]
    assert sorted(left) == ["one", "two"]


def test_hosts_are_merged_into_one_site(kmark, tmp_path):
    labels = ("here", "there")
    for label in labels:
        assert (
            kmark(*FAKE, "--label", label, "--store", str(tmp_path / f"{label}.sqlite")).code == 0
        )
    here, there = (str(tmp_path / f"{label}.sqlite") for label in labels)
    public = str(tmp_path / "public")
    assert kmark("site", "-o", public, "--store", here, "--merge", there).code == 0
    rows = json.loads((tmp_path / "public/runs.json").read_text())["tables"][0]["rows"]
    assert {row["label"] for row in rows} == set(labels)
