"""Planted caches of a Triton autotuner, audited on a simulated device.

    python benchmarks/audit.py [--caches 20] [--ranks 8] [-o results.json]

A cache has 50 rows of one kernel. In one of them the recorded choice is slower than the default, as
a tuner that measures once picks it on a lucky moment; in 20 the fastest config has another that is
as fast. The other choices are the fastest. A cache is judged right if that row alone is called
slower than the default, and the stable file changes it alone, to one of the fastest configs.

Then every cache is audited on several ranks, each with noise of its own. They agree if all write
the same bytes. Beside it stands the tuner's own rule, the least of one measurement per config, on
the same ranks. The noise is that of `simulated.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelmark.api.tuner_audit import TunedFile, audit, contests, read_file, stable_text
from kernelmark.core.result import Case, Result
from kernelmark.runners.ab import Rule
from kernelmark.tune.recorded.audited import AuditPlan, AuditReport, RowVerdict
from kernelmark.tune.recorded.base import AuditFacts
from kernelmark_dev import evidence
from kernelmark_dev.results import make_result
from simulated import NOISES, Machine

RESULTS = Path(__file__).parent / "results" / "audit.json"
ROWS, TIED_ROWS = 50, 20
FASTEST = 1.005  # a config within this factor of the fastest is one of them
FLAGGED = (RowVerdict.SLOWER, RowVerdict.BEATEN, RowVerdict.FAILED)


class SimulatedWorker:
    """Measures a config as long as its `time_us` says, times the noise of a process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def ready(self) -> None:
        pass

    def measure(self, case: Case, process: int = 0) -> Result:
        times = self.machine.processes([0.0])[0] * float(case.config["time_us"]) * 1e-6
        return make_result(case, list(map(float, times)), device="fake")

    def close(self) -> None:
        pass


def planted(folder: Path, seed: int) -> tuple[list[Path], int]:
    """Write a cache; return its files, and which row has the slow choice."""
    draw = random.Random(seed)
    slow = draw.randrange(ROWS)
    tied = {*draw.sample([i for i in range(ROWS) if i != slow], TIED_ROWS)}
    files = []
    for i in range(ROWS):
        best = draw.uniform(20, 200)
        default = best * draw.uniform(1.1, 1.6)
        others = [best * draw.uniform(1.03, 2.0) for _ in range(3)]
        times = [default, best, *([best] if i in tied else []), *others]
        if i == slow:
            times.append(default * draw.uniform(1.05, 1.2))
        chosen = len(times) - 1 if i == slow else 1
        recorded = [1e-3 * us * (0.5 if at == chosen else 1.0) for at, us in enumerate(times)]
        pairs = [
            [{"kwargs": {"time_us": round(us, 4), "seed": at}}, [ms, ms, ms]]
            for at, (us, ms) in enumerate(zip(times, recorded, strict=True))
        ]
        path = folder / f"row{i}.autotune.json"
        key = [64 + i, 64, 64, "torch.float32", "torch.float32", "torch.float32"]
        path.write_text(json.dumps({"key": key, "configs_timings": pairs}))
        files.append(path)
    return files, slow


def audited(files: Sequence[TunedFile], plan: AuditPlan, noise: str, seed: int) -> AuditReport:
    """Audit the files on a simulated machine."""
    machine = Machine(NOISES[noise], np.random.default_rng(seed))
    planned = {str(file.path): contests(file.rows, plan) for file in files}
    return audit(files, plan, contested=planned, opener=lambda side: SimulatedWorker(machine))


def errors(report: AuditReport, slow: int) -> list[str]:
    """Return what is wrong with the verdicts on a planted cache."""
    wrong = []
    for i, row in enumerate(report.rows):
        if i == slow and row.verdict is not RowVerdict.SLOWER:
            wrong.append(f"row {i} is slow, and called {row.verdict}")
        if i != slow and (row.verdict in FLAGGED or row.is_changed):
            wrong.append(f"row {i} is good, and called {row.verdict}")
    row = report.rows[slow]
    times = {
        contender.config["time_us"]
        for contender in (row.row.choice, row.row.default, *row.row.others)
        if contender is not None
    }
    if row.stable is None or row.stable.config["time_us"] > FASTEST * min(times):
        wrong.append(f"row {slow} is changed to {row.stable}, which is not the fastest")
    return wrong


def once_each(files: Sequence[TunedFile], noise: str, seed: int) -> str:
    """Return the choices of a tuner that measures each config once."""
    machine = Machine(NOISES[noise], np.random.default_rng(seed))
    chosen = []
    for file in files:
        (row,) = file.rows
        configs = {c.key: c for c in (row.default, row.choice, *row.others) if c is not None}
        measured = {
            key: float(np.median(machine.processes([0.0])[0])) * float(c.config["time_us"])
            for key, c in configs.items()
        }
        chosen.append(min(measured, key=lambda key: measured[key]))
    return "\n".join(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--caches", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    begun = time.monotonic()
    plan = AuditPlan(
        device="fake", facts=AuditFacts(kernel="fake", key="gemm m,n,k"), alternatives=8
    )
    caches: list[dict[str, Any]] = []
    for seed in range(1, options.caches + 1):
        noise = list(NOISES)[seed % len(NOISES)]
        with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
            paths, slow = planted(Path(temporary), seed)
            files = [read_file(path, plan) for path in paths]
            reports = [audited(files, plan, noise, 1000 * seed + r) for r in range(options.ranks)]
            written = {"".join(stable_text(file, report) for file in files) for report in reports}
            naive = {once_each(files, noise, 1000 * seed + r) for r in range(options.ranks)}
        wrong = errors(reports[0], slow)
        counts = Counter(row.verdict.value for row in reports[0].rows)
        caches.append(
            {
                "noise": noise,
                "planted": slow,
                "wrong": wrong,
                "wrong_on_ranks": sum(bool(errors(report, slow)) for report in reports),
                "stable_files": len(written),
                "files_of_one_measurement": len(naive),
                "verdicts": dict(counts),
            }
        )
        print(
            f"cache {seed} ({noise}): {dict(counts)}; {len(written)} stable files of "
            f"{options.ranks} ranks, {len(naive)} of one measurement; {wrong or 'right'}",
            flush=True,
        )
    right = sum(not cache["wrong"] for cache in caches)
    agree = sum(cache["stable_files"] == 1 for cache in caches)
    naive_agree = sum(cache["files_of_one_measurement"] == 1 for cache in caches)
    audits = options.ranks * len(caches)
    wrong_audits = sum(cache["wrong_on_ranks"] for cache in caches)
    bars = [
        ("planted caches judged right: all", f"{right} of {len(caches)}", right == len(caches)),
        (
            f"caches of which {options.ranks} ranks write the same file: all",
            f"{agree} of {len(caches)}; by one measurement per config {naive_agree}",
            agree == len(caches),
        ),
    ]
    evidence.write(
        options.output,
        title="Planted caches of an autotuner, audited on a simulated device",
        bars=bars,
        figures={
            "rows": ROWS,
            "rows_with_ties": TIED_ROWS,
            "rounds": list(Rule().looks.rounds),
            "audits": audits,
            "audits_judged_right": audits - wrong_audits,
            "seconds": round(time.monotonic() - begun, 1),
            "caches": caches,
        },
    )
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
