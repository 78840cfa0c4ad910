"""Outputs: what plot, site and history take, and how large files become.

    python benchmarks/outputs.py            writes benchmarks/results/outputs.json
    python benchmarks/outputs.py --quick    small stores; writes no file

CPU seconds are those of the whole command, start-up included. The site's store is that of a team
whose runs measure different kernels: 44 runs of 35 cases each, 1,540 series, of which the 10 newest
runs have 350. /micro and /roofline are measured by benchmarks/web.py.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelmark.stores import open_store
from kernelmark_dev import evidence
from store import a_case, a_result, a_run

RESULTS = Path(__file__).parent / "results" / "outputs.json"
PLOT_S, PLOT_KB = 1.5, 400
SITE_S, SITE_MB = 60.0, 10.0
HISTORY_S = 3.0
PLOTTED = 39  # results in the figure
SITE_RUNS, SITE_CASES, NEWEST = 44, 35, 10  # cases of a run; no two runs have the same
HISTORY_RUNS, HISTORY_CASES = 1000, 1000


def fill(path: Path, runs: int, cases: int, *, distinct: bool = False) -> None:
    """Fill a store with runs of the same cases, or of `distinct` ones."""
    source = random.Random(1)
    with open_store(path) as store:
        for number in range(runs):
            run = replace(a_run(number, source), cases=cases)
            first = number * cases if distinct else 0
            store.add_run(run)
            results = (a_result(a_case(first + i), source) for i in range(cases))
            store.add_results(run.id, list(results))


def cpu_s(*words: str) -> float:
    """CPU seconds of a `kmark` command."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    command = [sys.executable, "-P", "-m", "kernelmark", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return used() - before


def measured(folder: Path, *, quick: bool) -> dict[str, Any]:
    plotted, site, million = (folder / f"{name}.sqlite" for name in ("plotted", "site", "million"))
    figure, pages = folder / "figure.html", folder / "pages"
    fill(plotted, 1, PLOTTED)
    words = ("plot", "sweep", "latest", "-q", "-f", str(figure), "--store", str(plotted))
    cpu_s(*words)  # fills caches
    plot_s = min(cpu_s(*words) for _ in range(3))
    fill(site, SITE_RUNS // (4 if quick else 1), SITE_CASES, distinct=True)
    words = ("site", "-o", str(pages), "--runs", str(NEWEST), "-q", "--store", str(site))
    site_s = cpu_s(*words)
    sizes = [file.stat().st_size for file in pages.rglob("*") if file.is_file()]
    fill(million, HISTORY_RUNS // (50 if quick else 1), HISTORY_CASES)
    history_s = min(cpu_s("history", "-q", "--store", str(million)) for _ in range(3))
    return {
        "plot_s": round(plot_s, 2),
        "plot_kb": round(figure.stat().st_size / 1000, 1),
        "site_s": round(site_s, 1),
        "site_files": len(sizes),
        "site_mb": round(sum(sizes) / 1e6, 1),
        "history_s": round(history_s, 2),
        "load_1min": os.getloadavg()[0],
    }


def bars(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    plot_s, plot_kb, history_s = (figures[n] for n in ("plot_s", "plot_kb", "history_s"))
    site_s, site_mb = figures["site_s"], figures["site_mb"]
    million = HISTORY_RUNS * HISTORY_CASES
    return [
        (
            f"kmark plot of {PLOTTED} results: ≤ {PLOT_S:g} s of CPU and ≤ {PLOT_KB} kB",
            f"{plot_s:.1f} s, {plot_kb:.0f} kB",
            plot_s <= PLOT_S and plot_kb <= PLOT_KB,
        ),
        (
            f"kmark site --runs {NEWEST} of {SITE_RUNS} runs, {SITE_RUNS * SITE_CASES:,} series:"
            f" ≤ {SITE_S:g} s of CPU and ≤ {SITE_MB:g} MB",
            f"{site_s:.0f} s, {site_mb:.1f} MB in {figures['site_files']:,} files",
            site_s <= SITE_S and site_mb <= SITE_MB,
        ),
        (
            f"kmark history of {million:,} results: ≤ {HISTORY_S:g} s of CPU",
            f"{history_s:.1f} s",
            history_s <= HISTORY_S,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["KERNELMARK_CACHE"] = f"{name}/cache"
        # As installed: without .pyc files each command compiles all of kernelmark again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        figures = measured(Path(name), quick=options.quick)
    found = bars(figures)
    print(evidence.bars_text(found))
    if not options.quick:
        title = "Outputs: plot, site and history"
        evidence.write(RESULTS, title=title, bars=found, figures=figures)
    return 0 if options.quick or all(holds for *_, holds in found) else 1


if __name__ == "__main__":
    sys.exit(main())
