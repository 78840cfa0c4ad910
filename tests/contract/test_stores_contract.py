"""The contract, against SQLite always and against a PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmark.stores import open_store
from kernelmark.testing.stores import Opener, StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: open_store(tmp_path / "results.sqlite")


@pytest.mark.slow
class TestPostgres(StoreContract):
    @pytest.fixture
    def opener(self, postgres_place: str) -> Opener:
        return lambda: open_store(postgres_place)
