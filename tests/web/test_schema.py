"""Requests that schemathesis makes up from the OpenAPI schema: none breaks the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from kernelmark.stores import open_store
from kernelmark.stores.store import Scope, Store
from kernelmark.web.app import create_app
from kernelmark.web.ingest import Limits
from kernelmark.web.source import Source

from .conftest import RUNS, fill

pytestmark = pytest.mark.slow
_LIMITS = Limits(requests_per_min=10**9)
# What makes a document of results valid is more than a JSON schema can say.
_LEFT_OUT = {"POST /api/runs": [positive_data_acceptance]}
_PATIENCE_S = 600  # schemathesis gives up after 10 s, as a busy machine may take
_SETTINGS = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("schema") / "results.sqlite") as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def schema(filled: Store) -> schemathesis.BaseSchema:
    source = Source(filled)
    source.refresh()
    app = create_app(source, local=False, limits=_LIMITS)
    return schemathesis.openapi.from_asgi("/api/openapi.json", app)


@pytest.fixture(scope="module")
def headers(filled: Store) -> dict[str, str]:
    return {"authorization": f"Bearer {filled.create_token('schema', Scope.WRITE)}"}


def operations(schema: schemathesis.BaseSchema) -> dict[str, Any]:
    found = [one.ok() for one in schema.get_all_operations()]
    return {f"{one.method.upper()} {one.path}": one for one in found}


def test_no_request_breaks_the_server(schema, headers):
    """Parametrising by a fixture would take private names of pytest, which it no longer has."""
    let_in = 0
    for name, operation in operations(schema).items():

        @_SETTINGS
        @given(case=operation.as_strategy(), left_out=st.just(_LEFT_OUT.get(name)))
        def check(case: Any, left_out: Any) -> None:
            nonlocal let_in
            answer = case.call_and_validate(
                headers=headers, excluded_checks=left_out, timeout=_PATIENCE_S
            )
            assert answer.status_code not in (401, 403, 421)
            let_in += answer.status_code == 200

        check()
    assert let_in > 100


def test_nothing_is_written_without_a_token(schema, filled):
    before = filled.runs()  # requests with a token may have pushed some
    for name, operation in operations(schema).items():
        if name.startswith("GET"):
            continue

        @_SETTINGS
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            assert case.call(timeout=_PATIENCE_S).status_code in (401, 429)

        check()
    assert len(before) >= RUNS
    assert filled.runs() == before


def test_the_schema_lists_every_page(schema):
    names = set(operations(schema))
    assert {"GET /", "GET /index.json", "GET /kernels", "GET /run/{run_id}"} <= names
    writing = {name for name in names if not name.startswith("GET ")}
    assert writing == {"POST /api/runs", "POST /api/acceptances"}
