#!/usr/bin/env python3
"""Write docs/micro-benchmarks.md from the benchmarks: `python scripts/micro_docs.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kernelmark.micro import registry, session

PLACE = Path(__file__).parent.parent / "docs" / "micro-benchmarks.md"

HEAD = """\
# Microbenchmarks: method, and each of them

<!-- Written by scripts/micro_docs.py. Edit that file, or the benchmarks' own texts. -->

[micro.md](micro.md) is how to run and compare them.

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
