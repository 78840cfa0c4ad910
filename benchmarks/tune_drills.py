"""Drills of the tuner: kill a tuning run again and again, and see whether anything is lost.

    python benchmarks/tune_drills.py [--quick] [--kills 10] [-o results.json]

A run of `kmark tune run` on the fake device, whose candidates also crash, hang, are wrong or do
not compile, is ended by SIGKILL at random moments and started again until it is done. Its winners
and everything it evaluated are compared with those of a run that nobody disturbed. The fake device
has no noise, so equal means equal. Ends with exit code 1 when a drill fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelmark.tune.folder import TuningFolder
from kernelmark_dev import evidence
from kernelmark_dev.tuning import Left, fake_plans, killed_after, left, make_folder, start

RESULTS = Path(__file__).parent / "results" / "tune_drills.json"
WORDS = ("--timeout", "2", "-q")
STARTUP_S = 0.5  # before this nothing was begun that could be lost


def folder_of(place: Path, plans: int, evaluations: int, strategy: str) -> TuningFolder:
    return make_folder(place, fake_plans(plans, evaluations=evaluations, strategy=strategy))


def undisturbed(folder: TuningFolder) -> tuple[Left, float]:
    begun = time.monotonic()
    process = start(folder, *WORDS)
    _, told = process.communicate()
    if process.returncode not in (0, 3):
        sys.exit(f"the undisturbed run ended with {process.returncode}: {told}")
    return left(folder), time.monotonic() - begun


def disturbed(
    folder: TuningFolder, moments: random.Random, longest_s: float, most: int
) -> tuple[Left, list[float]]:
    """Kill it up to `most` times, then let it end; the moments at which it was killed."""
    kills: list[float] = []
    while len(kills) < most:
        moment = moments.uniform(STARTUP_S, longest_s)
        if not killed_after(start(folder, *WORDS), moment):
            return left(folder), kills
        kills.append(moment)
        lines = sum(len(p.read_bytes().splitlines()) for p in folder.trials.glob("*.jsonl"))
        print(f"killed after {moment:.2f} s, {lines} lines in the journals", flush=True)
    process = start(folder, *WORDS)
    process.communicate()
    return left(folder), kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", default="kmark")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    plans, evaluations = (3, 12) if given.quick else (8, 40)
    kills_wanted = 2 if given.quick else given.kills
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        right, whole_s = undisturbed(
            folder_of(Path(place, "right"), plans, evaluations, given.strategy)
        )
        print(f"undisturbed: {whole_s:.1f} s, {len(right.evaluated)} evaluations", flush=True)
        found: list[tuple[Left, list[float]]] = []
        while sum(len(kills) for _, kills in found) < kills_wanted:
            folder = folder_of(Path(place, f"d{len(found)}"), plans, evaluations, given.strategy)
            most = kills_wanted - sum(len(kills) for _, kills in found)
            longest_s = max(2 * STARTUP_S, whole_s / 4)
            found.append(disturbed(folder, moments, longest_s, most))
    kills = [moment for _, ones in found for moment in ones]
    same = all(one.winners == right.winners for one, _ in found)
    twice = sum(len(one.twice) for one, _ in found)
    walk = all(one.evaluated.keys() == right.evaluated.keys() for one, _ in found)
    bars = [
        (
            f"{kills_wanted} kills of a tuning run",
            f"{len(kills)} kills",
            len(kills) >= kills_wanted,
        ),
        ("the same winners", f"{len(right.winners)} plans, {'same' if same else 'OTHER'}", same),
        ("nothing evaluated twice", f"{twice} evaluated twice", twice == 0),
        ("the same walk through the space", "same" if walk else "OTHER", walk),
    ]
    figures: dict[str, Any] = {
        "plans": plans,
        "evaluations": len(right.evaluated),
        "undisturbed_s": round(whole_s, 1),
        "killed_after_s": [round(moment, 2) for moment in kills],
        "statuses": dict(right.statuses),
        "strategy": given.strategy,
    }
    if not given.quick:
        evidence.write(given.output, title="Drills of the tuner", bars=bars, figures=figures)
    print(evidence.bars_text(bars))
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


if __name__ == "__main__":
    main()
