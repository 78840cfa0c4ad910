"""What tuning IREE's lowering configs gains on this CPU, and whether its specs are applied.

Gain: GEMMs, convolutions and attentions, each tuned against the fastest of what iree-compile makes
of it without a spec: without flags, with packed operands, and with peeled loops; of a convolution
also the named op with the other order of filters (hwcf), and im2col. These sides are timed first,
and the fastest one that is a config is the tuner's reference. A problem that is not kept counts as
1. Beside it is the gain over iree-compile without flags, where a convolution is the named op, and
what the flags of the exported file gain without its spec.
Reproduction: iree-compile makes every module without and with the exported spec and the flags of
its file, and iree-benchmark-module, in processes of its own, times them in turns, with hot caches.
Candidates: how many compile, on the CPU as tuned and for AMD GPUs as a sample, and how many
dispatches come out with the spec's config.

    taskset -c 1 python benchmarks/iree_tune.py --folder F [--evaluations 14] [--quick]

On one core times are CPU times, which other processes disturb little. A folder keeps the times and
journals: the same command goes on where it was interrupted. --unseen takes 60 random problems of
another seed than any that the search was made with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmark.core.immutable import FrozenDict

if TYPE_CHECKING:
    from kernelmark.backends.iree.targets import Target
    from kernelmark.core.problem import Problem
    from kernelmark.core.result import Config
    from kernelmark.tune.plans import TunePlan
    from kernelmark.tune.results import Outcome

RESULTS = Path(__file__).resolve().parent / "results"
GAIN_AT_LEAST = 1.3
COMPILE_AT_LEAST = 0.9
LISTED = 1000
LISTED_S = 2.0
# A ratio in a fresh process may be this much lower than the one that was tuned.
REPRODUCED = 0.9
ROUNDS = 6
PLAIN_ROUNDS = 2
IREE_DEFAULT = {"data_tiling": False}
PACKED = {"data_tiling": True}
NAMED_CONV = {**IREE_DEFAULT, "im2col": False, "hwcf": False}
_PEEL = (
    "--iree-llvmcpu-vector-pproc-strategy=peel",
    "--iree-llvmcpu-reassociate-fp-reductions=true",
)
_SEED = 45

_GEMMS = (
    *((m, n, k, "nn") for m, n, k in ((64, 64, 64), (128, 128, 128), (256, 256, 256))),
    *((m, n, k, "nn") for m, n, k in ((96, 96, 96), (100, 100, 100), (200, 200, 200))),
    *((m, 512, 256, "nn") for m in (16, 32, 64, 128, 250)),
    *((m, 256, 512, "nn") for m in (24, 48, 100)),
    *((384, 384, 384, "nn"), (320, 192, 448, "nn"), (130, 70, 260, "nn"), (77, 99, 131, "nn")),
    *((m, m, m, "nt") for m in (64, 100, 128, 200, 256)),
    *((m, 512, 256, "nt") for m in (16, 64, 128)),
    *((m, m, m, "tn") for m in (96, 128, 250)),
    (160, 320, 80, "tn"),
)
_CONVS = (
    *((1, 16, 28, 32, 3, "nhwc"), (1, 32, 28, 32, 3, "nhwc"), (1, 64, 14, 64, 3, "nhwc")),
    *((2, 32, 14, 64, 3, "nhwc"), (1, 64, 28, 128, 1, "nhwc"), (1, 3, 56, 32, 7, "nhwc")),
    *((1, 16, 28, 32, 3, "nchw"), (1, 32, 28, 64, 3, "nchw"), (1, 64, 14, 64, 3, "nchw")),
    (1, 64, 28, 64, 1, "nchw"),
)
_ATTENTIONS = ((2, 128, 32), (4, 128, 64), (2, 256, 64), (4, 200, 64), (4, 256, 64), (2, 384, 32))
_AMD = (
    ("gfx90a", "gemm m=1024 n=1024 k=1024 dtype=f16"),
    ("gfx942", "gemm m=1024 n=2048 k=512 dtype=f16 tb=t"),
    ("gfx942", "gemm m=1024 n=1024 k=1024 dtype=f8e4m3fnuz tb=t"),
    ("gfx942", "conv n=2 c=1280 h=34 w=34 k=1280 r=3 s=3 dtype=f16 layout=nhwc"),
    ("gfx942", "attention heads=8 seq=1024 dim=64 dtype=f16"),
    ("gfx950", "gemm m=1024 n=1024 k=1024 dtype=f8e4m3 tb=t"),
    ("gfx950", "conv n=2 c=256 h=34 w=34 k=256 r=3 s=3 dtype=f16 layout=nhwc"),
    ("gfx950", "attention heads=8 seq=1024 dim=128 dtype=f16"),
)


def unseen_keys() -> list[str]:
    """Return 26 GEMMs, 24 convolutions of both layouts and 10 attentions, random and shuffled."""
    draw, keys = random.Random(_SEED), []
    for _ in range(26):
        m, n, k = (draw.choice((draw.randint(9, 420), 8 * draw.randint(2, 50))) for _ in "mnk")
        ta, tb = draw.choice(("nn", "nn", "nn", "nt", "tn"))
        keys.append(f"gemm m={m} n={n} k={k} ta={ta} tb={tb} dtype=f32")
    for number in range(24):
        r, stride = draw.choice((1, 3, 3, 3, 5)), draw.choice((1, 1, 2))
        size, layout = draw.randint(max(r, 12), 44), ("nhwc", "nhwc", "nchw")[number % 3]
        c, k = draw.choice((3, 16, 24, 40, 48, 64)), 8 * draw.randint(2, 12)
        images = draw.choice((1, 1, 2)) if layout == "nhwc" else 1
        keys.append(
            f"conv n={images} c={c} h={size} w={size} k={k} r={r} s={r} "
            f"pad={draw.choice((0, r // 2))} stride={stride} dtype=f32 layout={layout}"
        )
    for _ in range(10):
        heads, seq, dim = draw.randint(2, 6), draw.randint(90, 320), 8 * draw.randint(4, 10)
        keys.append(f"attention heads={heads} seq={seq} dim={dim} dtype=f32")
    keys = list(dict.fromkeys(keys))
    draw.shuffle(keys)
    return keys


def problem_keys() -> list[str]:
    gemms = [
        f"gemm m={m} n={n} k={k} ta={letters[0]} tb={letters[1]} dtype=f32"
        for m, n, k, letters in _GEMMS
    ]
    convs = [
        f"conv n={n} c={c} h={size} w={size} k={k} r={r} s={r} pad={r // 2} "
        f"dtype=f32 layout={layout}"
        for n, c, size, k, r, layout in _CONVS
    ]
    attentions = [
        f"attention heads={heads} seq={seq} dim={dim} dtype=f32" for heads, seq, dim in _ATTENTIONS
    ]
    return [*gemms, *convs, *attentions]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, help="journals and the spec; default: temporary")
    parser.add_argument("--evaluations", type=int, default=14, help="candidates of each problem")
    parser.add_argument("--amd", type=int, default=5, help="candidates of each AMD problem")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--unseen", action="store_true", help="60 other problems")
    parser.add_argument("--count", type=int, help="only the first N problems")
    parser.add_argument("--quick", action="store_true", help="few problems; writes no file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        return run(given, given.folder or Path(place))


def run(given: argparse.Namespace, folder: Path) -> int:
    from kernelmark import backends, ops
    from kernelmark_dev import evidence

    if reason := backends.registry.get("iree").available():
        print(reason)
        return 2
    keys = unseen_keys() if given.unseen else problem_keys()
    keys = [keys[1], keys[20], keys[31], keys[-4]] if given.quick else keys
    keys = keys[: given.count]
    folder.mkdir(parents=True, exist_ok=True)
    problems = [ops.parse(key) for key in keys]
    plain = [plain_times(problem, folder) for problem in problems]
    outcomes, candidates = tuned(problems, plain, folder, given.evaluations)
    spec = exported(outcomes, folder)
    again = {
        outcome.name: reproduced(outcome, times, spec, folder)
        for outcome, times in zip(outcomes, plain, strict=True)
    }
    amd = [compiled(arch, key, 1 if given.quick else given.amd) for arch, key in _AMD]
    listed_s = listing_s()
    rows = [_row(outcome, again[outcome.name]) for outcome in outcomes]
    figures = {
        "problems": rows,
        "geomean_by_op": _by_op(rows, "gain"),
        "over_no_flags_by_op": _by_op(rows, "over_no_flags"),
        "flags": spec["flags"],
        "flags_alone_by_op": _by_op(rows, "flags_alone"),
        "timer": "cpu time" if len(os.sched_getaffinity(0)) == 1 else "wall time",
        "cpu_candidates": candidates,
        "amd": amd,
        "listed_s": round(listed_s, 3),
        "evaluations": given.evaluations,
    }
    bars = judged(rows, spec, candidates, amd, listed_s)
    print(evidence.bars_text(bars))
    if disturbed := [outcome.name for outcome in outcomes if outcome.disturbed]:
        print(f"{len(disturbed)} finals were disturbed: run it again with --folder {folder}")
    if not given.quick:
        name = "iree_tune_unseen.json" if given.unseen else "iree_tune.json"
        evidence.write(
            given.output or RESULTS / name,
            title="Tuned lowering configs of IREE" + ", unseen problems" * given.unseen,
            bars=bars,
            figures=figures,
            libraries=evidence.libraries("iree"),
        )
    return 0


def plain_sides(problem: Problem) -> dict[str, tuple[dict[str, bool], tuple[str, ...]]]:
    """Return the config and the further flags of each way to compile a problem without a spec; the
    first is iree-compile without flags."""
    if problem.op == "attention":
        return {"none": (IREE_DEFAULT, ()), "peel": (IREE_DEFAULT, _PEEL)}
    if problem.op == "gemm":
        return {"none": (IREE_DEFAULT, ()), "packed": (PACKED, ()), "peel": (IREE_DEFAULT, _PEEL)}
    other = {**IREE_DEFAULT, "hwcf": True} if problem.dims["r"] > 1 else IREE_DEFAULT
    return {
        "none": (NAMED_CONV, ()),
        "hwcf" if problem.dims["r"] > 1 else "im2col": (other, ()),
        "im2col packed": ({**PACKED, "im2col": True}, ()),
    }


def plain_times(problem: Problem, folder: Path) -> dict[str, float]:
    """Return milliseconds of each side, the median of some turns; kept in the folder."""
    name = f"{problem.op}_{hashlib.sha256(problem.key.encode()).hexdigest()[:12]}"
    kept = folder / f"{name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    binaries = {
        side: _compile(problem, config, flags, folder / f"{name}.{side}.vmfb".replace(" ", "_"))
        for side, (config, flags) in plain_sides(problem).items()
    }
    ms = _in_turns(binaries, problem, PLAIN_ROUNDS)
    kept.write_text(json.dumps(ms))
    print(problem.key, {side: round(each, 4) for side, each in ms.items()}, flush=True)
    return ms


def _compile(
    problem: Problem, config: Mapping[str, bool], flags: Sequence[str], binary: Path
) -> Path:
    """Compile the problem's module in the config's form; flags are the target's and `flags`."""
    module = _written(binary.with_suffix(".mlir"), problem, FrozenDict(config))
    packing = ["--iree-opt-data-tiling=true"] if config["data_tiling"] else []
    command = [_tool("iree-compile"), module, *_cpu().flags, *packing, *flags]
    subprocess.run([*command, "-o", binary], check=True)
    return binary


def _in_turns(binaries: Mapping[str, Path], problem: Problem, turns: int) -> dict[str, float]:
    """Return the median milliseconds of each binary, timed in turns."""
    times: dict[str, list[float]] = {side: [] for side in binaries}
    for turn in range(turns):
        for side in sorted(binaries, reverse=bool(turn % 2)):
            times[side].append(_benchmark(binaries[side], _inputs(problem)))
    return {side: statistics.median(each) for side, each in times.items()}


def tuned(
    problems: Sequence[Problem],
    plain: Sequence[Mapping[str, float]],
    folder: Path,
    evaluations: int,
) -> tuple[list[Outcome], dict[str, int]]:
    """Tune all, and count the candidates by what became of them."""
    from kernelmark.runners.local import LocalRunner
    from kernelmark.tune import journal
    from kernelmark.tune.driver import Driver
    from kernelmark.tune.progress import Ended

    plans = [
        _plan(i, problem, evaluations, _reference(problem, ms))
        for i, (problem, ms) in enumerate(zip(problems, plain, strict=True))
    ]
    driver = Driver(
        plans,
        LocalRunner(["cpu"]),
        folder / "trials",
        on_event=lambda event: _tell(event.outcome) if isinstance(event, Ended) else None,
    )
    driver.run()
    statuses: dict[str, int] = {}
    for plan in plans:
        _, trials, _ = journal.read_journal(folder / "trials" / f"{plan.name}.jsonl")
        for trial in trials:
            if trial.step == "look" and not trial.backend and not trial.problem:
                statuses[trial.status.value] = statuses.get(trial.status.value, 0) + 1
    return [driver.outcomes[plan.name] for plan in plans if plan.name in driver.outcomes], statuses


def _tell(outcome: Outcome) -> None:
    kept = "kept" if outcome.kept else "default"
    print(f"{outcome.problem.key}: {outcome.ratio:.3f} x {kept}: {outcome.reason}", flush=True)


def _reference(problem: Problem, ms: Mapping[str, float]) -> dict[str, bool]:
    """Return the config of the fastest side; attention has the flags of peeled loops as config."""
    sides = plain_sides(problem)
    side = min((s for s in ms if not sides[s][1] or problem.op == "attention"), key=ms.__getitem__)
    config, flags = sides[side]
    return {**config, "peel": True, "reassociate": True} if flags else config


def _written(module: Path, problem: Problem, config: Config) -> str:
    """Write the problem's module in the config's form; its path."""
    from kernelmark.backends.iree import choices

    choice = choices.choose(problem, config, _cpu())
    module.write_text(choices.source(problem, choice), encoding="utf-8")
    return str(module)


def _inputs(problem: Problem) -> list[str]:
    from kernelmark import ops

    tensors = ops.registry.get(problem.op).tensors(problem)
    return ["x".join([*map(str, one.shape), one.dtype]) for one in tensors]


def _tool(name: str) -> str:
    """IREE's program of this interpreter's environment, else that of the PATH."""
    here = Path(sys.executable).parent / name
    return str(here) if here.exists() else name


def _cpu() -> Target:
    from kernelmark.backends.iree.targets import target
    from kernelmark.core.environment import DeviceInfo

    cpu = target(DeviceInfo(name="cpu", kind="cpu", model="", arch=""))
    assert cpu is not None
    return cpu


def _plan(number: int, problem: Problem, evaluations: int, default: dict[str, bool]) -> TunePlan:
    from kernelmark.tune.plans import Acceptance, Budget, TunePlan

    attention = problem.op == "attention"
    more = 2 if attention else 1  # two GEMMs have twice the tiles
    # Flags of the whole module, on which the winners of one file have to agree.
    flags = {"peel": (True,), "reassociate": (True,)} if attention else {}
    return TunePlan(
        name=f"{problem.op.upper()}_{number}",
        problem=problem,
        backend="iree",
        reference_backend="iree",
        reference_config=FrozenDict(default),
        space=FrozenDict(flags),
        budget=Budget(evaluations=more * evaluations),
        acceptance=Acceptance(finalists=2, neighbours=1),
    )


def exported(outcomes: Sequence[Outcome], folder: Path) -> dict[str, Any]:
    """Write the winners' spec, which compiles each of them; what was kept and what was applied."""
    from kernelmark.backends.iree.compiler import spec_flags
    from kernelmark.backends.iree.spec import parse_spec
    from kernelmark.tune.install.emitters.iree_spec import emitter, file_flags

    path = folder / "tuned.mlir"
    path.unlink(missing_ok=True)
    change = emitter.emit(outcomes, path, {})
    for edit in change.edits:
        path.write_text(edit.after, encoding="utf-8")
    held = {one.name: one.reason for one in change.skipped}
    kept = sum(outcome.kept for outcome in outcomes)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    flags = file_flags(parse_spec(text)) if text else ()
    return {
        "path": path,
        "kept": kept,
        "applied": len(change.winners),
        "held": held,
        "flags": list(flags),
        "spec_flags": [*flags, *spec_flags(text, path)] if text else [],
    }


def reproduced(
    outcome: Outcome, plain: Mapping[str, float], spec: dict[str, Any], folder: Path
) -> dict[str, float]:
    """Return milliseconds in turns: the fastest `plain` side, `none`, and of a winner in the file
    `spec` and `flags`, those of the file without the spec. The spec gets what a model has, the
    named op of a convolution."""
    problem, sides = outcome.problem, plain_sides(outcome.problem)
    best = min(plain, key=plain.__getitem__)
    config, flags = sides[best]
    binaries = {"plain": _compile(problem, config, flags, folder / f"{outcome.name}.plain.vmfb")}
    form, _ = sides["none"]
    model = {**form, "data_tiling": False}
    binaries["none"] = _compile(problem, model, (), folder / f"{outcome.name}.none.vmfb")
    if outcome.kept and outcome.name not in spec["held"]:
        for side, given in (("flags", spec["flags"]), ("spec", spec["spec_flags"])):
            binary = folder / f"{outcome.name}.{side}.vmfb"
            binaries[side] = _compile(problem, model, given, binary)
    return _in_turns(binaries, problem, ROUNDS)


def _benchmark(binary: Path, inputs: Sequence[str]) -> float:
    """Milliseconds by IREE's own benchmark: of CPU time on one core, else of real time."""
    alone = len(os.sched_getaffinity(0)) == 1
    device = "local-sync" if alone else "local-task"
    done = subprocess.run(
        [
            *(_tool("iree-benchmark-module"), f"--module={binary}", f"--device={device}"),
            *("--function=main", "--benchmark_format=json", "--benchmark_min_time=0.1s"),
            *(f"--input={one}=1" for one in inputs),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["benchmarks"][0]["cpu_time" if alone else "real_time"])


def compiled(arch: str, key: str, count: int) -> dict[str, Any]:
    """How many of a sample of AMD candidates compile, and have the spec's config."""
    from kernelmark import ops
    from kernelmark.backends.iree import choices, compiler
    from kernelmark.backends.iree.targets import target
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.tune.strategies.base import Points

    problem = ops.parse(key)
    goal = target(DeviceInfo(name="hip:0", kind="hip", model="", arch=arch))
    assert goal is not None
    space = choices.space(problem, goal)
    assert space is not None, key
    points = Points.of(space)
    made: dict[str, Any] = {"arch": arch, "problem": key, "legal": len(points)}
    made |= {"candidates": 0, "compiled": 0, "applied": 0, "errors": []}
    for point in random.Random(1).sample(range(len(points)), min(count, len(points))):
        made["candidates"] += 1
        choice = choices.choose(problem, points.config(point), goal)
        try:
            made["applied"] += not choices.unapplied(problem, choice, choice.spec)
            compiler.run_compiler(choices.source(problem, choice), choice.flags, choice.spec)
            made["compiled"] += 1
        except KernelmarkError as error:
            made["errors"].append(error.message.splitlines()[0])
    return made


def listing_s() -> float:
    """Seconds to list, check and write the attributes of 1,000 candidates, the slower device."""
    from kernelmark import ops
    from kernelmark.backends.iree import choices
    from kernelmark.backends.iree.targets import target
    from kernelmark.core.environment import DeviceInfo

    longest = 0.0
    for kind, arch, key in (("cpu", "", problem_keys()[2]), ("hip", *_AMD[1])):
        start = time.perf_counter()
        goal, problem = (
            target(DeviceInfo(name=kind, kind=kind, model="", arch=arch)),
            ops.parse(key),
        )
        assert goal is not None
        space = choices.space(problem, goal)
        assert space is not None
        made = 0
        for config in space:
            made += bool(choices.choose(problem, config, goal).entries)
            if made == LISTED:
                break
        assert made == LISTED, made
        longest = max(longest, time.perf_counter() - start)
    return longest


def _by_op(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    ops = dict.fromkeys(row["problem"].split()[0] for row in rows)
    return {
        op: round(geomean([row[name] for row in rows if row["problem"].startswith(f"{op} ")]), 4)
        for op in ops
    }


def _row(outcome: Outcome, ms: dict[str, float]) -> dict[str, Any]:
    from kernelmark.core.reason import Reason

    spec = ms.get("spec")
    # The fastest side was chosen by few turns: plain iree-compile may be faster in these.
    plain = min(ms["plain"], ms["none"], ms.get("flags", math.inf))
    return {
        "problem": outcome.problem.key,
        "kept": outcome.kept,
        "ratio": round(outcome.ratio, 4),
        "low": round(outcome.low, 4),
        "high": round(outcome.high, 4),
        "default_us": round(outcome.reference.median_s * 1e6, 2),
        "tuned_us": round(outcome.tuned.median_s * 1e6, 2),
        "gain": round(plain / spec, 4) if spec else 1.0,
        "over_no_flags": round(ms["none"] / spec, 4) if spec else 1.0,
        "flags_alone": round(ms["none"] / ms["flags"], 4) if spec else 1.0,
        "in_file": spec is not None,
        "ms": {side: round(each, 5) for side, each in ms.items()},
        "default": dict(outcome.reference.config),
        "config": dict(outcome.tuned.config) if outcome.kept else {},
        "reason": outcome.reason.code if isinstance(outcome.reason, Reason) else "",
    }


def geomean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def judged(
    rows: Sequence[dict[str, Any]],
    spec: dict[str, Any],
    candidates: dict[str, int],
    amd: Sequence[dict[str, Any]],
    listed_s: float,
) -> list[tuple[str, str, bool]]:
    gain, over, alone = (
        geomean([row[name] for row in rows]) for name in ("gain", "over_no_flags", "flags_alone")
    )
    kept = sum(row["kept"] for row in rows)
    slower = [row for row in rows if row["gain"] < 1]
    ratios = [
        (row["ratio"], row["ms"]["plain"] / row["ms"]["spec"]) for row in rows if row["in_file"]
    ]
    tuned_gain, fresh = (geomean([pair[at] for pair in ratios]) for at in (0, 1))
    tried = sum(candidates.values())
    built = tried - candidates.get("compile_error", 0)
    amd_tried, amd_built, amd_applied = (
        sum(one[name] for one in amd) for name in ("candidates", "compiled", "applied")
    )
    by_op = ", ".join(f"{op} {value:.2f}" for op, value in _by_op(rows, "gain").items())
    worst = min((row["gain"] for row in rows), default=1.0)
    return [
        (
            f"{len(rows)} problems, tuned over the fastest of iree-compile without a spec (flags, "
            f"orders of filters): geomean ≥ {GAIN_AT_LEAST}",
            f"{gain:.2f} ({by_op}), {kept} kept",
            gain >= GAIN_AT_LEAST,
        ),
        (
            "the same, over iree-compile without flags, convolutions as the named op: geomean ≥ "
            f"{GAIN_AT_LEAST}",
            f"{over:.2f}; the flags of the file alone {alone:.2f}",
            over >= GAIN_AT_LEAST,
        ),
        (
            "none slower with the spec than the fastest without, caches hot",
            f"{len(slower)} slower, the worst {worst:.2f}",
            not slower,
        ),
        (
            f"the exported spec in a fresh process: at least {REPRODUCED} of the tuned geomean",
            f"{fresh:.2f} against {tuned_gain:.2f}",
            fresh >= REPRODUCED * tuned_gain,
        ),
        (
            f"candidates that compile: at least {COMPILE_AT_LEAST:.0%}",
            f"CPU {built} of {tried}, AMD {amd_built} of {amd_tried}",
            min(built / max(1, tried), amd_built / max(1, amd_tried)) >= COMPILE_AT_LEAST,
        ),
        (
            "compiled dispatches with the spec's config: all",
            f"CPU {spec['applied']} of {spec['kept']} winners, AMD {amd_applied} of {amd_tried}",
            spec["applied"] == spec["kept"] and amd_applied == amd_tried,
        ),
        (
            f"{LISTED} candidates listed and checked in at most {LISTED_S:.0f} s",
            f"{listed_s:.2f} s",
            listed_s <= LISTED_S,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
