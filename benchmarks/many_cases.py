"""Cost of many cases: kernelmark's own CPU time for each, memory, and `show` and `--resume`.

    python benchmarks/many_cases.py [--cases 20000] [-o results.json]
    python benchmarks/many_cases.py --quick      400 cases; writes no file

`kmark run` measures cases of the fake device, whose launches take no time: a quarter of them, then
all. CPU seconds are those of the command and its worker together, without what one case takes by
itself: the same cases executed in this process. The longer run is interrupted when about fifty
cases are left, shown, and resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners.execute import execute
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "many_cases.json"
CASE_MS, MEMORY_MB, COMMAND_S, GROWTH = 15.0, 300.0, 2.0, 1.25
SAMPLE = 100  # cases executed in this process
LEFT = 50  # cases of the resumed run, about
ROWS = 20  # of the grid of shapes; a run of so many is subtracted as start-up
# One short allocation: the case itself is not what is measured.
TIMING = 'preset = "quick"\nmax_s = 0.01\nwarmup_s = 0.0\nallocations = 1\nmax_allocations = 1\n'
# `main` ends the process itself, after what is registered here.
_COMMAND = """
import atexit, json, resource, sys
def usage(who):
    used = resource.getrusage(who)
    return {"cpu_s": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1024}
file = sys.argv[1]
def write():
    own, workers = usage(resource.RUSAGE_SELF), usage(resource.RUSAGE_CHILDREN)
    json.dump({"own": own, "workers": workers}, open(file, "w"))
atexit.register(write)
from kernelmark.cli.main import main
sys.argv[:2] = ["kmark"]
main()
"""
Usage = dict[str, dict[str, float]]
Row = dict[str, Any]


def command(folder: Path, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `kmark` with these arguments; the file is its usage of CPU and memory at its end."""
    file = folder / f"usage-{time.monotonic_ns()}.json"
    argv = [sys.executable, "-c", _COMMAND, str(file), *words]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL), file


def finished(started: tuple[subprocess.Popen[bytes], Path]) -> Usage:
    process, file = started
    process.wait()
    usage: Usage = json.loads(file.read_text())
    return usage


def run_words(cases: int, store: Path) -> list[str]:
    shape = ["-a", f"m=[1:{ROWS}]", "-a", f"n=[1:{cases // ROWS}]", "-a", "k=1", "--dtype", "f32"]
    timing = ["--timing", str(store.with_name("timing.toml")), "--roofs", "none"]
    backend = ["-b", "fake", "-d", "fake", "--store", str(store), "-q"]
    return ["run", "-o", "gemm", *shape, *timing, *backend]


def case_ms(timing: Timing) -> float:
    """CPU milliseconds of a case executed in this process."""
    device = find("fake")[0].open(0, 0)
    cases = [
        Case(
            problem=ops.parse(f"gemm m={1 + i % ROWS} n={1 + i} k=1 dtype=f32"),
            backend="fake",
            timing=timing,
        )
        for i in range(2 * SAMPLE)
    ]
    for case in cases[:SAMPLE]:  # imports and pools of random numbers
        execute(case, device, 0, lambda phase: None)
    start = time.process_time()
    for case in cases[SAMPLE:]:
        execute(case, device, 0, lambda phase: None)
    return 1e3 * (time.process_time() - start) / SAMPLE


def stored(store: Path) -> int:
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
            count: int = connection.execute("SELECT count(*) FROM results").fetchone()[0]
            return count
    except sqlite3.OperationalError:
        return 0


def shown_s(folder: Path, store: Path) -> float:
    return finished(command(folder, "show", "latest", "--store", str(store)))["own"]["cpu_s"]


def measured(folder: Path, cases: int, alone_ms: float, left: int = 0) -> tuple[Path, Row]:
    """The store and the figures of a run of so many cases, of which about `left` are not done."""
    store = folder / f"{cases}.sqlite"
    few = finished(command(folder, *run_words(ROWS, folder / "few.sqlite")))
    started = command(folder, *run_words(cases, store))
    while left and started[0].poll() is None and stored(store) < cases - left:
        time.sleep(0.1)
    if left:
        started[0].send_signal(signal.SIGTERM)  # a background job ignores SIGINT
    usage = finished(started)
    count = stored(store)

    def each_ms(who: str) -> float:
        return 1e3 * (usage[who]["cpu_s"] - few[who]["cpu_s"]) / (count - ROWS)

    return store, {
        "cases": count,
        "command_ms": round(each_ms("own"), 2),
        "worker_ms": round(each_ms("workers"), 2),
        "beyond_ms": round(each_ms("own") + each_ms("workers") - alone_ms, 2),
        "command_mb": round(usage["own"]["mb"]),
        "worker_mb": round(usage["workers"]["mb"]),
        "show_s": round(shown_s(folder, store), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    cases = 400 if options.quick else options.cases
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["KERNELMARK_CACHE"] = str(folder / "cache")
        os.environ["KERNELMARK_LOCKS"] = str(folder)
        # As installed: without .pyc files each command compiles all of kernelmark again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        (folder / "timing.toml").write_text(TIMING)
        timing = Timing.load(str(folder / "timing.toml"))
        alone_ms = case_ms(timing)
        few = measured(folder, cases // 4, alone_ms)[1]
        store, many = measured(folder, cases, alone_ms, LEFT)
        many["alone_after_ms"] = round(case_ms(timing), 2)
        words = ["run", "--resume", "latest", "-q", "--store", str(store)]
        usage = finished(command(folder, *words))
        left = stored(store) - many["cases"]
        resume_s = usage["own"]["cpu_s"] - left * many["command_ms"] / 1e3
    # With the case itself: what is beyond it is too little to be divided by.
    growth = (many["command_ms"] + many["worker_ms"]) / (few["command_ms"] + few["worker_ms"])
    memory_mb = max(many["command_mb"], many["worker_mb"])
    count = many["cases"]
    bars = [
        (
            f"{count} cases: ≤ {CASE_MS:g} ms of CPU a case beyond the case itself",
            f"{many['beyond_ms']:.1f} ms",
            many["beyond_ms"] <= CASE_MS,
        ),
        (
            f"a case costs ≤ {GROWTH:g} times what it costs among a quarter as many",
            f"{growth:.2f} times",
            growth <= GROWTH,
        ),
        (f"memory ≤ {MEMORY_MB:g} MB", f"{memory_mb} MB", memory_mb <= MEMORY_MB),
        (
            f"kmark show ≤ {COMMAND_S:g} s of CPU",
            f"{many['show_s']:.1f} s",
            many["show_s"] <= COMMAND_S,
        ),
        (
            f"kmark run --resume ≤ {COMMAND_S:g} s of CPU, without its {left} cases",
            f"{resume_s:.1f} s",
            resume_s <= COMMAND_S,
        ),
    ]
    print(evidence.bars_text(bars))
    if not options.quick:
        figures = {
            "case_ms": round(alone_ms, 2),
            "runs": [few, many],
            "resume_s": round(resume_s, 2),
        }
        title = "Many cases: what kernelmark takes for each, on the fake device"
        evidence.write(options.output, title=title, bars=bars, figures=figures)
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
