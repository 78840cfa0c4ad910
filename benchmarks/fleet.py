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
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners import places
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.protocol import PROTOCOL
from kernelmark.stats.outliers import find_slow
from kernelmark.testing.stores import measured
from kernelmark_dev import evidence

HERE = Path(__file__).parent
SLEEPER = str(HERE / "sleeper.py")
RESULTS = HERE / "results"
DEVICES, CASES, EFFICIENCY = 64, 10_000, 0.95
# Long enough that two cores, which run all simulated devices, are not the limit.
CASE_S = {"local": 3.0, "ray": 5.0}
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
    count, total, scale = (4, 40, 0.1) if options.quick else (DEVICES, CASES, 1.0)
    use_sleepers(count)
    target = options.output or RESULTS / "fleet_makespan.json"
    figures: dict[str, Any] = {}
    if options.only:  # the other one is kept
        figures = json.loads(target.read_text())["figures"]
    for where in (options.only,) if options.only else CASE_S:
        cases = sleeping_cases(total, scale * CASE_S[where])
        figures[where] = on_ray(cases) if where == "ray" else local(count, cases)
        figures[where] |= {"case_s": scale * CASE_S[where], "load_1min": os.getloadavg()[0]}
        print(where, figures[where], flush=True)
    return [
        (
            f"{count} devices, {total} cases of {figures[where]['case_s']:g} s ± 50 %, {where}: "
            f"≥ {EFFICIENCY:.0%} of the ideal makespan",
            f"{figures[where]['efficiency']:.1%} ({figures[where]['took_s']:g} s)",
            figures[where]["efficiency"] >= EFFICIENCY,
        )
        for where in CASE_S
    ], figures


def local(count: int, cases: list[Case]) -> dict[str, Any]:
    return makespan(["fake", *(f"fake:{i}" for i in range(1, count))], cases)


def on_ray(cases: list[Case]) -> dict[str, Any]:
    """Run the cases on a new cluster of one node. Starting its actors is not included."""
    from kernelmark.runners.ray import open_place

    begin = time.monotonic()
    place = open_place("ray", print)
    with places.at(place):
        place.devices(["fake"])
        start_s = time.monotonic() - begin
        return {**makespan(["fake"], cases), "start_s": round(start_s, 1)}


# Kills of each kind in a campaign. A head takes its nodes with it.
KILLS = {"worker": 50, "actor": 35, "node": 10, "command": 10, "head": 3}
CHAOS_CASES, CHAOS_CASE_S, CHAOS_DEVICES = 300, 0.5, 2
RUN = "chaos-{}"


def chaos_command(store: str, address: str, run_id: str, count: int) -> int:
    """Run the cases into a store, or resume the run if it is there: the command that is killed."""
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.core.result import Run, RunState
    from kernelmark.runners.ray import open_place
    from kernelmark.runners.session import run_cases
    from kernelmark.stores import open_store

    cases = sleeping_cases(count, CHAOS_CASE_S)
    with open_store(store) as opened, places.at(open_place(address, print)):
        known = {run.id: run for run in opened.runs()}
        run = known.get(run_id) or Run(id=run_id, started=time.time(), environment=Environment())
        runner = LocalRunner(["fake"], jobs=0, python=SLEEPER)
        try:
            is_again = run_id in known
            done = run_cases(run=run, cases=cases, runner=runner, store=opened, resume=is_again)
        except KernelmarkError as error:
            print(error, flush=True)
            return 2
        return 0 if done.run.state is RunState.DONE else 130


class Chaos:
    """A cluster, a command that runs on it, and the processes to kill."""

    def __init__(self, store: str, seed: int) -> None:
        self.store = store
        self.draw = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.ended_itself = 0  # commands that noticed the loss of their head
        self.start_cluster()

    def start_cluster(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def start_command(self, run_id: str, count: int) -> None:
        words = [self.store, self.cluster.address, run_id, str(count)]
        command = [sys.executable, __file__, "command", *words]
        self.command = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def children(self, generation: int) -> list[int]:
        """Return the actors (1) or their workers (2) of the cluster's nodes."""
        nodes = [self.cluster.head_node, *self.nodes]
        pids = {node.all_processes["raylet"][0].process.pid for node in nodes}
        for _ in range(generation):
            pids = {pid for pid, parent, name in processes() if parent in pids and is_victim(name)}
        return sorted(pids)

    def kill(self, kind: str) -> None:
        if kind in ("worker", "actor"):
            if not (pids := self.children(1 if kind == "actor" else 2)):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.draw.choice(pids), signal.SIGKILL)
        elif kind == "node":
            node = self.nodes.pop(self.draw.randrange(len(self.nodes)))
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(self.cluster.add_node(num_cpus=1))
        elif kind == "command":
            self.command.kill()
        else:
            self.cluster.shutdown()
            try:
                self.command.wait(120)
                self.ended_itself += 1
            except subprocess.TimeoutExpired:
                self.command.kill()
            self.start_cluster()
        self.killed[kind] += 1


def is_victim(name: str) -> bool:
    return "ray::Holder" in name or "sleeper.py" in name


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield PID, parent and command line of every process."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ")
            yield int(path.name), parent, line.decode(errors="replace")


def measure_chaos(options: argparse.Namespace) -> tuple[Bars, dict[str, Any]]:
    os.environ |= {
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "180",
    }  # on a busy machine
    use_sleepers(CHAOS_DEVICES)
    wanted = Counter(dict.fromkeys(KILLS, 1) if options.quick else KILLS)
    cases = {case.id for case in sleeping_cases(CHAOS_CASES, CHAOS_CASE_S)}
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(f"{folder}/store.sqlite", seed=1)
        runs: list[dict[str, Any]] = []
        try:
            while wanted - chaos.killed:
                runs.append(chaotic_run(chaos, RUN.format(len(runs)), wanted, len(cases)))
                runs[-1] |= counted_results(chaos.store, RUN.format(len(runs) - 1), cases)
                print(runs[-1], dict(chaos.killed), flush=True)
        finally:
            chaos.command.kill()
            chaos.cluster.shutdown()
    kills = sum(chaos.killed.values())
    wrong = sum(run["missing"] + run["twice"] for run in runs)
    return [
        (
            "workers, actors, nodes, commands and heads killed at random ≥ 100 times: every case "
            "has exactly one result after --resume",
            f"{kills} kills in {len(runs)} runs of {len(cases)} cases: {wrong} missing or twice",
            kills >= 100 and not wrong,
        )
    ], {"killed": dict(chaos.killed), "noticed_head": chaos.ended_itself, "runs": runs}


def chaotic_run(chaos: Chaos, run_id: str, wanted: Counter[str], count: int) -> dict[str, Any]:
    """Run the command, and again until it ends by itself, while processes are killed."""
    starts = 0
    while True:
        starts += 1
        chaos.start_command(run_id, count)
        code: int | None = None
        while (code := chaos.command.poll()) is None:
            time.sleep(chaos.draw.uniform(0.2, 1.5))
            kinds = list((wanted - chaos.killed).elements())
            if kinds and chaos.children(2):
                chaos.kill(chaos.draw.choice(kinds))
        if code == 0:
            return {"run": run_id, "starts": starts}


def counted_results(store: str, run_id: str, cases: set[str]) -> dict[str, Any]:
    from kernelmark.stores import open_store

    with open_store(store, readonly=True) as opened:
        results = opened.result_set(run_id).results
    times = Counter(result.case.id for result in results)
    return {
        "missing": len(cases - times.keys()),
        "twice": sum(number > 1 for number in times.values()),
        "statuses": dict(Counter(str(result.status) for result in results)),
    }


PLANTED, SPREADS, FLEETS, FOUND, FALSE = 0.05, (0.003, 0.005, 0.007, 0.01), 4000, 0.99, 0.01
# Spread of a fleet for which the bar is: GPUs of a model differ by about this much.
SPREAD = 0.005


def measure_outliers(options: argparse.Namespace) -> tuple[Bars, dict[str, Any]]:
    fleets, draw = 200 if options.quick else FLEETS, np.random.default_rng(1)
    rows = []
    for spread, tails in itertools.product(SPREADS, ("normal", "t5")):
        found = alarms = others = 0
        for _ in range(fleets):
            noise = draw.standard_normal(DEVICES)
            if tails == "t5":
                noise = draw.standard_t(5, DEVICES) * (3 / 5) ** 0.5
            values = 100 * np.exp(spread * noise)
            alarms += bool(find_slow(values, higher_is_better=True).slow)
            values[0] *= 1 - PLANTED
            slow = set(find_slow(values, higher_is_better=True).slow)
            found, others = found + (0 in slow), others + bool(slow - {0})
        rows.append(
            {
                "spread": spread,
                "tails": tails,
                "found": found / fleets,
                "fleets_with_false_alarm": alarms / fleets,
                "others_beside_planted": others / fleets,
            }
        )
        print(rows[-1], flush=True)
    row = next(r for r in rows if (r["spread"], r["tails"]) == (SPREAD, "normal"))
    worst = max(r["fleets_with_false_alarm"] for r in rows if r["tails"] == "normal")
    return [
        (
            f"one of {DEVICES} devices {PLANTED:.0%} slow, spread {SPREAD:.1%}: "
            f"found in ≥ {FOUND:.0%}",
            f"{row['found']:.2%} of {fleets} fleets",
            row["found"] >= FOUND,
        ),
        (
            f"fleets of {DEVICES} normal devices with any false alarm: ≤ {FALSE:.0%}",
            f"{worst:.2%} at the worst of {len(SPREADS)} spreads",
            worst <= FALSE,
        ),
    ], {"rows": rows, "fleets": fleets}


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[Bars, dict[str, Any]]]]] = {
    "makespan": ("Many devices and cases: makespan", measure_makespans),
    "chaos": ("Processes of a fleet killed at random", measure_chaos),
    "outliers": ("The slow device of a fleet", measure_outliers),
}


def main() -> int:
    if sys.argv[1:2] == ["command"]:
        return chaos_command(*sys.argv[2:5], int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=CASE_S, help="of makespan; keep the other figures")
    options = parser.parse_args()
    title, measure = PARTS[options.part]
    bars, figures = measure(options)
    print(evidence.bars_text(bars))
    if not options.quick:
        target = options.output or RESULTS / f"fleet_{options.part}.json"
        evidence.write(target, title=title, bars=bars, figures=figures)
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
