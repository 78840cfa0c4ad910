"""How many suite problems IREE compiles for an AMD GPU, without one.

    python benchmarks/iree_suites.py [--arch gfx942] [--each 3] [-o results.json]

Of the GEMMs, convolutions and attentions of every suite, `--each` problems per suite, op and input
dtype, spread evenly over the suite's order; `--each 0` takes all, which takes hours. What does not
compile is stored with the first line of iree-compile's diagnostic, and what kernelmark refuses
before that with its reason. Modules are cached: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelmark.backends.iree import backend
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.gpu.absent import absent
from kernelmark.testing import evidence
from kernelmark.workloads import suites

RESULT = Path(__file__).resolve().parent / "results" / "iree_suites.json"
OPS = {"gemm": "a", "batched_gemm": "a", "conv": "x", "attention": "q"}
F16_OPS = ("gemm", "batched_gemm", "conv")
AT_LEAST = 0.95


def sampled(each: int) -> Iterator[tuple[str, Problem]]:
    """Problems with the suite they are of, each problem once."""
    seen: set[str] = set()
    for name in suites.names():
        groups: dict[tuple[str, str], list[Problem]] = {}
        for problem in suites.load(name).problems:
            if problem.op in OPS:
                group = (problem.op, problem.dtypes[OPS[problem.op]])
                groups.setdefault(group, []).append(problem)
        for found in groups.values():
            step = max(1, len(found) // each) if each else 1
            for problem in found[::step][: each or None]:
                if problem.key not in seen:
                    seen.add(problem.key)
                    yield name, problem


def compiled(suite: str, problem: Problem, info: DeviceInfo) -> dict[str, Any]:
    row = {"suite": suite, "op": problem.op, "dtype": problem.dtypes[OPS[problem.op]]}
    row["problem"] = problem.key
    try:
        made = backend.compile(problem, {}, info)
    except CompileError as error:
        return row | {"status": "compile_error", "reason": error.message.splitlines()[0]}
    except Unsupported as error:
        return row | {"status": "unsupported", "reason": error.message.splitlines()[0]}
    return row | {"status": "ok", "resources": dict(made.resources)}


def bars_of(rows: list[dict[str, Any]], arch: str) -> list[tuple[str, str, bool]]:
    by_status = {
        status: [row for row in rows if row["status"] == status]
        for status in ("ok", "compile_error", "unsupported")
    }
    explained = all(row["reason"] for row in rows if row["status"] != "ok")
    counts = ", ".join(f"{len(found)} {status}" for status, found in by_status.items())
    asked = f"{arch}: each of {len(rows)} problems sampled from all suites compiles or has a reason"
    bars = [(asked, counts, explained)]
    halves = [row for row in rows if row["dtype"] == "f16" and row["op"] in F16_OPS]
    built = sum(row["status"] == "ok" for row in halves)
    asked = f"{arch}: at least {AT_LEAST:.0%} of f16 GEMMs and convolutions compile"
    bars.append((asked, f"{built} of {len(halves)}", built >= AT_LEAST * max(1, len(halves))))
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    info = absent(given.arch)
    rows = []
    for suite, problem in sampled(given.each):
        rows.append(compiled(suite, problem, info))
        shown = rows[-1].get("reason", "")
        print(rows[-1]["status"], suite, problem.key, shown, flush=True)
    bars = bars_of(rows, given.arch)
    print(evidence.told(bars))
    evidence.write(
        given.output,
        title="Suite problems that IREE compiles for an AMD GPU",
        bars=bars,
        figures={"each": given.each, "problems": rows},
        libraries=evidence.libraries("iree"),
    )
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
