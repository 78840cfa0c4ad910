"""A real comparison: the 61 batched GEMMs with Triton's default configs against shallower
pipelines (num_stages 2), by `kmark ab`'s own code, with its whole report.

    python benchmarks/gpu/ab_real.py [-d cuda:0] [-o results.json] [--part 1/2] [--rounds 10,16]

Writes the figures as JSON and the report as Markdown beside it. With `--part 2/2` the rows of the
earlier parts are taken from the file that they were written to.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

from _gpu import gpu_info

from kernelmark import backends
from kernelmark.api.ab import AbPlan, captured, compare_sides
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case
from kernelmark.report.ab import ORDER, AbReport, audit, summary, to_json, to_md
from kernelmark.runners.ab import ROUND, Event, Measured, Pair, Rule, Side
from kernelmark.stats.paired import Looks
from kernelmark.workloads import suites
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_ab_real.json"
SUITE = "batched-gemm-family"
HEAD = {"num_stages": 2}
# A round is short: there are at least ten.
TIMING = dataclasses.replace(ROUND, allocations=1, max_allocations=1, max_s=0.01, warmup_s=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--head", default=json.dumps(HEAD), help="head's config as JSON")
    parser.add_argument("--filter", default="", help="only problems with this text")
    parser.add_argument("--part", default="1/1", help="which part of the suite, of how many")
    parser.add_argument("--rounds", default="10,16", help="looks, as of kmark ab")
    parser.add_argument("--budget-s", type=float, default=165.0)
    given = parser.parse_args()
    info = gpu_info(given.device)
    suite = [p for p in suites.load(SUITE).problems if given.filter in p.key]
    part, parts = (int(word) for word in given.part.split("/"))
    problems = suite[part - 1 :: parts]
    head = json.loads(given.head)
    pairs = tuple(
        Pair(
            base=Case(problem=problem, backend=given.backend, timing=TIMING),
            head=Case(problem=problem, backend=given.backend, timing=TIMING, config=head),
        )
        for problem in problems
    )
    begun = time.monotonic()
    plan = AbPlan(
        sides=(Side(name="default"), Side(name="head")),
        pairs=pairs,
        device=info.name,
        rule=Rule(looks=Looks(rounds=tuple(map(int, given.rounds.split(","))))),
        suite=SUITE,
        budget_s=given.budget_s,
        jobs=len(os.sched_getaffinity(0)),
    )

    def tell(event: Event) -> None:
        if isinstance(event, Measured) and event.done == event.total:
            spent = time.monotonic() - begun
            print(f"round {event.round}: {event.total} pairs, {spent:.0f} s", flush=True)

    argv = ("ab", "-s", SUITE, "-b", given.backend, "-d", info.name, "--rounds", given.rounds)
    argv += tuple(
        word for name, value in head.items() for word in ("--config", f"head:{name}={value}")
    )
    report = compare_sides(plan, captured(plan), argv=argv, on_event=tell)
    write(given, info, report, part, len(suite), time.monotonic() - begun)


def write(
    given: argparse.Namespace,
    info: DeviceInfo,
    report: AbReport,
    part: int,
    whole: int,
    seconds: float,
) -> None:
    """This part's rows with those of the parts before."""
    text = given.output.with_suffix(".md")
    rows, before = json.loads(to_json(report))["rows"], ""
    if part > 1:
        earlier = json.loads(given.output.read_text(encoding="utf-8"))["figures"]
        rows, seconds = earlier["rows"] + rows, earlier["seconds"] + seconds
        before = text.read_text(encoding="utf-8") + "\n"
    counts = {s.value: sum(row["status"] == s.value for row in rows) for s in ORDER}
    failed = [row for row in rows if row["status"] in ("broken", "fixed", "ignored")]
    same = [row for row in rows if row["same_binary"]]
    false = [row for row in same if row["status"] in ("slower", "faster")]
    bars = [
        ("all shapes are compared", f"{len(rows)} of {whole}", len(rows) == whole),
        ("no shape fails", f"{len(failed)} fail", not failed),
    ]
    if same:
        told = f"{len(false)} of {len(same)}"
        bars.append(("no pair of one binary is called changed", told, not false))
    evidence.write(
        given.output,
        title="A real comparison: 61 batched GEMMs, default configs against num_stages 2",
        bars=bars,
        figures={"seconds": round(seconds, 1), "counts": counts, "rows": rows},
        device=info,
        libraries=backends.find(given.backend).libraries(),
    )
    text.write_text(before + to_md(report), encoding="utf-8")
    print(summary(report))
    print(audit(report))
    for row in failed:
        print(f"{row['problem']}: {row['reason']}")
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
