"""Drill: damaged files through every reader. Each is read or refused in one sentence, and nothing
that is read holds a time or a size that cannot be.

    python benchmarks/drill_inputs.py [--per-reader N] [--only NAME] [--record]

benchmarks/drills.py runs it in short form.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import copy
import faulthandler
import gzip
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import drill_own
import drill_seeds
from drilling import Facts, must
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.problem import Problem
from kernelmark.core.result import MOST_SIZE, ResultSet, check_results, is_time
from kernelmark.devices import registry
from kernelmark.tune import simulate
from kernelmark.tune.install import aiter_config
from kernelmark.tune.install.emitters import nearest, tensile
from kernelmark.tune.install.emitters.base import text_at
from kernelmark.workloads import importers
from kernelmark.workloads import logs as reading
from kernelmark.workloads.calls import LogOptions
from kernelmark.workloads.importers import Overrides
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "damaged_files.json"
WANTED = 100_000
_CHUNK = 1000
_HUNG_S = 300.0  # of CPU time for a thousand files, which take about a second
_MOST_BYTES = 1 << 30
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DOCUMENT = re.compile(rb"\{|\[\s*\{")  # JSON; a line of a log may begin with [ as well
_EXTREMES = [
    *(b"-1", b"0", b"1e40", b"-9e9", b"1e999", b"-0.0", b"nan", b"inf", b"1e-320", b"0x10"),
    *(str(2**64).encode(), str(2**63).encode(), str(-(2**63)).encode(), b"9" * 5000, b"", b"1.5"),
]
_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, -0.5, 2**64, -(2**63), 1e308, 1e-320, "", "x", "nan", "1e999"),
    *([], {}, [[]], [None], {"": None}, [1, "x"], "\x00\x1b[31m", "\ud800", "9" * 400, 10**400),
]
_CELLS: list[Any] = [
    *(None, 0, -1, 1.5, 2**63 - 1, -(2**63), 1e308, 1e999, "", "x", "\x00\x1b[31m", b"\xff\x00")
]
_SIGNS = [b"\x00", b"\xff", b"\x1b[31m", b",", b'"', b"\n", b"{", b"[", b"]", b"\\", b"\r", b" "]


def mutated(data: bytes, source: random.Random) -> bytes:
    """`data` damaged in one to three places; half of what has a structure keeps it, and has values
    that are not possible."""
    if source.random() < 0.5:
        if data[:2] == b"\x1f\x8b":  # damage to what is packed, which a checksum would hide
            return gzip.compress(mutated(gzip.decompress(data), source), 1, mtime=0)
        if _DOCUMENT.match(data):
            lines = data.splitlines() if data.count(b"\n{") else [data]  # a document, or one a line
            place = source.randrange(len(lines))
            lines[place] = _changed_document(lines[place], source)
            return b"\n".join(lines)
        if data.startswith(b"SQLite format 3\0"):
            return _changed_database(data, source)
    for _ in range(source.randint(1, 3)):
        data = _damage(data, source)
    return data


def _changed_document(data: bytes, source: random.Random) -> bytes:
    document = json.loads(data)
    for _ in range(source.randint(1, 3)):
        node: Any = document
        while isinstance(node, dict | list) and node:
            key = source.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if source.random() < 0.3 or not isinstance(node[key], dict | list) or not node[key]:
                if source.random() < 0.2:
                    del node[key]
                else:
                    node[key] = copy.deepcopy(source.choice(_VALUES))
                break
            node = node[key]
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _changed_database(data: bytes, source: random.Random) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(data)
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = [str(row[0]) for row in connection.execute(query)]
    for _ in range(source.randint(1, 3)):
        table = source.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if source.random() < 0.1:
            connection.execute(f"DELETE FROM {table}")
        elif columns:
            value = source.choice(_CELLS)
            with contextlib.suppress(sqlite3.Error):  # as a name for the id of a row
                column = source.choice(columns)
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE random() & 1", (value,))
    connection.commit()
    changed = connection.serialize()
    connection.close()
    return changed


def _damage(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data) + 1)
    kind = source.choice(("number", "number", "byte", "insert", "cut", "drop", "twice", "word"))
    if kind == "number" and (one := _NUMBER.search(data, at) or _NUMBER.search(data)):
        return data[: one.start()] + source.choice(_EXTREMES) + data[one.end() :]
    if kind == "byte" and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
    if kind == "insert":
        return data[:at] + source.choice(_SIGNS) + data[at:]
    if kind == "cut":
        return data[:at]
    lines = data.split(b"\n")
    place = source.randrange(len(lines))
    if kind == "drop":
        del lines[place]
    elif kind == "twice":
        lines.insert(place, lines[place])
    else:
        words = lines[place].split(b",")
        source.shuffle(words)
        lines[place] = b",".join(words)
    return b"\n".join(lines)


_KEY = "gemm m,n,dtype k=64"  # the names of an autotuner's key in drill_seeds.py


def read_one(reader: str, path: Path) -> str:
    """How reading a file ended: `read`, `refused`, or what must not be."""
    try:
        return "read" if _is_possible(reader, path) else "absurd value"
    except KernelmarkError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def _is_possible(reader: str, path: Path) -> bool:
    """Read a file by its reader itself: what that did not foresee must not hide behind the last
    resort of whoever calls it."""
    kind, _, name = reader.partition(" ")
    if kind == "own":
        return all(map(is_time, drill_own.OWN[name][2](path) or ()))
    if kind == "times":
        importers.recognized(path)
        try:
            return _possible_results(importers.read(path, Overrides(), name))
        except KernelmarkError as error:
            raise error.__cause__ or error from None
    if kind == "calls":
        form = name.replace("_", "-")
        calls = reading.read([str(path)], form=form, options=LogOptions(key=_KEY)).workload.calls
        return all(_possible(c.problem) and 0 < c.count < 16 * MOST_SIZE for c in calls)
    if kind == "space":
        times = simulate.read(path).times_s.tolist()
        return all(map(is_time, filter(math.isfinite, times)))
    _read_configs(name, path)
    return True


def _read_configs(name: str, path: Path) -> None:
    if name == "aiter":
        aiter_config.read(path)
        return
    text = text_at(path) or ""
    if name == "tensile":
        tensile.parse(text, path.name)
    else:
        nearest.parse(text, path.name, name)  # type: ignore[arg-type]


def _possible_results(found: ResultSet) -> bool:
    check_results(found)
    for result in found.results:
        blocks = result.measurement.blocks if result.measurement else ()
        times = [time_s for block in blocks for time_s in block.samples_s]
        if not all(map(is_time, times)) or not _possible(result.case.problem):
            return False
    return True


def _possible(problem: Problem) -> bool:
    return all(0 <= size < MOST_SIZE for size in problem.dims.values())


def damaged_files(count: int) -> Facts:
    """Mutated files of every reader: 100,000 for a `count` of 100, 4,000 for one of 20."""
    every = drill_seeds.readers()
    ended: Counter[str] = Counter()
    for reader in every:
        ended += drill(reader, 10 * count * count // len(every) + 1)
    bad = sorted(set(ended) - {"read", "refused"})
    must(not bad, f"{len(bad)} kinds: {'; '.join(bad[:5])}")
    return {"files": sum(ended.values()), "readers": len(every), **ended}


def drill(reader: str, count: int, jobs: int = 0) -> Counter[str]:
    """How `count` damaged files of a reader ended."""
    ended: Counter[str] = Counter()
    jobs = jobs or min(4, len(os.sched_getaffinity(0)))
    starts = range(0, count, _CHUNK)
    counts = [min(_CHUNK, count - start) for start in starts]
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        try:
            for some in pool.map(_drill_some, itertools.repeat(reader), starts, counts):
                ended += some
        except BrokenProcessPool:
            ended["hung or was killed: its traceback is above"] += 1
    return ended


def _drill_some(reader: str, start: int, count: int) -> Counter[str]:
    """How the damaged files from number `start` on ended. Its number is all that a file depends
    on, so that one that ended badly can be made again."""
    _limit_memory()
    ended: Counter[str] = Counter()
    # In memory where that is possible: writing the files would take most of the time.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name, contextlib.chdir(name):
        folder = Path(name)
        every = [seed for seed in drill_seeds.seeds(folder) if seed[0] == reader]
        for _, file, content in every:
            (folder / file).write_bytes(content)
            how = read_one(reader, folder / file)
            if how != "read":
                ended[f"the whole {file} is {how}"] += 1
        # Of CPU time: on a busy machine a thousand files may take minutes.
        faulthandler.register(signal.SIGPROF, chain=True)  # and then ends the process
        signal.setitimer(signal.ITIMER_PROF, _HUNG_S)
        for number in range(start, start + count):
            _, file, content = every[number % len(every)]
            source = random.Random(f"{reader} {number}")
            (folder / file).write_bytes(mutated(content, source))
            how = read_one(reader, folder / file)
            good = how in ("read", "refused")
            ended[how if good else f"{file}, number {number}: {how}"] += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ended


def _limit_memory() -> None:
    """Allow 1 GiB more than what is there: what asks for more gets a MemoryError."""
    status = Path("/proc/self/status")
    if not status.exists():
        return
    held = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(held.split()[1]) * 1024 + _MOST_BYTES, most))


def record(reader: str, ended: Counter[str]) -> None:
    """Put a reader's counts into the results file, beside those of the other readers."""
    rows: dict[str, dict[str, object]] = {}
    if RESULTS.exists():
        rows = json.loads(RESULTS.read_text(encoding="utf-8"))["figures"]["readers"]
    bad = {how: times for how, times in ended.items() if how not in ("read", "refused")}
    # Rows may be of several runs: each has the digest of the code that it was made with.
    row = {"files": ended.total(), **ended, "bad": sum(bad.values())}
    rows[reader] = {**row, "sources": evidence.SOURCES}
    rows = {name: rows[name] for name in drill_seeds.readers() if name in rows}
    evidence.write(
        RESULTS,
        title="Damaged files: what readers do with them",
        bars=[_bar(name, row) for name, row in rows.items()],
        figures={"readers": rows},
        device=registry.get("cpu").infos()[0],
    )


def _bar(reader: str, row: Mapping[str, Any]) -> tuple[str, str, bool]:
    asked = f"{reader}: {WANTED:,} damaged files are read or refused in one sentence, none of them "
    asked += "with an absurd value, in more than 1 GiB or without an end"
    told = f"{row['files']:,} files: {row.get('read', 0):,} read, {row.get('refused', 0):,} refused"
    told += f", {row['bad']:,} otherwise" if row["bad"] else ""
    return asked, told, not row["bad"] and row["files"] >= WANTED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-reader", type=int, default=WANTED, metavar="N", help="files of each")
    parser.add_argument("--only", default="", help="only readers whose name contains this")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: cores, at most 4)")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    worst = 0
    for reader in drill_seeds.readers():
        if given.only not in reader:
            continue
        start = time.monotonic()
        ended = drill(reader, given.per_reader, given.jobs)
        print(f"{reader:24} {time.monotonic() - start:7.1f} s  {dict(ended)}", flush=True)
        worst |= bool(set(ended) - {"read", "refused"})
        if given.record:
            # The command for all rows, of which this run may make some.
            sys.argv[1:] = ["--per-reader", str(given.per_reader), "--record"]
            record(reader, ended)
    return worst


if __name__ == "__main__":
    sys.exit(main())
