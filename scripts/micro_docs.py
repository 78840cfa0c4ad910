#!/usr/bin/env python3
"""Write docs/micro.md from the benchmarks themselves: `python scripts/micro_docs.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kernelmark.micro import registry, session

PLACE = Path(__file__).parent.parent / "docs" / "micro.md"

HEAD = """\
# Microbenchmarks and roofs

<!-- Written by scripts/micro_docs.py. Edit that file, or the benchmarks' own texts. -->

```sh
kmark micro list                                # all microbenchmarks
kmark micro --quick -d cuda:0                   # run all: about a minute on a GPU
kmark micro cache latency --points              # every point, on the CPU
kmark micro latency -p sizes=16384,65536,1048576 --threads 1
kmark micro cache -f cache.png                  # or .svg, .html (works offline), .json (Vega-Lite)
kmark micro show latest --csv points.csv        # a stored result
kmark list micro                                # stored runs
kmark micro compare latest~1 latest             # two devices, or two days
kmark history --micro cache                     # headline metrics over time
kmark roofs -d cuda:0                           # measure and store the roofs
kmark roofs --stored
```

```python
import kernelmark as km

result = km.micro.cache(device="cpu", mode="brief")
result.metric("l1_bytes_per_clk").value
```

`--quick` is the default, `--full` sweeps finer, `--brief` measures only the points of headline
metrics. Without a name, each of these and `--all` run all benchmarks. `l2-cache` and `l2_cache` are
the same. `kmark micro` stores a run like any other, one result per benchmark: points, metrics,
clocks and power of the device during the benchmark, and the time it took. `kmark show`, `compare`,
`history`, `export`, `import` and `list runs` accept these runs too, by id; `latest` never names one
there. In `kmark micro show` and `compare`, `latest` is the latest run of microbenchmarks. `--json`
writes the run as a document; `kmark micro NAME --csv FILE` writes a row per point, `kmark export
--csv FILE` a row per metric. Files of older versions are still read. Figures need `pip install
"kernelmark[plots]"`. On a CPU the same kernels are built by the host's C++ compiler.

## Method

- **One source.** A kernel is one file under `src/kernelmark/kernels/rtc` that compiles with NVRTC,
  hipRTC and, where it makes sense, the host's compiler. Sizes and repeats are run-time values: all
  benchmarks together are COMPILATIONS compilations, cached on disk.
- **Separate setup, timed region and checks.** Nothing is allocated or filled inside the timed
  region. Every kernel's result is checked against an exact sum, sample or chain; tests with broken
  kernels on an emulated GPU show that the checks find them.
- **Clocks.** Cycles are counted inside the kernel, so they assume no clock rate. Seconds come from
  events, with all launches queued behind a gate, so they exclude host overhead. The core clock of
  each timing is read in the stream. CPU cycles are derived from a clock calibrated once with a
  dependent-add loop, so points of a CPU have no clock of their own.
- **Physical limits.** A value above the hardware's limit (SMs/CUs × bytes × clock, bus width ×
  memory clock, …) makes the result `wrong`, with the reason. The limits are stored with the result,
  and a file whose `ok` result exceeds them is rejected. This finds mistakes, but no file whose
  limits were edited too. `of limit` is a metric's percentage of its limit on a GPU. A CPU's limit
  is above any core (four pipes at 8 GHz, …) and only finds mistakes, so no percentage is shown.
- **A failure is a row.** Benchmarks run in a separate process; a crash, hang or fault is reported,
  and the others continue. A benchmark that the device does not support is `unsupported`, with the
  reason.

## Comparing

`kmark compare A B` prints a row for each metric that both runs have, even if modes or parameters
differ. The difference is the larger value divided by the smaller, minus 1. The verdict does not
depend on `--rule`:

- `same`: the difference is below 2 %; a GPU's headline metrics repeat within that
  ([evidence](evidence.md));
- `unsure`: it is below the noise, which is 2 % on a GPU and 10 % on a CPU (which runs other work as
  well), or the larger spread of the two metrics if that is more;
- `faster` or `slower`: it is above the noise, and the metric got better or worse; `ignored` if
  neither direction is better.

`kmark compare` exits with 1 if a metric is slower; `kmark micro compare` prints every row and exits
with 0.

Every time and rate has a spread, except those that a benchmark below lists as measured once:

- of a median, (longest − shortest) / median time of the launches in one run; of more than 11
  launches, the same over the middle half;
- if the shortest launch counts, as on a CPU, (second shortest − shortest) / shortest. Launches of
  many milliseconds may all be slowed alike by other work, so it is at least the fraction of the
  shortest launch in which a thread waited for its core;
- of a fit or a difference, that of its points.

The column `±` is half of the spread, and a metric whose spread is above 25 % is `disturbed`, not
`ok`. It does not include the variation between runs, and other work makes it large. If a metric is
`unsure`, repeat the run on a quiet machine. A note lists differences in how the runs were measured
(`--brief` against `--quick`, parameters, number of threads): their metrics may be of different
points. [gpu_micro_quick.txt](../benchmarks/results/gpu_micro_quick.txt) is a quick run on an H200.

## History

`kmark history -o NAME` follows the headline metrics of a benchmark as it follows times: trend,
newest value, steps and what changed in the environment there, alarms. A series has one metric,
architecture, number of threads, mode and set of parameters; if the store has several machines, also
one device. `kmark history --micro NAME` does the same over runs of microbenchmarks and of roofs.

## Roofs

`kmark roofs` measures and stores FLOP/s by dtype on the vector and the matrix units, bytes/s by
level and the cost of a launch; on a CPU only FLOP/s of the vector units and bytes/s of main memory.
A roof is a metric of a stored microbenchmark; `kmark list micro` lists these runs too, as of suite
`kmark roofs`, and `latest` never names one. `kmark run`, `kmark show` and reports compute
percentages from the roofs that were the newest when the run began, whether higher or lower than the
ones before: those of a stored run do not change when roofs are measured again.
[measuring.md](measuring.md#percent-of-roof) describes when `kmark run` measures them itself. An
unsteady roof (repeated passes did not agree, because other work ran; see column `how`) never
replaces a steady one, however old; a note names the one that is kept.

The column `share` of `kmark roofs` is the measured roof divided by the value in the vendor's data
sheet (`src/kernelmark/micro/data/datasheet.toml`). Percentages of results never use data sheets.

A CPU's roofs are valid for one number of threads, each on its own core; more threads than cores are
rejected. Without a C++ compiler the roofs are the rates of numpy's matmul and copy, and the column
`how` notes that the limit may be higher. Main memory has one roof, the best of the streams read,
copy and triad, on a GPU also init. Bandwidth depends on the mix of reads and writes: on two cores
of an Arm Neoverse-N1 copy moves 57 to 63 GB/s and read 36 to 40, so a kernel that only reads
reaches at most about 65 % of that roof. The column `how` has the rate of each stream, to compare
such a kernel with.

## Adding one

[CONTRIBUTING.md](../CONTRIBUTING.md#a-microbenchmark) has a minimal example. A file in
`src/kernelmark/micro/benchmarks` that defines a microbenchmark of its own name is listed, run,
stored and drawn without further changes. It is tested by the contract
(`tests/contract/test_micro_contract.py`) and on an emulated GPU with the values of `brief`
(`tests/micro/test_emulated.py`, where `SMALL` has smaller ones for slow benchmarks): what its
kernels compute, the limits and the spread of each time and rate, and that wrong clocks are found.

`kinds` sets where it runs: `GPUS` by default, `EVERYWHERE` to include the CPU. A new kernel goes in
a file `micro_NAME.cu`; `micro.h` declares what is available on every platform. Arguments are packed
according to the kernel's declaration.

For a CPU the same file is compiled as C++ after `host.h`. A kernel in that build

- is declared `KERNEL name(arguments) {`, is not a template, and is not inside `#ifndef HOST` as
  `launch_nothing` is: without the symbol `host_name` a call fails;
- has one thread per block (`blockDim.x` and `LANES` are 1, `__syncthreads()` does nothing) and, in
  a launch of `rig.grid` blocks, one block per core: divide work by `walk`, `tiles` or
  `thread_number`, not among the threads of a block;
- uses names of `host.h`: vectors are as wide as the CPU's, both clocks are nanoseconds, and there
  are no atomics, shuffles or inline assembly. Put what only a GPU has inside `#ifndef HOST`; in
  Python, `rig.block > 1` is true on a GPU.

A separate package adds a benchmark by an entry point in the group `kernelmark.micro.benchmarks`,
and tests it by inheriting `kernelmark.testing.MicroContract`.

## The benchmarks
"""


def text() -> str:
    """The whole page."""
    head = HEAD.replace("COMPILATIONS", str(len(session.kernel_files())))
    return "\n".join([head, *(section(registry.get(name)) for name in registry.names())])


def section(benchmark: Any) -> str:
    """One benchmark: what it measures, how it can mislead, its parameters and columns."""
    where = ", ".join(f"`{kind}`" for kind in benchmark.kinds)
    lines = [f"### {benchmark.name}\n", f"{benchmark.summary} On {where}.\n"]
    lines += [f"{benchmark.measures}\n", f"*How it can mislead.* {benchmark.misleads}\n"]
    lines += ["| parameter | | quick | full |", "| --- | --- | --- | --- |"]
    for name, parameter in benchmark.parameters.items():
        quick, full = shown(parameter.quick), shown(parameter.value("full"))
        lines.append(f"| `{name}` | {parameter.help} | {quick} | {full} |")
    lines += ["", "| column | unit | |", "| --- | --- | --- |"]
    for column in benchmark.columns:
        lines.append(f"| `{column.name}` | {column.unit} | {column.help} |")
    for why in dict.fromkeys(benchmark.no_spread.values()):
        names = ", ".join(f"`{n}`" for n, reason in benchmark.no_spread.items() if reason == why)
        lines.append(f"\nMeasured once, without a spread: {names} ({why}).")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{value[0]} … {value[-1]} ({len(value)})"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main() -> None:
    page = text()
    if "--check" in sys.argv:
        if not PLACE.exists() or PLACE.read_text(encoding="utf-8") != page:
            sys.exit(f"{PLACE.name} is not up to date: run {Path(__file__).name}")
        return
    PLACE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
