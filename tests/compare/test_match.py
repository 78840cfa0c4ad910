"""Which results belong together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kernelmark.compare.match import Pair, groups, pairs
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timing


def test_case_is_problem_backend_config_and_timing(make_result):
    plain = make_result(1.0)
    others = [
        make_result(1.0, problem="gemm m=2 n=1 k=1"),
        make_result(1.0, backend="torch"),
        make_result(1.0, config={"tile": 64}),
        make_result(1.0, timing=Timing(cache=Cache.HOT)),
    ]
    for other in others:
        found = pairs([plain], [other])
        assert [(p.base is None, p.head is None) for p in found] == [(False, True), (True, False)]
    surer = make_result(1.0, timing=Timing(max_s=9.0, processes=3))
    assert len(pairs([plain], [surer])) == 1


def test_order_is_that_of_base_then_what_is_new(make_result):
    a, b, c = (make_result(1.0, problem=f"gemm m={m} n=1 k=1") for m in (1, 2, 3))
    found = pairs([b, a], [c, a])
    assert [p.shown.case.problem.dims["m"] for p in found] == [2, 1, 3]


def test_devices_are_told_apart_only_where_there_are_several(make_result):
    def on(device):
        return make_result(1.0, device=device)

    assert len(pairs([on("cuda:0")], [on("cuda:3")])) == 1
    found = pairs([on("cuda:0"), on("cuda:1")], [on("cuda:1"), on("cuda:0")])
    assert [(p.base.device, p.head.device) for p in found] == [("cuda:0",) * 2, ("cuda:1",) * 2]


def test_processes_of_a_case_are_joined(make_result):
    def by_process(number, *times):
        made = make_result(*times)
        blocks = tuple(
            dataclasses.replace(block, process=number) for block in made.measurement.blocks
        )
        return dataclasses.replace(
            made, measurement=dataclasses.replace(made.measurement, blocks=blocks)
        )

    (found,) = pairs([by_process(0, 1.0, 2.0), by_process(1, 3.0)], [make_result(1.0)])
    assert [b.process for b in found.base.measurement.blocks] == [0, 0, 1]
    assert found.base.measurement.high_s > found.base.measurement.low_s > 0

    failed = make_result(status=Status.CRASHED)
    (found,) = pairs([by_process(0, 1.0), failed], [make_result(1.0)])
    assert found.base.status is Status.CRASHED


def test_by_problem_takes_the_best_right_result(make_result):
    slow, fast = make_result(9.0, backend="a"), make_result(2.0, backend="b")
    cheat = make_result(1.0, backend="c", status=Status.WRONG)
    (found,) = pairs([slow, fast, cheat], [make_result(3.0, backend="d")], by="problem")
    assert found.base.case.backend == "b"
    (found,) = pairs([cheat], [fast], by="problem")
    assert found.base.status is Status.WRONG


@pytest.mark.parametrize(
    ("one", "other", "same"), [("x", "x", True), ("x", "y", False), ("", "", False)]
)
def test_same_binary_needs_a_known_hash(make_result, one, other, same):
    (found,) = pairs([make_result(1.0, binary=one)], [make_result(1.0, binary=other)])
    assert found.same_binary is same


def test_no_results_are_no_pairs():
    assert pairs([], []) == []


def test_a_pair_is_multimodal_if_a_side_is(make_mixed):
    rng = np.random.default_rng(5)
    mixed, steady = make_mixed(rng), make_mixed(rng, shares=(1.0, 0.0, 0.0))
    assert Pair(base=steady, head=mixed).multimodal
    assert Pair(base=mixed, head=None).multimodal
    assert not Pair(base=steady, head=steady).multimodal
    blocks = mixed.measurement.blocks
    assert groups(mixed.measurement) == [[block.median_s for block in blocks]]
    (means,) = groups(mixed.measurement, means=True)
    assert np.log(means) == pytest.approx([np.log(block.samples_s).mean() for block in blocks])


def test_joined_processes_have_the_modes_of_all_samples(make_mixed):
    rng = np.random.default_rng(5)
    sides = [make_mixed(rng, shares=shares) for shares in ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))]
    assert not any(side.measurement.modes for side in sides)
    (found,) = pairs(sides, [])
    assert len(found.base.measurement.modes) == 2
