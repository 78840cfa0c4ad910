"""SQLite's locks belong to the process: whatever closes the file of an open store drops them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Run
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured, problem

OTHER = """
import sys
from kernelmark.stores import open_store
with open_store(sys.argv[1]) as store:
    store.runs()
"""


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_that_is_opened_twice_keeps_what_is_added_later(tmp_path, readonly):
    path = tmp_path / "store.sqlite"
    result = measured(Case(problem=problem(1), backend="numpy"), (1e-5,))
    with open_store(path) as store:
        store.add_run(Run(id="a", started=1.0, environment=Environment()))
        with open_store(path, readonly=readonly):
            pass
        # The last process to close a store removes its WAL, unless it is locked by another.
        subprocess.run([sys.executable, "-P", "-c", OTHER, str(path)], check=True)
        store.add_results("a", [result])
        with open_store(path, readonly=True) as again:
            assert list(again.results("a")) == [result]
    with open_store(path, readonly=True) as store:
        assert list(store.results("a")) == [result]
