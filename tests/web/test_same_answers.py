"""PostgreSQL and SQLite give every page the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from fastapi.testclient import TestClient

from kernelmark.core.metric import Metric
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.result import ResultSet, RunState
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.testing.micro import micro_result
from kernelmark.web.app import create_app
from kernelmark.web.rendering import VIEWS
from kernelmark.web.source import Source

from .conftest import RUNS, a_run, fill, results_of

# Sorted and found by bytes, case ignored in ASCII only: each database has its own default.
METRIC = Metric(name="latency_s", value=1e-7, unit="s", headline=True)
NAMES = ("nightly", "Nightly", "a-b", "a b", "ab", "Zürich", "ZÜRICH", "_x", "éa", "Ea")
MOST = 8  # pages of a kind
ASKED = (
    *(
        "/runs?q=zürich",
        "/runs?q=ÜR",
        "/runs?q=NIGHT",
        "/runs?q=%25",
        "/runs?q=_",
        "/runs?label=ab",
    ),
    *("/runs?state=interrupted", "/runs?offset=5", "/kernels?sort=value&order=desc"),
    *("/kernels?q=512+torch", "/kernels?state=broken", "/search?q=run-00", "/search?q=gemm"),
    *("/compare?show=all", "/compare?rule=threshold", "/charts?kind=speedup", "/runs?rows=all"),
)


@pytest.fixture
def other_place(postgres: sqlalchemy.URL) -> Any:
    """A PostgreSQL database that sorts as a dictionary does, where the server can."""
    engine = sqlalchemy.create_engine(postgres, isolation_level="AUTOCOMMIT")
    words = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en'"
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS kmark_same_answers")
        try:
            connection.exec_driver_sql(f"CREATE DATABASE kmark_same_answers {words}")
        except sqlalchemy.exc.DBAPIError:  # built without ICU
            connection.exec_driver_sql("CREATE DATABASE kmark_same_answers")
        yield postgres.set(database="kmark_same_answers").render_as_string(hide_password=False)
        connection.exec_driver_sql("DROP DATABASE kmark_same_answers WITH (FORCE)")
    engine.dispose()


def client_of(store: Store) -> TestClient:
    source = Source(store)
    source.refresh()
    app = create_app(source)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def links(value: object) -> set[str]:
    """Every address of a page in a JSON document."""
    if isinstance(value, dict):
        return set().union(*map(links, value.values()))
    if isinstance(value, list):
        return set().union(*map(links, value))
    return {value} if isinstance(value, str) and value.startswith("/") else set()


def answer(client: TestClient, address: str) -> tuple[int, Any]:
    got = client.get(f"{address}{'&' if '?' in address else '?'}format=json")
    return got.status_code, json.loads(got.content)


@pytest.mark.slow
def test_every_page_is_the_same(other_place: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "a.sqlite") as here, open_store(other_place) as there:
        fill(here)
        for number, name in enumerate(NAMES):
            run = a_run(RUNS + number, id=f"other-{number}", label=name, suite=name)
            here.add_run(run)
            here.add_results(run.id, results_of(number))
        micro = a_run(99, id="micro", suite=MICRO_SUITE, state=RunState.INTERRUPTED)
        here.add_result_set(ResultSet(run=micro, results=(micro_result(metrics=(METRIC,)),)))
        for run in reversed(here.find_runs(limit=1000)[0]):
            there.copy_run(here, run)
        there.copy_names(here)
        one, other = client_of(here), client_of(there)
        waiting = [view.path for view in VIEWS.values() if "{" not in view.path] + list(ASKED)
        seen: set[str] = set()
        visits: dict[str, int] = {}
        while waiting:
            address = waiting.pop()
            kind = address.split("/")[1].split("?")[0]
            visits[kind] = visits.get(kind, 0) + (address not in seen)
            if address in seen or kind == "static" or visits[kind] > MOST:
                continue
            seen.add(address)
            status, page = answer(one, address)
            assert answer(other, address) == (status, page), address
            waiting += links(page)
        assert {"run", "series", "result", "compare", "environment"} <= visits.keys()
        assert [run.id for run in here.runs()] == [run.id for run in there.runs()]
        assert here.run_names() == there.run_names()
