"""Against ncu: our time × our in-stream clock, and ncu's cycles, over 40 GEMM shapes.

    python benchmarks/gpu/against_ncu.py [-o results.json]

A lone launch under ncu runs at another clock than a sustained one, so cycles are compared; µs are
told too, and Triton's do_bench is timed beside. ncu watches another process: where the library
took another kernel there, the row says so and is not compared. How far ncu's own times of one
kernel lie apart stands in each row; the figures are also given for the shapes where they agree.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices._replay import capture
from kernelmark.measure.sets import make_arena
from kernelmark.runners.execute import execute
from kernelmark.runners.external_timers import CYCLES, TIME, Profile, profile_all
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_against_ncu.json"
# From 3 µs to 2 ms on an H200.
SIZES = [
    *((m, n, k) for m in (16, 128, 512, 2048) for n, k in ((1280, 8192), (4096, 4096))),
    *((m, n, k) for m in (64, 256, 1024, 4096) for n, k in ((8192, 1024), (14336, 4096))),
    *((m, n, k) for m in (32, 512, 1536, 3072) for n, k in ((2048, 2048), (8192, 8192))),
    *((m, n, k) for m in (1, 384, 768, 6144) for n, k in ((7168, 2048), (4096, 14336))),
    *((s, s, s) for s in (64, 128, 256, 512, 1024, 4096, 8192)),
    (12288, 8192, 8192),
]
LONG_ENOUGH_US = 20.0
LAUNCHES = 15
# A kernel whose lone launches differ by more than this has no one time that we could agree with.
UNSURE = 0.1
# Words of C++ that name no kernel, and how a profiler writes a template's own types.
_NOISE = re.compile(
    r"T\d+|void|const|bool|char|short|int|long|float|double|unsigned|signed|true|false"
    r"|anonymous|unnamed|namespace"
)


def do_bench_us(m: int, n: int, k: int) -> float:
    a = torch.rand(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.rand(n, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    run = lambda: torch.mm(a, b.t(), out=out)  # noqa: E731
    return float(triton.testing.do_bench(run, return_mode="median")) * 1e3


def demangled(name: str) -> str:
    """A C++ name as its source has it; any other as it is."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    found = demangle(name.encode(), None, None, ctypes.byref(ctypes.c_int()))
    return found.decode() if found and name.startswith("_Z") else name


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("ports", ctypes.c_ubyte * 2),
        ("type", ctypes.c_ubyte),
        ("rest", ctypes.c_ubyte * 5),
    )


def programmatic_edges(device: GpuDevice, problem: Problem) -> int:
    """How many kernels of two launches in a graph may begin before the one before them has ended,
    which ncu never lets happen. Two: the second kernel of each launch, not the next launch."""
    tensors = ops.registry.get(problem.op).tensors(problem)
    buffer, sets = make_arena(device, tensors, 2, np.random.default_rng(1))
    kernel = backends.registry.get("cublaslt").prepare(problem, FrozenDict(), device, sets)
    graph = ctypes.c_void_p(capture(device.driver, device.stream, kernel.launch, (0, 1)))
    count = ctypes.c_size_t()
    get_edges = device.driver.library.cuGraphGetEdges_v2
    get_edges(graph, None, None, None, ctypes.byref(count))
    nodes = [(ctypes.c_void_p * count.value)() for _ in range(2)]
    edges = (_Edge * count.value)()
    failed = get_edges(graph, *nodes, edges, ctypes.byref(count))
    device.driver.destroy("graph", graph.value or 0)
    kernel.close()
    device.free(buffer)
    return -1 if failed else sum(edge.type == 1 for edge in edges)


def words(name: str) -> set[str]:
    found = re.findall(r"[A-Za-z_]\w*", demangled(name))
    return {word for word in found if not _NOISE.fullmatch(word)}


def same_kernels(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether both lists name the same kernels. The driver tells mangled names and ncu writes them
    out, in part or in whole: the words of one name must all be in the other."""
    pairs = [(words(a), words(b)) for a, b in zip(ours, theirs, strict=False)]
    alike = all(a and b and (a <= b or b <= a) for a, b in pairs)
    return bool(pairs) and len(ours) == len(theirs) and alike


def row_of(
    size: tuple[int, int, int], result: Result, seen: Profile, overlaps: int
) -> dict[str, Any]:
    assert result.measurement is not None, result.error
    clock = result.measurement.clock_mhz
    assert clock is not None, "every sample on a GPU has its clock"
    ours_us = result.measurement.median_s * 1e6
    algorithm, _, names = result.kernel.name.partition(": ")
    kernels = [name for name in names.split("+") if name]
    return {
        **dict(zip("mnk", size, strict=True)),
        "status": str(result.status),
        "ours_us": ours_us,
        "ours_clock_mhz": clock,
        "ours_cycles": ours_us * clock,
        "ncu_us": seen.seconds * 1e6,
        "ncu_between_us": [seconds * 1e6 for seconds in seen.between_s],
        "ncu_cycles": seen.metrics[CYCLES],
        "do_bench_us": do_bench_us(*size),
        # Of our kernel too: launched without a graph, and with its inputs in the cache.
        **{f"ours_{key.removesuffix('_s')}_us": s * 1e6 for key, s in also(result).items()},
        "ours_algorithm": algorithm,
        "ours_kernels": kernels,
        "ncu_kernels": list(seen.kernels),
        "same_kernels": same_kernels(kernels, seen.kernels),
        "programmatic_edges": overlaps,
    }


def also(result: Result) -> dict[str, float]:
    return dict(result.measurement.also) if result.measurement else {}


def line(row: dict[str, Any]) -> str:
    other = "" if row["same_kernels"] else f"  {row['ours_kernels']} ≠ {row['ncu_kernels']}"
    return (
        f"{row['m']:6}{row['n']:6}{row['k']:6} ours {row['ours_us']:9.2f} µs "
        f"ncu {row['ncu_us']:9.2f} do_bench {row['do_bench_us']:9.2f}  cycles ours/ncu "
        f"{row['ours_cycles'] / row['ncu_cycles']:.3f}{other}"
    )


def errors(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, 90th percentile and worst row of each difference from ncu."""
    found: dict[str, Any] = {"shapes": len(rows)}
    pairs = {
        "ours_cycles": ("ours_cycles", "ncu_cycles"),
        "ours_us": ("ours_us", "ncu_us"),
        "do_bench_us": ("do_bench_us", "ncu_us"),
    }
    for name, (mine, ncu) in pairs.items():
        if rows:
            off = [row[mine] / row[ncu] - 1 for row in rows]
            at = max(range(len(rows)), key=lambda i: abs(off[i]))
            found[name] = {
                "median": statistics.median(map(abs, off)),
                "p90": float(np.quantile(np.abs(off), 0.9)),
                "worst": off[at],
                "worst_shape": shape(rows[at]),
            }
    return found


def shape(row: dict[str, Any]) -> str:
    return " ".join(f"{x}={row[x]}" for x in "mnk")


def spread(row: dict[str, Any]) -> float:
    """How far ncu's times of this kernel lie apart, of their median."""
    least, most = row["ncu_between_us"]
    return float((most - least) / row["ncu_us"])


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    same = [row for row in rows if row["same_kernels"]]
    long = [row for row in same if row["ncu_us"] >= LONG_ENOUGH_US]
    other = [row for row in rows if not row["same_kernels"]]
    return {
        "from_20us": errors(long),
        "from_20us_where_ncu_agrees": errors([row for row in long if spread(row) <= UNSURE]),
        "below_20us": errors([row for row in same if row["ncu_us"] < LONG_ENOUGH_US]),
        "other_kernels": {**errors(other), "which": [shape(row) for row in other]},
        "shortest_us": min(row["ncu_us"] for row in rows),
        "longest_us": max(row["ncu_us"] for row in rows),
        "rows": list(rows),
    }


def bars_of(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    asked = "median |ours − ncu| ≤ 5 % in cycles, from 20 µs on"
    found, other = figures["from_20us"], figures["other_kernels"]["shapes"]
    left_out = f"left out, for ncu saw other kernels: {other} of {len(figures['rows'])} shapes"
    if not found["shapes"]:
        return [(asked, f"nothing to compare; {left_out}", False)]
    sure = figures["from_20us_where_ncu_agrees"]
    agreed = (
        ""
        if not sure["shapes"]
        else (
            f"where ncu's own times lie within {UNSURE:.0%}, {sure['shapes']} shapes, worst "
            f"{sure['ours_cycles']['worst']:+.1%} ({sure['ours_cycles']['worst_shape']}); "
        )
    )
    cycles, ours, bench = (found[x] for x in ("ours_cycles", "ours_us", "do_bench_us"))
    measured = (
        f"{cycles['median']:.2%} over {found['shapes']} shapes, 90 % of them within "
        f"{cycles['p90']:.1%}, worst {cycles['worst']:+.1%} ({cycles['worst_shape']}); in µs "
        f"{ours['median']:.2%}, do_bench {bench['median']:.2%}; {agreed}{left_out}"
    )
    return [(asked, measured, cycles["median"] <= 0.05)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    gpu_info()
    device = registry.get("cuda").open(0)
    assert isinstance(device, GpuDevice)
    timing = Timing.preset("quick", max_s=0.2)
    problems = [ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t") for m, n, k in SIZES]
    cases = [Case(problem=problem, backend="cublaslt", timing=timing) for problem in problems]
    profiles = profile_all(cases, device.info.name, launches=LAUNCHES, metrics=(TIME, CYCLES))
    rows = []
    for size, case, seen in zip(SIZES, cases, profiles, strict=True):
        result = execute(case, device, 0, lambda phase: None)
        rows.append(row_of(size, result, seen, programmatic_edges(device, case.problem)))
        print(line(rows[-1]), flush=True)
    figures = figures_of(rows)
    bars = bars_of(figures)
    evidence.write(
        given.output,
        title="GEMM times against ncu, in core cycles",
        bars=bars,
        figures=figures,
        device=device.info,
        libraries=evidence.libraries("torch", "triton", "cublaslt"),
    )
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
