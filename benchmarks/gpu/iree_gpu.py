"""IREE on an NVIDIA GPU, from modules compiled elsewhere, beside cuBLASLt and ncu.

    python benchmarks/gpu/iree_gpu.py --fill PACK          where IREE's compiler is
    python benchmarks/gpu/iree_gpu.py --pack PACK [-o results.json] [--no-ncu]      where the GPU is

Cold and verified. IREE has a queue of its own, so its launches are timed by the host's clock in
replays of N and 2N; the smallest problem shows what such a launch takes at least. ncu times the
same kernels one by one; since their clocks differ, cycles are compared.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.core.errors import CaseError
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_iree.json"
FLOOR = "gemm m=16 n=16 k=16 a=f16 b=f16"
# Of one kernel each, so that ncu's list needs no cutting.
SINGLE = (
    FLOOR,
    "gemm m=16 n=4096 k=4096 a=bf16 b=bf16 tb=t",
    "gemm m=512 n=4096 k=4096 a=bf16 b=bf16 tb=t",
    "gemm m=2048 n=14336 k=4096 a=bf16 b=bf16 tb=t",
    "gemm m=4096 n=4096 k=4096 a=bf16 b=bf16 tb=t",
    "gemm m=4096 n=4096 k=4096 a=f8e4m3 b=f8e4m3 tb=t",
    "batched_gemm batch=64 m=512 n=512 k=512 a=bf16 b=bf16 tb=t",
    "attention batch=1 heads=32 seq=2048 dim=128 dtype=bf16",
)
SEVERAL = (
    "attention batch=1 heads=32 seq=2048 dim=128 dtype=bf16 causal=yes",
    "conv n=8 c=256 h=56 w=56 k=256 r=3 s=3 pad=1 dtype=f16 layout=nhwc",
)
LONG_ENOUGH_US = 20.0


def fill(folder: Path, arch: str) -> None:
    from kernelmark.backends.iree import pack

    for one in pack.fill(folder, [ops.parse(key) for key in (*SINGLE, *SEVERAL)], [arch]):
        print(f"{one.problem.key}: {one.reason or f'{one.nbytes} bytes'}", flush=True)


def find_driver() -> None:
    """IREE asks for libcuda.so; where only libcuda.so.1 is, start again with a link to it."""
    library = ctypes.CDLL("libcuda.so.1")
    try:
        ctypes.CDLL("libcuda.so")
    except OSError:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        found = re.search(r"(/\S*libcuda\.so\S*)", maps)
        if found is None or "KERNELMARK_LINKED" in os.environ:
            sys.exit(f"libcuda.so cannot be found beside {library._name}")
        folder = Path(tempfile.mkdtemp())
        (folder / "libcuda.so").symlink_to(found[1])
        paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
        os.environ["KERNELMARK_LINKED"] = "yes"
        os.execv(sys.executable, [sys.executable, *sys.argv])


def row_of(key: str, result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": key, "status": str(result.status), "error": result.error}
    m = result.measurement
    if m is not None:
        clocks = [c for block in m.blocks for c in block.clocks_mhz]
        row |= {
            "us": m.median_s * 1e6,
            "low_us": m.low_s * 1e6,
            "high_us": m.high_s * 1e6,
            "clock_mhz": statistics.median(clocks) if clocks else None,
            "tflops": result.flops / m.median_s / 1e12,
            "launches": m.launches,
            "sets": m.sets,
            "method": m.method,
            "warnings": list(m.warnings),
            "compile_s": result.kernel.compile_s,
            **{f"{name.removesuffix('_s')}_us": s * 1e6 for name, s in m.also.items()},
        }
    return row


def measure() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A row for each problem by IREE, and cuBLASLt's µs where it has the problem."""
    timing = Timing.preset("quick")
    keys = {ops.parse(key).key: key for key in (*SINGLE, *SEVERAL)}
    cases = [Case(problem=ops.parse(k), backend="iree", timing=timing) for k in keys.values()]
    cases += [
        Case(problem=ops.parse(key), backend="cublaslt", timing=timing)
        for key in keys.values()
        if "gemm" in key
    ]
    rows, beside = [], {}
    for event in LocalRunner(["cuda:0"], timeout_s=60).run(cases):
        if not isinstance(event, CaseFinished):
            continue
        result, key = event.result, keys[event.result.case.problem.key]
        if result.case.backend == "iree":
            rows.append(row_of(key, result))
            told = rows[-1].get("us")
            print(f"iree {key}: {result.status} {result.error} {told and f'{told:.2f} µs'}")
            more = {k: round(v, 2) for k, v in rows[-1].items() if k.endswith("_us")}
            print("    ", result.kernel.name, more, *rows[-1].get("warnings", ()), flush=True)
        elif result.measurement is not None:
            beside[key] = result.measurement.median_s * 1e6
    return rows, beside


def add_ncu(rows: list[dict[str, Any]]) -> str:
    """What ncu says of the problems that are one kernel; a sentence if it says nothing."""
    from kernelmark.runners.external_timers import CYCLES, TIME, profile_all

    mine = [row for row in rows if row["problem"] in SINGLE and row["status"] == "ok"]
    if not mine:
        return "nothing to compare"
    timing = Timing.preset("quick")
    cases = [Case(problem=ops.parse(r["problem"]), backend="iree", timing=timing) for r in mine]
    try:
        profiles = profile_all(cases, "cuda:0", launches=5, metrics=(TIME, CYCLES), timeout_s=60)
    except CaseError as error:
        return error.message
    for row, seen in zip(mine, profiles, strict=True):
        row["ncu_us"], row["ncu_cycles"] = seen.seconds * 1e6, seen.metrics[CYCLES]
        row["ncu_kernels"] = list(seen.kernels)
        if row["clock_mhz"]:
            row["cycles_ratio"] = row["us"] * row["clock_mhz"] / seen.metrics[CYCLES]
    return ""


def bars_of(rows: list[dict[str, Any]], trouble: str) -> list[tuple[str, str, bool]]:
    good = sum(row["status"] == "ok" for row in rows)
    wrong = sum(row["status"] == "wrong" for row in rows)
    bars = [
        ("every problem is measured from the pack", f"{good} of {len(rows)}", good == len(rows)),
        ("no wrong result", f"{wrong} wrong", wrong == 0),
    ]
    long_ones = [
        abs(row["cycles_ratio"] - 1)
        for row in rows
        if "cycles_ratio" in row and row["ncu_us"] >= LONG_ENOUGH_US
    ]
    if long_ones:
        middle = statistics.median(long_ones)
        asked = "median difference from ncu's cycles at ≥ 20 µs within 5 %"
        bars.append((asked, f"{middle:.1%} of {len(long_ones)}", middle <= 0.05))
    elif trouble:
        print(f"ncu: {trouble}")
    return bars


def table(rows: list[dict[str, Any]]) -> str:
    def number(value: float | None, form: str = "10.2f") -> str:
        return format(value, form) if value is not None else " " * int(form.split(".")[0])

    lines = [f"{'µs':>10}{'TFLOP/s':>10}{'eager µs':>10}{'hot µs':>10}{'ncu µs':>10}{'cycles':>8}"]
    lines[0] += f"{'cublaslt':>10}  problem"
    for row in rows:
        names = ("us", "tflops", "host_us", "hot_us", "ncu_us")
        line = "".join(number(row.get(name)) for name in names)
        line += number(row.get("cycles_ratio"), "8.3f") + number(row.get("cublaslt_us"))
        lines.append(f"{line}  {row['problem']} {'' if row['status'] == 'ok' else row['status']}")
    return "\n".join(lines)


def use(pack: Path) -> None:
    """Look into `pack` before those of KERNELMARK_PACK."""
    packs = [str(pack.resolve()), *filter(None, [os.environ.get("KERNELMARK_PACK")])]
    os.environ["KERNELMARK_PACK"] = os.pathsep.join(dict.fromkeys(packs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fill", type=Path, metavar="PACK", help="compile the pack and stop")
    parser.add_argument("--arch", default="sm_90", help="what --fill compiles for")
    parser.add_argument("--pack", type=Path, help="the pack to use, beside KERNELMARK_PACK")
    parser.add_argument("--no-ncu", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.fill:
        fill(given.fill, given.arch)
        return
    if given.pack:
        use(given.pack)  # first: where there is no compiler, it makes the GPU usable
    info = gpu_info()
    find_driver()
    rows, beside = measure()
    for row in rows:
        if row["problem"] in beside:
            row["cublaslt_us"] = beside[row["problem"]]
    print(table(rows), flush=True)
    trouble = "" if given.no_ncu else add_ncu(rows)
    bars = bars_of(rows, trouble)
    floor = next((row.get("us") for row in rows if row["problem"] == FLOOR), None)
    evidence.write(
        given.output,
        title="IREE on a GPU, timed on its own queue",
        bars=bars,
        figures={"floor_us": floor, "rows": rows},
        device=info,
        libraries=backends.registry.get("iree").libraries(),
    )
    print(table(rows))
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
