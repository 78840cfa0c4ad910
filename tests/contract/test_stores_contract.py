"""The contract, against SQLite always and against PostgreSQL where one is given."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmark.stores import open_store
from kernelmark.testing.stores import Opener, StoreContract

POSTGRES = os.environ.get("KERNELMARK_TEST_POSTGRES", "")


class TestSqlite(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: open_store(tmp_path / "results.sqlite")


@pytest.mark.skipif(not POSTGRES, reason="KERNELMARK_TEST_POSTGRES has no URL of a database")
class TestPostgres(StoreContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        import sqlalchemy

        schema = f"test_{uuid.uuid4().hex}"
        url = sqlalchemy.make_url(POSTGRES).set(drivername="postgresql+psycopg")
        mine = url.update_query_dict({"schema": schema}).render_as_string(hide_password=False)
        yield lambda: open_store(mine)
        engine = sqlalchemy.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        engine.dispose()
