"""`kmark aa -- COMMAND` and `kmark ab -- COMMAND -- COMMAND`."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

BENCH = """
import os, random, sys
random.seed(os.getpid())
print(f"it: {float(sys.argv[1]) * random.gauss(1, 0.01):.4f} us")
"""
PATTERN = ("--pattern", r"(?P<name>\w+): (?P<time>[\d.]+) (?P<unit>us)")


@pytest.fixture
def bench(tmp_path):
    path = tmp_path / "bench.py"
    path.write_text(BENCH)
    return lambda scale: (sys.executable, "-S", str(path), str(scale))


def test_equal_runs_are_shown_and_written(kmark, bench, tmp_path):
    place = tmp_path / "aa.csv"
    ended = kmark(
        "aa", "--runs", "8", *PATTERN, "--csv", str(place), "--json", "-", "--", *bench(100)
    )
    assert ended.code == 0
    (row,) = json.loads(ended.out)
    assert (row["name"], row["runs"]) == ("it", 8)
    assert row["median"] == pytest.approx(100e-6, rel=0.05)
    assert row["drift"] + row["start"] == pytest.approx(1)
    (line,) = csv.DictReader(io.StringIO(place.read_text()))
    assert float(line["spread"]) == pytest.approx(row["spread"])


@pytest.mark.parametrize(("scale", "code"), [(100, 0), (120, 1), (80, 0)])
def test_two_commands_end_with_the_verdicts_code(kmark, bench, scale, code):
    words = ("ab", "--rounds", "10", *PATTERN, "--", *bench(100), "--", *bench(scale))
    ended = kmark(*words)
    assert ended.code == code


@pytest.mark.parametrize(
    "words",
    [
        ("aa",),
        ("aa", "--", "true", "--", "true"),
        ("ab", "--", "true"),
        ("aa", "--pattern", "(", "--", "true"),
        ("aa", "--pattern", "x", "--", "true"),
        ("aa", "--as", "nothing", "--", "true"),
        ("aa", "--", "false"),
    ],
)
def test_what_cannot_be_run_or_read_is_a_usage_error(kmark, words):
    assert kmark(*words).code == 2


def test_too_little_time_judges_nothing(kmark, bench):
    assert kmark("aa", "--budget", "0.001", *PATTERN, "--", *bench(1)).code == 4
    assert kmark("ab", "--budget", "0.001", *PATTERN, "--", *bench(1), "--", *bench(1)).code == 4
