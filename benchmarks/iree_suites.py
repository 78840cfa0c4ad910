"""How many suite problems IREE compiles for an AMD GPU, without one.

    python benchmarks/iree_suites.py --state iree_suites.jsonl [--seconds 3600] [--part 1/4]
    python benchmarks/iree_suites.py --reuse benchmarks/results/iree_suites.json

Takes the GEMMs, convolutions and attentions of all suites and compiles each MLIR text once, which
takes hours. Every outcome is appended to the state file at once: the same command goes on where it
was interrupted, and files of several parts can be concatenated. Texts are taken in the order of
their hashes, so that those compiled so far are a random sample of all.

The result has the hash of each text with its flags and compiler. `--reuse` takes the outcomes of an
earlier result by these hashes and compiles only what changed since; the result has the date of each
compilation, and the sources of kernelmark that it was made by.

What does not compile has the first line of iree-compile's diagnostic; what kernelmark refuses
before that, which is to be nothing, its reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark.backends.iree import backend, choices
from kernelmark.backends.iree.compiler import compiler_version
from kernelmark.backends.iree.targets import target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.gpu.architectures import absent
from kernelmark.host.cache import digest
from kernelmark.workloads import suites
from kernelmark_dev import evidence

RESULT = Path(__file__).resolve().parent / "results" / "iree_suites.json"
# The dtype that a problem is counted by.
OPS = {"gemm": "a", "batched_gemm": "a", "batched_gemm_quant": "b", "conv": "x", "attention": "q"}
F16_OPS = ("gemm", "batched_gemm", "conv")
AT_LEAST = 0.95
STATUSES = ("ok", "compile_error", "unsupported")
# Of each hash in the result: enough to tell a few thousand texts apart.
HASH_DIGITS = 12
# What a compilation was made by and when.
ORIGIN = ("date", "sources")


@dataclass(kw_only=True)
class Module:
    """Problems of the same MLIR text and flags, and a suite that each is of."""

    key: str
    problems: dict[str, tuple[str, Problem]] = field(default_factory=dict)

    @property
    def first(self) -> Problem:
        return next(iter(self.problems.values()))[1]


def modules(info: DeviceInfo) -> list[Module]:
    """Everything to compile, in the order of the hashes."""
    found: dict[str, Module] = {}
    for suite in suites.names():
        for problem in suites.load(suite).problems:
            if problem.op in OPS:
                key = key_of(problem, info)
                module = found.setdefault(key, Module(key=key))
                module.problems.setdefault(problem.key, (suite, problem))
    return sorted(found.values(), key=lambda one: one.key)


def key_of(problem: Problem, info: DeviceInfo) -> str:
    """The hash of a problem's text, flags and compiler; of the problem where it has no text."""
    goal = target(info)
    if goal is None or backend.refuses(problem, info):
        return digest(problem.key, info.arch)
    choice = choices.choose(problem, {}, goal)
    return digest(choices.source(problem, choice), "\n".join(choice.flags), compiler_version())


def compiled(problem: Problem, info: DeviceInfo) -> dict[str, Any]:
    start = time.monotonic()
    try:
        backend.compile(problem, {}, info)
        outcome = {"status": "ok"}
    except CompileError as error:
        outcome = {"status": "compile_error", "reason": error.message.splitlines()[0]}
    except Unsupported as error:
        outcome = {"status": "unsupported", "reason": error.message.splitlines()[0]}
    made = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "sources": evidence.SOURCES}
    return {**outcome, **made, "seconds": round(time.monotonic() - start, 2)}


def load_result(path: Path, made: Sequence[Module]) -> dict[str, dict[str, Any]]:
    """Outcomes of an earlier result for the modules whose texts, flags and compiler are the same.

    Of the problems with the same kind of diagnostic, a result has the text of the first only."""
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
        listed, failed = figures["compilations"], figures["diagnostics"]
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{path}: no result of this benchmark with hashes: {error!r}") from None
    found: dict[str, dict[str, Any]] = {}
    for row in listed:
        origin = {name: row[name] for name in ORIGIN}
        found |= {short: {"status": "ok", **origin} for short in row["hashes"].split()}
    for row in failed:
        for short in row["hashes"].split():
            found[short] |= {"status": row["status"], "reason": row["reason"]}
    pairs = ((module.key, found.get(module.key[:HASH_DIGITS])) for module in made)
    return {key: {"key": key, **outcome} for key, outcome in pairs if outcome}


def kind_of(reason: str) -> str:
    """A diagnostic without what differs between problems: sizes and its line of the MLIR."""
    text = reason.partition(" (line ")[0]
    text = re.sub(r"(\d+x)+", "…x", text)
    return re.sub(r"(?<![\w.])\d+(?!\w)", "…", text)[:300]


def rows_of(made: Sequence[Module], known: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each problem whose module has an outcome."""
    for module in made:
        outcome = known.get(module.key)
        for suite, problem in module.problems.values() if outcome else ():
            dtype = problem.dtypes[OPS[problem.op]]
            row = {"suite": suite, "op": problem.op, "dtype": dtype, "problem": problem.key}
            yield row | {"reason": "", **outcome}


def bars_of(rows: list[dict[str, Any]], total: int, arch: str) -> list[tuple[str, str, bool]]:
    counts = Counter(row["status"] for row in rows)
    failed = [row for row in rows if row["status"] != "ok"]
    asked = f"{arch}: all {total} GEMM, convolution and attention problems of the suites are tried"
    bars = [(asked, f"{len(rows)} of {total}", len(rows) == total)]
    asked = f"{arch}: each tried problem compiles or has IREE's own diagnostic"
    measured = f"{counts['ok']} compile, {counts['compile_error']} have a diagnostic"
    bars.append((asked, measured, bool(rows) and all(row["reason"] for row in failed)))
    asked = f"{arch}: kernelmark refuses none before IREE is asked"
    bars.append((asked, str(counts["unsupported"]), not counts["unsupported"]))
    halves = [row for row in rows if row["dtype"] == "f16" and row["op"] in F16_OPS]
    built = sum(row["status"] == "ok" for row in halves)
    asked = f"{arch}: at least {AT_LEAST:.0%} of f16 GEMMs and convolutions compile"
    bars.append((asked, f"{built} of {len(halves)}", built >= AT_LEAST * max(1, len(halves))))
    return bars


def figures_of(rows: list[dict[str, Any]], total: int) -> dict[str, Any]:
    """Counts by op and dtype, every problem that does not compile, by diagnostic, and the hashes of
    what was compiled, by date."""
    origins: dict[tuple[str, ...], set[str]] = defaultdict(set)
    by: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by[row["op"], row["dtype"]][row["status"]] += 1
        origins[tuple(row.get(name, "") for name in ORIGIN)].add(row["key"])
        if row["status"] != "ok":
            kinds[row["status"], kind_of(row["reason"])].append(row)
    return {
        "total": total,
        "tried": len(rows),
        "by_op_and_dtype": [
            {"op": op, "dtype": dtype, **{status: counts[status] for status in STATUSES}}
            for (op, dtype), counts in sorted(by.items())
        ],
        "diagnostics": [
            {
                "status": status,
                "kind": kind,
                "count": len(found),
                "reason": found[0]["reason"],
                "problems": sorted(row["problem"] for row in found),
                "hashes": hashes({row["key"] for row in found}),
            }
            for (status, kind), found in sorted(kinds.items(), key=lambda one: -len(one[1]))
        ],
        "compilations": [
            dict(zip(ORIGIN, origin, strict=True)) | {"texts": len(keys), "hashes": hashes(keys)}
            for origin, keys in sorted(origins.items())
        ],
    }


def hashes(keys: Iterable[str]) -> str:
    return " ".join(sorted(key[:HASH_DIGITS] for key in keys))


def part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    chosen, parts = int(number), int(count)
    if not 1 <= chosen <= parts:
        raise ValueError(text)
    return chosen, parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--state", type=Path, help="append outcomes here, and go on from them")
    parser.add_argument("--reuse", type=Path, help="take what has not changed from this result")
    parser.add_argument("--part", type=part, default=(1, 1), help="I/N: each Nth, from the Ith on")
    parser.add_argument("--seconds", type=float, help="start no compilation after so many")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    info = absent(given.arch)
    made = modules(info)
    known = load_result(given.reuse, made) if given.reuse else {}
    known |= evidence.load_state(given.state)
    total = sum(len(module.problems) for module in made)
    print(f"{total} problems, {len(made)} texts, {len(known)} known", flush=True)
    start, (number, parts) = time.monotonic(), given.part
    for module in made[number - 1 :: parts]:
        if given.seconds is not None and time.monotonic() - start > given.seconds:
            break
        if module.key not in known:
            outcome = known[module.key] = {"key": module.key, **compiled(module.first, info)}
            print(outcome["status"], module.first.key, outcome.get("reason", ""), flush=True)
            evidence.append_state(given.state, outcome)
    rows = list(rows_of(made, known))
    bars = bars_of(rows, total, given.arch)
    return evidence.conclude(
        given.output,
        title="Suite problems that IREE compiles for an AMD GPU",
        bars=bars,
        figures=figures_of(rows, total),
        libraries=evidence.libraries("iree"),
    )


if __name__ == "__main__":
    sys.exit(main())
