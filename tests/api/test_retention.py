"""What retention removes, thins and keeps."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.api.retention import prune
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Run
from kernelmark.core.verdict import Mark, MarkKind
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured, problem

DAY_S = 86400.0
NOW = 1000 * 7 * DAY_S  # a week begins
RESULT = measured(Case(problem=problem(1), backend="numpy"), (1.0, 2.0), (3.0, 4.0))


@pytest.fixture
def store(tmp_path):
    """A run a day for four weeks, the newest first day of the fourth."""
    with open_store(tmp_path / "results.sqlite") as opened:
        for day in range(28):
            run = Run(
                id=f"day-{day}",
                started=NOW + day * DAY_S,
                environment=Environment(host="h"),
                label="nightly",
            )
            opened.add_run(run)
            opened.add_results(run.id, [RESULT])
        yield opened


def days(ids):
    return [int(text.removeprefix("day-")) for text in ids]


def test_the_first_run_of_a_week_stays(store):
    now = NOW + 28 * DAY_S
    planned = prune(store, now=now, runs_days=13.5, samples_days=6.5, dry_run=True)
    assert len(store.runs()) == 28
    done = prune(store, now=now, runs_days=13.5, samples_days=6.5)
    assert done == planned
    assert days(done.removed) == [*range(1, 7), *range(8, 14)]
    left = {run.id for run in store.runs()}
    assert {"day-0", "day-7", "day-14", "day-27"} <= left
    assert left.isdisjoint(done.removed)
    assert store.damage().problems == ()
    assert prune(store, now=now, runs_days=13.5, samples_days=6.5).removed == ()


def test_pinned_runs_and_those_of_a_regression_stay(store):
    store.pin("golden", "day-3")
    mark = Mark(
        series="s",
        kind=MarkKind.ACCEPTED,
        state="slower",
        run_id="day-4",
        started=NOW,
        before_id="day-2",
        level=1.0,
        reason="",
        author="",
        created=NOW,
    )
    store.mark([mark])
    removed = days(prune(store, now=NOW + 28 * DAY_S, runs_days=20).removed)
    assert set(removed).isdisjoint({0, 2, 3, 4})
    assert {1, 5, 6} <= set(removed)


def test_only_runs_of_the_label_and_all_that_are_spare(store):
    other = dataclasses.replace(store.run("day-1"), id="other", label="mine")
    store.add_run(other)
    now = NOW + 28 * DAY_S
    assert prune(store, now=now, runs_days=20, labels=["mine"]).removed == ()
    assert prune(store, now=now, runs_days=20, labels=["mine"], spares=["mine"]).removed == (
        "other",
    )


def test_thinned_samples_keep_their_medians(store):
    before = store.series(RESULT.series)
    done = prune(store, now=NOW + 28 * DAY_S, samples_days=20)
    assert days(done.thinned) == list(range(8))
    assert store.series(RESULT.series) == before
    assert prune(store, now=NOW + 28 * DAY_S, samples_days=20).thinned == ()
