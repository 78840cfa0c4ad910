"""What the harness itself costs, and whether its numbers are those of a hand-written loop.

Agreement: GEMMs of random sizes, measured by kernelmark and by a plain `time.perf_counter` loop
over the same number of rotated argument sets, in turns. Share: a suite of such GEMMs, and how much
of its wall time is inside timed or warm-up launches.

    python benchmarks/overhead.py [--agree 20] [--problems 200] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.problem import Problem
    from kernelmark.core.timing import Timing
    from kernelmark.devices.cpu import CpuDevice
    from kernelmark.measure.protocol import Outcome

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "overhead.json"
ROUNDS = 5
MAX_ROUNDS = 20
QUIET_LOAD = 0.05  # cores' worth of other work, as a share of the cores used
AGREE_WITHIN = 0.02
SHARE_AT_LEAST = 0.80


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--agree", type=int, default=20, help="problems measured both ways")
    parser.add_argument("--problems", type=int, default=200, help="problems in the suite")
    parser.add_argument("--threads", type=int, default=0, help="0 is every core")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--quick", action="store_true", help="few problems; writes no file")
    given = parser.parse_args()
    if given.quick:
        given.agree, given.problems = min(given.agree, 3), min(given.problems, 5)
    restart_with_threads(given.threads)

    from kernelmark.devices.cpu import CpuDevice

    device = CpuDevice(given.threads)
    problems = make_problems(max(given.agree, given.problems))
    agreement = [agree(device, p, given.threads) for p in problems[: given.agree]]
    share = suite_share(device, problems[: given.problems], given.threads)
    device.close()
    return write(given, device.info, agreement, share)


def restart_with_threads(threads: int) -> None:
    """BLAS reads its thread count when it is loaded, so the process begins again with it."""
    from kernelmark.devices.cpu import kind

    wanted = kind.worker_variables(0, threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def make_problems(count: int) -> list[Problem]:
    """f32 GEMMs with sides log-uniform in 64 … 1024."""
    import numpy as np

    from kernelmark import ops

    gemm = ops.registry.get("gemm")
    sides = np.exp(np.random.default_rng(7).uniform(math.log(64), math.log(1024), (count, 3)))
    return [gemm.problem(m=int(m), n=int(n), k=int(k), dtype="f32") for m, n, k in np.rint(sides)]


def measure_one(device: CpuDevice, problem: Problem, timing: Timing) -> Outcome:
    """One GEMM by NumPy, as a worker would measure it."""
    from kernelmark import backends, ops
    from kernelmark.measure.protocol import measure

    backend = backends.registry.get("numpy")
    return measure(
        problem=problem,
        op=ops.registry.get("gemm"),
        device=device,
        timing=timing,
        prepare=lambda sets: backend.prepare(problem, {}, device, sets),
    )


def hand_loop(problem: Problem, sets: int, seconds: float) -> float:
    """Median seconds a launch over passes through `sets` arrays, as one would write it."""
    import numpy as np

    m, n, k = (problem.dims[name] for name in "mnk")
    random = np.random.default_rng(time.perf_counter_ns())
    a = random.random((sets, m, k), np.float32) * 2 - 1
    b = random.random((sets, k, n), np.float32) * 2 - 1
    c = np.empty((sets, m, n), np.float32)
    rotation = list(zip(a, b, c, strict=True))
    times: list[float] = []
    spent = 0.0
    while spent < seconds or len(times) < 4:
        start = time.perf_counter()
        for left, right, out in rotation:
            np.matmul(left, right, out=out)
        elapsed = time.perf_counter() - start
        spent += elapsed
        times.append(elapsed / sets)
    return statistics.median(times[1:])  # the first pass warms up


def agree(device: CpuDevice, problem: Problem, threads: int) -> dict[str, Any]:
    """Both ways in turns, each with its own memory every time; the order changes each round.

    A round during which other work used the cores is kept apart and measured again, up to a limit.
    """
    from kernelmark.core.timing import Timing
    from kernelmark.devices.cpu import Health

    timing = Timing(allocations=1, max_allocations=1, max_s=0.25, warmup_s=0.1, threads=threads)
    sets = measure_one(device, problem, timing).measurement.sets
    health = Health(device.cores)
    quiet: list[tuple[float, float]] = []
    disturbed: list[tuple[float, float]] = []
    while len(quiet) < ROUNDS and len(quiet) + len(disturbed) < MAX_ROUNDS:
        health.read()
        found = {}
        for which in ("ours", "hand") if len(quiet) % 2 else ("hand", "ours"):
            if which == "hand":
                found[which] = hand_loop(problem, sets, 0.25)
            else:
                found[which] = measure_one(device, problem, timing).measurement.median_s
        load = health.read().load or 0.0
        kept = quiet if load <= QUIET_LOAD * len(device.cores) else disturbed
        kept.append((found["ours"], found["hand"]))
    rounds = quiet if len(quiet) >= 3 else quiet + disturbed
    ratio = statistics.median(o for o, _ in rounds) / statistics.median(h for _, h in rounds)
    print(
        f"{problem.key[:40]:40} {sets:5d} sets  ours/hand {ratio:.4f}"
        f"  ({len(quiet)} quiet rounds, {len(disturbed)} disturbed)",
        file=sys.stderr,
    )
    return {
        "problem": problem.key,
        "sets": sets,
        "ratio": ratio,
        "quiet": len(quiet) >= 3,
        "rounds_s": quiet,
        "disturbed_rounds_s": disturbed,
    }


def suite_share(device: CpuDevice, problems: list[Problem], threads: int) -> dict[str, Any]:
    """Wall seconds by phase over the suite, with the default timing."""
    from kernelmark.core.timing import Timing

    total: dict[str, float] = {}
    stops: dict[str, int] = {}
    loads, blocks = [0.0], 0
    start = time.perf_counter()
    for number, problem in enumerate(problems):
        outcome = measure_one(device, problem, Timing(threads=threads))
        for phase, seconds in outcome.cost.items():
            total[phase] = total.get(phase, 0.0) + seconds
        stop = str(outcome.measurement.stop)
        stops[stop] = stops.get(stop, 0) + 1
        blocks += len(outcome.measurement.blocks)
        loads += [b.telemetry.load or 0.0 for b in outcome.measurement.blocks]
        if number % 20 == 19:
            done = (total["timed"] + total["warmup"]) / total["total"]
            print(f"{number + 1} problems, share {done:.3f}", file=sys.stderr)
    wall = time.perf_counter() - start
    launching = total.get("timed", 0.0) + total.get("warmup", 0.0)
    return {
        "problems": len(problems),
        "blocks": blocks,
        "wall_s": wall,
        "cost_s": total,
        "share": launching / wall,
        "stops": stops,
        "other_load": statistics.median(loads),
    }


def write(
    given: argparse.Namespace,
    info: DeviceInfo,
    agreement: list[dict[str, Any]],
    share: dict[str, Any],
) -> int:
    """Store the figures and the verdict on each bar; the exit code."""
    import numpy as np

    from kernelmark_dev import evidence

    found = bars(agreement, share)
    print(evidence.bars_text(found))
    if given.quick:
        return 0  # too few problems for a verdict: it ran, which is what the short form is for
    evidence.write(
        given.output,
        title="Overhead of the harness, compared with a hand-written loop",
        bars=found,
        figures={"threads": given.threads, "agreement": agreement, "share": share},
        device=info,
        libraries={"numpy": np.__version__},
    )
    return 0 if all(holds for _, _, holds in found) else 1


def bars(agreement: list[dict[str, Any]], share: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    ratios = [row["ratio"] for row in agreement] or [1.0]
    difference = statistics.median(abs(ratio - 1) for ratio in ratios)
    return [
        (
            f"the time of a GEMM is within {AGREE_WITHIN:.0%} of a hand-written loop's with the"
            f" same rotation, median over {len(agreement)} problems",
            f"{difference:.2%} (median ratio {statistics.median(ratios):.4f})",
            difference <= AGREE_WITHIN,
        ),
        (
            f"at least {SHARE_AT_LEAST:.0%} of the wall time of {share['problems']} GEMM problems"
            " is inside timed or warm-up launches",
            f"{share['share']:.1%} of {share['wall_s']:.0f} s, beside other work on"
            f" {share['other_load']:.2f} cores",
            share["share"] >= SHARE_AT_LEAST,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
