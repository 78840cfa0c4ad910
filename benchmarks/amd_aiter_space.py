"""Count aiter's tuned bf16 GEMM configs for AMD GPUs that our Triton GEMM's space does not have.

    python benchmarks/amd_aiter_space.py FOLDER [-o results.json]

FOLDER is aiter/ops/triton/configs/gemm of a checkout of aiter. Each bucket of each file
gfx942-*GEMM-A16W16*.json and gfx950-*GEMM-A16W16*.json is looked up in the space of a problem of
its size. Settings that make the same kernel are equal: a `group_m` beyond the rows of tiles, and a
`split_k` that gives the same slices as a smaller one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends.triton import gemm
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.gpu.architectures import absent
from kernelmark_dev import evidence

RESULT = Path(__file__).parent / "results" / "amd_aiter_space.json"
ARCHS = ("gfx942", "gfx950")
# Files without N and K, and buckets without a bound, are for every size: this one is usual.
USUAL = 4096
NAMES = {"block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K"}


def problem_of(file: Path, bucket: str) -> Problem:
    """Return a problem for which aiter reads this bucket."""
    sizes = {name: int(size) for name, size in re.findall(r"-([NK])=(\d+)", file.stem)}
    bound = re.fullmatch(r"M_[LG]EQ_(\d+)", bucket)
    m = int(bound[1]) if bound else USUAL
    shape = f"m={m} n={sizes.get('N', USUAL)} k={sizes.get('K', USUAL)} dtype=bf16 tb=t"
    return ops.parse(
        f"batched_gemm batch=16 {shape}" if "BATCHED" in file.name else f"gemm {shape}"
    )


def config_of(tuned: dict[str, Any], problem: Problem, info: DeviceInfo) -> dict[str, Any]:
    """Return aiter's config by our names, with the space's values for the same kernel."""
    space = gemm.space(problem, info)
    config = dict(space.default)
    config |= {ours: tuned[theirs] for ours, theirs in NAMES.items()}
    same = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
    config |= {name: tuned[name] for name in same if name in tuned and name in config}
    config["cache_modifier"] = tuned.get("cache_modifier") or ""
    m, k = problem.dims["m"], problem.dims["k"]
    # Orders of tiles that the space does not have differ in no instruction: not counted.
    config["group_m"] = gemm._least_group(m, config["block_m"], tuned["GROUP_SIZE_M"])
    config["split_k"] = gemm._least_split(k, tuned.get("NUM_KSPLIT", 1), config["block_k"])
    return config


def missing(config: dict[str, Any], problem: Problem, info: DeviceInfo) -> str | None:
    """Return why a config is not in the space, or None."""
    space = gemm.space(problem, info)
    for name, values in space.parameters.items():
        if config[name] not in values:
            return f"{name}={config[name]!r}"
    return space.forbids(config)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    bars, outside = [], []
    for info in map(absent, ARCHS):
        files = sorted(arguments.folder.glob(f"{info.arch}-*GEMM-A16W16*.json"))
        counts: Counter[bool] = Counter()
        for file in files:
            for bucket, tuned in json.loads(file.read_text()).items():
                problem = problem_of(file, bucket)
                why = missing(config_of(tuned, problem, info), problem, info)
                counts[why is not None] += 1
                if why is not None:
                    outside.append({"file": file.name, "bucket": bucket, "why": why})
                    print(f"{file.name} {bucket}: {why}")
        if not files:
            parser.error(f"{arguments.folder} has no {info.arch}-*GEMM-A16W16*.json")
        measured = f"{counts[True]} of {counts.total()} in {len(files)} files"
        bars.append(
            (f"{info.arch}: tuned configs outside the space: 0", measured, not counts[True])
        )
    evidence.write(
        arguments.output,
        title="aiter's tuned GEMM configs in the Triton GEMM's space",
        bars=bars,
        figures={"outside": outside},
    )
    print(evidence.bars_text(bars))
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


if __name__ == "__main__":
    main()
