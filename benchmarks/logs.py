"""Reading logs of a million calls: how long it takes, and how much memory.

    python benchmarks/logs.py            1,000,000 lines each, writes benchmarks/results/logs.json
    python benchmarks/logs.py --quick    20,000 lines each; writes only with --json, never fails

209 shapes of language models in every form that hipBLASLt logs them in. A form in which lines are
the same except for the kernel, the count, the time or the pointers has them all different, which is
the worst for a reader that looks at equal lines once. Each log is read by a process of its own;
seconds are from its start to its end, memory is its largest resident set.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernelmark.devices import registry
from kernelmark_dev import evidence, logs
from kernelmark_dev.logs import Logged

SECONDS = 10.0
MEGABYTES = 500.0
SHAPES = 209
SEED = 1
RESULTS = Path(__file__).parent / "results" / "logs.json"
NOISE = 0.05  # of the lines of a captured stderr
Lines = Iterator[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 lines")
    parser.add_argument("--lines", type=int, help="lines of each log")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    lines = options.lines or (20_000 if options.quick else 1_000_000)
    target = options.json or (None if options.quick or options.lines else RESULTS)
    figures = {}
    for name, make in FORMS.items():
        figures[name] = measured(name, make, lines)
        show(name, figures[name])
    found = bars(figures, lines)
    if target:
        evidence.write(
            target,
            title=f"Logs of {lines:,} lines read into a workload",
            bars=found,
            # Of the load, 1 is this benchmark itself.
            figures={"lines": lines, "forms": figures, "load_1min": os.getloadavg()[0]},
            device=registry.get("cpu").infos()[0],
        )
    print(f"\n{evidence.bars_text(found)}")
    return 0 if options.quick or all(holds for _, _, holds in found) else 1


def bars(figures: dict[str, dict[str, Any]], lines: int) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    slowest = max(figures, key=lambda name: figures[name]["seconds"])
    largest = max(figures, key=lambda name: figures[name]["megabytes"])
    seconds, size = figures[slowest]["seconds"], figures[largest]["megabytes"]
    right = all(one["calls"] == one["written"] and one["as_skipped"] for one in figures.values())
    return [
        (
            f"{lines:,} lines in at most {SECONDS:.0f} s",
            f"{seconds:.1f} s at most ({slowest})",
            seconds <= SECONDS,
        ),
        (
            f"at most {MEGABYTES:.0f} MB of memory",
            f"{size:.0f} MB at most ({largest})",
            size <= MEGABYTES,
        ),
        ("every call is counted", "yes" if right else "no", right),
    ]


def measured(name: str, make: Callable[[list[Logged], int], Lines], lines: int) -> dict[str, Any]:
    """Write the log, then read it in a child."""
    shapes = list(logs.distinct_shapes(SHAPES, seed=SEED))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.log"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in make(shapes, lines))
        size = path.stat().st_size
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - start
    calls, distinct, skipped, cpu, peak = done.stdout.split()
    noise = name == "stderr"
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(float(cpu), 2),
        "megabytes": round(int(peak) / 1024, 1),
        "file_megabytes": round(size / 1e6, 1),
        "calls": int(calls),
        "written": written(name, lines),
        "distinct": int(distinct),
        "skipped": int(skipped),
        "as_skipped": (int(skipped) > 0) == noise,
    }


READ = """
import resource, sys, time
from kernelmark.workloads import logs

found = logs.read([sys.argv[1]])
calls = found.workload.calls
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.workload.total, len(calls), len(found.skipped), time.process_time(), peak)
"""


def written(name: str, lines: int) -> int:
    """Calls that a log stands for."""
    if name.startswith("profile"):
        return sum(range(1, lines + 1))
    return lines - int(lines * NOISE) if name == "stderr" else lines


def bench(shapes: list[Logged], lines: int) -> Lines:
    texts = [logs.bench_line(shape, number) for number, shape in enumerate(shapes)]
    source = random.Random(SEED)
    yield from (source.choice(texts) for _ in range(lines))


def bench_solutions(shapes: list[Logged], lines: int) -> Lines:
    yield from (logs.bench_line(shapes[i % len(shapes)], i) for i in range(lines))


def profile(shapes: list[Logged], lines: int) -> Lines:
    yield from (logs.profile_line(shapes[i % len(shapes)], i + 1) for i in range(lines))


def profile_kernels(shapes: list[Logged], lines: int) -> Lines:
    yield from (logs.profile_line(shapes[i % len(shapes)], i + 1, i) for i in range(lines))


def trace(shapes: list[Logged], lines: int) -> Lines:
    source = random.Random(SEED)
    yield from (logs.trace_line(shapes[i % len(shapes)], i, source) for i in range(lines))


def stderr(shapes: list[Logged], lines: int) -> Lines:
    """Commands with a rank before them, and lines of other programs between."""
    noise = int(lines * NOISE)
    every = lines // noise
    for i in range(lines):
        if i % every == 0 and i // every < noise:
            yield f"[rank{i % 8}]: step {i}, loss {1 / (i + 1):.6f}, k = {i % 97}"
        else:
            yield f"[rank{i % 8}]: {logs.bench_line(shapes[i % len(shapes)], i)}"


FORMS: dict[str, Callable[[list[Logged], int], Lines]] = {
    "bench": bench,
    "bench, solutions differ": bench_solutions,
    "profile, counts differ": profile,
    "profile with kernels, all differ": profile_kernels,
    "trace, times and pointers differ": trace,
    "stderr": stderr,
}


def show(name: str, figures: dict[str, Any]) -> None:
    print(
        f"{name:<36}{figures['seconds']:>7.2f} s {figures['cpu_seconds']:>7.2f} s CPU "
        f"{figures['megabytes']:>7.1f} MB  {figures['calls']:,} calls of {figures['distinct']}"
    )


if __name__ == "__main__":
    sys.exit(main())
