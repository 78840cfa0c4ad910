"""Cold is cold: DRAM bytes that a launch reads, counted by ncu, against its inputs' bytes.

    python benchmarks/gpu/cold.py [-o results.json]

The kernel is a matrix-vector product, whose inputs are read once; footprints go from far under
the last-level cache to far over it. Cold launches rotate as in a measurement; hot ones do not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners.external_timers import DRAM_READ, TIME, profile_all
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_cold.json"
# (n, k) of bf16 weights: 0.5 to 512 MB.
WEIGHTS = (
    (512, 512),
    (1024, 512),
    (1024, 1024),
    (2048, 1024),
    (2048, 2048),
    (4096, 2048),
    (4096, 4096),
    (8192, 4096),
    (8192, 8192),
    (16384, 8192),
    (16384, 16384),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    rows = []
    problems = [ops.parse(f"gemm m=1 n={n} k={k} a=bf16 b=bf16 tb=t") for n, k in WEIGHTS]
    cases = [
        Case(problem=problem, backend="triton", timing=Timing(cache=cache))
        for problem in problems
        for cache in ("cold", "hot")
    ]
    seen = iter(profile_all(cases, info.name, launches=5, metrics=(TIME, DRAM_READ)))
    for problem in problems:
        inputs = sum(t.nbytes for t in ops.registry.get("gemm").tensors(problem) if t.role == "in")
        row: dict[str, float] = {"n": problem.dims["n"], "k": problem.dims["k"]}
        row["input_bytes"] = inputs
        for cache in ("cold", "hot"):
            read = next(seen).metrics[DRAM_READ]
            row[f"{cache}_dram_bytes"] = read
            row[f"{cache}_ratio"] = read / inputs
        rows.append(row)
        print(f"{inputs / 1e6:8.2f} MB  cold {row['cold_ratio']:.3f}  hot {row['hot_ratio']:.3f}")
    worst = max(rows, key=lambda r: abs(r["cold_ratio"] - 1))
    bars = [
        (
            "DRAM bytes read within 10 % of the footprint, 0.5–512 MB, cold",
            f"worst ratio {worst['cold_ratio']:.3f} at {worst['input_bytes'] / 1e6:.1f} MB",
            abs(worst["cold_ratio"] - 1) <= 0.1,
        )
    ]
    evidence.write(
        given.output,
        title="Cold caches: DRAM bytes read a launch, by ncu",
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("triton"),
    )
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
