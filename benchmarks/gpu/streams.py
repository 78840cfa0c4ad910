"""Streams: what launches on another stream of the process add to the time of each launch.

    python benchmarks/gpu/streams.py [-o results.json]

Fresh processes measure the same products by cuBLASLt. Before, each launches an empty kernel some
number of times on a second stream. On an H200, from about eight such launches on, every launch on
the first stream takes 0.35 µs longer (with m=16 1.1 µs), 0.2 µs with a warm cache: a process with
several streams pays more for a launch than one with a single stream. The second stream is destroyed
before the products are measured. In the last process it is CUDA's default stream, and the products
are launched there too: the own stream is then only captured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.devices._gpu import GpuDevice
from kernelmark.gpu.driver import pack
from kernelmark.runners.execute import execute
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_streams.json"
PROBLEMS = (
    "gemm m=512 n=1024 k=512 dtype=bf16",
    "gemm m=1024 n=1024 k=1024 dtype=bf16",
    "gemm m=16 n=4096 k=4096 dtype=bf16",
)
LAUNCHES = (0, 4, 8, 64, 1000)
_DEFAULT_STREAM = 0


def measured(launches: int, *, stay: bool) -> list[dict[str, Any]]:
    """The products in this process, in µs."""
    device = registry.get("cuda").open(0)
    assert isinstance(device, GpuDevice)
    stream = _DEFAULT_STREAM if stay else device.driver.stream()
    for _ in range(launches):
        function = device.function("nothing")
        device.driver.launch(function, (1, 1, 1), (1, 1, 1), pack(), stream)
    if stay:
        device.launch_on(stream, contextlib.nullcontext)
    else:
        device.driver.destroy("stream", stream)
    rows = []
    for text in PROBLEMS:
        case = Case(problem=ops.parse(text), backend="cublaslt", timing=Timing())
        result = execute(case, device, 0, lambda phase: None)
        one = result.measurement
        if one is None or result.status is not Status.OK:
            raise SystemExit(f"{text}: {result.status}: {result.error}")
        cold, hot = (round(seconds * 1e6, 4) for seconds in (one.median_s, one.also["hot_s"]))
        rows.append(
            {"problem": text, "launches": launches, "stay": stay, "cold_us": cold, "hot_us": hot}
        )
    device.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--launches", type=int, help="measure in this process, print JSON")
    parser.add_argument("--stay", action="store_true", help="stay on the second stream")
    given = parser.parse_args()
    info = gpu_info()
    if given.launches is not None:
        print(json.dumps(measured(given.launches, stay=given.stay)))
        return 0
    rows: list[dict[str, Any]] = []
    for launches, more in (*((n, []) for n in LAUNCHES), (LAUNCHES[-1], ["--stay"])):
        command = [sys.executable, __file__, "--launches", str(launches), *more]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows += json.loads(done.stdout)
    for row in rows:
        print(*row.values())
    cold = {(row["problem"], row["launches"]): row["cold_us"] for row in rows if not row["stay"]}
    stayed = [(row["problem"], row["cold_us"]) for row in rows if row["stay"]]
    apart = [one_us / cold[text, 0] - 1 for text, one_us in stayed]
    few, many = LAUNCHES[-2:]
    worst = max(abs(cold[text, many] / cold[text, few] - 1) for text in PROBLEMS)
    added = [cold[text, few] - cold[text, 0] for text in PROBLEMS]
    asked = f"{many} launches add what {few} add, within 1 %"
    bars = [
        (asked, f"{min(added):.2f} to {max(added):.2f} µs, {worst:.2%} apart", worst <= 0.01),
        (
            "launches on the default stream alone take what those on an own one do, within 1 %",
            f"{min(apart):+.2%} to {max(apart):+.2%}",
            max(map(abs, apart)) <= 0.01,
        ),
    ]
    evidence.write(
        given.output,
        title="Launches on another stream of the process",
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("cublaslt"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
