"""Our Triton kernels with their default configs against the vendor's library.

    python benchmarks/gpu/kernels.py [-o results.json]

bf16 GEMMs of language models with m ≥ 512 against cuBLASLt's heuristic, attention at d = 128
against torch's FLASH_ATTENTION, and 8-bit products that are not stored as the matrix unit wants
them, which turn their operands first, against those that do not and against cuBLASLt; cold,
verified, those of a problem measured one after the other.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_kernels.json"
WEIGHTS = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (8192, 28672),
    (7168, 2048),
    (2048, 7168),
    (5120, 5120),
)
TOKENS = (512, 1024, 2048, 4096)
ATTENTION = (
    "batch=1 heads=32 seq=2048",
    "batch=1 heads=32 seq=4096",
    "batch=4 heads=16 seq=8192",
    "batch=2 heads=32 seq=1024",
    "batch=8 heads=16 seq=2048",
    "batch=1 heads_q=32 heads_kv=8 seq=4096",
    "batch=2 heads_q=64 heads_kv=8 seq=2048",
)
STORED = [
    (kind, m, order)
    for kind in ("i8", "f8e4m3")
    for m in (16, 128, 1024, 4096)
    for order in ("ta=n tb=n", "ta=t tb=t")
]
NAMES = ("triton", "cublaslt", "triton unturned", "torch flash", "torch cudnn")


def cases() -> list[Case]:
    timing = Timing.preset("quick")
    made = []
    for kind, m, order in STORED:
        problem = ops.parse(f"gemm m={m} n=4096 k=4096 dtype={kind} {order}")
        made += [Case(problem=problem, backend=b, timing=timing) for b in ("triton", "cublaslt")]
        unturned = {"turn": False}
        made.append(Case(problem=problem, backend="triton", timing=timing, config=unturned))
    for n, k in WEIGHTS:
        for m in TOKENS:
            problem = ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t")
            made += [
                Case(problem=problem, backend=b, timing=timing) for b in ("triton", "cublaslt")
            ]
    for shape in ATTENTION:
        for causal in ("no", "yes"):
            words = dict(word.split("=") for word in shape.split())
            numbers = {name: int(value) for name, value in words.items()}
            problem = ops.registry.get("attention").problem(
                **numbers, dim=128, dtype="bf16", causal=causal == "yes"
            )
            made.append(Case(problem=problem, backend="triton", timing=timing))
            made += [
                Case(problem=problem, backend="torch", timing=timing, config={"kernel": k})
                for k in ("flash", "cudnn")
            ]
    return made


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    """A row for each problem: µs and status by each backend that has it."""
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        config = result.case.config
        chosen = " unturned" if "turn" in config else f" {config['kernel']}" if config else ""
        found[result.case.problem.key, result.case.backend + chosen] = result
    rows = []
    for key in dict.fromkeys(r.case.problem.key for r in results):
        row: dict[str, Any] = {"problem": key}
        for name in NAMES:
            one = found.get((key, name))
            if one is not None:
                row[name] = one.measurement.median_s * 1e6 if one.measurement else None
                row[f"{name} status"] = str(one.status)
        rows.append(row)
    return rows


def geomean(rows: list[dict[str, Any]], kind: str, other: str) -> float | None:
    """How many times as fast as another the Triton kernels are; None where nothing compares."""
    ratios = [
        row[other] / row["triton"]
        for row in rows
        if f"={kind} " in row["problem"] and row.get(other) and row.get("triton")
    ]
    return statistics.geometric_mean(ratios) if ratios else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    runner = LocalRunner(["cuda:0"], timeout_s=120)
    results = [e.result for e in runner.run(cases()) if isinstance(e, CaseFinished)]
    rows = rows_of(results)
    gemm = geomean(rows, "bf16", "cublaslt") or 0.0
    flash = geomean(rows, "bf16", "torch flash") or 0.0
    turned = geomean(rows, "i8", "cublaslt") or 0.0
    wrong = sum(str(r.status) == "wrong" for r in results)
    bars = [
        ("Triton GEMM ≥ 0.85 × cuBLASLt, geomean, m ≥ 512", f"{gemm:.3f}", gemm >= 0.85),
        ("Triton attention ≥ 1.0 × torch flash, geomean, d = 128", f"{flash:.3f}", flash >= 1.0),
        ("int8 with k not innermost ≥ 1.0 × cuBLASLt, geomean", f"{turned:.2f}", turned >= 1.0),
        ("no wrong result", f"{wrong} wrong", wrong == 0),
    ]
    evidence.write(
        given.output,
        title="Default Triton kernels against cuBLASLt and torch",
        bars=bars,
        figures={
            "gemm_geomean": gemm,
            "flash_geomean": flash,
            "cudnn_geomean": geomean(rows, "bf16", "torch cudnn"),
            "int8_geomean": turned,
            "int8_unturned_geomean": geomean(rows, "i8", "triton unturned"),
            "fp8_unturned_geomean": geomean(rows, "f8e4m3", "triton unturned"),
            "rows": rows,
        },
        device=info,
        libraries=evidence.libraries("torch", "triton", "cublaslt"),
    )
    for row in rows:
        print(
            {
                k: round(v, 1) if isinstance(v, float) else v
                for k, v in row.items()
                if "status" not in k or v != "ok"
            }
        )
    print(evidence.told(bars))


if __name__ == "__main__":
    main()
