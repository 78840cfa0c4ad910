"""Building blocks of immutable values."""

from __future__ import annotations

import copy
import dataclasses
import pickle

from kernelmark.core import codec
from kernelmark.core.immutable import computed_once
from kernelmark.core.result import Block


def test_it_is_computed_once():
    asked = []

    class Memory:
        __slots__ = ("_half",)

    @dataclasses.dataclass(frozen=True, slots=True)
    class Number(Memory):
        value: int

        @computed_once
        def half(self):
            asked.append(self.value)
            return self.value / 2

    one, other = Number(4), Number(6)
    assert (one.half, one.half, other.half) == (2, 2, 3)
    assert asked == [4, 6]


def test_it_is_no_part_of_the_value():
    block = Block(process=0, allocation=0, samples_s=(1.0, 2.0, 4.0))
    fresh = Block(process=0, allocation=0, samples_s=(1.0, 2.0, 4.0))
    assert block.median_s == 2.0
    assert block == fresh
    assert hash(block) == hash(fresh)
    assert codec.plain(block) == codec.plain(fresh)
    for copied in (pickle.loads(pickle.dumps(block)), copy.deepcopy(block)):
        assert copied == block
        assert copied.median_s == 2.0
    assert dataclasses.replace(block, samples_s=(5.0,)).median_s == 5.0
