"""How long the first answer takes: a kernel file that imports torch, beside `-b torch`.

    python benchmarks/own_startup.py                 on the CPU
    python benchmarks/own_startup.py -d cuda:0       on a GPU

Bar: a right, a wrong and a raising kernel take at most 1.1 times `-b torch`. Commands alternate;
each is a new process, and the ratio is the median over rounds. CPU seconds are those of the command
and its workers; on a machine with other work they are the steadier figure.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelmark.runners.targets import find
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results"
BAR = 1.1
FILE = """
import torch
op = "gemm"
tensors = "torch"
def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        {body}
    return launch
"""
BODIES = {
    "right": "torch.matmul(a, b, out=d)",
    "wrong": "torch.matmul(a[:-1], b, out=d[:-1])",
    "raises": "raise RuntimeError",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-d", "--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, body in BODIES.items():
            (Path(folder) / f"{name}.py").write_text(FILE.format(body=body))
        backends = {"torch": "torch", **{name: f"./{name}.py" for name in BODIES}}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
        for _ in range(options.rounds + 1):  # the first fills caches
            for name, backend in backends.items():
                times[name].append(seconds(backend, options.device, folder))
    figures = {
        kind: {name: [round(pair[i], 3) for pair in some[1:]] for name, some in times.items()}
        for i, kind in enumerate(("wall_s", "cpu_s"))
    }
    bars = [
        (f"a {name} kernel file: {kind} ≤ {BAR:g} times that of -b torch", *ratio(some, name))
        for kind, some in zip(("time", "CPU time"), figures.values(), strict=True)
        for name in BODIES
    ]
    print(evidence.bars_text(bars))
    device = find(options.device)[1]
    evidence.write(
        RESULTS / ("own_startup.json" if device.kind == "cpu" else "gpu_own_startup.json"),
        title=f"Start-up of a kernel file that imports torch, on a {device.kind.upper()}",
        bars=bars,
        figures={**figures, "load_1min": os.getloadavg()[0]},
        device=device,
        libraries=evidence.libraries("torch"),
    )
    return 0 if all(holds for *_, holds in bars) else 1


def ratio(times: dict[str, list[float]], name: str) -> tuple[str, bool]:
    """What was measured, and whether the bar holds."""
    pairs = zip(times[name], times["torch"], strict=True)
    typical = statistics.median(own / torch for own, torch in pairs)
    seconds_text = f"{statistics.median(times[name]):.1f} s"
    return f"{typical:.2f} times, {seconds_text}", typical <= BAR


def seconds(backend: str, device: str, folder: str) -> tuple[float, float]:
    """Return the seconds of a whole command, by the clock and of CPU time."""
    words = [sys.executable, "-P", "-m", "kernelmark", "run", "-b", backend, "-d", device]
    words += ["-p", "gemm m=64 n=64 k=64 dtype=f32", "--timing", "quick"]
    words += ["--roofs", "none", "--no-store", "-q"]
    begun, before = time.perf_counter(), cpu_s()
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr.decode())
    return time.perf_counter() - begun, cpu_s() - before


def cpu_s() -> float:
    """Return the CPU seconds of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
