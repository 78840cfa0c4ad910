"""New kernels for gfx942 and gfx950 by a checkout's TensileLite, without a GPU: how many legal
configs are generated and assembled, with their registers, LDS and spills.

    python benchmarks/tensilelite_kernels.py DIR [--candidates 13] [--jobs 2]

DIR is a checkout of hipBLASLt or rocm-libraries. Candidates are those of `kmark tune check`: the
default and a random sample of each plan's space.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROBLEMS = {
    "gfx942": (
        "gemm m=109 n=16032 k=16384 dtype=bf16 tb=t",
        "gemm m=4096 n=4096 k=4096 dtype=f8e4m3fnuz c=bf16 tb=t",
    ),
    "gfx950": ("gemm m=109 n=16032 k=16384 dtype=bf16 tb=t", "gemm m=4096 n=4096 k=4096 dtype=f16"),
}


def kmark(*words: str) -> str:
    command = [sys.executable, "-m", "kernelmark", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):  # 3: a plan without an accepted candidate
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}")
    return done.stdout


def candidates(arch: str, count: int, jobs: int) -> list[dict[str, Any]]:
    """Return the rows of `kmark tune check` for an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [word for problem in PROBLEMS[arch] for word in ("-p", problem)]
        kmark("tune", "plan", folder, "-b", "tensilelite", "--arch", arch, *chosen)
        limits = ("--candidates", str(count), "--jobs", str(jobs), "--timeout", "1800")
        rows: list[dict[str, Any]] = json.loads(
            kmark("tune", "check", folder, *limits, "--json", "-")
        )
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout")
    parser.add_argument("--candidates", type=int, default=13, help="of each problem")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", type=Path, default=HERE / "results" / "tensilelite_kernels.json")
    given = parser.parse_args()
    os.environ["KERNELMARK_TENSILELITE"] = given.checkout
    from kernelmark.backends.tensilelite import backend, checkout

    began = time.time()
    rows = [row for arch in PROBLEMS for row in candidates(arch, given.candidates, given.jobs)]
    found = checkout.the_checkout()
    commit = subprocess.run(
        ["git", "-C", str(found.folder), "log", "-1", "--format=%H", "--", "."],
        capture_output=True,
        text=True,
        check=False,
    )
    document = {
        "checkout": {"digest": backend.version(), "commit": commit.stdout.strip()},
        "clang": checkout.clang().version,
        "host": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "seconds": round(time.time() - began, 1),
        "candidates": rows,
    }
    given.o.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for arch in PROBLEMS:
        mine = [row for row in rows if row["arch"] == arch]
        good = sum(row["verdict"] == "accepted" for row in mine)
        print(f"{arch}: {good} of {len(mine)} candidates are kernels without spills")


if __name__ == "__main__":
    main()
