"""`kmark audit`: its verdicts, the files it writes, and what it refuses."""

import csv
import io
import json

import pytest

from kernelmark.cli.compare.ab import ComparedOptions

AUDIT = ("-d", "fake", "--kernel", "fake", "--key", "gemm m,n,k", "--processes", "12")


@pytest.fixture
def cache(tmp_path):
    def write(*times, chosen=-1, **more):
        pairs = [
            [{"kwargs": {"time_us": us, "seed": i, **more}}, 0.01] for i, us in enumerate(times)
        ]
        pairs[chosen][1] = 0.001
        path = tmp_path / "mm.autotune.json"
        path.write_text(json.dumps({"key": [8, 16, 8, "torch.float32"], "configs_timings": pairs}))
        return str(path)

    return write


def test_a_slow_choice_is_found_and_replaced(kmark, cache, tmp_path):
    path, stable = cache(20.0, 15.0, 25.0), str(tmp_path / "stable.autotune.json")
    ended = kmark("audit", path, *AUDIT, "-o", stable, "--json", str(tmp_path / "a.json"))
    assert ended.code == 1, ended.err
    assert "slower than default" in ended.out
    document = json.loads((tmp_path / "a.json").read_text())
    (row,) = document["rows"]
    assert (row["verdict"], row["changed"], row["applied"]) == (
        "slower than default",
        True,
        "unknown",
    )
    assert row["regret"] == pytest.approx(25 / 15 - 1, rel=0.01)
    assert len(row["contenders"]) == 2
    assert len(row["contenders"][0]["choice_s"]) == 12
    again = kmark("audit", stable, *AUDIT, "--csv", "-")
    assert again.code == 0, again.err
    (line,) = csv.DictReader(io.StringIO(again.out))
    assert (line["verdict"], line["changed"]) == ("best", "False")


def test_a_row_without_a_kernel_is_listed(kmark, cache):
    ended = kmark("audit", cache(20.0, 15.0), "-d", "fake", "--json", "-")
    assert ended.code == 4
    (row,) = json.loads(ended.out)["rows"]
    assert row["verdict"] == "not measured"
    assert "--kernel" in row["reason"]


def test_a_dry_run_measures_nothing(kmark, cache):
    ended = kmark("audit", cache(20.0, 15.0, 25.0), *AUDIT, "--dry-run")
    assert ended.code == 0
    assert "1 row, 2 pairs" in ended.err


def test_wrong_output_fails(kmark, cache):
    ended = kmark("audit", cache(20.0, 15.0, behaviour="wrong"), *AUDIT)
    assert ended.code in (3, 4)
    assert "unsure" in ended.out or "failed" in ended.out


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("missing.json",), "missing.json"),
        (("FILE", "--as", "whatever"), "whatever"),
        (("FILE", "--log", "missing.log"), "missing.log"),
        (("FILE", "--with", "k"), "NAME=VALUE"),
        (("FILE", "--alternatives", "-1"), "-1"),
        (("FILE", "--processes", "3"), "3 rounds"),
        (("FILE", "FILE", "-o", "x.json"), "-o"),
        (("FILE", "--kernel", "nothing"), "nothing"),
    ],
)
def test_wrong_words_are_refused(refused, cache, words, word):
    path = cache(20.0, 15.0)
    ended = refused("audit", *(path if each == "FILE" else each for each in words), "-d", "fake")
    assert word in ended.err


def test_a_truncated_file_is_refused_with_its_name(refused, cache, tmp_path):
    path = cache(20.0, 15.0)
    text = (tmp_path / "mm.autotune.json").read_text()
    (tmp_path / "mm.autotune.json").write_text(text[:-9])
    assert path in refused("audit", path, *AUDIT).err


def test_defaults_are_those_of_ab():
    from kernelmark.stats.paired import Looks

    assert ComparedOptions.rounds == ",".join(map(str, Looks().rounds))
