"""How many suite problems can be tuned through IREE on AMD GPUs, and how many candidates compile.

    python benchmarks/iree_spaces.py --state spaces.jsonl [--seconds 3600]

No GPU is needed. Planned: a problem of a suite has a space of lowering configs for the target.
Compiled: of each suite and target a sample of problems is compiled with the default of its space
and with candidates drawn from it; a candidate counts if iree-compile succeeds and a dispatch has
its lowering config. Suites of plain operands are judged: 8-bit floats that a target does not have,
and attentions, are counted beside.

Outcomes are appended to the state file at once: the same command goes on where it was interrupted.
Candidates are taken in the order of the hashes of their specs, attentions last, so those compiled
so far are a random sample.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelmark.backends.iree import choices
from kernelmark.backends.iree.compiler import run_compiler
from kernelmark.backends.iree.spec import missing
from kernelmark.backends.iree.targets import Target, target_named
from kernelmark.core.errors import CompileError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, Space
from kernelmark.host.cache import digest
from kernelmark.workloads import suites
from kernelmark_dev import evidence

RESULT = Path(__file__).resolve().parent / "results" / "iree_spaces.json"
ARCHS = ("gfx942", "gfx950", "gfx1201")
OPS = ("gemm", "batched_gemm", "conv", "attention")
JUDGED = ("gemm", "batched_gemm", "conv")
# All suites of one of these prefixes, which are kernelmark's own: of others, a name of a model
# contains dtypes that not every target has.
OWN = ("gemm-", "batched-gemm-", "conv-")
PLANNED_AT_LEAST = 0.95
COMPILED_AT_LEAST = 0.90
PROBLEMS = 2  # of a suite and target that are compiled
DRAWN = 1  # candidates of a problem, beside its default
TRIES = 100_000  # to draw a legal candidate


def problems() -> Iterator[tuple[str, Problem]]:
    """Each problem of a suite, with the suite."""
    for suite in suites.names():
        for problem in suites.load(suite).problems:
            if problem.op in OPS:
                yield suite, problem


def plan(arch: str) -> list[dict[str, Any]]:
    """A row for each suite and op: problems, how many can be planned, and the reasons of others."""
    target = _target(arch)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for suite, problem in problems():
        row = rows.setdefault(
            (suite, problem.op),
            {"arch": arch, "suite": suite, "op": problem.op, "problems": 0, "planned": 0}
            | {"reasons": Counter()},
        )
        row["problems"] += 1
        reason = choices.untunable(problem, target)
        row["planned"] += not reason
        row["reasons"].update([str(reason)] * bool(reason))
    return [row | {"reasons": dict(row["reasons"].most_common())} for row in rows.values()]


def candidates(arch: str) -> Iterator[tuple[str, str, Problem, Config]]:
    """The sample of a target: key, suite, problem and config."""
    target, of = _target(arch), defaultdict(list)
    for suite, problem in problems():
        of[suite, problem.op].append(problem)
    for (suite, op), listed in of.items():
        draw = random.Random(f"{arch} {suite} {op}")
        for problem in draw.sample(listed, min(PROBLEMS, len(listed))):
            space = choices.space(problem, target)
            if space is None:
                continue
            chosen = [drawn(space, draw) for _ in range(DRAWN)]
            for config in dict.fromkeys((space.default, *chosen)):
                spec = choices.choose(problem, config, target).spec
                yield digest(arch, problem.key, spec), suite, problem, config


def drawn(space: Space, draw: random.Random) -> Config:
    """A legal combination of a space, each with the same probability."""
    for _ in range(TRIES):
        config = FrozenDict({name: draw.choice(v) for name, v in space.parameters.items()})
        if space.forbids(config) is None:
            return config
    return space.default


def compiled(problem: Problem, config: Config, arch: str) -> dict[str, Any]:
    choice = choices.choose(problem, config, _target(arch))
    try:
        with tempfile.TemporaryDirectory(prefix="kmark-iree-") as folder:
            run_compiler(
                choices.source(problem, choice), choice.flags, choice.spec, dumps=Path(folder)
            )
            dumped = "\n".join(
                path.read_text(encoding="utf-8")
                for path in sorted(Path(folder).glob("configured_*.mlir"))
            )
    except CompileError as error:
        return {"status": "compile_error", "reason": error.message.splitlines()[0][:300]}
    return {"status": "not_applied" if missing(dumped, choice.entries) else "ok", "reason": ""}


def bars_of(
    planned: list[dict[str, Any]], rows: list[dict[str, Any]], expected: Counter[str]
) -> list[tuple[str, str, bool]]:
    bars = []
    for arch in dict.fromkeys(row["arch"] for row in planned):
        own = [r for r in planned if r["arch"] == arch and r["op"] in JUDGED]
        own = [r for r in own if r["suite"].startswith(OWN)]
        count, total = (sum(r[name] for r in own) for name in ("planned", "problems"))
        asked = f"{arch}: at least {PLANNED_AT_LEAST:.0%} of the GEMMs and convolutions of"
        asked += " kernelmark's own suites can be tuned"
        if arch == ARCHS[0]:
            bars.append((asked, f"{count} of {total}", count >= PLANNED_AT_LEAST * total))
        tried = [r for r in rows if r["arch"] == arch and r["op"] in JUDGED]
        good = sum(r["status"] == "ok" for r in tried)
        asked = f"{arch}: at least {COMPILED_AT_LEAST:.0%} of the sampled candidates of GEMMs and"
        asked += " convolutions compile, with their config in a dispatch"
        held = bool(tried) and good >= COMPILED_AT_LEAST * len(tried)
        bars.append((asked, f"{good} of {len(tried)} ({expected[arch]} drawn)", held))
    return bars


def figures_of(planned: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    by: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        by[row["arch"], row["op"]][row["status"]] += 1
    return {
        "planned": planned,
        "compiled": [
            {"arch": arch, "op": op, **counts} for (arch, op), counts in sorted(by.items())
        ],
        "failed": [row for row in rows if row["status"] != "ok"],
    }


def _target(arch: str) -> Target:
    target = target_named(arch)
    assert target is not None
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--arch", action="append", help="default: " + ", ".join(ARCHS))
    parser.add_argument("--state", type=Path, help="append outcomes here, and go on from them")
    parser.add_argument("--seconds", type=float, help="start no compilation after so many")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    archs = given.arch or ARCHS
    planned = [row for arch in archs for row in plan(arch)]
    sample = [(arch, *item) for arch in archs for item in candidates(arch)]
    expected = Counter(arch for arch, _, _, problem, _ in sample if problem.op in JUDGED)
    known = evidence.load_state(given.state)
    start, rows = time.monotonic(), []
    order = sorted(sample, key=lambda item: (item[3].op not in JUDGED, item[1]))
    for arch, key, suite, problem, config in order:
        late = given.seconds is not None and time.monotonic() - start > given.seconds
        if key not in known and not late:
            known[key] = {"key": key, **compiled(problem, config, arch)}
            evidence.append_state(given.state, known[key])
            print(known[key]["status"], arch, problem.key, dict(config), flush=True)
        if key in known:
            row = {"arch": arch, "suite": suite, "op": problem.op, "problem": problem.key}
            rows.append(row | {"config": dict(config)} | known[key])
    bars = bars_of(planned, rows, expected)
    return evidence.conclude(
        given.output,
        title="Problems that can be tuned through IREE for AMD GPUs",
        bars=bars,
        figures=figures_of(planned, rows),
        libraries=evidence.libraries("iree"),
    )


if __name__ == "__main__":
    sys.exit(main())
