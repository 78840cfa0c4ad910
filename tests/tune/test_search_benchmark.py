"""benchmarks/search.py on a small made-up space: what it counts, and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search.py"


@pytest.fixture(scope="module")
def search(benchmark_script):
    return benchmark_script("search.py")


def made_up(folder, name):
    """A smooth bowl of 512 points, one corner of it failing."""
    idx = np.stack(np.meshgrid(*[np.arange(8)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    time_ms = np.exp(np.abs(idx - [5, 2, 3]).sum(axis=1) / 4)
    time_ms[(idx > 5).all(axis=1)] = np.nan
    np.savez(folder / f"{name}.npz", idx=idx, time_ms=time_ms)
    params = {p: [1, 2, 3, 4, 6, 8, 12, 16] for p in ("x", "y", "z")}
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "params": params}))


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_quick_writes_its_evidence_and_keeps_what_it_made(tmp_path):
    spaces = tmp_path / "spaces"
    spaces.mkdir()
    made_up(spaces, "bowl")
    partial, out = tmp_path / "partial.jsonl", tmp_path / "search.json"
    options = ["--quick", "--spaces", str(spaces), "--partial", str(partial), "--json", str(out)]
    first = run(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    document = json.loads(out.read_text())
    ours = document["figures"]["strategies"]["kernelmark kmark"]
    assert ours["seeds"] == 5
    assert ours["median_per_space"]["bowl"] == ours["mean_over_spaces"]
    assert ours["mean_over_spaces"][1] > 0.99  # 50 evaluations are plenty for a bowl
    assert all(bar["holds"] for bar in document["bars"])
    assert len(partial.read_text().splitlines()) == 10
    again = run(*options)
    assert again.returncode == 0
    assert "to make" not in again.stderr  # everything was known
    assert json.loads(out.read_text())["figures"] == document["figures"]


def test_the_aggregate_is_the_mean_over_spaces_of_the_median_over_seeds(search):
    def done(space, seed, value):
        return search.Done(
            contender="kernelmark kmark",
            space=space,
            seed=seed,
            version="v",
            quality=(value,) * 4,
            evaluations=200,
            seconds=0.1,
        )

    rows = [done("a", 0, 0.1), done("a", 1, 0.5), done("a", 2, 0.9), done("b", 0, 0.7)]
    assert search.aggregate(rows, ["a", "b"]) == {"kernelmark kmark": (0.6,) * 4}
    assert search.aggregate(rows, ["a", "b", "c"]) == {}  # a space is missing: no figure


def test_a_bar_fails_when_any_rival_is_ahead_at_any_budget(search):
    table = {
        "kernelmark kmark": (0.9, 0.9, 0.9, 0.9),
        "kernelmark genetic": (1.0, 1.0, 1.0, 1.0),  # ours too: no rival
        "optuna tpe": (0.8, 0.8, 0.8, 0.8),
        "kernel_tuner pso": (0.1, 0.1, 0.95, 0.9),
    }
    assert [holds for _, _, holds in search.bars_of(table)] == [True, True, False, False]
