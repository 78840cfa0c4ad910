from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import OutOfMemory
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Cache
from kernelmark.devices.base import GUARD_BYTES
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.measure.sets import MAX_SETS, make_arena, plan_sets

MIB = 2**20


def specs(*counts: int) -> list[TensorSpec]:
    last = len(counts) - 1
    return [
        TensorSpec(name=f"t{i}", shape=(n,), dtype="f16", role="out" if i == last else "in")
        for i, n in enumerate(counts)
    ]


@given(
    st.lists(st.integers(1, 10**7), min_size=1, max_size=4),
    st.integers(0, 512 * MIB),
    st.integers(64 * MIB, 2**36),
)
def test_cold_plans_exceed_the_cache_or_evict(
    counts: list[int], cache_bytes: int, free_bytes: int
) -> None:
    tensors = specs(*counts)
    try:
        plan = plan_sets(tensors, cache=Cache.COLD, cache_bytes=cache_bytes, free_bytes=free_bytes)
    except OutOfMemory:
        assert sum(t.nbytes for t in tensors) > 0.7 * free_bytes - 2 * MIB
        return
    assert 1 <= plan.sets <= MAX_SETS
    assert plan.sets * plan.footprint_bytes <= 0.8 * free_bytes
    cold = plan.sets >= 2 and plan.sets * plan.footprint_bytes >= 3 * cache_bytes
    assert cold != plan.evict


def test_hot_and_flush_take_one_set() -> None:
    kwargs = {"cache_bytes": MIB, "free_bytes": 100 * MIB}
    assert plan_sets(specs(10), cache=Cache.HOT, **kwargs).sets == 1
    assert not plan_sets(specs(10), cache=Cache.HOT, **kwargs).evict
    assert plan_sets(specs(10), cache=Cache.FLUSH, **kwargs).evict


def test_large_problems_still_alternate() -> None:
    plan = plan_sets(specs(10 * MIB, 10 * MIB), cache=Cache.COLD, cache_bytes=MIB, free_bytes=2**33)
    assert (plan.sets, plan.evict, plan.warnings) == (2, False, ())


def test_an_op_that_reads_a_part_of_its_tensors_rotates_more_sets() -> None:
    tensors, kwargs = specs(100 * MIB), {"cache_bytes": 64 * MIB, "free_bytes": 2**40}
    assert plan_sets(tensors, cache=Cache.COLD, **kwargs).sets == 2
    plan = plan_sets(tensors, cache=Cache.COLD, moved_bytes=10 * MIB, **kwargs)
    assert plan.sets * 10 * MIB >= 3 * 64 * MIB
    assert plan.footprint_bytes == 10 * MIB


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(1, 20), st.integers(0))
def test_tensors_never_overlap(counts: list[int], sets: int, seed: int) -> None:
    device = FakeDevice(script=Script(memory_bytes=2**30))
    tensors = specs(*counts)
    buffer, made = make_arena(device, tensors, sets, np.random.default_rng(seed))
    assert len(made) == sets
    spans = []
    for arguments in made:
        assert list(arguments) == [t.name for t in tensors]
        for tensor in arguments.values():
            guard = GUARD_BYTES if tensor.spec.role == "out" else 0
            assert tensor.offset % 256 == 0
            spans.append((tensor.offset - guard, tensor.offset + tensor.spec.nbytes + guard))
    spans.sort()
    assert spans[0][0] >= 0
    assert spans[-1][1] <= buffer.nbytes
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    device.free(buffer)
