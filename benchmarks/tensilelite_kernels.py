"""New kernels for gfx942 and gfx950 by a checkout's TensileLite, without a GPU.

    python benchmarks/tensilelite_kernels.py DIR [--candidates N] [--jobs N] [-o results.json]

DIR is a checkout of hipBLASLt or rocm-libraries. Candidates are those of `kmark tune check`: the
default and a random sample of each plan's space, generated, assembled and read. The file has the
registers, LDS and spills of each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelmark.backends.tensilelite import backend, checkout
from kernelmark_dev import evidence

RESULT = Path(__file__).parent / "results" / "tensilelite_kernels.json"
LEAST = 20  # kernels of each architecture
# The first is the call of the founding document; the others are of other types and layouts.
DOCUMENT = "gemm m=109 n=16032 k=16384 dtype=bf16 tb=t"
PROBLEMS = {
    "gfx942": (DOCUMENT, "gemm m=4096 n=4096 k=4096 dtype=f8e4m3fnuz c=bf16 tb=t"),
    "gfx950": (DOCUMENT, "gemm m=4096 n=4096 k=4096 dtype=f16"),
}
READ = ("registers", "shared_bytes", "spilled_registers")


def kmark(*words: str) -> str:
    """Return what a command prints; failed candidates (exit code 3) are rows of it."""
    command = [sys.executable, "-m", "kernelmark", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"kmark {' '.join(words)} ended with {done.returncode}")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--candidates", type=int, default=13, help="of each problem")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    os.environ[checkout.VARIABLE] = str(arguments.checkout.absolute())
    versions = {"TensileLite": backend.version(), "clang": checkout.clang().version}
    bars, figures = [], {}
    for arch in PROBLEMS:
        rows = candidates(arch, arguments.candidates, arguments.jobs)
        good = [
            row
            for row in rows
            if row["verdict"] == "accepted" and all(row[name] is not None for name in READ)
        ]
        asked = f"{arch}: at least {LEAST} kernels generated, assembled and read, without spills"
        bars.append((asked, f"{len(good)} of {len(rows)} candidates", len(good) >= LEAST))
        figures[arch] = rows
    evidence.write(
        arguments.output,
        title="New kernels for hipBLASLt, generated without a GPU",
        bars=bars,
        figures=figures,
        libraries=versions,
    )
    print(evidence.bars_text(bars))
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


if __name__ == "__main__":
    main()
