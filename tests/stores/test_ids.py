from __future__ import annotations

from random import Random

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.stores import new_run_id
from kernelmark.stores.values import check_name
from kernelmark_dev.raising import raises_code


def test_an_id_says_when_and_sorts_by_it() -> None:
    early, late = new_run_id(1794712502.9, Random(9)), new_run_id(1794712503.0, Random(1))
    assert early.startswith("20261115-031502-")
    assert len(early) == len("20261115-031502-k3f9x2")
    assert early < late


def test_ids_of_one_second_differ() -> None:
    assert len({new_run_id(0.0) for _ in range(1000)}) == 1000
    assert new_run_id(0.0, Random(3)) == new_run_id(0.0, Random(3))


def test_every_id_is_a_legal_name() -> None:
    for seed in range(200):
        made = new_run_id(random=Random(seed))
        assert check_name("run", made) == made


@pytest.mark.parametrize(
    "bad", ["", " ", "a b", "latest", "Latest~1", "-x", "a/b", "x" * 65, "\0", "a\n", "é"]
)
def test_a_name_that_cannot_be_typed_back_is_refused(bad: str) -> None:
    with raises_code(UsageError, "name-illegal", name=bad[:80], what="run"):
        check_name("run", bad)
