"""How near to the optimum each strategy is after 25, 50, 100 and 200 evaluations, on spaces that
were measured exhaustively on real GPUs: kernelmark's strategies, Kernel Tuner's and Optuna's.

    python benchmarks/search.py --spaces FOLDER     writes benchmarks/results/search.json
    python benchmarks/search.py --quick             our default and random only, few seeds
    python benchmarks/search.py --prior             our default with a prior: search_prior.json

A search is simulated: one evaluation is one look-up. Every distinct legal configuration that a
strategy asks for is charged once, failed ones too; asking again is free, a restriction is free to
check. Quality = least time of the space / least time found so far. A strategy's figure is the mean
over the spaces of the median over seeds. Nobody is given a start or a default configuration.

With --prior, a search may start from what 100 evaluations on each of the same kernel's spaces of
other GPUs predict. Of the times that the package ships, a fifth of the shapes is left out in turn:
the figure is what the first configs reach that the others predict for them.

Finished searches are kept in a file (--partial), so that an interrupted run goes on where it was;
one made by other code (a hash of the sources, a library's version) is made again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmark.tune.strategies.base import ONE_AT_A_TIME, Pipeline

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
RESULTS = HERE / "results" / "search.json"
PARTIAL = REPOSITORY / "scratch" / "search" / "partial.jsonl"
BUDGETS = (25, 50, 100, 200)
OURS = "kernelmark kmark"
# "" is one at a time; the others are what `tune run` uses with 16 cores for one GPU.
PIPELINES = {
    "": ONE_AT_A_TIME,
    "live": Pipeline(pool=6, refill=5, lag=4),  # six problems at once
    "live, one problem": Pipeline(pool=8, refill=7, lag=5),
}
LIVE, LIVE_AT = 0.005, (50, 100)
RIVALS = ("kernel_tuner", "optuna", "pyatf")


@dataclass(frozen=True)
class Job:
    """One search."""

    contender: str  # "kernelmark kmark", "optuna tpe"
    space: str
    seed: int


@dataclass(frozen=True)
class Done:
    """What a search reached; `version` says which code made it."""

    contender: str
    space: str
    seed: int
    version: str
    quality: tuple[float, ...]
    evaluations: int
    seconds: float


def main() -> int:
    options = _options()
    folder = options.spaces
    if not folder.is_dir():
        print(f"no measured spaces in {folder}: give --spaces FOLDER or set KERNELMARK_SPACES")
        return 0
    try:
        libraries = {name: _rival(name).version() for name in _rivals(options)}
    except importlib.metadata.PackageNotFoundError as error:
        print(f"{error.name} is not installed: pip install 'kernelmark[bench]', or use --quick")
        return 2
    if options.prior:
        return prior(options)
    from kernelmark_dev import evidence

    spaces = sorted(p.name.removesuffix(".json") for p in folder.glob("*.json"))
    contenders = list(_contenders(options))
    began = time.perf_counter()
    done = _run(folder, list(_jobs(contenders, spaces, options)), options)
    table = aggregate(done, spaces)
    show(table, done, spaces)
    bars = bars_of(table)
    print("\n" + evidence.bars_text(bars))
    print(f"{time.perf_counter() - began:.0f} s")
    target = options.json or (None if options.quick or options.only else RESULTS)
    if target is not None:
        evidence.write(
            target,
            title="Quality of a search by number of evaluations, compared with other tuners",
            bars=bars,
            figures=figures_of(table, done, spaces),
            libraries=libraries,
        )
    return 0 if all(holds for _, _, holds in bars) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Search strategies on measured spaces")
    default = os.environ.get("KERNELMARK_SPACES") or REPOSITORY.parent / "shared/data/spaces"
    parser.add_argument("--spaces", type=Path, default=Path(default))
    parser.add_argument("--seeds", type=int, default=31)
    parser.add_argument("--slow-seeds", type=int, default=3, help="of strategies that take minutes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--partial", type=Path, default=PARTIAL)
    parser.add_argument("--only", nargs="+", default=[], help="contenders whose names have one")
    parser.add_argument("--quick", action="store_true", help="ours and random, 5 seeds")
    parser.add_argument("--prior", action="store_true", help="ours with a prior and without")
    parser.add_argument("--json", type=Path, help="file to write to")
    return parser.parse_args()


def _contenders(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Names, and whether a search takes minutes."""
    ours = ("kmark", "random") if options.quick else ("kmark", "local", "genetic", "random")
    names = [(f"kernelmark {name}", False) for name in ours]
    if not options.quick:
        names += [(f"{OURS} {pipeline}", False) for pipeline in PIPELINES if pipeline]
    for rival in _rivals(options):
        module = _rival(rival)
        names += [(f"{rival} {name}", name in module.SLOW) for name in module.NAMES]
    wanted = options.only or [""]
    yield from (n for n in names if n[0] == OURS or any(word in n[0] for word in wanted))


def _rivals(options: argparse.Namespace) -> Sequence[str]:
    own = options.only and all(word.startswith("kernelmark") for word in options.only)
    return () if options.quick or options.prior or own else RIVALS


def _jobs(
    contenders: Sequence[tuple[str, bool]], spaces: Sequence[str], options: argparse.Namespace
) -> Iterator[Job]:
    """Seed by seed, so that what is cut off has as many seeds of every space."""
    seeds = 5 if options.quick else options.seeds
    for seed in range(max(seeds, options.slow_seeds)):
        for contender, slow in contenders:
            if seed < (options.slow_seeds if slow else seeds):
                yield from (Job(contender, space, seed) for space in spaces)


def _rival(name: str) -> Any:
    return importlib.import_module(f"rivals.{name}")


def _run(folder: Path, jobs: Sequence[Job], options: argparse.Namespace) -> list[Done]:
    """The searches of `jobs`: those already in the partial file, and the others now."""
    versions = {c: _version(c) for c in {job.contender for job in jobs}}
    known = _read_partial(options.partial)
    done, missing = [], []
    for job in jobs:
        had = known.get(job)
        if had is not None and had.version == versions[job.contender]:
            done.append(had)
        else:
            missing.append(job)
    if not missing:
        return done
    print(f"{len(done)} searches are known, {len(missing)} to make", file=sys.stderr)
    options.partial.parent.mkdir(parents=True, exist_ok=True)
    # One thread a process: these matrices are small, and threads of two workers would fight.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    context = multiprocessing.get_context("spawn")
    with (
        options.partial.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
    ):
        waiting = [pool.submit(_search, folder, job, versions[job.contender]) for job in missing]
        for future in as_completed(waiting):
            made = future.result()
            done.append(made)
            file.write(json.dumps(asdict(made)) + "\n")
            file.flush()
    return done


def _read_partial(path: Path) -> dict[Job, Done]:
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            made = Done(**{**row, "quality": tuple(row["quality"])})
        except (json.JSONDecodeError, TypeError, KeyError):
            continue  # the line that was being written when the run was stopped
        known[Job(made.contender, made.space, made.seed)] = made
    return known


def _version(contender: str) -> str:
    """What a figure depends on: the sources of ours, or a library's version and how we drive it."""
    source, _, _ = contender.partition(" ")
    if source != "kernelmark":
        text = (HERE / "rivals" / f"{source}.py").read_bytes()
        return f"{_rival(source).version()} {hashlib.sha256(text).hexdigest()[:8]}"
    tune = REPOSITORY / "src" / "kernelmark" / "tune"
    files = sorted(tune.glob("strategies/*.py"))
    text = b"".join(p.read_bytes() for p in files if p.name != "__init__.py")
    return hashlib.sha256(text).hexdigest()[:12]


@lru_cache(maxsize=8)
def _space(path: Path) -> Any:
    from kernelmark.tune.simulate import read

    return read(path)


def _search(folder: Path, job: Job, version: str) -> Done:
    """One search, in a worker."""
    from kernelmark.tune.simulate import quality, simulate

    space = _space(folder / f"{job.space}.json")
    source, _, name = job.contender.partition(" ")
    budget = max(BUDGETS)
    began = time.process_time()
    if source == "kernelmark":
        from kernelmark.tune.strategies import registry

        strategy, *live = name.split()
        search = registry.get(strategy).begin(space.points, budget=budget, seed=job.seed)
        asked = simulate(space, search, budget, PIPELINES[" ".join(live)])
    else:
        asked = _rival(source).evaluations(space, name, job.seed, budget)
    seconds = time.process_time() - began
    return Done(
        **asdict(job),
        version=version,
        quality=tuple(round(quality(space, asked, n), 5) for n in BUDGETS),
        evaluations=len(asked),
        seconds=round(seconds, 3),
    )


Table = dict[str, tuple[float, ...]]


def aggregate(done: Sequence[Done], spaces: Sequence[str]) -> Table:
    """Of each contender: the mean over spaces of the median over seeds, at each budget."""
    medians = medians_of(done)
    return {
        contender: tuple(
            round(statistics.fmean(by_space[s][b] for s in spaces), 4) for b in range(len(BUDGETS))
        )
        for contender, by_space in medians.items()
        if all(s in by_space for s in spaces)
    }


def medians_of(done: Sequence[Done]) -> dict[str, dict[str, tuple[float, ...]]]:
    groups: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for one in done:
        groups[one.contender, one.space].append(one.quality)
    made: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
    for (contender, space), rows in groups.items():
        columns = zip(*rows, strict=True)
        made[contender][space] = tuple(statistics.median(column) for column in columns)
    return made


def bars_of(table: Table) -> list[tuple[str, str, bool]]:
    """Ours ahead of every rival at every budget."""
    bars = []
    rivals = {n: row for n, row in table.items() if not n.startswith("kernelmark ")}
    if not rivals:
        rivals = {n: row for n, row in table.items() if not n.startswith(OURS)}
    for b, budget in enumerate(BUDGETS if rivals else ()):
        best = max(rivals, key=lambda n: rivals[n][b])
        bars.append(
            (
                f"after {budget} evaluations ahead of every other strategy",
                f"{table[OURS][b]:.3f}, the best other one ({best}) {rivals[best][b]:.3f}",
                table[OURS][b] > rivals[best][b],
            )
        )
    for b, budget in enumerate(BUDGETS):
        for name in PIPELINES:
            live = f"{OURS} {name}".strip()
            if name and budget in LIVE_AT and live in table:
                lost = table[OURS][b] - table[live][b]
                asked = f"{name}: after {budget} evaluations within {LIVE} of one at a time"
                bars.append((asked, f"{table[live][b]:.3f}, {-lost:+.4f}", lost <= LIVE))
    return bars


def figures_of(table: Table, done: Sequence[Done], spaces: Sequence[str]) -> Mapping[str, Any]:
    medians = medians_of(done)
    seeds: dict[str, set[int]] = defaultdict(set)
    cost: dict[str, list[float]] = defaultdict(list)
    for one in done:
        seeds[one.contender].add(one.seed)
        cost[one.contender].append(1e3 * one.seconds / max(1, one.evaluations))
    order = sorted(table, key=lambda n: -sum(table[n]))
    return {
        "budgets": list(BUDGETS),
        "spaces": list(spaces),
        "strategies": {
            name: {
                "seeds": len(seeds[name]),
                "ms_per_proposal": round(statistics.fmean(cost[name]), 2),
                "mean_over_spaces": list(table[name]),
                "median_per_space": {s: list(medians[name][s]) for s in spaces},
            }
            for name in order
        },
    }


def show(table: Table, done: Sequence[Done], spaces: Sequence[str]) -> None:
    figures = figures_of(table, done, spaces)["strategies"]
    head = "".join(f"{b:>8}" for b in BUDGETS)
    print(f"{'mean over spaces of the median over seeds':44}{head}{'seeds':>8}{'ms':>9}")
    for name, row in figures.items():
        values = "".join(f"{v:>8.3f}" for v in row["mean_over_spaces"])
        print(f"{name:44}{values}{row['seeds']:>8}{row['ms_per_proposal']:>9.2f}")
    for space in spaces:
        print(f"\n{space:44}{head}")
        for name, row in figures.items():
            values = "".join(f"{v:>8.3f}" for v in row["median_per_space"][space])
            print(f"{name:44}{values}")


# -- with a prior

LEARNED = 100  # evaluations on each other GPU
FIRST = (1, 3, 10, 25, 50)
FOLDS = 5


def prior(options: argparse.Namespace) -> int:
    """Write what a prior gains: over GPUs on the measured spaces, over shapes on shipped times."""
    from kernelmark_dev import evidence

    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    groups: dict[str, list[str]] = defaultdict(list)
    for path in sorted(options.spaces.glob("*.json")):
        groups[path.stem.partition("-")[0]].append(path.stem)
    jobs = [
        (options.spaces, name, tuple(n for n in names if n != name), seed)
        for names in groups.values()
        if len(names) > 1
        for name in names
        for seed in range(options.seeds)
    ]
    rows: dict[str, list[dict[str, list[float]]]] = defaultdict(list)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for (_, name, _, _), row in zip(jobs, pool.map(_with_prior, jobs), strict=True):
            rows[name].append(row)
    spaces = {
        name: {
            kind: [
                round(statistics.median(c), 4) for c in zip(*(r[kind] for r in own), strict=True)
            ]
            for kind in ("cold", "prior")
        }
        for name, own in rows.items()
    }
    means = {
        kind: [
            round(statistics.fmean(c), 4)
            for c in zip(*(row[kind] for row in spaces.values()), strict=True)
        ]
        for kind in ("cold", "prior")
    }
    print(f"{'mean over spaces of the median':34}" + "".join(f"{n:>8}" for n in FIRST))
    for kind, values in means.items():
        print(f"{kind:34}" + "".join(f"{v:8.3f}" for v in values))
    shapes = left_out()
    for key, values in shapes.items():
        print(f"{key:34}" + "".join(f"{values[f'after_{n}']:8.3f}" for n in (1, 3)))
    third = [values["after_3"] for values in shapes.values()]
    bars = [
        (
            "shapes left out: ≥ .93 of the best after 3 candidates",
            ", ".join(f"{key} {v['after_3']:.3f}" for key, v in shapes.items()) or "none shipped",
            bool(third) and min(third) >= 0.93,
        ),
        (
            "other GPUs: with a prior ahead of without, after each number of evaluations",
            "; ".join(f"{kind} {values}" for kind, values in means.items()),
            all(p >= c for p, c in zip(means["prior"], means["cold"], strict=True)),
        ),
    ]
    print("\n" + evidence.bars_text(bars))
    evidence.write(
        options.json or RESULTS.with_name("search_prior.json"),
        title="Searches with a prior from other shapes and GPUs",
        bars=bars,
        figures={
            "evaluations": list(FIRST),
            "seeds": options.seeds,
            "mean_over_spaces": means,
            "median_per_space": spaces,
            "shapes_left_out": shapes,
        },
    )
    return 0 if all(holds for _, _, holds in bars) else 1


def _with_prior(job: tuple[Path, str, tuple[str, ...], int]) -> dict[str, list[float]]:
    """Quality after FIRST evaluations, without and with the searches of a seed on other GPUs."""
    from kernelmark.backends._memory import Searched
    from kernelmark.core.result import config_key
    from kernelmark.tune.simulate import quality, simulate
    from kernelmark.tune.strategies import registry

    folder, name, others, seed = job
    space, strategy = _space(folder / f"{name}.json"), registry.get("kmark")

    def evaluated(on: Any, budget: int, starts: Sequence[int] = ()) -> list[int]:
        search = strategy.begin(on.points, budget=budget, seed=seed, starts=starts)
        return simulate(on, search, budget)

    searches = []
    for other in others:
        there = _space(folder / f"{other}.json")
        timed = [(there.points.config(p), there.seconds(p)) for p in evaluated(there, LEARNED)]
        times = {config_key(c): (c, seconds) for c, seconds in timed if seconds is not None}
        searches.append(Searched(problem=_anything(), backend="x", arch=other, times=times))
    best = _predicted(searches, name, space.points)[:3]
    runs = {"cold": evaluated(space, max(FIRST)), "prior": evaluated(space, max(FIRST), best)}
    return {kind: [quality(space, run, n) for n in FIRST] for kind, run in runs.items()}


def _anything() -> Any:
    from kernelmark import ops

    return ops.parse("gemm m=1 n=1 k=1 dtype=f32")  # the same of all: only the GPUs differ


def _predicted(searches: Sequence[Any], arch: str, points: Any) -> list[int]:
    from kernelmark.backends._memory import predicted

    numbers = (points.index(config) for config, _ in predicted(_anything(), arch, searches))
    return [point for point in numbers if point is not None]


def left_out() -> dict[str, dict[str, Any]]:
    """By op and dtype: geometric mean of best / best of the first predicted, on shapes left out of
    the shipped times."""
    from kernelmark.backends import _memory, registry
    from kernelmark.core.result import config_key
    from kernelmark.gpu.architectures import absent

    shares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(_memory.SHIPPED.glob("*.json.gz")):
        searches = _memory.load(path)
        for number, search in enumerate(searches):
            rest = [s for other, s in enumerate(searches) if (other - number) % FOLDS]
            space = registry.get(search.backend).space(search.problem, absent(search.arch))
            assert space is not None
            configs = _memory.predicted(search.problem, search.arch, rest, space)
            keys = [config_key(config) for config, _ in configs]
            order = [search.times[key][1] for key in keys if key in search.times]
            best = min(seconds for _, seconds in search.times.values())
            kinds = search.problem.dtypes
            kind = f"{search.problem.op} {kinds.get('a') or kinds.get('q')} {search.arch}"
            for n in (1, 3) if order else ():
                shares[kind][n].append(best / min(order[:n]))
    return {
        kind: {
            "shapes": len(own[1]),
            **{f"after_{n}": round(statistics.geometric_mean(x), 4) for n, x in own.items()},
            "least_after_3": round(min(own[3]), 4),
        }
        for kind, own in sorted(shares.items())
    }


if __name__ == "__main__":
    sys.exit(main())
