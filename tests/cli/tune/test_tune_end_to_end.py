"""From a log of 25,000 calls to a file of winners, each step by its command."""

import csv
import json

import pytest

from kernelmark.tune import results
from kernelmark.tune.folder import TuningFolder
from kernelmark.workloads.workload import read
from kernelmark_dev.logs import write_log

pytestmark = pytest.mark.slow


def test_from_a_log_to_winners(kmark, tmp_path):
    log, place = tmp_path / "log.txt", tmp_path / "model"
    logged = write_log(log, calls=25_000, shapes=209, largest=40)
    folder = TuningFolder(place)

    ended = kmark("import", str(log), "--workload", str(place))
    assert ended.code == 0, ended.err
    workload = read(folder.workload)
    assert workload.total == 25_000
    assert sum(logged.values()) == 25_000
    assert len(logged) == 209
    assert sorted(call.count for call in workload.calls) == sorted(logged.values())
    assert len({call.problem for call in workload.calls}) == 209

    words = ("-b", "fake", "-d", "fake", "--thr", "3", "--no-store", "-q")
    ended = kmark("tune", "summarise", str(place), *words)
    assert ended.code == 0, ended.err

    ended = kmark("tune", "plan", str(place), "-b", "fake", "--evaluations", "12", "-q")
    assert ended.code == 0, ended.err
    names = folder.names()
    assert 3 <= len(names) <= 16

    ended = kmark("tune", "run", str(place), "--timeout", "120", "-q")
    assert ended.code in (0, 3), ended.err
    outcomes = results.read(folder)
    assert [outcome.name for outcome in outcomes] == names
    kept = [outcome for outcome in outcomes if outcome.kept]
    assert kept
    assert all(outcome.tuned.verified and outcome.low > 1 for outcome in kept)
    with results.final(folder).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [outcome.name for outcome in kept]
    told = json.loads(results.metrics_file(folder).read_text(encoding="utf-8"))
    saved = sum(float(row["weighted_uplift_contribution_pct"]) for row in rows)
    assert told["weighted_uplift_pct"] == pytest.approx(saved, rel=1e-3)
    assert told["coverage_pct"] == pytest.approx(
        sum(float(row["pct_of_total"]) for row in rows), rel=1e-3
    )

    winners = tmp_path / "winners.py"
    ended = kmark("export", str(place), "--as", "python", "-o", str(winners))
    assert ended.code == 0, ended.err
    made = {}
    exec(compile(winners.read_text(encoding="utf-8"), str(winners), "exec"), made)
    assert len(made["CONFIGS"]) == len(kept)
    one = kept[0]
    key = next(key for key in made["CONFIGS"] if key[4] == tuple(one.problem.dims.values()))
    assert made["CONFIGS"][key]["kwargs"]["tile_m"] == one.tuned.config["tile_m"]
