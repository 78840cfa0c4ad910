"""Candidates a minute of a search on GEMMs of about 10 ms, and where the time goes.

    python benchmarks/gpu/tune_rate.py [--evaluations 150] [--jobs N]      about two minutes

Triton's candidates of a bf16 and of an f32 GEMM, through the real driver and worker. The rate is
that of the search: from its first to its last result, without the start of the processes and
without the final. Seconds by phase are those of the worker; what is left of a search's wall time is
the driver, and waiting for compilers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Finished
from kernelmark.tune import journal
from kernelmark.tune.driver import Driver, Live
from kernelmark.tune.evaluate import Request
from kernelmark.tune.plans import Acceptance, Budget, TunePlan
from kernelmark_dev import evidence

A_MINUTE = 300
RESULTS = Path(__file__).parent.parent / "results" / "gpu_tune_rate.json"
PROBLEMS = {
    "bf16": "gemm m=16384 n=16384 k=13312 a=bf16 b=bf16 tb=t",
    "f32": "gemm m=8192 n=8192 k=4096 dtype=f32",
}
_HARDLY = Acceptance(finalists=1, rounds=2, seeds=1, neighbours=0)  # only the search counts


class ClockedDriver(Driver):
    """A driver that sums up the seconds of a search's measurements by phase."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.phase_s: Counter[str] = Counter()

    def _on_timed(self, live: Live, request: Request, outcome: Finished) -> None:
        if request.step in live.session.steps:
            self.phase_s.update(outcome.value.cost)
        super()._on_timed(live, request, outcome)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=150, help="candidates of a search")
    parser.add_argument("--jobs", type=int, help="host cores to compile on")
    parser.add_argument("--only", choices=PROBLEMS, help="search this GEMM only")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write to")
    options = parser.parse_args()
    info = gpu_info()
    figures: dict[str, Any] = {"evaluations": options.evaluations}
    bars: list[tuple[str, str, bool]] = []
    for name, key in PROBLEMS.items():
        if options.only not in (None, name):
            continue
        figures[name] = search_figures(key, options.evaluations, options.jobs)
        for label, value in figures[name].items():
            print(f"{name:5} {label:12} {_compact(value)}", flush=True)
        rate, best_s = figures[name]["a_minute"], figures[name]["best_s"]
        bars.append(
            (
                f"at least {A_MINUTE} candidates a minute on a GEMM of 10 ms ({name})",
                f"{rate:.0f} a minute, best {1e3 * best_s:.1f} ms",
                rate >= A_MINUTE,
            )
        )
    evidence.write(
        options.json,
        title="Candidates a minute on GEMMs of 10 ms",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("triton"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


def search_figures(key: str, evaluations: int, jobs: int | None) -> dict[str, Any]:
    """Search a problem; return the rate, and what its trials and phases took."""
    plan = TunePlan(
        name="SLOW",
        problem=ops.parse(key),
        backend="triton",
        reference_backend="triton",
        budget=Budget(evaluations=evaluations),
        acceptance=_HARDLY,
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runner = LocalRunner(["cuda:0"], timeout_s=20, compile_timeout_s=60, jobs=jobs)
        driver = ClockedDriver([plan], runner, Path(folder))
        driver.run()
        wall_s = time.monotonic() - began
        _, trials, _ = journal.load_journal(Path(folder) / "SLOW.jsonl")
    search = [trial for trial in trials if trial.of_search]
    count = journal.candidates(search)
    # The first trial's end begins the clock, so its candidate does not count.
    span_s = search[-1].at - search[0].at
    timed = [trial for trial in search if trial.ok and not trial.is_cut]
    return {
        "problem": key,
        "candidates": count,
        "a_minute": 60 * (count - 1) / span_s,
        "search_s": span_s,
        "wall_s": wall_s,
        "best_s": min(trial.seconds for trial in timed if trial.seconds is not None),
        "jobs": runner.jobs,
        "trials": {
            f"{step} {status}": n
            for (step, status), n in Counter(map(_step_and_status, search)).items()
        },
        "trial_s": {
            step: statistics.fmean(t.cost_s for t in search if _step_and_status(t)[0] == step)
            for step in dict.fromkeys(_step_and_status(t)[0] for t in search)
        },
        "phase_s": dict(driver.phase_s),
    }


def _step_and_status(trial: journal.Trial) -> tuple[str, str]:
    return f"{trial.step} (cut off)" if trial.is_cut else trial.step, trial.status.value


def _compact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_compact(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
