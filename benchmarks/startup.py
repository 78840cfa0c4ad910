"""How long kernelmark takes to be there: importing it, and `kmark --help`.

    python benchmarks/startup.py            writes benchmarks/results/startup.json
    python benchmarks/startup.py --quick    few repeats, writes nothing unless --json is given

Bars: import < 150 ms, `kmark --help` < 400 ms, neither loading numpy, SQLAlchemy or a framework.
Every repeat is a new process with warm file caches; the median counts, the extremes are shown.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "startup.json"
BARS_MS = {"import kernelmark": 150.0, "kmark --help": 400.0}
HEAVY = ("numpy", "scipy", "sqlalchemy", "torch", "triton", "iree", "ray", "pandas")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    repeats = 5 if options.quick else 31
    figures = {
        "import kernelmark": import_ms(repeats),
        "kmark --help": wall_ms(["-m", "kernelmark", "--help"], repeats),
        "kmark run --help": wall_ms(["-m", "kernelmark", "run", "--help"], repeats),
        "python -c pass": wall_ms(["-c", "pass"], repeats),
    }
    loaded = {
        "import kernelmark": heavy_modules("import kernelmark"),
        "kmark --help": heavy_modules(
            "import sys; sys.argv = ['kmark', '--help']\n"
            "from kernelmark.cli.main import main\n"
            "try: main()\nexcept SystemExit: pass"
        ),
    }
    show(figures, loaded)
    target = options.json or (None if options.quick else RESULTS)
    if target is not None:
        write(target, repeats, figures, loaded)
    return 0 if all(holds for _, _, holds in bars(figures, loaded)) else 1


def bars(
    figures: dict[str, dict[str, float]], loaded: dict[str, list[str]]
) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    found = [
        (
            f"{name} < {bar:.0f} ms",
            f"{figures[name]['median']:.0f} ms",
            figures[name]["median"] < bar,
        )
        for name, bar in BARS_MS.items()
    ]
    found += [
        (f"{name} loads none of {', '.join(HEAVY)}", ", ".join(modules) or "none", not modules)
        for name, modules in loaded.items()
    ]
    return found


def write(
    target: Path, repeats: int, figures: dict[str, dict[str, float]], loaded: dict[str, list[str]]
) -> None:
    from kernelmark.devices import registry
    from kernelmark_dev import evidence

    evidence.write(
        target,
        title="Start-up: importing kernelmark, and kmark --help",
        bars=bars(figures, loaded),
        figures={
            "repeats": repeats,
            "milliseconds": figures,
            "heavy_modules_loaded": loaded,
            "load_1min": os.getloadavg()[0],
        },
        device=registry.get("cpu").infos()[0],
    )


def import_ms(repeats: int) -> dict[str, float]:
    """What `-X importtime` says of the package and all it brings with it."""
    times = []
    for _ in range(repeats):
        done = python("-X", "importtime", "-c", "import kernelmark")
        line = next(x for x in done.stderr.splitlines() if x.split("|")[-1].strip() == "kernelmark")
        times.append(int(line.split("|")[1]) / 1e3)
    return spread(times)


def wall_ms(words: list[str], repeats: int) -> dict[str, float]:
    """From starting the process to its end."""
    times = []
    python(*words)
    for _ in range(repeats):
        start = time.perf_counter()
        python(*words)
        times.append((time.perf_counter() - start) * 1e3)
    return spread(times)


def heavy_modules(program: str) -> list[str]:
    """Large libraries that are in memory after `program`."""
    names = f"' '.join(m for m in {HEAVY!r} if m in sys.modules)"
    ask = f"\nimport sys; sys.stderr.write('\\n' + {names})"
    return python("-c", program + ask).stderr.splitlines()[-1].split()


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)


def spread(times: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times), 2),
        "least": round(min(times), 2),
        "most": round(max(times), 2),
    }


def show(figures: dict[str, dict[str, float]], loaded: dict[str, list[str]]) -> None:
    print(f"{'milliseconds':<22}{'median':>9}{'least':>9}{'most':>9}{'bar':>9}")
    for name, found in figures.items():
        bar = f"{BARS_MS[name]:.0f}" if name in BARS_MS else ""
        numbers = "".join(f"{found[k]:>9.1f}" for k in ("median", "least", "most"))
        print(f"{name:<22}{numbers}{bar:>9}")
    for name, modules in loaded.items():
        print(f"{name} loads of the heavy libraries: {', '.join(modules) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
