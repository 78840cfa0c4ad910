"""The demo as a newcomer meets it: a fresh clone, no environment, empty caches; then once more.

    python benchmarks/demo.py

Only packages come from outside. Writes benchmarks/results/demo.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelmark_dev import evidence

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "demo.json"
FIRST_S, AGAIN_S = 300.0, 60.0
OPS = 3


def demo(clone: Path, home: Path) -> tuple[float, str]:
    """Seconds that `make demo` takes, and the table it prints."""
    hidden = ("KERNELMARK_STORE", "KERNELMARK_CACHE", "VIRTUAL_ENV", "PYTHONPATH")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    start = time.perf_counter()
    done = subprocess.run(
        ["make", "demo"],
        cwd=clone,
        env={**variables, "HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"make demo ended with {done.returncode}")
    return time.perf_counter() - start, done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "kernelmark", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        first_s, table = demo(clone, home)
        again_s, _ = demo(clone, home)
    ops = sorted(set(re.findall(r"^(\w+) \w+=", table, flags=re.MULTILINE)))
    rows = len(re.findall(r"\bok\b", table))
    bars = [
        (
            f"make demo in a fresh clone in under {FIRST_S:.0f} s",
            f"{first_s:.0f} s",
            first_s < FIRST_S,
        ),
        (f"again in under {AGAIN_S:.0f} s", f"{again_s:.0f} s", again_s < AGAIN_S),
        (
            f"a table over at least {OPS} ops",
            f"{', '.join(ops)}: {rows} rows ok",
            len(ops) >= OPS and rows >= OPS,
        ),
    ]
    figures = {"first_s": first_s, "again_s": again_s, "ops": ops, "rows_ok": rows}
    evidence.write(RESULTS, title="The demo in a fresh clone", bars=bars, figures=figures)
    print(table)
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
