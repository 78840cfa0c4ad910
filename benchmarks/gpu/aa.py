"""False alarms and power of `kmark ab`'s rule on a real device, in one run.

    python benchmarks/gpu/aa.py [-d cuda:0] [-o results.json] [--budget-s 165]

A/A: both sides run the same kernel, 15 comparisons for each of 20 problems. Injected: the head's
launch is followed by a spin of 1, 2 or 5 % of the kernel's time (the base's by a spin of nothing).
The order is that of `ab`: pairs shuffled, who goes first drawn and then turned round, fresh memory
for every measurement, two fresh processes every two rounds, the same looks, the same verdict. The
same A/A times, cut into a first and a second half as if one side had been measured after the other,
are judged beside it: blocked order.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernelmark import backends, ops
from kernelmark.backends.base import Kernel
from kernelmark.core.result import Case
from kernelmark.core.timing import Cache, Strain, Timer, Timing
from kernelmark.core.verdict import VerdictStatus
from kernelmark.devices.base import Device
from kernelmark.devices.fake import FakeDevice
from kernelmark.gpu.driver import pack
from kernelmark.measure.loop import Pace, Sampler, choose_pace
from kernelmark.measure.protocol import measure
from kernelmark.measure.sets import Arena, fill_inputs, make_arena, plan_sets
from kernelmark.runners.ab import compile_ahead
from kernelmark.runners.environments import Side
from kernelmark.runners.targets import find
from kernelmark.stats.paired import Looks, paired_verdict
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_aa.json"
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
EFFECTS = (0.01, 0.02, 0.05)
ROUNDS_A_PROCESS = 2
SAMPLES = 4
BLOCK_S = 0.006
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


# -- the worker: one line in, one line out


class Spun(Kernel):
    """A kernel followed by a spin of some cycles, 0 included, so that both sides launch as much."""

    def __init__(self, inner: Kernel, device: Any, cycles: int) -> None:
        self.info = inner.info
        self._inner = inner
        self._device = device
        self._seconds = cycles * 1e-9
        self._fake = isinstance(device, FakeDevice)
        if not self._fake:
            self._function = device.function("spin")
            self._arguments = pack(ctypes.c_uint64(cycles))

    def launch(self, stream: int, set_index: int) -> None:
        self._inner.launch(stream, set_index)
        if self._fake:
            self._device.advance(self._seconds)
            return
        self._device.driver.launch(self._function, (1, 1, 1), (32, 1, 1), self._arguments, stream)

    def collect(self, set_index: int) -> None:
        self._inner.collect(set_index)

    def close(self) -> None:
        self._inner.close()


class Bench:
    """One process's device and what it knows of the problems."""

    def __init__(self, device: Device, backend: str, config: dict[str, Any], seed: int) -> None:
        self._device = device
        self._backend = backends.find(backend)
        self._config = config
        self._rng = np.random.default_rng(seed)
        self._launch_s: dict[str, float] = {}

    def checked(self, key: str) -> dict[str, Any]:
        """The whole protocol once: is it right, how long does it take, at which clock."""
        problem = ops.parse(key)
        outcome = measure(
            problem=problem,
            op=ops.registry.get(problem.op),
            device=self._device,
            timing=Timing(allocations=1, max_allocations=1, max_s=0.05, warmup_s=0.05),
            prepare=lambda sets: Spun(
                self._backend.prepare(problem, self._config, self._device, sets), self._device, 0
            ),
        )
        clocks = [c for block in outcome.measurement.blocks for c in block.clocks_mhz]
        usual = int(self._device.info.attributes.get("clock_khz", "1000000")) / 1e3
        return {
            "seconds": outcome.measurement.median_s,
            "clock_mhz": statistics.median(clocks) if clocks else usual,
            "right": outcome.check.passed,
        }

    def seconds(self, key: str, cycles: int) -> float:
        """A short measurement in fresh memory: the median of a few samples."""
        device, problem = self._device, ops.parse(key)
        tensors = ops.registry.get(problem.op).tensors(problem)
        plan = plan_sets(
            tensors,
            cache=Cache.COLD,
            cache_bytes=device.info.cache_bytes,
            free_bytes=device.free_bytes(),
        )
        buffer, sets = make_arena(device, tensors, plan.sets, self._rng)
        try:
            fill_inputs(device, Arena(buffer=buffer, sets=sets, first=0), 1)
            device.synchronize()
            inner = self._backend.prepare(problem, self._config, device, sets)
            kernel = Spun(inner, device, cycles)
            try:
                return self._sampled(key, kernel, len(sets), evict=plan.evict)
            finally:
                kernel.close()
        finally:
            device.free(buffer)

    def _sampled(self, key: str, kernel: Kernel, sets: int, *, evict: bool) -> float:
        device = self._device
        sampler = Sampler(device, kernel.launch, sets=sets, timer=Timer.AUTO, strain=Strain.NONE)
        try:
            if key not in self._launch_s:
                first = sampler.sample(Pace(launches=min(sets, 64), two_lengths=False))
                self._launch_s[key] = max(first.launch_s, 1e-6)
            pace = choose_pace(
                launch_s=self._launch_s[key],
                sets=sets,
                evict=evict,
                block_s=BLOCK_S,
                timing=Timing(min_samples=SAMPLES),
                two_lengths=device.two_lengths,
                method=Timer.GRAPH if device.real_time else Timer.LOOP,
            )
            sampler.sample(pace)
            return statistics.median(sampler.sample(pace).launch_s for _ in range(SAMPLES))
        finally:
            sampler.close()


def work(given: argparse.Namespace) -> None:
    """Serve requests on stdin until it ends."""
    kind, info = find(given.device)
    bench = Bench(kind.open(info.index), given.backend, json.loads(given.config), given.seed)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "check":
            answer: Any = bench.checked(asked["problem"])
        else:
            answer = bench.seconds(asked["problem"], asked["cycles"])
        print(json.dumps(answer), flush=True)


class Worker:
    """This script as a worker."""

    def __init__(self, given: argparse.Namespace, seed: int) -> None:
        words = [sys.executable, __file__, "--worker", "-d", given.device, "--seed", str(seed)]
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


# -- the comparison


@dataclass
class Track:
    """One comparison: a problem with an effect on head's side (0: none)."""

    problem: str
    effect: float
    cycles: int
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    in_order: list[float] = field(default_factory=list)
    head_first: bool = False
    status: VerdictStatus = VerdictStatus.UNSURE
    ratio: float = 1.0


def run_rounds(given: argparse.Namespace, tracks: list[Track]) -> tuple[int, float]:
    """Rounds until every comparison is decided, the looks are over or the time is: (rounds,
    seconds)."""
    looks, order, begun = Looks(), random.Random(given.seed), time.monotonic()
    workers: list[Worker] = []
    active = list(tracks)
    for number in range(looks.last):
        if number % ROUNDS_A_PROCESS == 0:
            close_all(workers)
            workers = [Worker(given, 1000 * number + side) for side in (0, 1)]
            for worker in workers:
                worker.answer()
        order.shuffle(active)
        for track in active:
            drawn = order.random() < 0.5
            track.head_first = not track.head_first if number % 2 else drawn
            for side in (1, 0) if track.head_first else (0, 1):
                cycles = track.cycles if side else 0
                seconds = workers[side].ask(do="time", problem=track.problem, cycles=cycles)
                track.times[side].append(seconds)
                track.in_order.append(seconds)
        if number + 1 in looks.rounds:
            active = looked(active, looks)
        spent = time.monotonic() - begun
        print(f"round {number + 1}: {len(active)} open, {spent:.0f} s", flush=True)
        if not active or spent * (number + 2) / (number + 1) > given.budget_s:
            break
    close_all(workers)
    return number + 1, time.monotonic() - begun


def looked(active: list[Track], looks: Looks) -> list[Track]:
    left = []
    for track in active:
        found = looks.verdict(track.times[0], track.times[1])
        track.status, track.ratio = found.status, found.ratio
        if not found.decided:
            left.append(track)
    return left


def close_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


def blocked(track: Track) -> VerdictStatus:
    """The verdict had the first half of the measurements been one side, the second the other."""
    half = len(track.in_order) // 2
    return paired_verdict(track.in_order[:half], track.in_order[half : 2 * half]).status


def counted(tracks: list[Track]) -> dict[str, int]:
    return {s.value: sum(t.status is s for t in tracks) for s in VerdictStatus if any(
        t.status is s for t in tracks
    )}  # fmt: skip


def spread(tracks: list[Track]) -> float:
    """The usual standard deviation of a round's log ratio, in percent."""
    logs = [np.log(np.array(t.times[1]) / np.array(t.times[0])) for t in tracks]
    return 100 * float(np.median([np.std(one, ddof=1) for one in logs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--config", default="{}")
    parser.add_argument("--replicates", type=int, default=15)
    parser.add_argument("--injected", type=int, default=2, help="comparisons a problem and effect")
    parser.add_argument("--budget-s", type=float, default=165.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    _, info = find(given.device)
    problems = FAKE_PROBLEMS if info.kind == "fake" else PROBLEMS
    if info.kind != "fake":
        cases = [Case(problem=ops.parse(key), backend=given.backend) for key in problems]
        compile_ahead(Side(name="here"), cases, info.name, len(os.sched_getaffinity(0)))
    first = Worker(given, given.seed)
    first.answer()
    known = {key: first.ask(do="check", problem=key) for key in problems}
    first.close()
    for one in known.values():
        one["cycles"] = one["seconds"] * one["clock_mhz"] * 1e6
    wrong = [key for key, one in known.items() if not one["right"]]
    tracks = [
        Track(problem=key, effect=effect, cycles=round(effect * one["cycles"]))
        for key, one in known.items()
        for effect in (*[0.0] * given.replicates, *EFFECTS * given.injected)
    ]  # fmt: skip
    rounds, seconds = run_rounds(given, tracks)
    report(given, info, known, tracks, rounds, seconds, wrong)


def report(
    given: argparse.Namespace,
    info: Any,
    known: dict[str, Any],
    tracks: list[Track],
    rounds: int,
    seconds: float,
    wrong: list[str],
) -> None:
    same = [t for t in tracks if t.effect == 0]
    false = [t for t in same if t.status in ALARMS]
    open_ = [t for t in same if t.status is VerdictStatus.UNSURE]
    late = [t for t in same if blocked(t) in ALARMS]
    by_effect = {effect: [t for t in tracks if t.effect == effect] for effect in EFFECTS}
    found = {
        effect: sum(t.status is VerdictStatus.SLOWER for t in some) / len(some)
        for effect, some in by_effect.items()
    }
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
        ("every kernel right", f"{len(known) - len(wrong)} of {len(known)}", not wrong),
    ]
    figures = {
        "rounds": rounds,
        "seconds": round(seconds, 1),
        "rounds_a_process": ROUNDS_A_PROCESS,
        "aa": counted(same),
        "aa_blocked_order_false": len(late),
        "aa_comparisons": len(same),
        "aa_left_unsure": len(open_),
        "spread_of_a_round_percent": round(spread(same), 3),
        "injected": {f"{100 * e:g} %": counted(some) for e, some in by_effect.items()},
        "detected": {f"{100 * e:g} %": round(share, 3) for e, share in found.items()},
        "false_verdicts": [{"problem": t.problem, "ratio": t.ratio} for t in false],
        "problems": [
            {
                "problem": key,
                "us": one["seconds"] * 1e6,
                "spread_percent": spread([t for t in same if t.problem == key]),
                "aa": counted([t for t in same if t.problem == key]),
            }
            for key, one in known.items()
        ],
    }
    evidence.write(
        given.output,
        title="kmark ab: false alarms and power, A/A and injected slowdowns",
        bars=bars,
        figures=figures,
        device=info,
        libraries=backends.find(given.backend).libraries(),
    )
    print(f"A/A by ABBA: {counted(same)}; by blocked order {len(late)} of {len(same)} false")
    for effect, some in by_effect.items():
        print(f"+{100 * effect:g} %: {counted(some)}")
    print(evidence.told(bars))


if __name__ == "__main__":
    main()
