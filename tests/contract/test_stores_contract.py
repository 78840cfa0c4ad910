"""The contract, against SQLite always and against a PostgreSQL."""

import pytest

from kernelmark.stores import open_store
from kernelmark.testing.stores import StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path):
        return lambda: open_store(tmp_path / "results.sqlite")


@pytest.mark.slow
class TestPostgres(StoreContract):
    @pytest.fixture
    def opener(self, postgres_place):
        return lambda: open_store(postgres_place)
