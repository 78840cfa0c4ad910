"""Roofs without a C compiler: numpy's matrix product and copy, in a process of their own.

Run as `python -m kernelmark.micro._fallback THREADS MEGABYTES`; writes one JSON object. A process
of its own, because a BLAS reads its thread count once, when it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from kernelmark.core.children import run_child
from kernelmark.devices import registry as devices

_SIZE = 1024
_PASSES = 5


def measure(threads: int, megabytes: int) -> dict[str, float] | None:
    """FLOP/s of f32 and f64 and bytes/s of `dram`, or None where the process fails."""
    variables = devices.get("cpu").worker_variables(0, threads)
    try:
        command = [sys.executable, "-m", __name__, str(threads), str(megabytes)]
        done = run_child(command, env={**os.environ, **variables}, timeout_s=60.0)
        done.check_returncode()
        return {str(k): float(v) for k, v in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _best_s(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_PASSES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _main(threads: int, megabytes: int) -> None:
    import numpy as np
    from numpy.typing import NDArray

    def product_flops(kind: type[np.float32] | type[np.float64]) -> float:
        a: NDArray[np.generic] = np.ones((_SIZE, _SIZE), kind)
        out = np.empty_like(a)
        return 2 * _SIZE**3 / _best_s(lambda: np.matmul(a, a, out=out))

    count = megabytes * 2**20 // 8 // 2 // threads
    pairs = [(np.ones(count), np.ones(count)) for _ in range(threads)]

    def copy_all() -> None:
        workers = [threading.Thread(target=np.copyto, args=pair) for pair in pairs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    figures = {
        "f32": product_flops(np.float32),
        "f64": product_flops(np.float64),
        "dram": 2 * 8 * count * threads / _best_s(copy_all),
    }
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
