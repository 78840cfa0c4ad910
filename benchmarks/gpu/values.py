"""Values: how much the values of the inputs decide about the time of a GEMM at a power cap.

    python benchmarks/gpu/values.py [-o results.json]

The same torch.mm in bf16, by km.bench with the timing of kmark run, in fresh processes. `in bf16`
is torch.rand(dtype=torch.bfloat16) * 2 - 1: the subtraction leaves multiples of 1/256, so that the
low bits of many mantissas are zero. `rounded` is the same range in f32, rounded to bf16, like the
inputs of kernelmark. Fewer bits toggle with `in bf16`, the GPU draws less power, and at a power cap
its clock is higher. The small product draws less power than the cap allows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _gpu import gpu_info

import kernelmark as km
from kernelmark.core.result import Status
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_values.json"
CAPPED, FREE = (2048, 4096, 4096), (1024, 1024, 1024)
KINDS = ("zeros", "integers", "in bf16", "rounded", "normal")
ROUNDS = 2


def make(kind: str, rows: int, columns: int) -> Any:
    import torch

    shape, bf16 = (rows, columns), torch.bfloat16
    if kind == "zeros":
        return torch.zeros(shape, device="cuda", dtype=bf16)
    if kind == "integers":
        return torch.randint(-2, 3, shape, device="cuda").to(bf16)
    if kind == "in bf16":
        return torch.rand(shape, device="cuda", dtype=bf16) * 2 - 1
    if kind == "rounded":
        return (torch.rand(shape, device="cuda") * 2 - 1).to(bf16)
    return torch.randn(shape, device="cuda").to(bf16)


def product(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch.mm(a, b, out=out)


def measured(kind: str) -> list[dict[str, Any]]:
    """Both products in this process: time in µs and clock in MHz."""
    rows = []
    for m, n, k in (FREE, CAPPED):
        inputs = make(kind, m, k), make(kind, k, n), make(kind, m, n)
        (found,) = km.bench(product, *inputs, ref=lambda a, b: a @ b, timing="default")
        one = found.measurement
        if one is None or found.status is not Status.OK:
            raise SystemExit(f"{kind}: {found.status}: {found.error}")
        clocks = [block.clock_mhz for block in one.blocks if block.clock_mhz is not None]
        rows.append(
            {
                "problem": f"{m} × {n} × {k}",
                "values": kind,
                "us": [round(x * 1e6, 4) for x in (one.median_s, one.low_s, one.high_s)],
                "mhz": round(statistics.median(clocks)),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--kind", choices=KINDS, help="measure in this process, print JSON")
    given = parser.parse_args()
    info = gpu_info()
    if given.kind is not None:
        print(json.dumps(measured(given.kind)))
        return 0
    rows: list[dict[str, Any]] = []
    for _ in range(ROUNDS):
        for kind in KINDS:
            command = [sys.executable, __file__, "--kind", kind]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows += json.loads(done.stdout)
    for row in rows:
        print(*row.values(), flush=True)
    figures = {"against_rounded": against_rounded(rows), "rows": rows}
    evidence.write(
        given.output,
        title="Values of the inputs and the time at a power cap",
        bars=[],
        figures=figures,
        device=info,
        libraries=evidence.libraries("torch"),
    )
    print(json.dumps(figures["against_rounded"], ensure_ascii=False, indent=1))
    return 0


def against_rounded(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Time with each kind of values relative to `rounded`, -0.15 for 15 % faster, by problem."""
    us: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        us.setdefault(row["problem"], {}).setdefault(row["values"], []).append(row["us"][0])
    return {
        problem: {
            kind: round(statistics.fmean(times) / statistics.fmean(by_kind["rounded"]) - 1, 4)
            for kind, times in by_kind.items()
        }
        for problem, by_kind in us.items()
    }


if __name__ == "__main__":
    raise SystemExit(main())
