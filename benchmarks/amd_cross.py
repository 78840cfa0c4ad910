"""Cross-compile kernelmark's Triton kernels for AMD GPUs, without one, and judge the code.

    python benchmarks/amd_cross.py [--arch gfx942 ...] [--only TEXT ...] [-o results.json]

Every problem of benchmarks/gpu/coverage.py and some of the size of real models, each with the
config that is the default for the architecture. Registers, spills and LDS are read from the code
objects, and of each kernel the loop with the most matrix instructions from its assembly text:
`kernelmark_dev.isa` says what is wrong with it. Triton keeps what it compiled: the same command
goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gpu"))

from coverage import SHAPES, legal  # noqa: E402

from kernelmark.backends.triton import _plan, backend  # noqa: E402
from kernelmark.core.dtype import DTYPES  # noqa: E402
from kernelmark.core.environment import DeviceInfo  # noqa: E402
from kernelmark.core.errors import KernelmarkError  # noqa: E402
from kernelmark.core.problem import Problem  # noqa: E402
from kernelmark.gpu.architectures import absent  # noqa: E402
from kernelmark_dev import evidence  # noqa: E402
from kernelmark_dev.isa import faults, matrix_loop  # noqa: E402

RESULT = HERE / "results" / "amd_cross.json"
ARCHS = ("gfx942", "gfx950", "gfx90a", "gfx1100")
JUDGED = ("gfx942", "gfx950")
AT_LEAST = 0.95
# With large tiles, which the sizes of the coverage do not reach on a GPU of 300 CUs.
LARGE: dict[str, list[dict[str, object]]] = {
    "gemm": [
        {"m": 4096, "n": 4096, "k": 4096, "tb": "t"},
        {"m": 4096, "n": 4096, "k": 4096},
        {"m": 4096, "n": 4096, "k": 4096, "ta": "t"},
        {"m": 4096, "n": 4096, "k": 4096, "ta": "t", "tb": "t"},
        {"m": 16, "n": 8192, "k": 8192, "tb": "t"},
        {"m": 5407, "n": 3000, "k": 2056, "tb": "t"},
    ],
    "batched_gemm": [{"batch": 64, "m": 1024, "n": 1024, "k": 128, "tb": "t"}],
    "attention": [
        {"batch": 4, "heads_q": 32, "heads_kv": 8, "seq": 4096, "dim": 128, "causal": True},
        {"batch": 4, "heads": 16, "seq": 4096, "dim": 64},
        {"batch": 2, "heads": 8, "seq": 2048, "dim": 256},
        {"batch": 32, "heads_q": 32, "heads_kv": 8, "seq_q": 1, "seq_kv": 8192, "dim": 128},
    ],
    "moe": [
        {"m": m, "n": n, "k": k, "e": e, "top_k": top}
        for m in (1, 64, 4096)
        for n, k, e, top in ((7168, 4096, 8, 2), (768, 2048, 128, 8))
    ],
    "conv": [
        {"n": 32, "c": 256, "h": 28, "w": 28, "k": 256, "r": 3, "s": 3, "pad": 1, "layout": x}
        for x in ("nhwc", "nchw")
    ],
}


def problems(info: DeviceInfo) -> list[Problem]:
    """Return what the Triton backend supports on a GPU, each problem once."""
    made = (
        legal(op, dtype, shape)
        for shapes in (SHAPES, LARGE)
        for op, some in shapes.items()
        for dtype in DTYPES
        for shape in some
    )
    unique = {problem.key: problem for problem in made if problem is not None}
    return [one for one in unique.values() if backend.supports(one, info) is None]


def compiled(problem: Problem, info: DeviceInfo) -> dict[str, Any]:
    """Compile all kernels of the default config; return what each uses."""
    row: dict[str, Any] = {"arch": info.arch, "problem": problem.key}
    row["config"] = dict(backend.default(problem, info))
    try:
        plan = _plan(problem, {}, info)
        built = [call.build(info.arch) for call in plan.calls]
        row["kernels"] = {one.name: dict(one.resources) for one in built}
        loop = matrix_loop(plan.calls[plan.main].assembly(info.arch))
        row["loop"] = loop.summary()
        row["faults"] = faults(loop, problem, row["config"], info.arch)
    except KernelmarkError as error:
        row["error"] = str(error)
    return row


def spilled(row: dict[str, Any], *words: str) -> bool:
    return any(used[word] for used in row["kernels"].values() for word in words)


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a line for the config and for what each kernel uses; 0 is left out."""
    kernels = {name: line(used) for name, used in row.get("kernels", {}).items()}
    return {**row, "config": line(row["config"]), "kernels": kernels}


def line(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value)


def bars_of(rows: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    bars = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        here = [row for row in rows if row["arch"] == arch]
        built = [row for row in here if "kernels" in row]
        vector = sum(spilled(row, "spilled_registers", "stack_bytes") for row in built)
        clean = sum(
            not spilled(row, "spilled_registers", "spilled_scalar_registers", "stack_bytes")
            for row in built
        )
        spills = f"{clean} of {len(here)} ({clean / len(here):.1%}); {vector} spill to memory, "
        spills += f"{len(built) - clean - vector} only scalar registers"
        asked = f"{arch}: all default configs compile"
        compiles = f"{len(built)} of {len(here)}"
        if arch not in JUDGED:
            sound = sum(not row["faults"] for row in built)
            compiles += f"; without a spill: {spills}; sound loops: {sound}"
        bars.append((asked, compiles, len(built) == len(here)))
        if arch in JUDGED:
            asked = f"{arch}: at least {AT_LEAST:.0%} compile without a spill of any kind"
            bars.append((asked, spills, clean >= AT_LEAST * len(here)))
            sound = sum(not row["faults"] for row in built)
            asked = f"{arch}: loops as good as those of a plain GEMM, or better"
            bars.append((asked, f"{sound} of {len(built)}", sound == len(built)))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", nargs="+", default=ARCHS, choices=ARCHS)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    rows = []
    for info in map(absent, given.arch):
        for problem in problems(info):
            if not given.only or any(word in problem.key for word in given.only):
                rows.append(compiled(problem, info))
                print(json.dumps(rows[-1]), flush=True)
    if not rows:
        parser.error(f"no problem contains {' or '.join(map(repr, given.only))}")
    bars = bars_of(rows)
    evidence.write(
        given.output,
        title="Triton kernels cross-compiled for AMD GPUs",
        bars=bars,
        figures={"cases": [shortened(row) for row in rows]},
        libraries=evidence.libraries("triton"),
    )
    print(evidence.bars_text(bars))
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


if __name__ == "__main__":
    main()
