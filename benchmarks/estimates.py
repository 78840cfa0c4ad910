"""Announced times against those that commands take: 20 commands of different kinds on the CPU.

    python benchmarks/estimates.py            writes benchmarks/results/estimates.json
    python benchmarks/estimates.py --only 3   the first few, writes nothing unless --json is given

Each command is announced by --dry-run, or by its first line where it has no --dry-run, then run and
timed. Where a range is announced (kmark ab: first to last look; kmark run of a few cases), a time
inside it is exact. `left` is what the command itself said after a third of its time, beside what it
took from there on. The estimates are made from the experience of a few commands that are run
before, as after minutes of use. Bars: within a factor 1.5 for each of the 20; the ends of a range
of run differ by at most a factor 3.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "estimates.json"
FACTOR = 1.5
MOST_RANGE = 3.0
_SPAN = r"(?:(\d+) h )?(?:(\d+) min ?)?(?:([\d.]+) s)?"
_ABOUT = re.compile(rf"about {_SPAN}(?: to {_SPAN})?")
_LEFT = re.compile(rf"(?:about|at most) {_SPAN} left")
_GEMM = ("-o", "gemm", "-a", "n=256", "-a", "k=256", "--dtype", "f32")
_ROUNDS = ("--rounds", "6", "--alpha", "0.1")
_OWN = """
import numpy as np
op = "gemm"
space = {"rows": [64, 128, 256, 512]}

def prepare(problem, config, sets):
    rows = config.get("rows", 64)
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        for start in range(0, len(d), rows):
            np.matmul(a[start : start + rows], b, out=d[start : start + rows])
    return launch
"""
COMMANDS: dict[str, tuple[str, ...]] = {
    "run one quick": ("run", *_GEMM, "-a", "m=64", "-b", "numpy", "--timing", "quick"),
    "run one": ("run", *_GEMM, "-a", "m=64", "-b", "numpy"),
    "run torch quick": ("run", *_GEMM, "-a", "m=64", "-b", "torch", "--timing", "quick"),
    "run two backends": ("run", *_GEMM, "-a", "m=[64,512]", "-b", "numpy,torch"),
    "run ten quick": ("run", *_GEMM, "-a", "m=[64:640:64]", "-b", "numpy", "--timing", "quick"),
    "run large": ("run", *_GEMM, "-a", "m=8192", "-b", "numpy", "--timing", "quick"),
    "run hot": ("run", *_GEMM, "-a", "m=[64,128,256]", "-b", "numpy", "--cache", "hot"),
    "run long cap": ("run", *_GEMM, "-a", "m=64", "-b", "numpy", "--max-s", "6"),
    "run processes": (
        *("run", *_GEMM, "-a", "m=64", "-b", "numpy", "--processes", "3", "--timing", "quick"),
    ),
    "run attention": (
        *("run", "-o", "attention", "-a", "batch=1", "-a", "heads=2", "-a", "seq=128"),
        *("-a", "dim=64", "--dtype", "f32", "-b", "numpy,torch"),
        *("--timing", "quick"),
    ),
    "run copies": (
        *("run", "-o", "copy", "-a", "n=[1000,100000,10000000]", "--dtype", "f32", "-b", "numpy"),
        *("--timing", "quick"),
    ),
    "run iree": ("run", *_GEMM, "-a", "m=[64,128]", "-b", "iree", "--timing", "quick"),
    "run own": ("run", *_GEMM, "-a", "m=512", "-b", "./own.py", "--timing", "quick"),
    "run fresh roofs": (
        *("run", *_GEMM, "-a", "m=64", "-b", "numpy", "--timing", "quick", "--roofs", "fresh"),
    ),
    "ab numpy": ("ab", *_GEMM, "-a", "m=64", "-b", "numpy", "--env", "a", "--env", "b", *_ROUNDS),
    "ab torch": ("ab", *_GEMM, "-a", "m=64", "-b", "a:numpy", "-b", "b:torch", *_ROUNDS, "--env",
                 "a", "--env", "b"),
    "ab configs of four": (
        *("ab", *_GEMM, "-a", "m=[64,128,256,512]", "-b", "./own.py", *_ROUNDS),
        *("--config", "head:rows=256"),
    ),
    "ab looks": (
        *("ab", *_GEMM, "-a", "m=64", "-b", "numpy", "--env", "a", "--env", "b"),
        *("--rounds", "6,8", "--alpha", "0.2"),
    ),
    "tune small space": ("tune", "run", "small"),
    "tune two plans": ("tune", "run", "two"),
}  # fmt: skip
# What is run first, for the estimates of all to be made from.
EXPERIENCE = (
    "run one quick",
    "run one",
    "run torch quick",
    "run iree",
    "ab numpy",
    "tune two plans",
)
FOLDERS = {"small": "m=512", "two": "m=[256,1024]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Seconds that a command was announced to take, and took; the same of what was left after a
    third of it, where it said so."""

    name: str
    low_s: float
    high_s: float
    took_s: float
    left_s: float | None
    left_took_s: float | None

    @property
    def factor(self) -> float:
        """How far the time is from what was announced: 1 is exact or inside the range."""
        return max(self.low_s / self.took_s, self.took_s / self.high_s, 1.0)

    @property
    def left_factor(self) -> float | None:
        if not self.left_s or not self.left_took_s:
            return None
        return max(self.left_s / self.left_took_s, self.left_took_s / self.left_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, help="the first so many commands")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    names = list(COMMANDS)[: options.only]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for name in EXPERIENCE:
            measured(name, Path(folder))
        found = []
        for name in names:
            found.append(measured(name, Path(folder)))
            show(found[-1])
    target = options.json or (None if options.only else RESULTS)
    if target is not None:
        write(target, found)
    return 0 if all(holds for _, _, holds in bars(found)) else 1


def prepare(folder: Path) -> None:
    (folder / "own.py").write_text(_OWN)
    for name, axis in FOLDERS.items():
        words = ("tune", "plan", name, *_GEMM, "-a", axis, "-b", "./own.py")
        kmark(folder, *words, "--reference", "numpy", "--evaluations", "8")


def measured(name: str, folder: Path) -> Told:
    """Run a command once, from its announcement to its end."""
    words = COMMANDS[name]
    if words[0] == "tune":
        for trial in (folder / words[2] / "trials").glob("*"):
            trial.unlink()
        announced = ""
    else:
        announced = kmark(folder, *words, "--dry-run")
    begun = time.monotonic()
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words],
        cwd=folder,
        env=environment(folder),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append((time.monotonic() - begun, line))
    took_s = time.monotonic() - begun
    if process.returncode not in (0, 1):
        raise SystemExit(f"{name} ended with {process.returncode}:\n{''.join(x for _, x in lines)}")
    if not announced:  # by the first line that tells a time
        at, announced = next((at, line) for at, line in lines if _ABOUT.search(line))
        took_s -= at
    found = _ABOUT.finditer(announced.splitlines()[-1])
    spans = [span for match in found for span in (match.groups()[:3], match.groups()[3:])]
    ends = [seconds(span) for span in spans if any(span)]
    after = [(at, m) for at, x in lines if (m := _LEFT.search(x)) and at > took_s / 3]
    left = (seconds(after[0][1].groups()), took_s - after[0][0]) if after else (None, None)
    return Told(
        name=name,
        low_s=min(ends),
        high_s=max(ends),
        took_s=took_s,
        left_s=left[0],
        left_took_s=left[1],
    )


def kmark(folder: Path, *words: str) -> str:
    """What a command says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark", *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"kmark {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stderr


def environment(folder: Path) -> dict[str, str]:
    own = {"KERNELMARK_STORE": str(folder / "store.sqlite"), "KERNELMARK_CACHE": str(folder / "c")}
    return {**os.environ, **own, "KERNELMARK_LOCKS": str(folder), "TERM": "dumb"}


def seconds(span: Sequence[str | None]) -> float:
    hours, minutes, rest = (float(part or 0) for part in span)
    return max(0.5, 3600.0 * hours + 60 * minutes + rest)


def bars(found: list[Told]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    within = [told for told in found if told.factor <= FACTOR]
    worst = max(found, key=lambda told: told.factor)
    runs = [told for told in found if COMMANDS[told.name][0] == "run"]
    widest = max(told.high_s / told.low_s for told in runs)
    ranges = sum(told.high_s > told.low_s for told in runs)
    lefts = sorted(told.left_factor for told in found if told.left_factor is not None)
    return [
        (
            f"announced times within a factor {FACTOR} for {len(found)} commands",
            f"{len(within)} of {len(found)}; the worst is {worst.factor:.2f} ({worst.name})",
            len(within) == len(found),
        ),
        (
            f"ends of a range that run announces differ by at most {MOST_RANGE}",
            f"{widest:.2f}; {ranges} of {len(runs)} are ranges",
            widest <= MOST_RANGE,
        ),
        (
            f"time left after a third of a command within a factor {FACTOR}, in the median",
            f"{lefts[len(lefts) // 2]:.2f} of {len(lefts)} commands" if lefts else "none told",
            bool(lefts) and lefts[len(lefts) // 2] <= FACTOR,
        ),
    ]


def show(told: Told) -> None:
    span = f"{told.low_s:g}" if told.low_s == told.high_s else f"{told.low_s:g}-{told.high_s:g}"
    left = "" if told.left_factor is None else f", left off by {told.left_factor:.2f}"
    print(
        f"{told.name:20} announced {span:>8} s, took {told.took_s:6.1f} s: {told.factor:.2f}{left}",
        flush=True,
    )


def write(target: Path, found: list[Told]) -> None:
    from kernelmark.devices import registry
    from kernelmark_dev import evidence

    evidence.write(
        target,
        title="Announced times against those that commands take",
        bars=bars(found),
        figures={
            "commands": {
                told.name: {"words": " ".join(COMMANDS[told.name]), **asdict(told)}
                for told in found
            },
            "load_1min": os.getloadavg()[0],
        },
        device=registry.get("cpu").infos()[0],
    )


if __name__ == "__main__":
    sys.exit(main())
