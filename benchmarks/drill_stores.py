"""Drills of the store: damaged copies, and a dashboard that is killed while runs are pushed."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from drilling import Facts, must
from kernelmark.api.push import push
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Case, Result, Run, RunState
from kernelmark.stores import open_store
from kernelmark.stores.store import Scope
from kernelmark.testing.stores import measured, problem

_PAGE = 4096


def fill(path: Path, runs: int, results: int, prefix: str = "") -> None:
    """Write a store like that of a few nights."""
    source = random.Random(1)
    with open_store(path) as store:
        for number in range(runs):
            run = Run(
                id=f"{prefix}run-{number}",
                started=1e9 + number,
                finished=1e9 + number + 0.5,
                environment=Environment(host="drill", libraries={"torch": f"2.{number // 2}"}),
                label="nightly",
                cases=results,
                state=RunState.DONE,
            )
            store.add_run(run)
            store.add_results(run.id, [_result(m, source) for m in range(1, results + 1)])


def _result(m: int, source: random.Random) -> Result:
    times = tuple(1e-5 * m * source.uniform(0.99, 1.01) for _ in range(40))
    return measured(Case(problem=problem(m), backend=("numpy", "torch")[m % 2]), times)


def contents(path: Path) -> str:
    """Return everything that commands read of a store."""
    with open_store(path, readonly=True) as store:
        runs = store.runs()
        sets = [store.result_set(run.id) for run in runs]
        return repr((runs, sets, store.run("latest").id, store.history()))


def _bit(data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _bytes(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data))
    count = source.randrange(1, 64)
    data[start : start + count] = source.randbytes(len(data[start : start + count]))


def _truncated(data: bytearray, source: random.Random) -> None:
    del data[source.randrange(len(data)) :]


def _zeroed(data: bytearray, source: random.Random) -> None:
    start = _PAGE * source.randrange(len(data) // _PAGE)
    data[start : start + _PAGE] = bytes(_PAGE)


def _swapped(data: bytearray, source: random.Random) -> None:
    first, second = (_PAGE * source.randrange(len(data) // _PAGE) for _ in range(2))
    pages = data[first : first + _PAGE], data[second : second + _PAGE]
    data[second : second + _PAGE], data[first : first + _PAGE] = pages


_DAMAGES = (_bit, _bytes, _truncated, _zeroed, _swapped)


def damaged_stores(count: int) -> Facts:
    """Copies of a store with flipped bits, random bytes, a lost end, and lost or swapped pages."""
    source = random.Random(2)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        sound, copy = Path(folder) / "sound.sqlite", Path(folder) / "copy.sqlite"
        fill(sound, runs=4, results=24)
        expected = contents(sound)
        for number in range(5 * count):
            damage = _DAMAGES[number % len(_DAMAGES)]
            data = bytearray(sound.read_bytes())
            damage(data, source)
            copy.write_bytes(data)
            try:
                same = contents(copy) == expected
            except KernelmarkError:
                outcomes["refused"] += 1
            else:
                must(same, f"copy {number} ({damage.__name__}) was read as other data")
                outcomes["unchanged"] += 1
            for ending in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{copy}{ending}").unlink()
    must(outcomes["refused"], "no damage was noticed")
    return {"stores": 5 * count, **outcomes}


_RESULTS = 2000  # in eight requests


def pushes_killed(count: int) -> Facts:
    """kill -9 of the dashboard at random moments of pushes, which go on with the next one."""
    source = random.Random(3)
    kills = pushes = complete = 0
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here.sqlite", Path(folder) / "there.sqlite"
        fill(here, runs=1, results=_RESULTS)
        with open_store(there) as store:
            token = store.create_token("drill", Scope.WRITE)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["serve", "-q", "--port", str(port), "--store", str(there)]
        command = [sys.executable, "-m", "kernelmark", *words]
        while kills < (count if count >= 100 else count // 4):
            ended = threading.Event()
            errors: list[BaseException] = []
            thread = threading.Thread(target=_push, args=(here, port, token, ended, errors))
            thread.start()
            limit_s = 0.5
            while not ended.is_set():
                server = subprocess.Popen(command, env={**os.environ, "PYTHONSAFEPATH": "1"})
                _wait_for(port, ended)
                # Ever longer, so that a push ends on a slow machine too.
                ended.wait(source.uniform(0.0, limit_s))
                limit_s *= 1.3
                kills += not ended.is_set()
                server.kill()
                server.wait()
            thread.join()
            must(not errors, f"a push failed: {errors[:1]}")
            pushes += 1
            with open_store(here) as ours, open_store(there) as theirs:
                same = ours.result_set("run-0") == theirs.result_set("run-0")
                must(same, "the run arrived otherwise")
                must(not theirs.damage().problems, "the dashboard's store is damaged")
                complete += theirs.delete_run("run-0") == _RESULTS
    return {"kills": kills, "pushes": pushes, "complete": complete}


def _push(
    here: Path, port: int, token: str, ended: threading.Event, errors: list[BaseException]
) -> None:
    try:
        with open_store(here, readonly=True) as store:
            push(store, ["run-0"], f"http://127.0.0.1:{port}", token, patience_s=600.0)
    except KernelmarkError as error:
        errors.append(error)
    finally:
        ended.set()


def _wait_for(port: int, ended: threading.Event) -> None:
    give_up = time.monotonic() + 120.0
    while time.monotonic() < give_up and not ended.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
