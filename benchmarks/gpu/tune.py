"""The tuner on a GPU: tuned Triton beside cuBLASLt, our own defaults and torch's attention.

    python benchmarks/gpu/tune.py --folder F --part gemm [--minutes 4]       again until it is done
                                  --max-m 128: small products alone, before all of them
    python benchmarks/gpu/tune.py --folder F --part defaults [--minutes 4]   again until it is done
    python benchmarks/gpu/tune.py --folder F --part attention [--minutes 4]
    python benchmarks/gpu/tune.py --folder F --part strategies [--minutes 4]
    python benchmarks/gpu/tune.py --folder F --part report [-o results.json]

Every part is a tuning run over journals in F and goes on where it was cut off; `report` only reads
them. Winners are those of the product: timed in turns with the reference in fresh memory, right on
fresh inputs and on neighbouring sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.result import Case, Status
from kernelmark.core.units import time_text
from kernelmark.devices import registry
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.tune import journal
from kernelmark.tune import progress as e
from kernelmark.tune.driver import Driver
from kernelmark.tune.evaluate import final_timing
from kernelmark.tune.plans import Acceptance, Budget, TunePlan
from kernelmark.tune.results import Outcome
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_tune.json"
WEIGHTS = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (8192, 28672),
    (7168, 2048),
    (2048, 7168),
    (5120, 5120),
)
# Six sizes of each weight, dtypes in turn: 60 problems, 40 of them with m ≤ 128.
TOKENS = (16, 32, 64, 128, 512, 2048)
DTYPES = ("a=bf16 b=bf16", "a=f16 b=f16", "a=f8e4m3 b=f8e4m3 c=bf16")
ATTENTION = (
    "batch=1 heads=32 seq=2048",
    "batch=1 heads=32 seq=4096",
    "batch=4 heads=16 seq=8192",
    "batch=2 heads=32 seq=1024",
    "batch=8 heads=16 seq=2048",
    "batch=1 heads_q=32 heads_kv=8 seq=4096",
    "batch=2 heads_q=64 heads_kv=8 seq=2048",
)
CONTEST = "gemm m=64 n=6144 k=4096 a=bf16 b=bf16 tb=t"
STRATEGIES = ("kmark", "genetic", "random")
SEEDS = (1, 2, 3)
LOOKS = (25, 50, 100)
ROUNDS = 4  # of tuned and default in turns
_HARDLY = Acceptance(finalists=1, rounds=2, seeds=1, neighbours=0)  # only the search is looked at


def gemm_plans(evaluations: int) -> list[TunePlan]:
    plans = []
    for w, (n, k) in enumerate(WEIGHTS):
        for t, m in enumerate(TOKENS):
            kind = DTYPES[(w + t) % len(DTYPES)]
            plans.append(
                TunePlan(
                    name=f"GEMM_{len(plans)}",
                    problem=ops.parse(f"gemm m={m} n={n} k={k} {kind} tb=t"),
                    backend="triton",
                    reference_backend="cublaslt",
                    budget=Budget(evaluations=evaluations),
                )
            )
    return plans


def attention_plans(evaluations: int) -> list[TunePlan]:
    plans = []
    for shape in ATTENTION:
        for causal in ("no", "yes"):
            plans.append(
                TunePlan(
                    name=f"ATTN_{len(plans)}",
                    problem=ops.parse(f"attention {shape} dim=128 dtype=bf16 causal={causal}"),
                    backend="triton",
                    reference_backend="torch",
                    reference_config={"kernel": "flash"},
                    budget=Budget(evaluations=evaluations),
                )
            )
    return plans


def contest_plans(seed: int, evaluations: int) -> list[TunePlan]:
    """One plan a strategy. They are all open at once, so none starts from another's winner."""
    return [
        TunePlan(
            name=f"CONTEST_{strategy}_{seed}",
            problem=ops.parse(CONTEST),
            backend="triton",
            reference_backend="cublaslt",
            strategy=strategy,
            seed=seed,
            budget=Budget(evaluations=evaluations),
            acceptance=_HARDLY,
        )
        for strategy in STRATEGIES
    ]


def tune(folder: Path, plans: Sequence[TunePlan], minutes: float, jobs: int | None) -> None:
    """Run the plans; how many candidates a minute it did is kept beside the journals."""
    last: list[e.TuneProgress] = []
    told = time.monotonic()
    fresh = 0

    def tell(event: e.Event) -> None:
        nonlocal told, fresh
        if isinstance(event, e.Ended):
            if event.fresh:
                print(f"{event.outcome.name}: {event.outcome.reason}", flush=True)
        elif isinstance(event, e.Evaluated):
            last[:] = [event.progress]
            own = not event.trial.backend and not event.trial.problem
            fresh += own and event.trial.step in ("compile", "short")
            if time.monotonic() - told > 15:
                told = time.monotonic()
                print(_far(event), flush=True)
        elif not isinstance(event, e.Began):
            print(event, flush=True)

    start = time.monotonic()
    runner = LocalRunner(["cuda:0"], timeout_s=20, compile_timeout_s=60, jobs=jobs)
    driver = Driver(plans, runner, folder / "trials", minutes=minutes, on_event=tell)
    driver.run()
    if last:
        spent = time.monotonic() - start
        with (folder / "rates.jsonl").open("a") as file:
            row = {"part": plans[0].name.split("_")[0], "jobs": runner.jobs, "seconds": spent}
            file.write(json.dumps({**row, "candidates": fresh, "a_minute": 60 * fresh / spent}))
            file.write("\n")
        print(_told(last[0]))
    left = len(plans) - len(driver.outcomes) - len(driver.retired)
    print(f"{len(driver.outcomes)} plans done, {len(driver.retired)} retired, {left} to go")


def _far(event: e.Evaluated) -> str:
    best = "nothing yet" if event.best_s is None else time_text(event.best_s)
    return f"{_told(event.progress)}; {event.name}: {best}"


def _told(progress: e.TuneProgress) -> str:
    return (
        f"{progress.plans_done}/{progress.plans} plans, {progress.candidates_done} candidates, "
        f"{progress.per_minute:.0f} a minute"
    )


def against_defaults(folder: Path, plans: Sequence[TunePlan], minutes: float) -> None:
    """Each winner in turns with our own default, ABBA, in one worker."""
    place = folder / "defaults.json"
    found: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    deadline = time.monotonic() + 60 * minutes
    runner = LocalRunner(["cuda:0"], timeout_s=20)
    pool = runner.pool()
    try:
        for plan in plans:
            outcome = outcome_of(folder, plan.name)
            if plan.name in found or outcome is None or not outcome.tuned.config:
                continue
            if time.monotonic() > deadline:
                break
            times: dict[str, list[float]] = {"default": [], "tuned": []}
            bad = ""
            for number in range(ROUNDS):
                sides = [("default", {}), ("tuned", outcome.tuned.config)]
                for name, config in sides if number % 2 == 0 else sides[::-1]:
                    timing = final_timing(runner.infos[0], 2001 + number // 2)
                    case = Case(
                        problem=plan.problem, backend="triton", config=config, timing=timing
                    )
                    result = pool.call(MeasureCase(case=case))
                    if result.status is Status.OK and result.measurement is not None:
                        times[name].append(result.measurement.median_s)
                    else:
                        bad = f"{name} is {result.status}: {result.error[:200]}"
            ratios = [d / t for d, t in zip(times["default"], times["tuned"], strict=False)]
            found[plan.name] = {"ratio": statistics.median(ratios) if ratios else None, "bad": bad}
            place.write_text(json.dumps(found, indent=1))
            print(plan.name, found[plan.name], flush=True)
    finally:
        pool.close()
    print(f"{len(found)} of {len(plans)} winners compared with the default")


def outcome_of(folder: Path, name: str) -> Outcome | None:
    path = folder / "trials" / f"{name}.jsonl"
    return journal.read_journal(path)[2] if path.exists() else None


def curve(folder: Path, name: str) -> list[float]:
    """Best time so far after each candidate, in the order the search met them."""
    path = folder / "trials" / f"{name}.jsonl"
    if not path.exists():
        return []
    best: list[float] = []
    seen: set[str] = set()
    for trial in journal.read_journal(path)[1]:
        if trial.backend or trial.problem or trial.step not in ("compile", "short", "full"):
            continue
        text = json.dumps(dict(trial.config), sort_keys=True)
        least = min(
            best[-1] if best else math.inf, (trial.seconds or math.inf) if trial.ok else math.inf
        )
        if text in seen:
            best[-1] = least
        else:
            seen.add(text)
            best.append(least)
    return best


def contest(folder: Path) -> dict[str, Any]:
    """Strategies on one live space: the best of each after so many candidates, relative to the
    best that any of them found, as a median over seeds."""
    curves = {
        (strategy, seed): curve(folder, f"CONTEST_{strategy}_{seed}")
        for strategy in STRATEGIES
        for seed in SEEDS
    }
    curves = {key: one for key, one in curves.items() if one}
    if not curves:
        return {}
    optimum = min(one[-1] for one in curves.values())
    return {
        strategy: {
            str(look): statistics.median(
                optimum / one[min(look, len(one)) - 1]
                for (name, _), one in curves.items()
                if name == strategy
            )
            for look in LOOKS
        }
        for strategy in dict.fromkeys(name for name, _ in curves)
    }


def geomean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan


def row_of(plan: TunePlan, outcome: Outcome) -> dict[str, Any]:
    return {
        "plan": plan.name,
        "problem": plan.problem.key,
        "reference_us": _number(outcome.reference.median_s * 1e6),
        "tuned_us": _number(outcome.tuned.median_s * 1e6),
        "ratio": _number(outcome.ratio),
        "low": _number(outcome.low),
        "high": _number(outcome.high),
        "config": dict(outcome.tuned.config),
        "verified": outcome.tuned.verified,
        "kept": outcome.kept,
        "reason": outcome.reason,
        "evaluations": outcome.evaluations,
    }


def _number(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def report(folder: Path, output: Path, evaluations: int) -> None:
    gemm = _rows(folder, gemm_plans(evaluations))
    attention = _rows(folder, attention_plans(evaluations))
    place = folder / "defaults.json"
    defaults = json.loads(place.read_text()) if place.exists() else {}
    rates = folder / "rates.jsonl"
    runs = [json.loads(x) for x in rates.read_text().splitlines()] if rates.exists() else []
    figures = {
        "gemm": gemm,
        "attention": attention,
        "against_default": {name: one["ratio"] for name, one in defaults.items()},
        "strategies": contest(folder),
        "rates": runs,
        "commands": (folder / "commands.txt").read_text().splitlines(),
    }
    info = registry.get("cuda").infos()
    bars = _bars(figures)
    evidence.write(
        output,
        title="The tuner on a GPU",
        bars=bars,
        figures=figures,
        device=info[0] if info else None,
    )
    print(json.dumps(figures["strategies"], indent=1))
    print(evidence.bars_text(bars))


def _rows(folder: Path, plans: Sequence[TunePlan]) -> list[dict[str, Any]]:
    found = ((plan, outcome_of(folder, plan.name)) for plan in plans)
    return [row_of(plan, outcome) for plan, outcome in found if outcome is not None]


def _bars(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    gemm, attention = figures["gemm"], figures["attention"]
    ratios = {r["plan"]: r["ratio"] for r in gemm if r["ratio"]}
    few = [r["ratio"] for r in gemm if r["ratio"] and ops.parse(r["problem"]).dims["m"] <= 128]
    default = [ratio for ratio in figures["against_default"].values() if ratio]
    flash = [r["ratio"] for r in attention if r["ratio"]]
    candidates = sum(run["candidates"] for run in figures["rates"] if run["part"] == "GEMM")
    seconds = sum(run["seconds"] for run in figures["rates"] if run["part"] == "GEMM")
    rate = 60 * candidates / seconds if seconds else 0.0
    wrong = [r["plan"] for r in [*gemm, *attention] if not r["verified"]]
    ours = figures["strategies"].get("kmark", {})
    others = [one for name, one in figures["strategies"].items() if name != "kmark"]
    ahead = bool(ours and others) and all(
        ours[look] >= max(other[look] for other in others) for look in ours
    )
    n = len(ratios)

    def bar(asked: str, value: float, least: float, count: int) -> tuple[str, str, bool]:
        return asked, f"{value:.3f} ({count} problems)", value >= least

    return [
        bar("tuned ≥ 1.0 × cuBLASLt, geomean, m ≤ 128", geomean(few), 1.0, len(few)),
        bar("tuned ≥ 0.95 × cuBLASLt, geomean", geomean(list(ratios.values())), 0.95, n),
        bar("tuned ≥ 1.15 × our default, geomean", geomean(default), 1.15, len(default)),
        bar("attention ≥ 1.3 × torch flash, d = 128", geomean(flash), 1.3, len(flash)),
        ("≥ 150 candidates a minute, all told", f"{rate:.0f} a minute", rate >= 150),
        ("every winner verified", f"{len(wrong)} are not: {', '.join(wrong) or '-'}", not wrong),
        ("ours ahead of GA and random, same space and budget", _contest_text(figures), ahead),
    ]


def _contest_text(figures: dict[str, Any]) -> str:
    looks = ", ".join(map(str, LOOKS))
    told = (
        f"{name} {', '.join(f'{share:.3f}' for share in shares.values())}"
        for name, shares in figures["strategies"].items()
    )
    return f"of the best found, after {looks} candidates: {'; '.join(told)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parts = ("gemm", "defaults", "attention", "strategies", "report")
    parser.add_argument("--part", choices=parts, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--limit", type=int, default=1000, help="problems of the part")
    parser.add_argument("--max-m", type=int, default=10**9, help="rows of A, in the part gemm")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.part != "report":
        gpu_info()
    given.folder.mkdir(parents=True, exist_ok=True)
    with (given.folder / "commands.txt").open("a") as file:
        file.write(f"{evidence.command()}\n")
    count = given.evaluations
    if given.part == "gemm":
        plans = [p for p in gemm_plans(count) if p.problem.dims["m"] <= given.max_m]
        tune(given.folder, plans[: given.limit], given.minutes, given.jobs)
    elif given.part == "attention":
        tune(given.folder, attention_plans(count)[: given.limit], given.minutes, given.jobs)
    elif given.part == "strategies":
        deadline = time.monotonic() + 60 * given.minutes
        for seed in SEEDS:
            left = (deadline - time.monotonic()) / 60
            if left > 0:
                tune(given.folder, contest_plans(seed, max(LOOKS)), left, given.jobs)
    elif given.part == "defaults":
        against_defaults(given.folder, gemm_plans(count)[: given.limit], given.minutes)
    else:
        report(given.folder, given.output, count)


if __name__ == "__main__":
    main()
