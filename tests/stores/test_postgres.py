"""What only a PostgreSQL shows: writers that wait for each other, damage, and old rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError
from kernelmark.core.result import Case, Run
from kernelmark.stores import engine, open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem

pytestmark = pytest.mark.slow
CASES = [Case(problem=problem(m), backend="numpy") for m in range(1, 7)]
RESULTS = [measured(case, (1.0, 2.0)) for case in CASES]


@pytest.fixture
def store(postgres_place: str) -> Iterator[Store]:
    with open_store(postgres_place) as opened:
        opened.add_run(Run(id="one", started=1.0, environment=Environment(host="h")))
        yield opened


def wait_until_blocked(store: Store) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    ends = time.monotonic() + 120
    with engine.reading(store._engine) as connection:
        while not connection.exec_driver_sql(query).scalar():
            assert time.monotonic() < ends
            connection.rollback()
            time.sleep(0.01)


def test_two_writers_that_replace_results_of_one_run(store: Store, postgres_place: str) -> None:
    """The sum of checksums counts what the other one added while this one waited."""
    store.add_results("one", RESULTS[:2])
    with open_store(postgres_place) as other:
        with engine.writing(other._engine) as connection:
            # The other writer is in the middle of its transaction.
            connection.exec_driver_sql("SELECT no FROM runs WHERE id = 'one' FOR NO KEY UPDATE")
            thread = threading.Thread(target=store.add_results, args=("one", RESULTS[1:4]))
            thread.start()
            wait_until_blocked(other)
            store_copy = "INSERT INTO results SELECT no + 1000, run_no, case_no, 'other', process,"
            store_copy += " arch, timing_no, status, median_s, low_s, high_s, flops, bytes,"
            store_copy += " started, error, detail, modes, metrics, doubt, checksum"
            connection.exec_driver_sql(f"{store_copy} FROM results WHERE no = 1")
            connection.exec_driver_sql(
                "UPDATE runs SET tally = (SELECT sum(checksum) FROM results WHERE run_no = runs.no)"
            )
        thread.join()
        with engine.reading(other._engine) as connection:
            sums = "SELECT tally, (SELECT sum(checksum) FROM results) FROM runs"
            tally, total = connection.exec_driver_sql(sums).one()
    assert tally == total


def test_the_version_is_that_of_the_store_and_not_of_the_server(store: Store) -> None:
    store.add_results("one", RESULTS)
    before = store.version()
    with engine.writing(store._engine) as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE other AS SELECT 1")
    assert store.version() == before
    changes = (
        lambda: store.add_results("one", RESULTS[:1]),
        lambda: store.thin_samples("one"),
        lambda: store.pin("golden", "one"),
        lambda: store.unpin("golden"),
        lambda: store.delete_run("one"),
    )
    for change in changes:
        change()
        assert store.version() != before
        before = store.version()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE results SET median_s = median_s * 2 WHERE no = 1",
        "UPDATE results SET detail = set_byte(detail, 30, 7) WHERE no = 1",
        "DELETE FROM results WHERE no = 2",
        "UPDATE runs SET label = 'another'",
    ],
)
def test_damage_is_found(store: Store, damage: str) -> None:
    store.add_results("one", RESULTS)
    assert store.damage().problems == ()
    with engine.writing(store._engine) as connection:
        connection.exec_driver_sql(damage)
    assert len(store.damage().problems) == 1


def test_an_error_while_copying_rows_is_explained(store: Store) -> None:
    with engine.writing(store._engine) as connection:
        connection.exec_driver_sql("ALTER TABLE results DROP COLUMN doubt CASCADE")
    with pytest.raises(StoreError):
        store.add_results("one", RESULTS)
