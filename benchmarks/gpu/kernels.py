"""Our Triton kernels with their default configs against the vendor's library.

    python benchmarks/gpu/kernels.py [-o results.json]

bf16 GEMMs of language models with m ≥ 512 against cuBLASLt's heuristic and attention at d = 128
against torch's FLASH_ATTENTION. Then kernels that copy operands into another form first, against
those that do not: 8-bit products that are not stored as the matrix unit wants them, beside
cuBLASLt; attention of 8-bit floats, beside that of bf16; convolutions with channels outermost,
beside torch. All cold, verified, those of a problem measured one after the other.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark_dev import evidence

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
CONV = (
    "n=8 c=256 h=56 w=56 k=256 r=3 s=3 pad=1",
    "n=32 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=32 c=128 h=28 w=28 k=128 r=3 s=3 pad=1",
    "n=32 c=128 h=56 w=56 k=128 r=3 s=3 pad=1 stride=2",
    "n=32 c=512 h=7 w=7 k=512 r=3 s=3 pad=1",
    "n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=32 c=256 h=28 w=28 k=512 r=1 s=1",
    "n=32 c=512 h=28 w=28 k=1024 r=1 s=1",
)
UNCOPIED = {"gemm": {"turn": False}, "attention": {"widen": False}, "conv": {"turn": False}}
NAMES = ("triton", "cublaslt", "triton uncopied", "torch", "torch flash", "torch cudnn")


def cases() -> list[Case]:
    timing = Timing.preset("quick")
    made = []
    for kind, m, order in STORED:
        problem = ops.parse(f"gemm m={m} n=4096 k=4096 dtype={kind} {order}")
        made += [Case(problem=problem, backend=b, timing=timing) for b in ("triton", "cublaslt")]
        made.append(_uncopied(problem, timing))
    for shape in CONV:
        problem = ops.parse(f"conv {shape} dtype=f16")
        made += [Case(problem=problem, backend=b, timing=timing) for b in ("triton", "torch")]
        made.append(_uncopied(problem, timing))
    for n, k in WEIGHTS:
        for m in TOKENS:
            problem = ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t")
            made += [
                Case(problem=problem, backend=b, timing=timing) for b in ("triton", "cublaslt")
            ]
    for shape in ATTENTION:
        for causal in ("no", "yes"):
            problem = ops.parse(f"attention {shape} dim=128 dtype=f8e4m3 causal={causal}")
            made += [Case(problem=problem, backend="triton", timing=timing)]
            made.append(_uncopied(problem, timing))
            problem = ops.parse(f"attention {shape} dim=128 dtype=bf16 causal={causal}")
            made.append(Case(problem=problem, backend="triton", timing=timing))
            made += [
                Case(problem=problem, backend="torch", timing=timing, config={"kernel": k})
                for k in ("flash", "cudnn")
            ]
    return made


def _uncopied(problem: Problem, timing: Timing) -> Case:
    """Our kernel with its operands as they are stored."""
    return Case(problem=problem, backend="triton", timing=timing, config=UNCOPIED[problem.op])


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    """A row for each problem: µs and status by each backend that has it."""
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        config = result.case.config
        chosen = f" {config['kernel']}" if "kernel" in config else " uncopied" if config else ""
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


def geomean(rows: list[dict[str, Any]], op: str, kind: str, other: str) -> float | None:
    """How many times as fast as another the Triton kernels are; None where nothing compares."""
    ratios = [
        row[other] / row["triton"]
        for row in rows
        if row["problem"].startswith(op)
        and f"={kind} " in row["problem"]
        and row.get(other)
        and row.get("triton")
    ]
    return statistics.geometric_mean(ratios) if ratios else None


def fp8_gain(rows: list[dict[str, Any]]) -> float | None:
    """How many times as fast as the same attention of bf16 that of 8-bit floats is."""
    times = {row["problem"]: row["triton"] for row in rows}
    pairs = [
        (times[key.replace("f8e4m3", "bf16")], time)
        for key, time in times.items()
        if key.startswith("attention") and "f8e4m3" in key
    ]
    ratios = [wide / narrow for wide, narrow in pairs if wide and narrow]
    return statistics.geometric_mean(ratios) if ratios else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    runner = LocalRunner(["cuda:0"], timeout_s=120)
    results = [e.result for e in runner.run(cases()) if isinstance(e, CaseFinished)]
    rows = rows_of(results)
    gemm = geomean(rows, "gemm", "bf16", "cublaslt") or 0.0
    flash = geomean(rows, "attention", "bf16", "torch flash") or 0.0
    turned = geomean(rows, "gemm", "i8", "cublaslt") or 0.0
    narrow = fp8_gain(rows) or 0.0
    conv = geomean(rows, "conv", "f16", "triton uncopied") or 0.0
    unturned = geomean(rows, "gemm", "i8", "triton uncopied") or 0.0
    unwidened = geomean(rows, "attention", "f8e4m3", "triton uncopied") or 0.0
    wrong = sum(str(r.status) == "wrong" for r in results)
    bars = [
        ("Triton GEMM ≥ 0.85 × cuBLASLt, geomean, m ≥ 512", f"{gemm:.3f}", gemm >= 0.85),
        ("Triton attention ≥ 1.0 × torch flash, geomean, d = 128", f"{flash:.3f}", flash >= 1.0),
        (
            "int8 with k not innermost ≥ 1.0 × cuBLASLt, geomean",
            f"{turned:.2f}; {unturned:.1f} × unturned",
            turned >= 1.0,
        ),
        (
            "fp8 attention ≥ 1.1 × that of bf16, geomean, d = 128",
            f"{narrow:.2f}; {unwidened:.2f} × unwidened",
            narrow >= 1.1,
        ),
        ("conv with channels turned first ≥ 1.5 × unturned, geomean", f"{conv:.2f}", conv >= 1.5),
        ("no wrong result", f"{wrong} wrong", wrong == 0),
    ]
    evidence.write(
        given.output,
        title="Default Triton kernels against cuBLASLt and torch",
        bars=bars,
        figures={
            "gemm_geomean": gemm,
            "flash_geomean": flash,
            "cudnn_geomean": geomean(rows, "attention", "bf16", "torch cudnn"),
            "int8_geomean": turned,
            "int8_uncopied_geomean": unturned,
            "fp8_uncopied_geomean": geomean(rows, "gemm", "f8e4m3", "triton uncopied"),
            "fp8_attention_geomean": narrow,
            "fp8_attention_uncopied_geomean": unwidened,
            "conv_uncopied_geomean": conv,
            "conv_torch_geomean": geomean(rows, "conv", "f16", "torch"),
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
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
