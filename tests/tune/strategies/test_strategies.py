"""What every registered strategy promises."""

import math

import numpy as np
import pytest

from kernelmark.core.result import Space
from kernelmark.tune.strategies import registry
from kernelmark.tune.strategies.base import LEAST_TRIED, Points

SMALL = Points.of(
    Space(
        parameters={"block": (8, 16, 24, 32), "mode": ("a", "b", "c"), "pad": (False, True)},
        forbids=lambda c: "no" if c["block"] == 24 and c["pad"] else None,
    )
)
LARGER = Points.of(
    Space(
        parameters={
            "m": (16, 32, 64, 128, 256),
            "n": (16, 32, 48, 64, 80, 96),
            "warps": (1, 2, 4, 8),
            "stages": (1, 2, 3, 4, 5),
            "order": ("row", "column"),
        },
        forbids=lambda c: "too large" if int(c["m"]) * int(c["n"]) > 8192 else None,
    )
)

strategies = pytest.mark.parametrize("name", registry.names())


def bowl(points):
    """Times with one best point, the middle of the list."""
    best = points.codes[len(points) // 2].astype(float)
    scale = points.codes.max(axis=0).astype(float).clip(1)

    def seconds(i):
        return float(1e-3 * math.exp(np.abs((points.codes[i] - best) / scale).sum()))

    return seconds


def drive(search, seconds, budget, batch=1):
    asked = []
    while len(asked) < budget:
        points = search.ask(min(batch, budget - len(asked)))
        if not points:
            break
        for point in points:
            search.tell(point, seconds(point))
        asked += points
    return asked


def begin(name, points, budget=60, seed=1):
    return registry.get(name).begin(points, budget=budget, seed=seed)


@strategies
def test_is_named_like_its_file_and_says_what_it_is(name):
    strategy = registry.get(name)
    assert strategy.name == name
    assert strategy.summary
    assert "\n" not in strategy.summary


@strategies
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize(
    "seconds",
    [bowl(SMALL), lambda i: None, lambda i: 1e-3],
    ids=["times", "all fail", "all take the same time"],
)
def test_asks_for_every_point_of_a_small_space_once(name, batch, seconds):
    search = begin(name, SMALL, budget=1000)
    asked = drive(search, seconds, 1000, batch)
    assert sorted(asked) == list(range(len(SMALL)))
    assert search.ask(1) == []


@strategies
@pytest.mark.parametrize("batch", [1, 5])
def test_questions_are_distinct_and_within_the_list(name, batch):
    asked = drive(begin(name, LARGER), bowl(LARGER), 60, batch)
    assert len(asked) == len(set(asked)) == 60
    assert all(0 <= point < len(LARGER) for point in asked)


@strategies
def test_the_same_seed_and_answers_give_the_same_questions(name):
    first = drive(begin(name, LARGER, seed=5), bowl(LARGER), 50, batch=3)
    assert drive(begin(name, LARGER, seed=5), bowl(LARGER), 50, batch=3) == first


@strategies
def test_a_search_can_be_replayed_from_its_journal(name):
    """Asked and told again in the order of the journal, it goes on as it would have."""
    seconds = bowl(LARGER)
    whole = begin(name, LARGER, seed=2)
    journal = drive(whole, seconds, 30, batch=2)
    again = begin(name, LARGER, seed=2)
    for at in range(0, len(journal), 2):
        assert again.ask(2) == journal[at : at + 2]
        for point in journal[at : at + 2]:
            again.tell(point, seconds(point))
    assert again.ask(4) == whole.ask(4)


@strategies
def test_starts_come_first_in_their_order(name):
    starts = [7, 3, 7, 90]
    search = registry.get(name).begin(LARGER, budget=20, seed=1, starts=starts)
    assert search.ask(1) == [7]
    assert search.ask(3)[:2] == [3, 90]


@strategies
@pytest.mark.parametrize("value", [None, math.inf, math.nan, 0.0, -1e-3])
def test_a_time_that_is_no_time_is_a_failure(name, value):
    seconds = bowl(LARGER)
    asked = drive(begin(name, LARGER), lambda i: value if i % 2 else seconds(i), 40, batch=2)
    assert len(set(asked)) == 40


@strategies
@pytest.mark.parametrize(("budget", "asked"), [(1, 1), (5, 80)])  # and more than the budget said
def test_small_budgets(name, budget, asked):
    assert len(drive(begin(name, LARGER, budget=budget), bowl(LARGER), asked)) == asked


@strategies
def test_a_space_of_one_point_or_none(name):
    search = begin(name, Points.of(Space(parameters={"a": (3,)})))
    assert (search.ask(0), search.ask(5)) == ([], [0])
    search.tell(0, 1e-3)
    assert search.ask(5) == []
    none = Points.of(Space(parameters={"a": (1, 2)}, forbids=lambda c: "never"))
    assert begin(name, none).ask(3) == []


@strategies
def test_one_parameter_that_is_a_list_of_names(name):
    """Solutions of a library: nothing is near to anything."""
    points = Points.of(Space(parameters={"solution": tuple(f"s{i}" for i in range(40))}))
    asked = drive(begin(name, points), lambda i: 1e-3 * (1 + (i * 7) % 40), 40, batch=3)
    assert sorted(asked) == list(range(40))


@strategies
def test_points_that_were_never_asked_for_can_be_told(name):
    seconds = bowl(LARGER)
    search = begin(name, LARGER)
    foreign = [0, 11, len(LARGER) - 1]
    for point in foreign:
        search.tell(point, seconds(point))
    asked = drive(search, seconds, 50, batch=2)
    assert not set(asked) & set(foreign)
    assert len(set(asked)) == 50


@strategies
def test_a_point_can_be_told_twice(name):
    """A finalist is timed again."""
    seconds = bowl(LARGER)
    search = begin(name, LARGER)
    asked = drive(search, seconds, 25)
    search.tell(asked[0], seconds(asked[0]) * 1.1)
    search.tell(asked[1], None)
    assert not set(drive(search, seconds, 10)) & set(asked)


@strategies
def test_asking_on_without_an_answer(name):
    """A compile farm takes many candidates before the first is timed; answers come in any order."""
    seconds = bowl(LARGER)
    search = begin(name, LARGER)
    pending = [search.ask(8) for _ in range(4)]
    asked = [p for batch in pending for p in batch]
    assert len(set(asked)) == 32
    for point in reversed(asked):
        search.tell(point, seconds(point))
    assert not set(search.ask(8)) & set(asked)


@pytest.mark.parametrize("name", ["kmark", "genetic", "local"])
def test_learns_from_what_it_is_told(name):
    """Over seeds, better than random on an easy space."""
    seconds = bowl(LARGER)

    def reached(strategy):
        found = [
            min(seconds(p) for p in drive(begin(strategy, LARGER, 60, seed), seconds, 60))
            for seed in range(8)
        ]
        return float(np.mean(found))

    assert reached(name) < reached("random")


def test_the_default_finds_the_best_point_of_an_easy_space():
    seconds = bowl(LARGER)
    best = seconds(len(LARGER) // 2)
    for seed in range(4):
        asked = drive(begin("kmark", LARGER, 60, seed), seconds, 60)
        assert min(map(seconds, asked)) == best


UNION = Points.of(
    Space.union(
        {
            "list": Space(parameters={"algo": tuple(f"a{i}" for i in range(9))}),
            "tiles": Space(parameters={"m": (16, 32, 64, 128), "n": (16, 32, 64, 128)}),
            "fixed": Space(parameters={}),
        }
    )
)


def search_of(name, points, budget=60, starts=()):
    return registry.get(name).search(points, budget=budget, seed=1, starts=starts)


@strategies
def test_a_union_is_searched_whole_and_each_backend_at_first(name):
    search = search_of(name, UNION)
    first = drive(search, lambda i: 1e-3, 2 * LEAST_TRIED + 1)
    names = [UNION.config(i)["backend"] for i in first]
    assert names.count("fixed") == 1
    assert names.count("list") == names.count("tiles") == LEAST_TRIED
    rest = drive(search, lambda i: 1e-3, 1000)
    assert sorted(map(UNION.index, map(UNION.config, [*first, *rest]))) == sorted([*first, *rest])
    assert len({*first, *rest}) == len(first) + len(rest) == len(UNION) == 9 + 16 + 1


def test_the_faster_backend_gets_most_of_the_evaluations():
    a = Space(parameters={"x": tuple(range(100))})
    points = Points.of(Space.union({"slow": a, "fast": a}))
    times = {"slow": 3e-3, "fast": 1e-3}
    asked = drive(search_of("kmark", points), lambda i: times[points.config(i)["backend"]], 60)
    names = [points.config(i)["backend"] for i in asked]
    assert names.count("slow") < 2 * LEAST_TRIED


def test_a_backend_that_fails_does_not_use_up_the_budget():
    a = Space(parameters={"x": tuple(range(100))})
    points = Points.of(Space.union({"broken": a, "good": a}))
    asked = drive(
        search_of("kmark", points),
        lambda i: None if points.config(i)["backend"] == "broken" else 1e-3,
        60,
    )
    assert [points.config(i)["backend"] for i in asked].count("broken") < 2 * LEAST_TRIED


def test_of_proposed_points_the_most_promising_is_timed_next():
    search = registry.get("kmark").search(LARGER, budget=60, seed=1)
    seconds = bowl(LARGER)
    drive(search, seconds, 30)
    pool = search.ask(8)
    best = min(pool, key=seconds)
    for point in LARGER.neighbours(best).tolist()[:3]:
        search.tell(point, seconds(point))
    assert search.choose(pool) in pool
    assert registry.get("random").search(LARGER, budget=9, seed=1).choose([5, 3]) == 5
