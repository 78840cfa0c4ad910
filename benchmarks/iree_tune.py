"""What tuning IREE's lowering configs gains on this CPU, and whether its specs are applied.

Gain: GEMMs, convolutions and attentions, each tuned against what iree-compile does without flags; a
problem whose default is not beaten counts as 1. The default of a convolution is the named op, as a
model has it, which IREE compiles without im2col. Since im2col is most of the gain there, a second,
stricter figure has as its baseline the faster one of the named op and of im2col without a spec: the
tuned ratio times the ratio of these two forms, which is measured with hot caches.
Reproduction: in a fresh process without kernelmark's runtime, iree-compile makes every module, with
the named op of a convolution, without flags and with the exported spec and the flags of its file,
and iree-benchmark-module times them in turns. Candidates: how many compile, on the CPU as tuned and
for AMD GPUs as a sample, and how many dispatches come out with the spec's config.

    taskset -c 1 python benchmarks/iree_tune.py --folder F [--evaluations 14] [--quick]

On one core times are CPU times, which other processes disturb little. A folder keeps the journals:
the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmark.backends.iree.targets import Target
    from kernelmark.core.problem import Problem
    from kernelmark.core.result import Config
    from kernelmark.tune.plans import TunePlan
    from kernelmark.tune.results import Outcome

RESULT = Path(__file__).resolve().parent / "results" / "iree_tune.json"
GAIN_AT_LEAST = 1.3
COMPILE_AT_LEAST = 0.9
LISTED = 1000
LISTED_S = 2.0
# A ratio in a fresh process may be this much lower than the one that was tuned.
REPRODUCED = 0.9
ROUNDS = 8
IREE_DEFAULT = {"data_tiling": False}
NAMED_CONV = {**IREE_DEFAULT, "im2col": False}

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
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--quick", action="store_true", help="few problems; writes no file")
    parser.add_argument("--reproduce", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reproduce is not None:
        print(json.dumps(reproduced(given.reproduce)))
        return 0
    with tempfile.TemporaryDirectory() as place:
        return run(given, given.folder or Path(place))


def run(given: argparse.Namespace, folder: Path) -> int:
    from kernelmark import backends, ops
    from kernelmark_dev import evidence

    if reason := backends.registry.get("iree").available():
        print(reason)
        return 2
    keys = problem_keys()
    keys = [keys[1], keys[20], keys[31], keys[-4]] if given.quick else keys
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, candidates = tuned([ops.parse(key) for key in keys], folder, given.evaluations)
    spec = exported(outcomes, folder)
    again = in_fresh_process(outcomes, spec, folder)
    amd = [compiled(arch, key, 1 if given.quick else given.amd) for arch, key in _AMD]
    listed_s = listing_s()
    stricter = [_stricter(outcome, again.get(outcome.name)) for outcome in outcomes]
    figures = {
        "problems": [_row(outcome, again.get(outcome.name)) for outcome in outcomes],
        "geomean_by_op": _by_op(outcomes, _gains(outcomes)),
        "stricter_geomean": round(geomean(stricter), 4),
        "stricter_geomean_by_op": _by_op(outcomes, stricter),
        "timer": "cpu time" if len(os.sched_getaffinity(0)) == 1 else "wall time",
        "cpu_candidates": candidates,
        "amd": amd,
        "listed_s": round(listed_s, 3),
        "evaluations": given.evaluations,
    }
    bars = judged(outcomes, spec, again, candidates, amd, listed_s)
    print(evidence.told(bars))
    if disturbed := [outcome.name for outcome in outcomes if outcome.disturbed]:
        print(f"{len(disturbed)} finals were disturbed: run it again with --folder {folder}")
    if not given.quick:
        evidence.write(
            given.output,
            title="Tuned lowering configs of IREE",
            bars=bars,
            figures=figures,
            libraries=evidence.libraries("iree"),
        )
    return 0


def tuned(
    problems: Sequence[Problem], folder: Path, evaluations: int
) -> tuple[list[Outcome], dict[str, int]]:
    """Tune all, and count the candidates by what became of them."""
    from kernelmark.runners.local import LocalRunner
    from kernelmark.tune import journal
    from kernelmark.tune.driver import Driver
    from kernelmark.tune.progress import Ended

    plans = [
        _plan(i, problem, evaluations, _default(problem)) for i, problem in enumerate(problems)
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


def _default(problem: Problem) -> dict[str, bool]:
    """The config of what iree-compile makes of the op as a model has it."""
    return NAMED_CONV if problem.op == "conv" else IREE_DEFAULT


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
    from kernelmark.core.immutable import FrozenDict
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
    from kernelmark.tune.install.emitters.iree_spec import emitter

    path = folder / "tuned.mlir"
    path.unlink(missing_ok=True)
    change = emitter.emit(outcomes, path, {})
    for edit in change.edits:
        path.write_text(edit.after, encoding="utf-8")
    held = {one.name: one.reason for one in change.skipped}
    kept = sum(outcome.kept for outcome in outcomes)
    return {"path": path, "kept": kept, "applied": len(change.winners), "held": held}


def in_fresh_process(
    outcomes: Sequence[Outcome], spec: dict[str, Any], folder: Path
) -> dict[str, dict[str, float]]:
    """Milliseconds of each form by name, from a process that knows only the files: `default`,
    `spec` of a winner in the file, and `im2col` of a convolution without a spec."""
    from kernelmark.backends.iree.compiler import spec_flags
    from kernelmark.backends.iree.spec import parse_spec
    from kernelmark.tune.install.emitters.iree_spec import file_flags

    path, target = spec["path"], list(_cpu().flags)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    tuned = [*target, *file_flags(parse_spec(text)), *spec_flags(text, path)] if text else []
    todo = []
    for outcome in outcomes:
        problem = outcome.problem
        module = _written(folder / f"{outcome.name}.mlir", problem, _default(problem))
        sides = {"default": {"module": module, "flags": target}}
        if outcome.kept and outcome.name not in spec["held"]:
            sides["spec"] = {"module": module, "flags": tuned}
        if problem.op == "conv":
            other = _written(folder / f"{outcome.name}.im2col.mlir", problem, IREE_DEFAULT)
            sides["im2col"] = {"module": other, "flags": target}
        if len(sides) > 1:
            todo.append({"name": outcome.name, "sides": sides, "inputs": _inputs(problem)})
    plan = folder / "reproduce.json"
    plan.write_text(json.dumps(todo))
    done = subprocess.run(
        [sys.executable, __file__, "--reproduce", plan], capture_output=True, text=True, check=True
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def reproduced(plan: Path) -> dict[str, dict[str, float]]:
    """Compile each module in all its forms and time them in turns."""
    found = {}
    for one in json.loads(plan.read_text()):
        binaries = {side: plan.with_name(f"{one['name']}.{side}.vmfb") for side in one["sides"]}
        times: dict[str, list[float]] = {side: [] for side in binaries}
        for side, given in one["sides"].items():
            command = [_tool("iree-compile"), given["module"], *given["flags"]]
            subprocess.run([*command, "-o", binaries[side]], check=True)
        for turn in range(ROUNDS):
            for side in sorted(binaries, reverse=bool(turn % 2)):
                times[side].append(_benchmark(binaries[side], one["inputs"]))
        found[one["name"]] = {side: statistics.median(each) for side, each in times.items()}
    return found


def _ratio(ms: dict[str, float] | None) -> float | None:
    """Default to spec in the fresh process."""
    return ms["default"] / ms["spec"] if ms and "spec" in ms else None


def _stricter(outcome: Outcome, ms: dict[str, float] | None) -> float:
    """The gain over the faster form without a spec."""
    gain = outcome.ratio if outcome.kept else 1.0
    return gain * min(1.0, ms["im2col"] / ms["default"]) if ms and "im2col" in ms else gain


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


def _by_op(outcomes: Sequence[Outcome], gains: Sequence[float]) -> dict[str, float]:
    names = [outcome.problem.op for outcome in outcomes]
    return {
        op: round(geomean([g for name, g in zip(names, gains, strict=True) if name == op]), 4)
        for op in dict.fromkeys(names)
    }


def _row(outcome: Outcome, again: dict[str, float] | None) -> dict[str, Any]:
    from kernelmark.core.reason import Reason

    fresh = _ratio(again)
    return {
        "problem": outcome.problem.key,
        "kept": outcome.kept,
        "ratio": round(outcome.ratio, 4),
        "low": round(outcome.low, 4),
        "high": round(outcome.high, 4),
        "default_us": round(outcome.reference.median_s * 1e6, 2),
        "tuned_us": round(outcome.tuned.median_s * 1e6, 2),
        "stricter_ratio": round(_stricter(outcome, again), 4),
        "fresh_process_ratio": None if fresh is None else round(fresh, 4),
        "fresh_process_ms": {side: round(ms, 5) for side, ms in (again or {}).items()},
        "default": dict(outcome.reference.config),
        "config": dict(outcome.tuned.config) if outcome.kept else {},
        "reason": outcome.reason.code if isinstance(outcome.reason, Reason) else "",
    }


def _gains(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.ratio if outcome.kept else 1.0 for outcome in outcomes]


def geomean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def judged(
    outcomes: Sequence[Outcome],
    spec: dict[str, Any],
    again: dict[str, dict[str, float]],
    candidates: dict[str, int],
    amd: Sequence[dict[str, Any]],
    listed_s: float,
) -> list[tuple[str, str, bool]]:
    gains = _gains(outcomes)
    gain, slower = geomean(gains), sum(ratio < 1 for ratio in gains)
    ratios = {name: ratio for name, ms in again.items() if (ratio := _ratio(ms)) is not None}
    tuned_gain = geomean([outcome.ratio for outcome in outcomes if outcome.name in ratios])
    fresh = geomean(list(ratios.values()))
    stricter = geomean([_stricter(outcome, again.get(outcome.name)) for outcome in outcomes])
    # Tuned with cold caches, repeated with hot ones: small gains need not be there in both.
    lost = sum(ratio < 1 for ratio in ratios.values())
    tried = sum(candidates.values())
    built = tried - candidates.get("compile_error", 0)
    amd_tried, amd_built, amd_applied = (
        sum(one[name] for one in amd) for name in ("candidates", "compiled", "applied")
    )
    return [
        (
            f"tuned over iree-compile without flags, convolutions as the named op, "
            f"{len(outcomes)} problems: geomean ≥ {GAIN_AT_LEAST}",
            f"{gain:.2f}, {sum(outcome.kept for outcome in outcomes)} kept",
            gain >= GAIN_AT_LEAST,
        ),
        (
            "the same, over the faster one of a convolution's named op and its im2col without a "
            f"spec: geomean ≥ {GAIN_AT_LEAST}",
            f"{stricter:.2f}",
            stricter >= GAIN_AT_LEAST,
        ),
        ("no problem slower than the default", f"{slower} slower", not slower),
        (
            f"the exported spec in a fresh process: at least {REPRODUCED} of the tuned geomean",
            f"{fresh:.2f} against {tuned_gain:.2f}; {lost} of {len(ratios)} below 1, caches hot",
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
