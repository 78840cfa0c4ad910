"""Stores and files that older versions wrote.

`schema3.db.gz` was made by the last version that kept microbenchmarks and roofs in tables of their
own: three runs, of which one was imported, eleven results of microbenchmarks, six roofs, a pin.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from kernelmark.api.results import read_file
from kernelmark.core import codec
from kernelmark.core.errors import CodecError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import MICRO_SUITE, benchmark_name, mode_of, parameters_of
from kernelmark.core.result import Result, Status
from kernelmark.stores import migrations, open_store
from kernelmark.stores.engine import locate

OLD = Path(__file__).with_name("schema3.db.gz")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    place = tmp_path / "old.sqlite"
    place.write_bytes(gzip.decompress(OLD.read_bytes()))
    return place


def rows(place: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(place)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def agrees(result: Result, document: dict[str, Any]) -> bool:
    """Whether a result holds what a document of kind `micro` does."""
    problem = result.case.problem
    told = {str(k): str(v) for k, v in parameters_of(problem).items()}
    whole = codec.plain(result)
    metrics = [
        {k: v for k, v in metric.items() if k not in ("spread", "host_paced")}
        for metric in whole.get("metrics", [])
    ]
    return (
        (benchmark_name(problem), mode_of(problem)) == (document["benchmark"], document["mode"])
        and told == {k: str(v) for k, v in document["parameters"].items()}
        and metrics == document["metrics"]
        and all(
            whole.get(name, []) == document[name]
            for name in (
                *("device", "arch", "status", "started", "error", "cost"),
                *("columns", "rows", "trace", "notes"),
            )
        )
        and result.kernel.resources == {"compilations": document["compilations"]}
        and result.case.timing.threads == document["threads"]
    )


@pytest.mark.parametrize("readonly", [False, True])
def test_everything_in_an_old_store_is_read(old: Path, readonly: bool) -> None:
    documents: dict[str, list[Any]] = {}
    for run_id, document in rows(old, "SELECT run_id, document FROM micro ORDER BY started"):
        documents.setdefault(run_id, []).append(json.loads(document))
    stored = [
        (host, codec.loads(document, Roof))
        for host, document in rows(old, "SELECT host, document FROM roofs")
    ]
    runs = [row[0] for row in rows(old, "SELECT id FROM runs ORDER BY started DESC")]
    with open_store(old, readonly=readonly) as store:
        assert [run.id for run in store.runs(suites=("", "gb.json"))] == runs
        assert store.run("golden").label == "first"
        assert store.run("elsewhere").id in runs
        assert {r.status for r in store.results(store.run("second").id)} == {
            *(Status.OK, Status.UNSUPPORTED)
        }
        found = {run.id: run for run in store.runs(suites=(MICRO_SUITE,))}
        assert found.keys() == documents.keys()
        for run_id, run in found.items():
            results = list(store.results(run_id))
            assert len(results) == len(documents[run_id]) == run.cases
            for result, document in zip(results, documents[run_id], strict=True):
                assert agrees(result, document)
                (info,) = run.environment.devices
                told = run.environment.host, info.model, info.driver
                assert told == (document["host"], document["model"], document["driver"])
        for host in ("oldhost", "gpuhost"):
            mine = {roof for name, roof in stored if name == host}
            assert set(store.roofs(host=host)) == mine
        assert len(stored) == 6
        graph = store.history(op="small_kernels", arch="sm_90")
        assert [p.value for p in graph if p.metric == "graph_empty_ns"] == [900.0, 905.0]
    with open_store(old) as store:  # a second time there is nothing left to do
        assert len(store.runs(suites=(MICRO_SUITE,))) == len(documents)


def test_an_old_postgres_store_is_read(old: Path, postgres_place: str) -> None:
    place = locate(postgres_place)
    engine = sqlalchemy.create_engine(place.url.difference_update_query(["schema"]))
    with engine.begin() as connection:
        connection.exec_driver_sql(f'CREATE SCHEMA "{place.schema}"')
        connection.exec_driver_sql(f'SET LOCAL search_path TO "{place.schema}"')
        for number in (1, 2, 3):
            for statement in migrations.statements(number, "postgresql"):
                connection.exec_driver_sql(statement)
        names = ("environments", "problems", "timings", "cases", "runs", "results")
        for name in ("meta", *names, "pins", "roofs", "micro"):
            copy_table(old, connection, name)
    engine.dispose()
    with open_store(old) as one, open_store(postgres_place) as other:
        runs = one.runs()
        assert other.runs() == runs
        for run in runs:
            assert other.result_set(run.id) == one.result_set(run.id)
        assert other.roofs() == one.roofs() != ()


def copy_table(old: Path, connection: sqlalchemy.Connection, name: str) -> None:
    """Copy the rows of a table, and count on from there."""
    columns = [row[1] for row in rows(old, f"PRAGMA table_info({name})")]
    text = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"
    for row in rows(old, f"SELECT * FROM {name}"):
        connection.exec_driver_sql(text, row)
    if "no" in columns:
        sequence = f"pg_get_serial_sequence('{name}', 'no')"
        connection.exec_driver_sql(f"SELECT setval({sequence}, (SELECT max(no) FROM {name}))")


def test_metrics_that_the_host_sets_are_marked(old: Path) -> None:
    with open_store(old) as store:
        (result,) = store.results("20261101-100000-aaaaaa")
        paced = {metric.name: metric.host_paced for metric in result.metrics}
        assert paced == {"plain_empty_ns": True, "graph_empty_ns": False}
        assert result.metric("plain_empty_ns").spread == 0.01


def test_a_damaged_row_becomes_a_failure_and_the_rest_is_read(old: Path) -> None:
    connection = sqlite3.connect(old)
    connection.execute("UPDATE micro SET document = '{' WHERE benchmark = 'latency'")
    connection.execute("UPDATE micro SET run_id = 'x', host = 'y' WHERE run_id LIKE '20261101%'")
    connection.execute("UPDATE micro SET run_id = 'x' WHERE run_id LIKE '20261102%'")
    connection.commit()
    connection.close()
    with open_store(old) as store:
        statuses = {
            run.id: {result.status for result in store.results(run.id)}
            for run in store.runs(suites=(MICRO_SUITE,))
        }
        assert statuses["20261116-194049-zb2vr7"] == {Status.CRASHED}
        assert statuses["20261116-194012-mag6rz"] == {Status.OK}
        assert {"x", "x-2"} <= statuses.keys()  # of two hosts


def test_a_damaged_roof_is_left_out(old: Path) -> None:
    connection = sqlite3.connect(old)
    connection.execute("UPDATE roofs SET document = '{' WHERE no = 1")
    connection.commit()
    connection.close()
    with open_store(old) as store:
        assert len(store.roofs()) == 5


def test_a_list_of_old_documents_is_a_run(old: Path, tmp_path: Path) -> None:
    query = "SELECT document FROM micro WHERE run_id LIKE '20261116-1940%' ORDER BY started"
    documents = [json.loads(row[0]) for row in rows(old, query)]
    file = tmp_path / "micro.json"
    file.write_text(json.dumps(documents))
    found = read_file(str(file))
    assert len(documents) == len(found.results) == 5
    assert all(map(agrees, found.results, documents))
    assert found.run.environment.host == "oldhost"
    with open_store(tmp_path / "new.sqlite") as store:
        assert store.add_result_set(found).added == 5
        assert not store.add_result_set(read_file(str(file))).changed
    for broken in ({"metrics": 1}, {"started": -1.0}, {"parameters": []}, {"benchmark": ""}):
        file.write_text(json.dumps([documents[0] | broken]))
        with pytest.raises(CodecError):
            read_file(str(file))
    del documents[0]["device"]
    file.write_text(json.dumps(documents))
    with pytest.raises(CodecError):
        read_file(str(file))
