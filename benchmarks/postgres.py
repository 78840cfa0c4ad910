"""A PostgreSQL with millions of results: how fast the dashboard and the history answer.

    python benchmarks/postgres.py --store URL                   10,000,000 results
    python benchmarks/postgres.py --store URL --rows 200000     fewer; writes only with --json
    python benchmarks/postgres.py --store URL --continue        what is stored already is kept

Ten hosts, each with a GPU of its own architecture, run 1,000 cases every night for 1,000 nights. A
page is asked for after a change of the store, so that no cache has it. The server of the dashboard
and PostgreSQL run on the machine that asks.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import sqlalchemy

from kernelmark.devices import registry
from kernelmark.stores import open_store
from kernelmark_dev import evidence
from web import CASES, cases, fill, get, serving

ARCHS = (
    *("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
    *("gfx90a", "gfx942", "gfx950", "gfx1100"),
)
PAGE_MS, HISTORY_S = 200, 5
RESULTS = Path(__file__).parent / "results" / "postgres.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, help="the URL of an empty store")
    parser.add_argument("--rows", type=int, help="number of results")
    parser.add_argument("--continue", action="store_true", dest="go_on", help="fill no more")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if not options.go_on:
        began = time.perf_counter()
        runs = max(1, (options.rows or 10_000_000) // CASES)
        with open_store(options.store) as store:
            fill(store, runs, ARCHS, samples=1)
        spent = time.perf_counter() - began
        figures |= {"fill_s": spent, "fill_per_s": runs * CASES / spent}
    figures |= measure(options.store)
    for name, value in figures.items():
        print(
            f"{name:<32}{value:>16,.1f}" if isinstance(value, float) else f"{name:<32}{value:>16}"
        )
    found = bars(figures)
    target = options.json or (None if options.rows else RESULTS)
    if target:
        evidence.write(
            target,
            title=f"PostgreSQL with {figures['results']:,} results",
            bars=found,
            figures={**figures, "load_1min": os.getloadavg()[0], "cores": os.cpu_count()},
            device=registry.get("cpu").infos()[0],
            libraries={
                "PostgreSQL": str(figures["server"]),
                "psycopg": psycopg.__version__,
                "SQLAlchemy": sqlalchemy.__version__,
            },
        )
    print(f"\n{evidence.bars_text(found)}")
    return 0 if all(holds for _, _, holds in found) else 1


def bars(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    found = []
    for name, words in (("overview", "the overview"), ("series", "the page of a series")):
        taken = figures[f"{name}_ms"]
        asked = f"{words}, not cached, of {figures['results']:,} results: under {PAGE_MS} ms"
        shown = f"{taken:.0f} ms, at most {figures[f'{name}_slowest_ms']:.0f} ms"
        found.append((asked, shown, taken < PAGE_MS))
    taken = figures["history_check_s"]
    asked = f"kmark history --check, a process of its own, 60 runs: under {HISTORY_S} s"
    found.append((asked, f"{taken:.1f} s", taken < HISTORY_S))
    return found


def measure(where: str, repeats: int = 9) -> dict[str, Any]:
    engine = sqlalchemy.create_engine(where.partition("?")[0].replace("://", "+psycopg://"))
    with engine.connect() as connection:
        version = connection.exec_driver_sql("SHOW server_version").scalar()
    engine.dispose()
    made = cases()
    with open_store(where) as store:
        runs = store.count_runs()
        newest = store.runs(limit=1)[0]
        figures: dict[str, Any] = {"results": runs * CASES, "runs": runs, "server": version}
        with serving(where) as (_, url):
            began = time.perf_counter()
            while b'"grid"' not in get(url, "/index.json"):
                time.sleep(0.05)
            figures["judged_s"] = time.perf_counter() - began
            times: dict[str, list[float]] = {"overview": [], "series": []}
            for n in range(repeats):
                store.pin("bench", newest.id)  # every cached page is out of date
                case, arch = made[(37 * n) % CASES], ARCHS[n % len(ARCHS)]
                pages = {
                    "overview": "/",
                    "series": f"/series/{case.id}?{urlencode({'arch': arch})}",
                }
                for name, address in pages.items():
                    began = time.perf_counter()
                    page = get(url, address)
                    times[name].append(1e3 * (time.perf_counter() - began))
                    assert re.search(rb"<main", page), address
                time.sleep(3)  # the change is judged in the background
            for name, taken in times.items():
                figures[f"{name}_ms"] = statistics.median(taken)
                figures[f"{name}_slowest_ms"] = max(taken)
        store.unpin("bench")
    words = ["history", "--check", "--label", newest.label, "-q"]
    command = [sys.executable, "-m", "kernelmark", *words, "--store", where, "--json", os.devnull]
    taken_s = []
    for _ in range(3):
        began = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, check=False)
        taken_s.append(time.perf_counter() - began)
        assert ended.returncode in (0, 1), ended.stderr
    figures["history_check_s"] = statistics.median(taken_s)
    return figures


if __name__ == "__main__":
    sys.exit(main())
