from __future__ import annotations

import importlib.util
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError
from kernelmark.stores import open_store
from kernelmark.stores.engine import locate
from kernelmark_dev.raising import raises, raises_code


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELMARK_STORE", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)


def refusal(where: str | Path, *, readonly: bool = False) -> KernelmarkError:
    """The error of opening, which must be one sentence with a hint."""
    with pytest.raises(KernelmarkError) as caught:
        open_store(where, readonly=readonly)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate(None).path == tmp_path / ".local/share/kernelmark/results.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert locate(None).path == tmp_path / "data/kernelmark/results.sqlite"
    with raises_code(NothingToDo, "store-missing"):
        open_store(readonly=True)
    open_store().close()
    assert (tmp_path / "data/kernelmark/results.sqlite").is_file()
    monkeypatch.setenv("KERNELMARK_STORE", "~/mine.sqlite")
    assert locate(None).path == tmp_path / "mine.sqlite"
    assert locate("other.sqlite").path == Path("other.sqlite")


def test_urls() -> None:
    assert locate("sqlite:///some.sqlite").path == Path("some.sqlite")
    assert locate("sqlite:////tmp/some.sqlite").path == Path("/tmp/some.sqlite")
    place = locate("postgres://me:secret@host:1/db?schema=mine&sslmode=require")
    assert place.url is not None
    assert place.url.drivername == "postgresql+psycopg"
    assert (place.schema, dict(place.url.query)) == ("mine", {"sslmode": "require"})
    assert "secret" not in place.shown
    assert "secret" not in repr(place)
    place = locate("postgres://me@host/db?password=secret&sslmode=require")
    assert place.shown == "postgresql://me@host/db?sslmode=require"
    assert place.url is not None
    assert place.url.query["password"] == "secret"


@pytest.mark.parametrize(
    "where",
    [
        "",
        ":memory:",
        "sqlite://",
        "mysql://u:secret@h/d",
        "postgresql://u:secret@h:x/d",
        "postgresql://h/d?schema=a;b",
    ],
)
def test_what_is_no_place_is_refused(where: str) -> None:
    error = refusal(where)
    assert isinstance(error, StoreError)
    assert error.message
    assert "secret" not in error.message


def test_a_folder(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(tmp_path).message


@pytest.mark.parametrize("content", [b"hello", b"x" * 9000, b"SQLite format 3\0" + b"\1" * 5000])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for readonly in (False, True):
        assert refusal(path, readonly=readonly).message.code == "store-not-sqlite"
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE runs (x)")
    connection.close()
    content = path.read_bytes()
    for readonly in (False, True):
        assert refusal(path, readonly=readonly).message
    assert path.read_bytes() == content


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_place_where_nothing_can_be_written() -> None:
    assert isinstance(refusal("/proc/results.sqlite"), StoreError)
    assert isinstance(refusal("/proc/some/results.sqlite"), StoreError)
    assert "/dev/null" in refusal("/dev/null").message


def test_reading_makes_nothing(tmp_path: Path) -> None:
    missing = refusal(tmp_path / "a" / "results.sqlite", readonly=True)
    assert missing.message.code == "store-missing"
    assert not (tmp_path / "a").exists()
    (tmp_path / "empty").touch()
    with raises_code(NothingToDo, "store-empty", store=str(tmp_path / "empty")):
        open_store(tmp_path / "empty", readonly=True)
    assert (tmp_path / "empty").stat().st_size == 0


def test_odd_names_work(tmp_path: Path) -> None:
    path = tmp_path / "some #?%20 name.sqlite"
    open_store(path).close()
    assert list(path.parent.iterdir()) == [path]


def test_only_the_folder_of_the_default_store_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    with raises(StoreError, folder=str(folder)):
        open_store(folder / "results.sqlite")
    monkeypatch.setenv("KERNELMARK_STORE", str(folder / "results.sqlite"))
    with raises(StoreError, folder=str(folder)):
        open_store()
    assert not (tmp_path / "a").exists()
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    open_store().close()
    assert (folder / "kernelmark" / "results.sqlite").exists()


def test_postgres_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "psycopg" else find(name)
    )
    error = refusal("postgresql://me:secret@localhost/db")
    assert "psycopg" in error.message
    assert "pip install" in str(error.hint)


@pytest.mark.skipif(
    importlib.util.find_spec("psycopg") is None, reason="needs psycopg, which make test installs"
)
def test_postgres_that_does_not_answer() -> None:
    error = refusal("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in error.message


def test_importing_the_package_does_not_load_sqlalchemy() -> None:
    code = "import sys, kernelmark.stores; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_sqlalchemy_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "sqlalchemy" else found(name, package),
    )
    with raises(StoreError, name="SQLAlchemy") as caught:
        open_store("anywhere.sqlite")
    assert "--no-store" in (caught.value.hint or "")
