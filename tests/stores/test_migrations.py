from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy

from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError
from kernelmark.core.result import Run
from kernelmark.stores import migrations, open_store
from kernelmark.stores.engine import APPLICATION_ID, TABLES
from kernelmark_dev.raising import raises_code

NEWEST = max(migrations.numbers())
RUN = Run(id="one", started=1.0, environment=Environment(host="h"))


def pretend(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    """Let there be one more migration."""
    more = {**migrations._MIGRATIONS, NEWEST + 1: ";".join(statements)}
    monkeypatch.setattr(migrations, "_MIGRATIONS", more)


def schema_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0])
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "results.sqlite"
    with open_store(made) as store:
        store.add_run(RUN)
    return made


def test_the_migrations_make_the_schema_that_queries_use(path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    inspector = sqlalchemy.inspect(engine)
    assert set(inspector.get_table_names()) == {table.name for table in TABLES}
    for table in TABLES:
        found = [column["name"] for column in inspector.get_columns(table.name)]
        assert found == [column.name for column in table.columns], table.name
    engine.dispose()


def test_files_say_whose_they_are(path: Path) -> None:
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"kmrk"


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_schema_is_refused(path: Path, readonly: bool) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = '99'")
    connection.commit()
    connection.close()
    with raises_code(StoreError, "store-too-new", schema=99) as error:
        open_store(path, readonly=readonly)
    assert "upgrade kernelmark" in str(error.value.hint)


def test_a_store_that_does_not_say_its_schema_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM meta")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        open_store(path)


@pytest.mark.parametrize("readonly", [False, True])
def test_an_older_store_is_upgraded_and_keeps_its_data(
    path: Path, monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    pretend(monkeypatch, "ALTER TABLE runs ADD COLUMN mood TEXT")
    with open_store(path, readonly=readonly) as store:
        assert store.runs() == [RUN]
    assert schema_of(path) == str(NEWEST + 1)


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        pretend(patch, "ALTER TABLE runs ADD COLUMN mood TEXT", "CREATE TABLE pins (x)")
        with pytest.raises(StoreError) as refused:
            open_store(path)
        assert "pins" in refused.value.message
    assert schema_of(path) == str(NEWEST)
    connection = sqlite3.connect(path)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    connection.close()
    assert "mood" not in columns
    with open_store(path) as store:
        assert store.runs() == [RUN]
    assert list(path.parent.iterdir()) == [path]
