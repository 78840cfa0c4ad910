"""A fleet of devices: the makespan of many cases, and what remains after processes are killed.

    python benchmarks/fleet.py makespan [-o FILE]   64 devices, 10,000 cases, local and Ray: 20 min
    python benchmarks/fleet.py chaos [-o FILE]      100 kills of workers, actors, nodes, commands
    python benchmarks/fleet.py outliers [-o FILE]   one of 64 devices is 5 % slow; simulated times
    … --quick                                       a little of it; writes no file

Devices are simulated: their workers sleep (sleeper.py), each on its device's node, started and
watched by the same code as real workers. What is measured is the scheduling.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners import places
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.protocol import PROTOCOL
from kernelmark.testing.stores import measured
from kernelmark_dev import evidence

HERE = Path(__file__).parent
SLEEPER = str(HERE / "sleeper.py")
RESULTS = HERE / "results"
DEVICES, CASES, CASE_S, EFFICIENCY = 64, 10_000, 3.0, 0.95
Bars = list[tuple[str, str, bool]]


def sleeping_cases(count: int, case_s: float, seed: int = 1) -> list[Case]:
    """Return cases of 0.5 to 1.5 times `case_s`."""
    draw = random.Random(seed)
    return [
        Case(
            problem=ops.parse(f"gemm m={i + 1} n=1 k=1 dtype=f32"),
            backend="fake",
            timing=Timing(),
            config={"sleep_s": round(case_s * draw.uniform(0.5, 1.5), 3)},
        )
        for i in range(count)
    ]


def use_sleepers(devices: int) -> None:
    """Set what sleepers, and nodes that are started later, read from their environment."""
    case = Case(problem=ops.parse("gemm m=1 n=1 k=1 dtype=f32"), backend="fake", timing=Timing())
    result = codec.to_document(measured(case, (1e-5,) * 5, arch="fake"))
    os.environ |= {
        "KERNELMARK_FAKE_DEVICES": str(devices),
        "SLEEPER_RESULT": json.dumps(result),
        "SLEEPER_ENVIRONMENT": json.dumps(codec.to_document(Environment(libraries={"a": "1"}))),
        "SLEEPER_PROTOCOL": str(PROTOCOL),
    }


def makespan(devices: list[str], cases: list[Case]) -> dict[str, Any]:
    """Run the cases; return the seconds, and the share of them that the devices slept."""
    runner = LocalRunner(devices, jobs=0, python=SLEEPER)
    begin, cpu = time.monotonic(), time.process_time()
    finished = [e.result for e in runner.run(cases) if isinstance(e, CaseFinished)]
    took_s = time.monotonic() - begin
    ideal_s = sum(float(case.config["sleep_s"]) for case in cases) / len(runner.infos)
    assert sorted(r.case.id for r in finished) == sorted(case.id for case in cases)
    bad = [r for r in finished if r.status != "ok"]
    assert not bad, bad[0].error
    return {
        "devices": len(runner.infos),
        "cases": len(cases),
        "took_s": round(took_s, 2),
        "ideal_s": round(ideal_s, 2),
        "efficiency": round(ideal_s / took_s, 4),
        "parent_cpu_ms_per_case": round(1e3 * (time.process_time() - cpu) / len(cases), 2),
    }


def measure_makespans(options: argparse.Namespace) -> tuple[Bars, dict[str, Any]]:
    count, total, case_s = (4, 40, 0.2) if options.quick else (DEVICES, CASES, CASE_S)
    use_sleepers(count)
    cases = sleeping_cases(total, case_s)
    names = ["fake", *(f"fake:{i}" for i in range(1, count))]
    figures: dict[str, Any] = {"case_s": case_s, "load_1min": os.getloadavg()[0]}
    figures["local"] = makespan(names, cases)
    print("local", figures["local"], flush=True)
    from kernelmark.runners.ray import open_place

    begin = time.monotonic()
    with places.at(open_place("ray", print)):
        places.current().devices(["fake"])
        figures["ray_start_s"] = round(time.monotonic() - begin, 1)
        figures["ray"] = makespan(["fake"], cases)
    print("ray", figures["ray"], flush=True)
    return [
        (
            f"{count} devices, {total} cases of {case_s:g} s ± 50 %, {where}: ≥ {EFFICIENCY:.0%} of "
            "the ideal makespan",
            f"{figures[where]['efficiency']:.1%} ({figures[where]['took_s']:g} s)",
            figures[where]["efficiency"] >= EFFICIENCY,
        )
        for where in ("local", "ray")
    ], figures


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[Bars, dict[str, Any]]]]] = {
    "makespan": ("Many devices and cases: makespan", measure_makespans)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    title, measure = PARTS[options.part]
    bars, figures = measure(options)
    print(evidence.told(bars))
    if not options.quick:
        target = options.output or RESULTS / f"fleet_{options.part}.json"
        evidence.write(target, title=title, bars=bars, figures=figures)
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
