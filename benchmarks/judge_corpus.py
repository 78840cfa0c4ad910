"""Judge the attacks and the honest kernels of `attacks/`, several times each.

python benchmarks/judge_corpus.py --tries 20 --json benchmarks/results/judge_cpu.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError
from kernelmark.judge.referee import judge
from kernelmark_dev.attacks import Attack, attacks, honest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the name of a file")
    parser.add_argument("--json", default="")
    parser.add_argument("--skip-attacks", action="store_true")
    parser.add_argument("--skip-honest", action="store_true")
    options = parser.parse_args()
    document: dict[str, Any] = {"machine": platform.machine(), "tries": options.tries}
    start = time.time()
    chosen = [] if options.skip_attacks else attacks()
    document["attacks"] = [
        _judged(attack, options.tries, is_attack=True)
        for attack in chosen
        if options.only in attack.name
    ]
    others = [] if options.skip_honest else honest()
    document["honest"] = [
        _judged(kernel, 1, is_attack=False) for kernel in others if options.only in kernel.name
    ]
    won = sum(row["won"] for row in document["attacks"])
    refused = sum(row["judged"] - row["accepted"] for row in document["honest"])
    document["attacks_won"], document["honest_refused"] = won, refused
    document["seconds"] = round(time.time() - start)
    judged = sum(row["judged"] for row in document["attacks"] + document["honest"])
    print(
        f"{len(document['attacks'])} attacks, {won} of their tries won;"
        f" {sum(row['judged'] for row in document['honest'])} honest kernels, {refused} refused;"
        f" {judged / (time.time() - start) * 60:.1f} verdicts a minute"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if won or refused else 0


def _judged(attack: Attack, tries: int, *, is_attack: bool) -> dict[str, Any]:
    codes: Counter[str] = Counter()
    accepted = won = 0
    ratios, why = [], ""
    start = time.time()
    for _ in range(tries):
        try:
            verdict = judge(attack.question())
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
