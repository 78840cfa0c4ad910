"""Points: the numbered list of a space."""

import dataclasses
import itertools

import numpy as np
import pytest

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Space
from kernelmark.tune.strategies.base import Points

SPACE = Space(
    parameters={"block": (16, 32, 64), "mode": ("a", "b"), "pad": (False, True)},
    default=FrozenDict({"block": 32, "mode": "a", "pad": False}),
    forbids=lambda c: "no" if c["block"] == 64 and c["pad"] else None,
)


def test_all_legal_points_in_the_spaces_order():
    points = Points.of(SPACE)
    every = range(len(points))
    assert [dict(points.config(i)) for i in every] == [dict(c) for c in SPACE]
    assert [points.index(points.config(i)) for i in every] == [*every]
    assert points.names == ("block", "mode", "pad")
    assert points.values == ((16, 32, 64), ("a", "b"), (False, True))
    assert points.codes.dtype == np.int16
    whole = Points.of(Space(parameters={"a": (5, 6), "b": ("x", "y", "z")}))
    assert whole.codes.tolist() == [list(c) for c in itertools.product(range(2), range(3))]


PARTS = Space(
    parameters={"tile": (16, 32, 0), "vector": (4, 8, 0), "pack": (False, True)},
    default=FrozenDict({"tile": 16, "vector": 4, "pack": False}),
    parts=(
        {"tile": (16, 32), "vector": (4, 8), "pack": (False,)},
        {"tile": (0,), "vector": (0,), "pack": (True,)},
    ),
    forbids=lambda c: None if c["pack"] == (not c["tile"]) == (not c["vector"]) else "no",
)


def test_only_combinations_of_one_part_are_points():
    points = Points.of(PARTS)
    assert PARTS.size == len(points) == 5
    assert [dict(points.config(i)) for i in range(len(points))] == [dict(c) for c in PARTS]
    assert dict(points.config(4)) == {"tile": 0, "vector": 0, "pack": True}
    assert points.neighbours(4).tolist() == []


def test_a_sample_of_parts_has_the_seeds_and_nothing_between_parts():
    left = FrozenDict({"tile": 0, "vector": 0, "pack": True})
    many = tuple(range(1, 51))
    large = dataclasses.replace(
        PARTS,
        parameters={**PARTS.parameters, "vector": (*many, 0)},
        parts=({**PARTS.parts[0], "vector": many}, PARTS.parts[1]),
        seeds=(left,),
    )
    points = Points.of(large, limit=10)
    assert len(points) == 10
    assert points.index(left) is not None
    assert all(
        config["pack"] == (not config["tile"]) == (not config["vector"])
        for config in (points.config(i) for i in range(len(points)))
    )


def test_a_part_without_values_left_has_no_points():
    narrow = dataclasses.replace(PARTS, parameters={**PARTS.parameters, "pack": (False,)})
    assert narrow.size == len(Points.of(narrow)) == 4


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"block": 16, "mode": "a"},
        {"block": 17, "mode": "a", "pad": False},
        {"block": 64, "mode": "a", "pad": True},
        {"block": 16, "mode": "a", "pad": False, "more": 1},
    ],
)
def test_a_configuration_that_is_no_point_has_no_number(config):
    assert Points.of(SPACE).index(config) is None


def test_neighbours_differ_in_one_parameter():
    points = Points.of(SPACE)
    for i in range(len(points)):
        want = [
            j for j in range(len(points)) if int((points.codes[i] != points.codes[j]).sum()) == 1
        ]
        assert sorted(points.neighbours(i).tolist()) == want


def test_a_large_space_is_sampled_with_the_default_and_its_neighbours():
    big = Space(
        parameters={f"p{k}": tuple(range(10)) for k in range(8)},
        default=FrozenDict({f"p{k}": 3 for k in range(8)}),
        forbids=lambda c: "odd sum" if sum(int(v) for v in c.values()) % 2 else None,
    )
    points = Points.of(big, limit=500, seed=3)
    assert len(points) == 500
    default = points.index(big.default)
    assert default is not None
    # An odd change of one parameter is forbidden: of 9 values 4 or 5 are left.
    assert len(points.neighbours(default)) >= 8 * 4
    assert all(sum(points.codes[i].tolist()) % 2 == 0 for i in range(500))
    assert len({tuple(r) for r in points.codes.tolist()}) == 500
    again = Points.of(big, limit=500, seed=3)
    assert np.array_equal(points.codes, again.codes)


def test_legal_points_beyond_the_limit_are_sampled_too():
    space = Space(parameters={"a": tuple(range(30)), "b": tuple(range(30))})
    assert len(Points.of(space, limit=200)) == 200
    assert len(Points.of(space, limit=900)) == 900


def test_a_space_too_large_for_a_number_still_finds_its_points():
    huge = Space(parameters={f"p{k}": tuple(range(9)) for k in range(30)})
    points = Points.of(huge, limit=300)
    assert len(points) == 300
    assert points.find(points.codes).tolist() == list(range(300))
    other = points.codes.copy()
    other[:, 0] = (other[:, 0] + 1) % 9
    assert (points.find(other) == -1).all()


@pytest.mark.parametrize(
    "space",
    [
        *(Space(parameters=p) for p in ({}, {"a": ()}, {"a": (1,), "b": ()})),
        Space(parameters={"a": (1, 2)}, forbids=lambda c: "never"),
    ],
)
def test_an_empty_space_has_no_points(space):
    points = Points.of(space)
    assert len(points) == 0
    assert points.index({"a": 1}) is None


def test_one_long_parameter():
    """A list of solutions is one parameter; it may be longer than 16 bits."""
    points = Points.of(Space(parameters={"solution": tuple(range(40_000))}))
    assert points.index({"solution": 39_999}) == 39_999
    assert len(points.neighbours(5)) == 39_999


@pytest.mark.parametrize(("exact", "most"), [(False, 5000), (True, 500)])
def test_a_sample_of_many_products_checks_no_more_than_of_one(exact, most):
    """A GEMM on gfx942 has 309 products: `limit` points of each took 13 GB."""
    asked = []
    size, parts = 40, 100
    space = Space(
        parameters={"part": tuple(range(parts)), **{name: tuple(range(size)) for name in "ab"}},
        default=FrozenDict({"part": 0, "a": 0, "b": 0}),
        parts=tuple(
            {"part": (part,), "a": tuple(range(size)), "b": tuple(range(size))}
            for part in range(parts)
        ),
        exact=exact,
        forbids=lambda config: asked.append(config),
    )
    points = Points.of(space, limit=1000)
    assert len(points) == 1000
    assert len(asked) < most
    assert {points.config(i)["part"] for i in range(1000)} > {*range(50)}
