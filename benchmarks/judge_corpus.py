"""Judge the attacks and the honest kernels of `attacks/`, several times each.

    python benchmarks/judge_corpus.py --tries 20 --json benchmarks/results/judge_cpu.json

With `--jobs`, so many files are judged at a time, each on cores of its own (at least two); verdicts
a minute are those of one job.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError
from kernelmark.judge.processes import Templates
from kernelmark.judge.referee import judge
from kernelmark_dev import evidence
from kernelmark_dev.attacks import Attack, attacks, honest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", default="", help="part of the name of a file")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", default="")
    parser.add_argument("--skip-attacks", action="store_true")
    parser.add_argument("--skip-honest", action="store_true")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "machine": platform.machine(),
        "tries": options.tries,
        "rounds": options.rounds,
    }
    start = time.time()
    chosen = [] if options.skip_attacks else attacks()
    others = [] if options.skip_honest else honest()
    work = [(attack, options.tries, options.rounds, True) for attack in chosen]
    work += [(kernel, 1, options.rounds, False) for kernel in others]
    work = [item for item in work if options.only in item[0].name]
    rows = list(_all(work, options.jobs))
    document["attacks"] = [row for row, item in zip(rows, work, strict=True) if item[3]]
    document["honest"] = [row for row, item in zip(rows, work, strict=True) if not item[3]]
    won = sum(row["won"] for row in document["attacks"])
    refused = sum(row["judged"] - row["accepted"] for row in document["honest"])
    document["attacks_won"], document["honest_refused"] = won, refused
    seconds = time.time() - start
    document |= {"seconds": round(seconds), "jobs": options.jobs}
    judged = sum(row["judged"] for row in rows)
    spent = sum(row["seconds"] * row["judged"] for row in rows)
    document["verdicts_per_minute"] = round(60 * judged / spent, 1) if spent else None
    print(
        f"{len(document['attacks'])} attacks, {won} of their tries won;"
        f" {sum(row['judged'] for row in document['honest'])} honest kernels, {refused} refused;"
        f" {document['verdicts_per_minute']} verdicts a minute"
    )
    honest_count = sum(row["judged"] for row in document["honest"])
    bars = [
        (
            "60 or more attack files, 20 tries each: none accepted",
            f"{won} of {sum(row['judged'] for row in document['attacks'])} tries of"
            f" {len(document['attacks'])} files accepted",
            not won and len(document["attacks"]) >= 60 and options.tries >= 20,
        ),
        (
            "200 or more honest kernels: none refused",
            f"{refused} of {honest_count} refused",
            not refused and honest_count >= 200,
        ),
        (
            "20 or more verdicts a minute",
            f"{document['verdicts_per_minute']}",
            (document["verdicts_per_minute"] or 0) >= 20,
        ),
    ]
    print(evidence.told(bars))
    if options.json:
        evidence.write(
            Path(options.json),
            title="kmark judge: attacks and honest kernels on a CPU",
            bars=bars,
            figures=document,
            libraries=evidence.libraries("numpy"),
        )
    return 1 if won or refused else 0


Work = tuple[Attack, int, int, bool]


def _all(work: list[Work], jobs: int) -> Iterator[dict[str, Any]]:
    """Judge files, `jobs` at a time, in their order."""
    if jobs <= 1:
        with Templates() as templates:
            for item in work:
                yield _judged(*item[:3], templates, is_attack=item[3])
        return
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))
    numbers = context.Queue()
    for number in range(jobs):
        numbers.put(cores[number * len(cores) // jobs : (number + 1) * len(cores) // jobs])
    with context.Pool(jobs, _pin, (numbers,)) as pool:
        yield from pool.imap(_judged_by_job, work)


def _pin(cores: Any) -> None:
    os.sched_setaffinity(0, cores.get())


def _judged_by_job(item: Work) -> dict[str, Any]:
    return _judged(*item[:3], _templates(), is_attack=item[3])


@functools.cache
def _templates() -> Templates:
    return Templates()


def _judged(
    attack: Attack, tries: int, rounds: int, templates: Templates, *, is_attack: bool
) -> dict[str, Any]:
    codes: Counter[str] = Counter()
    accepted = won = 0
    ratios, why = [], ""
    start = time.time()
    for _ in range(tries):
        try:
            verdict = judge(attack.question(rounds=rounds), templates)
        except KernelmarkError as error:
            codes[f"error: {error.message}"] += 1
            continue
        codes[verdict.code] += 1
        if verdict.status.value == "unsupported":
            continue
        accepted += verdict.accepted
        won += is_attack and attack.won(verdict)
        why = why or str(verdict.reason)[:200]
        if verdict.ratio is not None:
            ratios.append(round(verdict.ratio, 3))
    judged = tries - sum(n for code, n in codes.items() if code.startswith("unsupported"))
    seconds = (time.time() - start) / tries
    print(
        f"{'WON ' if won else ''}{attack.name:24s} {attack.problem:36s} {dict(codes)}"
        f" {ratios[:3]} {seconds:.1f} s  {why[:90]}",
        flush=True,
    )
    return {
        "file": attack.path.name,
        "problem": attack.problem,
        "judged": judged,
        "accepted": accepted,
        "won": won,
        "codes": dict(codes),
        "ratios": ratios,
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    raise SystemExit(main())
