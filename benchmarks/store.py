"""A store of a million results: how fast it takes them in, and how fast it answers.

    python benchmarks/store.py            1,000,000 results, writes benchmarks/results/store.json
    python benchmarks/store.py --quick    20,000 results; writes only with --json, never fails

Runs of 1,000 cases each, every result with 15 to 30 samples in 3 blocks or more, made anew for
every run as a worker or a file would give them. Only the store's own work is timed.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.problem import Problem
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    KernelInfo,
    Measurement,
    Result,
    Run,
    Status,
    StopReason,
    Telemetry,
)
from kernelmark.devices import registry
from kernelmark.stores import new_run_id, open_store
from kernelmark.stores.packing import pack
from kernelmark.stores.store import Store
from kernelmark_dev import evidence

CASES = 1000  # in a run
DAY_S = 86400.0
INSERT_PER_S = 20_000
QUERY_MS = 50
RESULTS = Path(__file__).parent / "results" / "store.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 results")
    parser.add_argument("--rows", type=int, help="number of results")
    parser.add_argument("--json", type=Path, help="file to write to")
    parser.add_argument("--store", help="a URL of an empty store instead of a temporary file")
    options = parser.parse_args()
    rows = options.rows or (20_000 if options.quick else 1_000_000)
    target = options.json or (None if options.quick or options.rows else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        where = options.store or str(Path(folder) / "results.sqlite")
        figures = measure(where, rows)
        if not options.store:
            size = Path(where).stat().st_size
            figures |= {"file_bytes": size, "bytes_per_result": size / figures["results"]}
    show(figures)
    found = bars(figures)
    if target:
        evidence.write(
            target,
            title=f"The store with {figures['results']:,} results, all with their samples",
            bars=found,
            # Of the load, 1 is this benchmark itself.
            figures={**figures, "load_1min": os.getloadavg()[0]},
            device=registry.get("cpu").infos()[0],
            libraries={"sqlite": sqlite3.sqlite_version, "SQLAlchemy": sqlalchemy.__version__},
        )
    print(f"\n{evidence.bars_text(found)}")
    return 0 if options.quick or all(holds for _, _, holds in found) else 1


def bars(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    rate, of_cpu = figures["insert_per_s"], figures["insert_per_cpu_s"]
    found = [
        (
            f"insert at least {INSERT_PER_S:,} results a second, in batches of {CASES:,}",
            f"{rate:,.0f} a second, {of_cpu:,.0f} a second of CPU time",
            rate >= INSERT_PER_S,
        )
    ]
    for name, words in (("series", "the history of a case"), ("latest_run", "the latest run")):
        taken = figures[f"{name}_ms"]
        asked = f"{words} ({figures[f'{name}_rows']:,} rows) in under {QUERY_MS} ms"
        found.append((asked, f"{taken:.1f} ms", taken < QUERY_MS))
    return found


def measure(where: str, rows: int) -> dict[str, Any]:
    """Fill the store at `where` and ask it."""
    source = random.Random(1)
    wall_s, cpu_s = [], []
    with open_store(where) as store:
        for number in range(max(1, rows // CASES)):
            run = a_run(number, source)
            results = list(some_results(source))
            store.add_run(run)
            wall, cpu = time.perf_counter(), time.process_time()
            store.add_results(run.id, results)
            wall_s.append(time.perf_counter() - wall)
            cpu_s.append(time.process_time() - cpu)
            if sys.stderr.isatty():
                print(f"\r{(number + 1) * CASES:,} results", end="", file=sys.stderr)
    last = wall_s[-max(1, len(wall_s) // 10) :]
    figures: dict[str, Any] = {
        "results": len(wall_s) * CASES,
        "runs": len(wall_s),
        "samples_per_result": statistics.mean(r.measurement.samples for r in results),
        "insert_per_s": len(wall_s) * CASES / sum(wall_s),
        "insert_per_s_median_batch": CASES / statistics.median(wall_s),
        "insert_per_s_last_tenth": len(last) * CASES / sum(last),
        "insert_per_cpu_s": len(wall_s) * CASES / sum(cpu_s),
    }
    with open_store(where, readonly=True) as store:
        figures |= ask(store, results, source)
    return figures | compression(results)


def ask(store: Store, results: list[Result], source: random.Random) -> dict[str, Any]:
    """Milliseconds of each query: the first one in a fresh process of the store, the median,
    and the slowest of the repeats."""

    def of_a_series() -> int:
        return len(store.series(source.choice(results).series))

    def of_the_latest_run() -> int:
        return len(store.history(run_id=store.run("latest").id))

    def with_samples() -> int:
        return len(store.result_set(store.run("latest").id).results)

    def of_all_runs() -> int:
        return len(store.runs(limit=50))

    found: dict[str, Any] = {}
    for name, query in (
        ("series", of_a_series),
        ("latest_run", of_the_latest_run),
        ("latest_run_with_samples", with_samples),
        ("list_50_runs", of_all_runs),
    ):
        found |= timed(name, query)
    return found


def timed(name: str, query: Callable[[], int], repeats: int = 31) -> dict[str, Any]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        rows = query()
        times.append((time.perf_counter() - start) * 1e3)
    return {
        f"{name}_rows": rows,
        f"{name}_ms": statistics.median(times[1:]),
        f"{name}_first_ms": times[0],
        f"{name}_slowest_ms": max(times[1:]),
    }


def compression(results: list[Result]) -> dict[str, Any]:
    """What zlib would save on a packed result, and what it would cost."""
    packed = [pack(result, {}) for result in results]
    start = time.perf_counter()
    small = [zlib.compress(blob, 1) for blob in packed]
    spent = time.perf_counter() - start
    return {
        "packed_bytes": statistics.mean(map(len, packed)),
        "zlib_share": sum(map(len, small)) / sum(map(len, packed)),
        "zlib_us": spent / len(packed) * 1e6,
    }


def a_run(number: int, source: random.Random) -> Run:
    started = 1.7e9 + number * DAY_S
    cpu = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="aarch64")
    libraries = {"numpy": "2.0", "torch": f"2.{number // 100}"}
    return Run(
        id=new_run_id(started, source),
        started=started,
        environment=Environment(devices=(cpu,), libraries=libraries),
        suite="bench",
        label="nightly",
        cases=CASES,
    )


def some_results(source: random.Random) -> Iterator[Result]:
    for number in range(CASES):
        yield a_result(a_case(number), source)


def a_case(number: int) -> Case:
    size = 64 * (1 + number // 2)
    problem = Problem(
        op="gemm",
        dims={"m": size, "n": 4096, "k": 1024},
        dtypes={"a": "f32", "b": "f32", "c": "f32", "acc": "f32"},
        options={"ta": "n", "tb": "t", "alpha": 1.0, "beta": 0.0, "bias": False},
    )
    return Case(problem=problem, backend=("numpy", "torch")[number % 2])


def a_result(case: Case, source: random.Random) -> Result:
    typical_s = 1e-3 * source.uniform(0.5, 2.0)
    blocks = tuple(a_block(i, typical_s, source) for i in range(source.choice((3, 3, 3, 4))))
    medians = sorted(block.median_s for block in blocks)
    measurement = Measurement(
        blocks=blocks,
        low_s=medians[0],
        high_s=medians[-1],
        method="loop",
        launches=source.randrange(1, 50),
        sets=4,
        footprint_bytes=source.randrange(2**20, 2**28),
        stop=StopReason.PRECISE,
        warmup_s=source.random(),
        timed_s=source.random(),
    )
    phases = ("inputs", "compile", "warmup", "timed", "check", "total")
    return Result(
        case=case,
        device="cpu",
        status=Status.OK,
        arch="aarch64",
        flops=source.randrange(2**40),
        bytes=source.randrange(2**30),
        measurement=measurement,
        check=Check(
            positions=512,
            worst=source.random(),
            max_abs=source.random(),
            unwritten=0,
            guards_intact=True,
        ),
        kernel=KernelInfo(name="matmul", compile_s=source.random()),
        started=1.7e9 + source.random(),
        cost={phase: source.random() for phase in phases},
    )


def a_block(allocation: int, typical_s: float, source: random.Random) -> Block:
    return Block(
        process=0,
        allocation=allocation,
        samples_s=tuple(
            typical_s * source.uniform(0.98, 1.02) for _ in range(source.randrange(5, 10))
        ),
        telemetry=Telemetry(clock_mhz=source.uniform(2000, 3000), load=source.random()),
    )


def show(figures: dict[str, Any]) -> None:
    print(f"\n{'figure':<36}{'value':>16}")
    for name, value in figures.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
        print(f"{name:<36}{shown:>16}")


if __name__ == "__main__":
    sys.exit(main())
