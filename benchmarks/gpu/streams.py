"""Streams: what launches on another stream of the process add to the time of each launch.

    python benchmarks/gpu/streams.py [-o results.json]

Fresh processes measure the same products by cuBLASLt. Before, each launches an empty kernel some
number of times on a second stream, which is then destroyed. On an H200, from about eight such
launches on, every launch on the first stream takes 0.35 µs longer, 0.2 µs with a warm cache: a
process with several streams pays more for a launch than one with a single stream.
"""

from __future__ import annotations

import argparse
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
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_streams.json"
PROBLEMS = (
    "gemm m=512 n=1024 k=512 dtype=bf16",
    "gemm m=1024 n=1024 k=1024 dtype=bf16",
    "gemm m=16 n=4096 k=4096 dtype=bf16",
)
LAUNCHES = (0, 4, 8, 64, 1000)


def measured(launches: int) -> list[dict[str, Any]]:
    """The products in this process, in µs."""
    device = registry.get("cuda").open(0)
    assert isinstance(device, GpuDevice)
    stream = device.driver.stream()
    for _ in range(launches):
        function = device.function("nothing")
        device.driver.launch(function, (1, 1, 1), (1, 1, 1), pack(), stream)
    device.driver.destroy("stream", stream)
    rows = []
    for text in PROBLEMS:
        case = Case(problem=ops.parse(text), backend="cublaslt", timing=Timing())
        result = execute(case, device, 0, lambda phase: None)
        one = result.measurement
        if one is None or result.status is not Status.OK:
            raise SystemExit(f"{text}: {result.status}: {result.error}")
        cold, hot = (round(seconds * 1e6, 4) for seconds in (one.median_s, one.also["hot_s"]))
        rows.append({"problem": text, "launches": launches, "cold_us": cold, "hot_us": hot})
    device.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--launches", type=int, help="measure in this process, print JSON")
    given = parser.parse_args()
    info = gpu_info()
    if given.launches is not None:
        print(json.dumps(measured(given.launches)))
        return 0
    rows: list[dict[str, Any]] = []
    for launches in LAUNCHES:
        command = [sys.executable, __file__, "--launches", str(launches)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows += json.loads(done.stdout)
    for row in rows:
        print(*row.values())
    cold = {(row["problem"], row["launches"]): row["cold_us"] for row in rows}
    few, many = LAUNCHES[-2:]
    worst = max(abs(cold[text, many] / cold[text, few] - 1) for text in PROBLEMS)
    added = [cold[text, few] - cold[text, 0] for text in PROBLEMS]
    asked = f"{many} launches add what {few} add, within 1 %"
    bars = [(asked, f"{min(added):.2f} to {max(added):.2f} µs, {worst:.2%} apart", worst <= 0.01)]
    evidence.write(
        given.output,
        title="Launches on another stream of the process",
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("cublaslt"),
    )
    print(evidence.told(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
