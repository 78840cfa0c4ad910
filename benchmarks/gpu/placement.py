"""Placement: what decides between the several times of one and the same kernel.

    python benchmarks/gpu/placement.py [-o results.json] [--processes 6]
    python benchmarks/gpu/placement.py --candidates

cuBLASLt's kernel for the first problem below takes one of three times, up to 8 % apart. Each
process reads it under one condition after the other: nothing but itself running, other
allocations, inputs written again in place, physical pages permuted behind the same addresses,
another kernel launched before. A probe launched after a reading finds the SM on which the first
cluster of thread blocks starts. The finding: not memory but the block scheduler decides. It starts
a launch where earlier kernels left it, and a kernel that runs alone leaves it where it was, so
that all readings of a process share one time.

`--candidates` compares kernels that could be launched before a reading to draw the start anew:
how many starts they reach, how evenly, and what they cost.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _gpu import gpu_info
from scheduler import (
    MIB,
    NEAR,
    PAGE,
    REPLAYS,
    Bench,
    Graph,
    Pages,
    format_modes,
    modes,
    supports_clusters,
    warm_up,
)

from kernelmark import backends
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError
from kernelmark.devices._gpu import GpuDevice
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_placement.json"
PROBLEMS = (
    "gemm m=7 n=13824 k=5120 a=bf16 b=bf16 tb=t",
    "gemm m=24 n=7168 k=18432 a=bf16 b=bf16 tb=t",
    "gemm m=1 n=13824 k=5120 a=bf16 b=bf16 tb=t",
)
OTHER = "gemm m=512 n=4096 k=4096 a=bf16 b=bf16 tb=t"
OWN = "disturb_scheduler"  # what a measurement does before each sample


# -- figures


def share_predicted(pairs: Sequence[tuple[int, float]]) -> tuple[float, float, int]:
    """How many of (start SM, time) lie near the median of the others with the same start; the same
    for the median of all others, whatever their start; and how many readings could be judged."""
    by_start: dict[int, list[float]] = collections.defaultdict(list)
    for start, seconds in pairs:
        by_start[start].append(seconds)
    right = blind = judged = 0
    for at, (start, seconds) in enumerate(pairs):
        alike = list(by_start[start])
        alike.remove(seconds)
        if not alike:
            continue  # a start that was seen once predicts nothing
        judged += 1
        right += abs(seconds / statistics.median(alike) - 1) < NEAR
        others = [other for number, (_, other) in enumerate(pairs) if number != at]
        blind += abs(seconds / statistics.median(others) - 1) < NEAR
    return (right / judged, blind / judged, judged) if judged else (0.0, 0.0, 0)


def repeat_excess(starts: Sequence[int]) -> float:
    """How much oftener a start follows itself than in independent draws with the same shares."""
    if len(starts) < 2:
        return 0.0
    shares = [count / len(starts) for count in collections.Counter(starts).values()]
    same = sum(a == b for a, b in itertools.pairwise(starts)) / (len(starts) - 1)
    return same - sum(share**2 for share in shares)


def open_gpu(name: str) -> GpuDevice:
    kind, info = find(name)
    device = kind.open(info.index)
    assert isinstance(device, GpuDevice)
    return device


# -- candidates


def candidates(bench: Bench) -> dict[str, Callable[[], None]]:
    """Kernels that could be launched before a reading, by name."""
    units, device = bench.device.info.units, bench.device
    found: dict[str, Callable[[], None]] = {
        "none": lambda: None,
        "nothing": lambda: device.start("nothing", bench.random.randrange(1, 2 * units), 32),
        "generator 64 MiB": bench.generate,
        "evict": device.evict_cache,
    }
    for nbytes in (4 * MIB, 16 * MIB):
        found[f"read {nbytes // MIB} MiB"] = functools.partial(bench.read_memory, nbytes)
    for most in (500, 2000):
        for blocks in (16, 32, 64):  # an SM holds 8 of 256 threads, so 2, 4 and 8 waves
            most_blocks = units * blocks
            name = f"disturb {blocks} blocks/SM < {most} cycles"
            found[name] = functools.partial(bench.disturb, most_blocks, most_blocks, most)
            name = f"disturb {blocks // 2}-{blocks} blocks/SM < {most} cycles"
            found[name] = functools.partial(bench.disturb, most_blocks // 2, most_blocks, most)
    found[OWN] = device.disturb_scheduler
    return found


def cost_s(bench: Bench, launch: Callable[[], None]) -> float:
    """Seconds that a candidate takes in a row of its own launches."""
    launch()  # what it allocates the first time cannot be captured
    bench.device.synchronize()
    graph = Graph(bench.device, launch, 10)
    try:
        return statistics.median(graph.run() for _ in range(5))
    finally:
        graph.close()


def compare_candidates(bench: Bench, draws: int) -> list[dict[str, Any]]:
    """What each candidate draws: starts and modes in `draws` readings, and its own time."""
    memory = bench.device.allocate(bench.nbytes)
    bench.write_inputs(memory.address)
    kernel = bench.prepare(memory.address)
    graph = bench.graph(kernel)
    warm_up(bench, graph)
    print(f"## {bench.problem.key}: {', '.join(bench.device.kernel_names(kernel.launch))}")
    rows = []
    for name, launch in candidates(bench).items():
        own_s = 0.0 if name == "none" else cost_s(bench, launch)
        times, starts, late = [], [], 0
        for _ in range(draws):
            launch()
            replays = [graph.run() for _ in range(REPLAYS)]
            times.append(statistics.median(replays[1:]))
            late += max(replays[1:]) > min(replays[1:]) * (1 + NEAR)
            if name != "none":  # the probe is a kernel, too
                starts.append(bench.start_sm())
        counts = collections.Counter(starts)
        rows.append(
            {
                "candidate": name,
                "us": own_s * 1e6,
                "starts": {str(start): counts[start] for start in sorted(counts)},
                "modes_us": [[seconds * 1e6, count] for seconds, count in modes(times)],
                "mean_us": statistics.fmean(times) * 1e6,
                "repeat_excess": repeat_excess(starts),
                "changed_within_a_reading": late,
            }
        )
        print(format_candidate(rows[-1]), flush=True)
    graph.close()
    kernel.close()
    bench.device.free(memory)
    return rows


def format_candidate(row: Mapping[str, Any]) -> str:
    found = " ".join(f"{us:.2f}×{count}" for us, count in row["modes_us"])
    starts = " ".join(f"{start}:{count}" for start, count in row["starts"].items())
    return (
        f"{row['candidate']:34} {row['us']:7.1f} µs  {len(row['starts']):3} starts  "
        f"{found:36} mean {row['mean_us']:.2f}  repeats {row['repeat_excess']:+.2f}  "
        f"changed inside {row['changed_within_a_reading']}  [{starts}]"
    )


def read_pages(bench: Bench, readings: int) -> dict[str, list[float]]:
    """Readings with physical pages in order, permuted and drawn at random, each at the start that
    an empty kernel leaves: what is left is the effect of memory alone. Then permuted again, after
    the generator."""
    device, count = bench.device, bench.nbytes // PAGE
    pages = Pages(device.driver, device.index, 3 * count, count)
    handles = list(pages.handles)
    for at in range(0, len(handles), count):  # values in all pages, before any reading
        pages.map(handles[at : at + count])
        bench.write_inputs(pages.address)
        device.synchronize()
        pages.unmap()

    def read(chosen: Sequence[int], before: Callable[[], None]) -> float:
        pages.map(chosen)
        kernel = bench.prepare(pages.address)
        graph = bench.graph(kernel)
        before()
        try:
            return bench.reading(graph)
        finally:
            graph.close()
            kernel.close()
            pages.unmap()

    def permuted() -> list[int]:
        return bench.random.sample(handles[:count], count)

    def empty() -> None:
        device.start("nothing", 1, 32)

    orders: dict[str, Callable[[], list[int]]] = {
        "pages_in_order": lambda: handles[:count],
        "pages_permuted": permuted,
        "pages_at_random": lambda: bench.random.sample(handles, count),
    }
    found: dict[str, list[float]] = {name: [] for name in orders}
    for _ in range(readings):  # in turns, so that a drift of the clock meets all alike
        for name, order in orders.items():
            found[name].append(read(order(), empty))
    found["pages_permuted_after_generator"] = [
        read(permuted(), bench.generate) for _ in range(readings)
    ]
    pages.close()
    return found


# -- the experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many readings each condition gets."""

    same: int = 10
    allocations: int = 14
    drawn: int = 30
    pages: int = 10
    fixed: int = 8
    probed: int = 40
    algorithms: int = 6
    candidates: int = 60


def read_conditions(bench: Bench, counts: Counts) -> dict[str, Any]:
    """One process's readings in seconds under every condition, by name."""
    device = bench.device
    memory = device.allocate(bench.nbytes)
    bench.write_inputs(memory.address)
    kernel = bench.prepare(memory.address)
    graph = bench.graph(kernel)
    warm_up(bench, graph)
    found: dict[str, Any] = {
        "kernels": list(device.kernel_names(kernel.launch)),
        "same": [bench.read_at(memory.address) for _ in range(counts.same)],
        "allocations": read_allocations(bench, graph, counts.allocations),
    }
    rewritten = []
    for _ in range(counts.drawn):
        bench.write_inputs(memory.address)
        rewritten.append(bench.reading(graph))
    found["rewritten_in_place"] = rewritten
    found |= read_after_fixed(bench, graph, counts.fixed)
    if supports_clusters(device.info):
        found["probed"] = read_probed(bench, graph, counts.probed)
    graph.close()
    kernel.close()
    device.free(memory)
    return found


def read_allocations(bench: Bench, graph: Graph, count: int) -> list[float]:
    """Readings at different addresses, with no other kernel between them: all memory is filled
    before the first, and the kernel under test settles again after that."""
    memory = [bench.device.allocate(bench.nbytes) for _ in range(count)]
    for one in memory:
        bench.write_inputs(one.address)
    bench.reading(graph)
    times = [bench.read_at(one.address) for one in memory]
    for one in memory:
        bench.device.free(one)
    return times


def read_after_fixed(bench: Bench, graph: Graph, count: int) -> dict[str, list[float]]:
    """Readings after kernels that always leave the scheduler at the same start."""
    device = bench.device
    other = Bench(device, OTHER, "cublaslt", 1) if bench.problem.op == "gemm" else bench
    memory = device.allocate(other.nbytes)
    other.write_inputs(memory.address)
    gemm = other.prepare(memory.address)
    spins = 2 * device.info.units
    before: dict[str, Callable[[], None]] = {
        "after_nothing": lambda: device.start("nothing", 33, 32),
        "after_gemm": lambda: gemm.launch(device.stream, 0),
        "after_even_spin": lambda: device.start("spin", spins, 128, ctypes.c_uint64(4000)),
    }
    found: dict[str, list[float]] = {}
    for name, launch in before.items():
        found[name] = []
        for _ in range(count):
            launch()
            found[name].append(bench.reading(graph))
    device.synchronize()
    gemm.close()
    device.free(memory)
    if other is not bench:
        other.close()
    return found


def read_probed(bench: Bench, graph: Graph, count: int) -> list[tuple[int, float]]:
    """(start SM, seconds) of readings that each follow the generator."""
    found = []
    for _ in range(count):
        bench.generate()
        seconds = bench.reading(graph)
        found.append((bench.start_sm(), seconds))
    return found


def read_algorithms(bench: Bench, algorithms: int, readings: int) -> list[dict[str, Any]]:
    """The modes of other algorithms for the same problem: other tiles and cluster shapes."""
    device = bench.device
    space = backends.find("cublaslt").space(bench.problem, device.info)
    known = space.parameters["algo"] if space is not None else ()
    memory = device.allocate(bench.nbytes)
    bench.write_inputs(memory.address)
    rows = []
    for algorithm in known[:algorithms]:
        try:
            kernel = bench.prepare(memory.address, {"algo": algorithm})
        except CaseError:
            continue  # not every algorithm of the space runs on every device
        graph = bench.graph(kernel)
        warm_up(bench, graph, 0.05)
        times = []
        for _ in range(readings):
            bench.generate()
            times.append(bench.reading(graph))
        rows.append(
            {
                "algo": algorithm,
                "kernels": list(device.kernel_names(kernel.launch)),
                "modes_us": [[seconds * 1e6, count] for seconds, count in modes(times)],
            }
        )
        graph.close()
        kernel.close()
    device.free(memory)
    return rows


def measure_process(bench: Bench, counts: Counts, seed: int) -> dict[str, Any]:
    """All that one process measures. What only describes kernels is measured by the first."""
    found = read_conditions(bench, counts)
    found |= read_pages(bench, counts.pages)
    if seed == 0:
        found["algorithms"] = read_algorithms(bench, counts.algorithms, counts.same)
        found["candidates"] = compare_candidates(bench, counts.candidates)
    return found


# -- all processes


def run_processes(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The readings of fresh processes, one after the other."""
    rows = []
    for seed in range(given.processes):
        begun = time.monotonic()
        words = [sys.executable, str(Path(__file__)), "-d", given.device, "--worker", str(seed)]
        words += ["--quick"] if given.quick else []
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"process {seed} ended with {done.returncode}\n{done.stderr[-3000:]}")
        *printed, last = done.stdout.splitlines()
        print("\n".join(printed), end="\n" if printed else "")
        rows.append(json.loads(last))
        print(f"process {seed}: {time.monotonic() - begun:.1f} s", flush=True)
        for name, values in rows[-1].items():
            if is_readings(values):
                print(f"  {name:32} {format_modes(modes(values))}", flush=True)
    return rows


def is_readings(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], float)


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the bars are judged by, with the readings of every process in µs."""
    names = [name for name, values in rows[0].items() if is_readings(values)]
    pairs = [(start, seconds) for row in rows for start, seconds in row.get("probed", [])]
    right, blind, judged = share_predicted(pairs)
    by_start: dict[int, list[float]] = collections.defaultdict(list)
    for start, seconds in pairs:
        by_start[start].append(seconds)
    means = {
        name: statistics.fmean(one for row in rows for one in row[name])
        for name in names
        if name.startswith("pages_")
    }
    return {
        "problem": PROBLEMS[0],
        "kernels": rows[0]["kernels"],
        "modes": {name: [len(modes(row[name])) for row in rows] for name in names},
        "start_sm_us": {
            str(start): [min(times) * 1e6, statistics.median(times) * 1e6, max(times) * 1e6]
            for start, times in sorted(by_start.items())
        },
        "start_sm_readings": {str(start): len(times) for start, times in sorted(by_start.items())},
        "predicted_by_start": right,
        "predicted_without_start": blind,
        "predicted_of": judged,
        "pages_mean_us": {name: mean * 1e6 for name, mean in means.items()},
        "algorithms": rows[0].get("algorithms", []),
        "candidates": rows[0].get("candidates", []),
        "readings_us": {
            name: [[round(one * 1e6, 3) for one in row[name]] for row in rows] for name in names
        },
        "probed_us": [
            [[start, round(one * 1e6, 3)] for start, one in row.get("probed", [])] for row in rows
        ],
    }


def bars_of(figures: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """The bars; those of the probe only where the GPU has clusters."""
    found, readings = figures["modes"], figures["readings_us"]

    def one_mode(asked: str, name: str) -> tuple[str, str, bool]:
        single = sum(count == 1 for count in found[name])
        each = len(readings[name][0])
        measured = f"{single} of {len(found[name])} processes with {each} readings each"
        return asked, measured, single == len(found[name])

    means = figures["pages_mean_us"]
    base = means["pages_in_order"]
    moved = max(abs(means[name] / base - 1) for name in ("pages_permuted", "pages_at_random"))
    rewritten = [one / 1e6 for row in readings["rewritten_in_place"] for one in row]
    several = sum(count > 1 for count in found["rewritten_in_place"])
    bars = [
        one_mode("without another kernel between: one mode in each process", "same"),
        one_mode(
            "at different allocations, without another kernel between: one mode", "allocations"
        ),
        (
            "inputs written again at the same addresses: 2 modes or more",
            f"{format_modes(modes(rewritten))} µs; 2 or more in {several} of "
            f"{len(found['rewritten_in_place'])} processes",
            len(modes(rewritten)) >= 2,
        ),
        (
            "physical pages permuted or drawn at random: the mean moves by less than 1 %",
            f"{moved:.2%} at most of {base:.2f} µs",
            moved < 0.01,
        ),
    ]
    for name in ("after_nothing", "after_gemm", "after_even_spin"):
        bars.append(one_mode(f"{name.replace('_', ' ')}: one mode", name))
    if figures["predicted_of"]:
        right, blind = figures["predicted_by_start"], figures["predicted_without_start"]
        bars.append(
            (
                "the start SM of a probe with clusters predicts the mode in ≥ 95 % of readings",
                f"{right:.1%} of {figures['predicted_of']}; without it {blind:.1%}",
                right >= 0.95 and len(modes(rewritten)) >= 2,
            )
        )
    own = next((row for row in figures["candidates"] if row["candidate"] == OWN), None)
    if own is not None and figures["predicted_of"]:
        bars.append(
            (
                f"{OWN} draws 3 starts or more, none of them in over 75 % of readings",
                f"{own['starts']} in {own['us']:.1f} µs",
                len(own["starts"]) >= 3
                and max(own["starts"].values()) <= 0.75 * sum(own["starts"].values()),
            )
        )
    return bars


def report(given: argparse.Namespace, info: DeviceInfo, rows: Sequence[Mapping[str, Any]]) -> None:
    figures = figures_of(rows)
    bars = bars_of(figures)
    evidence.write(
        given.output,
        title="Modes of a kernel with clusters: memory placement or the block scheduler",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("cublaslt"),
    )
    for start, (low, middle, high) in figures["start_sm_us"].items():
        count = figures["start_sm_readings"][start]
        print(f"start SM {start:>3}: {low:.2f} – {middle:.2f} – {high:.2f} µs ×{count}")
    for row in figures["algorithms"]:
        found = " ".join(f"{us:.2f}×{count}" for us, count in row["modes_us"])
        print(f"algorithm {row['algo']}: {found}  {row['kernels'][0][:60]}")
    if not supports_clusters(info):
        print(f"{info.arch} has no clusters of thread blocks: the start SM was not probed")
    print(evidence.bars_text(bars))


QUICK = Counts(
    same=3, allocations=2, drawn=4, pages=2, fixed=2, probed=4, algorithms=1, candidates=3
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="few readings, to try the script")
    parser.add_argument(
        "--candidates", action="store_true", help="only compare kernels that disturb the scheduler"
    )
    parser.add_argument("--draws", type=int, default=60, help="readings of each candidate")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    info = gpu_info(given.device)
    if given.candidates:
        device = open_gpu(given.device)
        for problem in PROBLEMS:
            bench = Bench(device, problem, "cublaslt", 1)
            compare_candidates(bench, given.draws)
            bench.close()
    elif given.worker is not None:
        bench = Bench(open_gpu(given.device), PROBLEMS[0], "cublaslt", given.worker)
        found = measure_process(bench, QUICK if given.quick else Counts(), given.worker)
        print(json.dumps(found))
    else:
        report(given, info, run_processes(given))


if __name__ == "__main__":
    main()
