"""False alarms and power of `kmark ab`'s rule on a real device, in one run.

    python benchmarks/gpu/aa.py [-d cuda:0] [-o results.json] [--budget-s 165]

A/A: both sides run the same kernel, 15 comparisons for each of 20 problems. Injected: the head's
launch is followed by a spin that is longer by 1, 2 or 5 % of the kernel's time. The comparisons are
dealt out to 15 suites, each with every problem unchanged once and some slowed ones, and judged as
`ab` judges a suite: pairs shuffled, who goes first drawn and then turned round, fresh memory for
every measurement, two fresh processes a round, ab's looks (as many as the time allows, decided
before the first round), ab's verdict. The same A/A times, cut into a first and a second half as if
one side had been measured after the other, are judged beside it: blocked order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.core.result import Case
from kernelmark.core.verdict import VerdictStatus
from kernelmark.runners.ab import Side, compile_ahead
from kernelmark.stats.paired import Looks, paired_verdict, suite_verdicts
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_aa.json"
WORKER = Path(__file__).parent / "aa_worker.py"
PROBLEMS = (
    *(f"gemm m={m} n=4096 k=4096 dtype=bf16 tb=t" for m in (16, 64, 256, 1024)),
    "gemm m=2048 n=2048 k=2048 dtype=bf16 tb=t",
    "gemm m=4096 n=4096 k=1024 dtype=bf16 tb=t",
    "gemm m=1 n=8192 k=8192 dtype=bf16 tb=t",
    "gemm m=512 n=8192 k=1024 dtype=bf16 tb=t",
    "gemm m=1024 n=4096 k=4096 dtype=f8e4m3 tb=t",
    "gemm m=64 n=8192 k=4096 dtype=f8e4m3 tb=t",
    "batched_gemm batch=16 m=256 n=512 k=128 dtype=bf16 tb=t",
    "batched_gemm batch=16 m=1024 n=128 k=512 dtype=bf16 tb=t",
    "batched_gemm batch=16 m=64 n=1024 k=1024 dtype=bf16 tb=t",
    "batched_gemm_quant batch=16 m=256 n=512 k=512 scheme=a8w8",
    "batched_gemm_quant batch=16 m=64 n=2048 k=2048 scheme=a8w8",
    "batched_gemm_quant batch=16 m=256 n=512 k=512 scheme=a8w8_group",
    "batched_gemm_quant batch=16 m=64 n=2048 k=2048 scheme=a16wfp4",
    "batched_gemm_quant batch=16 m=64 n=2048 k=2048 scheme=afp4wfp4",
    "attention heads=16 seq=1024 dim=128 dtype=bf16 causal=yes",
    "attention batch=4 heads=8 seq=512 dim=64 dtype=bf16",
)
FAKE_PROBLEMS = tuple(f"gemm m={8 * i} n=8 k=8 dtype=f32" for i in range(1, 21))
EFFECTS = {0.01: 1, 0.02: 2, 0.05: 1}  # comparisons of each problem
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


class Worker:
    """aa_worker.py in a process of its own."""

    def __init__(self, given: argparse.Namespace, seed: int) -> None:
        words = [sys.executable, str(WORKER), "-d", given.device, "--seed", str(seed)]
        words += ["--backend", given.backend, "--config", given.config]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended; its error is above")
        return json.loads(line)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Track:
    """One comparison: a problem with an effect on head's side (0: none), in one of the suites."""

    problem: str
    effect: float
    suite: int
    cycles: int
    launch_s: float
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    in_order: list[float] = field(default_factory=list)
    head_first: bool = False
    status: VerdictStatus | None = None  # None: not looked at yet
    alone: VerdictStatus = VerdictStatus.UNSURE  # without the others of its suite
    ratio: float = 1.0

    @property
    def open(self) -> bool:
        return self.status in (None, VerdictStatus.UNSURE)


def dealt(known: dict[str, Any], suites: int) -> list[Track]:
    """Every problem unchanged in every suite; the slowed ones in turn."""
    turns = itertools.cycle(range(suites))

    def track(key: str, effect: float, suite: int) -> Track:
        seconds, clock_mhz = known[key]["seconds"], known[key]["clock_mhz"]
        cycles = round(effect * seconds * clock_mhz * 1e6)
        return Track(problem=key, effect=effect, suite=suite, cycles=cycles, launch_s=seconds)

    same = [track(key, 0.0, suite) for suite in range(suites) for key in known]
    slowed = [
        track(key, effect, next(turns))
        for effect, count in EFFECTS.items()
        for _ in range(count)
        for key in known
    ]
    return same + slowed


def fitting(looks: Looks, round_s: float, budget_s: float) -> Looks:
    """The looks that there is time for, and one at the end of it if that is some rounds later."""
    most = min(looks.last, int(budget_s / round_s) // 2 * 2)
    rounds = tuple(number for number in looks.rounds if number <= most)
    if not rounds:
        raise SystemExit(f"{looks.rounds[0]} rounds of {round_s:.1f} s need more than the budget")
    if most >= rounds[-1] + 4:
        rounds += (most,)
    print(f"looks after {', '.join(map(str, rounds))} rounds", flush=True)
    return Looks(rounds=rounds, alpha=looks.alpha)


def run_rounds(given: argparse.Namespace, tracks: Sequence[Track], looks: Looks) -> int:
    """Rounds until every comparison is decided, the looks are over or the time is."""
    order, begun = random.Random(given.seed), time.monotonic()
    number = 0
    for number in range(1, looks.last + 1):
        active = [track for track in tracks if track.open]
        workers = [Worker(given, 1000 * number + side) for side in (0, 1)]
        for worker in workers:
            worker.answer()
        order.shuffle(active)
        for track in active:
            drawn = order.random() < 0.5
            track.head_first = drawn if number % 2 else not track.head_first
            for side in (1, 0) if track.head_first else (0, 1):
                seconds = workers[side].ask(
                    do="time",
                    problem=track.problem,
                    cycles=track.cycles if side else 0,
                    launch_s=track.launch_s,
                )
                track.times[side].append(seconds)
                track.in_order.append(seconds)
        for worker in workers:
            worker.close()
        if number in looks.rounds:
            look(tracks, looks)
        left = sum(track.open for track in tracks)
        spent = time.monotonic() - begun
        print(f"round {number}: {left} open, {spent:.0f} s", flush=True)
        if not left or (spent > given.budget_s and number in looks.rounds):
            break
    return number


def look(tracks: Sequence[Track], looks: Looks) -> None:
    """The verdicts of all that are open, suite by suite."""
    for suite in sorted({track.suite for track in tracks}):
        family = [track for track in tracks if track.suite == suite]
        found = suite_verdicts(looks, [track.times for track in family])
        for track, verdict in zip(family, found, strict=True):
            if track.open:
                track.status, track.ratio = verdict.status, verdict.ratio
                track.alone = looks.verdict(*track.times).status


def blocked(track: Track) -> VerdictStatus:
    """The verdict had the first half of the measurements been one side, the second the other."""
    half = len(track.in_order) // 2
    return paired_verdict(track.in_order[:half], track.in_order[half : 2 * half]).status


def counted(tracks: Sequence[Track]) -> dict[str, int]:
    return {
        status.value: number
        for status in VerdictStatus
        if (number := sum(track.status is status for track in tracks))
    }


def spread(tracks: Sequence[Track]) -> float:
    """The usual standard deviation of a round's log ratio, in percent."""
    logs = [np.log(np.array(t.times[1]) / np.array(t.times[0])) for t in tracks]
    return 100 * float(np.median([np.std(one, ddof=1) for one in logs]))


def prepared(given: argparse.Namespace, info: Any) -> tuple[dict[str, Any], float]:
    """Every problem compiled and checked, and the seconds that a round of them would take."""
    problems = FAKE_PROBLEMS if info.kind == "fake" else PROBLEMS
    if info.kind != "fake":
        cases = [Case(problem=ops.parse(key), backend=given.backend) for key in problems]
        compile_ahead(Side(name="here"), cases, info.name, len(os.sched_getaffinity(0)))
    worker = Worker(given, 1)
    worker.answer()
    known = {key: worker.ask(do="check", problem=key) for key in problems}
    worker.close()
    begun = time.monotonic()
    worker = Worker(given, 2)
    worker.answer()
    start_s = time.monotonic() - begun
    passes = []
    for _ in range(2):  # the first one loads what the second has
        begun = time.monotonic()
        for key, one in known.items():
            worker.ask(do="time", problem=key, cycles=0, launch_s=one["seconds"])
        passes.append(time.monotonic() - begun)
    worker.close()
    more = given.suites + sum(EFFECTS.values()) - 1
    round_s = start_s + 2 * (passes[0] + more * passes[1])
    each_ms = 1e3 * passes[1] / len(known)
    print(f"start {start_s:.1f} s, measurement {each_ms:.1f} ms, round {round_s:.1f} s", flush=True)
    for key, one in known.items():
        if not one["right"]:
            print(f"wrong: {key}: {one['detail']}")
    return known, round_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--config", default="{}")
    parser.add_argument("--suites", type=int, default=15)
    parser.add_argument("--budget-s", type=float, default=165.0, help="for the rounds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    info = gpu_info(given.device)
    known, round_s = prepared(given, info)
    looks = fitting(Looks(), round_s, given.budget_s)
    tracks = dealt(known, given.suites)
    begun = time.monotonic()
    rounds = run_rounds(given, tracks, looks)
    report(given, info, known, tracks, looks, rounds, time.monotonic() - begun)


def report(
    given: argparse.Namespace,
    info: Any,
    known: dict[str, Any],
    tracks: Sequence[Track],
    looks: Looks,
    rounds: int,
    seconds: float,
) -> None:
    same = [t for t in tracks if t.effect == 0]
    false = [t for t in same if t.status in ALARMS]
    late = sum(blocked(t) in ALARMS for t in same)
    by_effect = {effect: [t for t in tracks if t.effect == effect] for effect in EFFECTS}
    found = {
        effect: sum(t.status is VerdictStatus.SLOWER for t in some) / len(some)
        for effect, some in by_effect.items()
    }
    right = sum(bool(one["right"]) for one in known.values())
    bars = [
        (
            "≤ 3 false verdicts in ≥ 300 A/A comparisons over ≥ 20 problems",
            f"{len(false)} of {len(same)} over {len(known)}",
            len(false) <= 3 and len(same) >= 300 and len(known) >= 20,
        ),
        (
            "≥ 90 % of slowdowns of 2 % detected",
            f"{100 * found[0.02]:.0f} % of {len(by_effect[0.02])}",
            found[0.02] >= 0.9,
        ),
        ("every kernel right", f"{right} of {len(known)}", right == len(known)),
    ]
    figures = {
        "rounds": rounds,
        "looks": list(looks.rounds),
        "seconds": round(seconds, 1),
        "suites": given.suites,
        "aa": counted(same),
        "aa_comparisons": len(same),
        "aa_false_without_false_discovery_control": sum(t.alone in ALARMS for t in same),
        "aa_false_in_blocked_order": late,
        "spread_of_a_round_percent": round(spread(same), 3),
        "injected": {f"{100 * e:g} %": counted(some) for e, some in by_effect.items()},
        "detected": {f"{100 * e:g} %": round(share, 3) for e, share in found.items()},
        "detected_without_false_discovery_control": {
            f"{100 * e:g} %": round(
                sum(t.alone is VerdictStatus.SLOWER for t in some) / len(some), 3
            )
            for e, some in by_effect.items()
        },
        "false_verdicts": [{"problem": t.problem, "ratio": t.ratio} for t in false],
        "problems": [of_problem(key, one, tracks) for key, one in known.items()],
    }
    evidence.write(
        given.output,
        title="kmark ab: false alarms and power, A/A and injected slowdowns",
        bars=bars,
        figures=figures,
        device=info,
        libraries=backends.find(given.backend).libraries(),
    )
    print(f"A/A by ABBA: {counted(same)}; by blocked order {late} of {len(same)} false")
    for effect, some in by_effect.items():
        print(f"+{100 * effect:g} %: {counted(some)}")
    print(evidence.bars_text(bars))


def of_problem(key: str, one: dict[str, Any], tracks: Sequence[Track]) -> dict[str, Any]:
    """What the comparisons of one problem gave."""
    mine = [t for t in tracks if t.problem == key]
    return {
        "problem": key,
        "us": one["seconds"] * 1e6,
        "spread_percent": spread(mine),
        **{
            f"+{100 * e:g} %" if e else "aa": counted([t for t in mine if t.effect == e])
            for e in (0.0, *EFFECTS)
        },
        "ratios_at_2_percent": [round(t.ratio, 4) for t in mine if t.effect == 0.02],
    }


if __name__ == "__main__":
    main()
