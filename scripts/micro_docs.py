#!/usr/bin/env python3
"""Write docs/micro.md from the benchmarks themselves: `python scripts/micro_docs.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kernelmark.micro import registry, session

PLACE = Path(__file__).parent.parent / "docs" / "micro.md"

HEAD = """\
# Know the hardware: microbenchmarks and roofs

<!-- Written by scripts/micro_docs.py. Edit that file, or the benchmarks' own texts. -->

```sh
kmark micro list                                # what there is
kmark micro --quick -d cuda:0                   # all of them: about a minute for a GPU
kmark micro cache latency --points              # every point, on the CPU
kmark micro latency -p sizes=16384,65536,1048576 --threads 1
kmark micro cache -f cache.png                  # or .svg, .html (works offline), .json (Vega-Lite)
kmark micro show latest --csv points.csv        # as it is stored
kmark list micro                                # what is stored
kmark micro compare latest~1 latest             # two devices, or two days
kmark history --micro cache                     # headline metrics over time
kmark roofs -d cuda:0                           # measure limits, keep them for percentages
kmark roofs --stored
```

```python
import kernelmark as km

result = km.micro.cache(device="cpu", mode="brief")
result.metric("l1_bytes_per_clk").value
```

`--quick` is the default, `--full` sweeps finer, `--brief` takes only the points that headline
metrics need; each of them without a name means all benchmarks, as `--all` does. `l2-cache` and
`l2_cache` are the same. Everything is stored beside the runs, one result a benchmark: its points,
its metrics, the device's clocks and power meanwhile, and what it cost. Figures need
`pip install "kernelmark[plots]"`. On a CPU the same kernels are built by the host's C++ compiler.

## What can be trusted

- **One source.** A kernel is one file under `src/kernelmark/kernels/rtc` that compiles by NVRTC, by
  hipRTC and, where it makes sense, by the host's compiler. Sizes and repeats are run-time values:
  all benchmarks together are COMPILATIONS compilations, kept on disk.
- **Setup, timed region, verification and metrics are kept apart.** Nothing is allocated or filled
  inside what is timed. Every kernel's result is checked against an exact sum, sample or chain;
  tests break kernels on purpose, on an emulated GPU, and see that the check notices.
- **Clocks.** Cycles are counted inside the kernel, so they assume no clock. Seconds are events with
  everything queued behind a gate, so the host's pace does not show. The core clock of each timing
  is read in the stream. A CPU's cycles are told by the clock that dependent additions run at,
  measured once before: its points have no clock of their own.
- **Physical limits.** A figure above what the hardware can do (units × bytes × clock, bus width ×
  memory clock, …) makes the result `wrong`, with the reason. The limits are stored with the result,
  and a file whose `ok` result is above them is refused: that finds mistakes, not a file in which
  somebody changed the limits too. `of limit` is a metric's share of its limit on a GPU. A CPU's
  limit is more than any core can do (four pipes at 8 GHz, …): it only tells mistakes, so no share
  is shown.
- **A failure is a row.** Benchmarks run in a process of their own; one that crashes, hangs or
  faults is told, and the rest go on. What a device lacks is `unsupported`, with the reason.

## Comparing

`kmark micro compare A B` shows the metrics that both have, B over A. With the larger of the two
over the smaller, less 1, as their difference, the verdict is

- `same` below 2 %: a GPU's headline metrics repeat within that ([evidence](evidence.md));
- `unsure` below the noise: 2 % on a GPU and 10 % on a CPU, which does other work as well; or the
  larger `spread` of the two points that the metric is the figure of, if that is more (`cache`,
  `stream`, `l2-cache` and `l2-stream` store one);
- `better` or `worse` beyond that.

A spread is (longest − shortest) / median of the launches in one run: it does not see what changes
from run to run, and where other work ran it is large. `unsure` calls for another run on a quiet
machine. What was not taken alike (`--brief` against `--quick`, other parameters, another number of
threads) is told in a note: metrics may then be of other points.

## History

`kmark history --micro NAME` has a table for each series of runs that can be compared: of one model,
host, device, number of threads, mode and set of parameters; those that `-p` changed are in its
title. It goes with `--runs`, `--arch`, `--json`, `--csv` and `--md`, and refuses what is about
problems, `--check` among it: `kmark micro compare` tells better from worse.

## Roofs

`kmark roofs` measures FLOP/s by dtype on the vector and the matrix units, bytes/s by level and the
cost of a launch, and stores them; of a CPU, the FLOP/s of its vector units and the bytes/s of main
memory, nothing else. `kmark run`, `kmark show` and reports compute percentages from the newest.
`kmark run` measures them when there are none, when the newest are a week old, and when one of them
was not steady (`how` says so: other work ran meanwhile, and passes did not agree) and ten minutes
have passed. One that is not steady is used only where no steady one is known: it replaces none,
however old, and a note tells which stays. Otherwise the newest counts, higher or lower than the one
before.

The vendors' data sheets (`src/kernelmark/micro/data/datasheet.toml`) are shown beside: the column
`share` of `kmark roofs` is the measured roof over the sheet's. No result's percentage is computed
from them.

A CPU's roofs belong to a number of threads, each on a core of its own; more threads than cores are
refused. There is one roof for main memory, the best of several streams: of read, copy and triad on
a CPU, of the benchmark `stream` on a GPU. What a memory gives depends on the mix of reads and
writes: on two cores of an Arm Neoverse-N1 copy moves 57 to 63 GB/s and read 36 to 40, so a kernel
that only reads cannot pass about 65 % of that roof, however good it is. The column `how` tells a
CPU's three rates, to set such a kernel beside the right one.

## Adding one

[CONTRIBUTING.md](../CONTRIBUTING.md#a-microbenchmark) has the smallest one there can be. A file in
`src/kernelmark/micro/benchmarks` that offers `benchmark` is listed, runs, is stored, drawn and
tested: by the contract (`tests/contract/test_micro_contract.py`), on an emulated GPU with the
values of `brief` (`tests/micro/test_emulated.py`, where `SMALL` has smaller ones for those that
would take long), and by clocks that run wrong.

`kinds` says where it runs: `GPUS` unless told otherwise, `EVERYWHERE` with the CPU. A new kernel
goes into a file `micro_NAME.cu`; `micro.h` has what it may use on every platform. Arguments are
packed by the kernel's own declaration.

For a CPU the same file is compiled as C++ after `host.h`. What is called must be in that build:

- it is declared `KERNEL name(arguments) {`, not a template, and not left out where `HOST` is
  defined, as `launch_nothing` is: what is not in the build has no symbol `host_name`, and a call
  of it fails;
- a block is one thread (`blockDim.x` and `LANES` are 1, `__syncthreads()` does nothing), and a
  launch of `rig.grid` blocks is one a core: work is shared out by `walk`, `tiles` or
  `thread_number`, not among the threads of a block;
- it uses names that `host.h` has: vectors are as wide as the CPU's, both clocks are nanoseconds,
  and there are no atomics, shuffles or inline assembly. What only a GPU has goes inside
  `#ifndef HOST`, and `rig.block > 1` tells a benchmark which it is on.

Another distribution offers a benchmark by an entry point in the group
`kernelmark.micro.benchmarks`, and tests it by inheriting `kernelmark.testing.MicroContract`.

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
