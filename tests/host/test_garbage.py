"""Garbage collections that leave out what existed before."""

from __future__ import annotations

import gc
import weakref

import pytest

from kernelmark.host.processes import existing_objects_frozen


class Ring:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_frozen():
    gc.unfreeze()  # conftest.py freezes
    gc.collect(0)  # so that none comes by itself in a test; a full one takes seconds here
    yield
    gc.freeze()


def test_existing_objects_are_collected_only_afterwards():
    before = weakref.ref(Ring())
    with existing_objects_frozen():
        gc.collect()
        assert before() is not None
    gc.collect()
    assert before() is None


def test_nothing_stays_frozen_after_an_error():
    with pytest.raises(KeyError), existing_objects_frozen():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    with existing_objects_frozen():
        pass
    assert gc.get_freeze_count() == count
