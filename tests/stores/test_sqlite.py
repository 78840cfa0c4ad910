"""What SQLite makes hard: other processes, other users, full disks, sudden ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError
from kernelmark.core.result import Case, Result, Run, RunState
from kernelmark.stores import engine, open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem
from kernelmark_dev.raising import raises_code

RUN = Run(id="one", started=1.0, environment=Environment(host="h"))

# Opens a store that may not exist yet, adds a run of its own and batches to a shared one.
WRITER = """
import sys
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Run
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured, problem

where, me, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with open_store(where) as store:
    store.add_run(Run(id=f"run-{me}", started=float(me), environment=Environment()))
    for number in range(batches):
        # Half of the cases are the other writer's too, so both want to make the same rows.
        results = [
            measured(Case(problem=problem(5 * number + i), backend=("x", f"y{me}")[i % 2]), (1.0,))
            for i in range(5)
        ]
        store.add_results(f"run-{me}", results)
        print(number, flush=True)
"""


def some(count: int, start: int = 1) -> list[Result]:
    return [
        measured(Case(problem=problem(m), backend="numpy"), (1.0, 2.0, 3.0) * 9)
        for m in range(start, start + count)
    ]


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    try:
        good = connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return good and connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


def writer(where: str, me: int, batches: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, where, str(me), str(batches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_at_once(where: str, batches: int = 40, writers: int = 2) -> None:
    """Several processes that start together, and must all end well."""
    processes = [writer(where, me, batches) for me in range(writers)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert (process.returncode, errors) == (0, "")
    with open_store(where, readonly=True) as store:
        for me in range(writers):
            found = list(store.results(f"run-{me}"))
            assert len(found) == batches * 5
            assert len({result.case.id for result in found}) == batches * 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as store:
        store.add_run(RUN)
        yield store


# Other processes


def test_two_processes_open_and_write_at_once(path: Path) -> None:
    write_at_once(str(path), batches=15)
    assert sound(path)


@pytest.mark.slow
def test_two_processes_write_to_postgres_at_once(postgres_place: str) -> None:
    write_at_once(postgres_place)


def test_what_was_added_survives_kill_9(path: Path) -> None:
    process = writer(str(path), 7, 100_000)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    seen = 0
    while seen < 20:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        seen = int(line) if line[0].isdigit() else 0
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    with open_store(path) as store:
        assert len(store.finished("run-7")) >= (seen + 1) * 5
        assert len(store.finished("run-7")) % 5 == 0
    assert sound(path)


def test_a_reader_sees_one_state_while_a_writer_writes(store: Store, path: Path) -> None:
    store.add_results(RUN.id, some(1200))
    with open_store(path, readonly=True) as reader:
        found = reader.results(RUN.id)
        first = next(found)
        store.add_results(RUN.id, some(500, start=5000))
        assert 1 + sum(1 for _ in found) == 1200
        assert first.case.problem == problem(1)
        assert len(list(reader.results(RUN.id))) == 1700


def test_threads_share_a_store(store: Store) -> None:
    failures: list[BaseException] = []

    def add(number: int) -> None:
        try:
            for part in range(10):
                store.add_results(RUN.id, some(10, start=1 + number * 1000 + part * 10))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.finished(RUN.id)) == 400


def test_a_lock_that_is_never_released(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_S", 0.1)
    with open_store(path) as store:
        store.add_run(RUN)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with raises_code(StoreError, "store-locked") as error:
            store.add_results(RUN.id, some(1))
        assert error.value.hint
        other.execute("ROLLBACK")
        other.close()
        assert store.add_results(RUN.id, some(1)) == 1


# Full disks


def test_a_full_disk_loses_nothing_that_was_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = engine._sqlite_engine
    monkeypatch.setattr(
        engine, "_sqlite_engine", lambda path, mode: full(path, mode, "max_page_count=120")
    )
    done: list[int] = []

    def fill() -> None:
        while True:
            done.append(store.add_results(RUN.id, some(50, start=1 + sum(done))))

    with open_store(path) as store:
        store.add_run(RUN)
        with raises_code(StoreError, "store-disk-full") as error:
            fill()
        assert error.value.hint
        stored = sum(done)
        assert stored > 0
        assert len(store.finished(RUN.id)) == stored
    monkeypatch.undo()
    assert sound(path)
    with open_store(path) as store:
        store.add_results(RUN.id, some(50, start=1 + stored))
        assert len(list(store.results(RUN.id))) == stored + 50


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_removed_while_it_is_open_is_saved(path: Path, replaced: bool) -> None:
    store = open_store(path)
    store.add_run(RUN)
    store.add_results(RUN.id, some(3))
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    if replaced:
        open_store(path).close()
    with pytest.raises(StoreError) as error:
        store.add_results(RUN.id, some(2, start=4))
    with pytest.raises(StoreError):  # the same file again
        store.update_run(dataclasses.replace(RUN, state=RunState.INTERRUPTED))
    store.close()
    (copy,) = path.parent.glob("results-saved-*.sqlite")
    assert str(copy) in str(error.value)
    assert copy.stat().st_mode & 0o777 == 0o600
    with open_store(copy) as saved:
        assert list(saved.results(RUN.id)) == some(5)
        assert saved.run(RUN.id).state is RunState.INTERRUPTED


def test_a_store_that_is_removed_after_the_last_write_is_told(path: Path) -> None:
    store = open_store(path)
    store.add_run(RUN)
    path.unlink()
    with pytest.raises(StoreError), store:
        pass


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_on_a_full_disk_can_be_read(small_disk: Path, killed: bool) -> None:
    path = small_disk / "results.sqlite"
    with open_store(path) as store:
        store.add_run(RUN)
        store.add_results(RUN.id, some(2))
        if killed:  # its WAL stays
            for name in ("results.sqlite", "results.sqlite-wal"):
                shutil.copy(small_disk / name, small_disk / f"killed-{name}")
            path = small_disk / "killed-results.sqlite"
            (small_disk / "killed-results.sqlite-wal").stat()
    with contextlib.suppress(OSError), (small_disk / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with open_store(path, readonly=True) as store:
        assert len(list(store.results(RUN.id))) == 2


def set_column(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE results SET median_s = median_s * 2 WHERE no = 2",
        "UPDATE results SET status = 'wrong' WHERE no = 2",
        "UPDATE results SET flops = flops + 1 WHERE no = 2",
        "UPDATE results SET checksum = NULL WHERE no = 2",
        "UPDATE results SET detail = CAST(x'01' || substr(detail, 7) AS BLOB) WHERE no = 2",
        "UPDATE results SET case_no = 3 - case_no, process = 1",
        "DELETE FROM results WHERE no = 2",
        "UPDATE problems SET key = replace(key, 'm=2', 'm=3')",
        "UPDATE cases SET backend = 'torch' WHERE no = 2",
        "UPDATE runs SET label = 'other'",
        "UPDATE runs SET document = replace(document, '1.0', '2.0')",
        "UPDATE environments SET document = replace(document, '\"h\"', '\"i\"')",
        "UPDATE runs SET tally = tally + 1",
        "UPDATE timings SET document = replace(document, '0.', '1.')",
    ],
)
def test_no_other_data_is_read_from_a_damaged_store(path: Path, statement: str) -> None:
    with open_store(path) as store:
        store.add_run(RUN)
        store.add_results(RUN.id, some(2))
    set_column(path, statement)
    with open_store(path, readonly=True, check=False) as store:
        with pytest.raises(StoreError):
            store.result_set(RUN.id)
        assert store.damage().problems


def test_points_of_history_are_checked(path: Path) -> None:
    with open_store(path) as store:
        store.add_run(RUN)
        store.add_results(RUN.id, some(2))
        assert len(store.history()) == 2
        set_column(path, "UPDATE results SET low_s = low_s / 2 WHERE no = 1")
        with pytest.raises(StoreError):
            store.history()
        set_column(path, "DELETE FROM results WHERE no = 1")
        with pytest.raises(StoreError):
            store.history()


def test_what_changes_a_run_keeps_its_checksums(store: Store) -> None:
    store.add_results(RUN.id, some(4))
    store.add_results(RUN.id, some(2))  # replaced
    store.add_results(RUN.id, some(1), alone=True)
    store.add_results(RUN.id, some(1), process=1)
    store.update_run(dataclasses.replace(RUN, finished=2.0, label="x"))
    store.thin_samples(RUN.id)
    assert len(list(store.results(RUN.id))) == 5
    report = store.damage()
    assert (report.problems, report.results, report.unchecked) == ((), 5, 0)


def test_rows_of_older_versions_are_read_and_counted(path: Path) -> None:
    with open_store(path) as store:
        store.add_run(RUN)
        store.add_results(RUN.id, some(2))
    set_column(path, "UPDATE results SET checksum = NULL, detail = substr(detail, 6)")
    set_column(path, "UPDATE runs SET checksum = NULL, tally = NULL")
    with open_store(path) as store:
        assert list(store.results(RUN.id)) == some(2)
        store.add_results(RUN.id, some(1, start=3))
        assert len(store.history()) == 3
        report = store.damage()
        assert (report.problems, report.results, report.unchecked) == ((), 3, 2)


def test_a_time_that_is_none_is_damage(store: Store, path: Path) -> None:
    store.add_results(RUN.id, some(2))
    other = sqlite3.connect(path)
    ((detail,),) = other.execute("SELECT detail FROM results WHERE no = 2")
    measurement = list(store.results(RUN.id))[1].measurement
    assert measurement is not None
    sample = struct.pack("<d", measurement.blocks[0].samples_s[0])
    assert sample in detail
    other.execute("UPDATE results SET detail = ? WHERE no = 2", (detail.replace(sample, bytes(8)),))
    other.commit()
    other.close()
    found = store.results(RUN.id)
    next(found)
    with pytest.raises(StoreError):
        next(found)


# Other users


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions mean nothing to root, so root becomes somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def filled(folder: Path) -> Path:
    path = folder / "results.sqlite"
    with open_store(path) as store:
        store.add_run(RUN)
        store.add_results(RUN.id, some(3))
    path.chmod(0o444)
    return path


def test_a_store_that_may_only_be_read(public: Path) -> None:
    path = filled(public)
    public.chmod(0o555)
    with as_nobody():
        with open_store(path, readonly=True) as store:
            assert len(list(store.results(RUN.id))) == 3
            with pytest.raises(StoreError):
                store.add_run(RUN)
        with raises_code(StoreError, "store-read-only", store=str(path)) as error:
            open_store(path)
        assert "--store" in str(error.value.hint)
    assert list(public.iterdir()) == [path]


def test_a_store_in_use_by_another_user_can_be_read(public: Path) -> None:
    path = filled(public)
    path.chmod(0o644)
    with open_store(path) as writer:
        writer.add_results(RUN.id, some(2, start=50))
        public.chmod(0o555)
        with as_nobody(), open_store(path, readonly=True) as store:
            assert len(list(store.results(RUN.id))) == 5
        public.chmod(0o755)


# Settings


@pytest.mark.parametrize(
    "query",
    [
        lambda store: store.series(some(1)[0].series),
        lambda store: store.history(problem=problem(1), backend="numpy"),
        lambda store: store.history(run_id=RUN.id),
        lambda store: list(store.results(RUN.id)),
        lambda store: store.finished(RUN.id),
        lambda store: store.counts(RUN.id),
        lambda store: store.run("latest"),
    ],
)
def test_no_query_reads_the_whole_table_of_results(store: Store, query: object) -> None:
    import sqlalchemy

    assert callable(query)
    store.add_results(RUN.id, some(3))
    plans: list[str] = []

    def explain(
        connection: object,
        cursor: sqlite3.Cursor,
        statement: str,
        values: tuple[object, ...],
        *rest: object,
    ) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            other = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            plans.extend(row[3] for row in other)

    sqlalchemy.event.listen(store._engine, "before_cursor_execute", explain)
    query(store)
    assert plans
    assert [plan for plan in plans if plan.startswith("SCAN results")] == []
