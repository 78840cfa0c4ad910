"""The process that runs under a vendor's profiler: it only launches cases.

    ncu --profile-from-start off … python -m kernelmark.runners.profiled --device cuda:0 CASES

CASES has one case per line. The argument sets, their rotation and the warm-up are those of a
measurement. For each case the process prints the kernels per launch, so that the profiler's list
can be split into launches. rocprofv3 lists every kernel of the process: for it, an empty kernel
marks the start and the end of each counted launch.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import numpy as np

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Case
from kernelmark.core.timing import Cache
from kernelmark.devices._gpu import GpuDevice
from kernelmark.measure.sets import MAX_RECORDED_SETS, Arena, fill_inputs, make_arena, plan_sets
from kernelmark.runners.execute import find_backend
from kernelmark.runners.protocol import MARK, MARK_KERNEL
from kernelmark.runners.targets import find

_WINDOW = ("cuProfilerStart", "cuProfilerStop")


def main(arguments: list[str] | None = None) -> int:
    """Launch each case's kernel `--launches` times inside the profiler's window."""
    parser = argparse.ArgumentParser(prog="kernelmark.runners.profiled", description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("cases", type=Path)
    options = parser.parse_args(arguments)
    lines = options.cases.read_text(encoding="utf-8").splitlines()
    kind, info = find(options.device)
    device = kind.open(info.index)
    if not isinstance(device, GpuDevice):
        sys.exit(f"a profiler watches GPUs, not {info.kind}")
    for line in lines:
        kernels = launch_case(codec.loads(line, Case), device, options.launches)
        sys.stdout.write(f"{MARK}{kernels}\n")
    sys.stdout.flush()
    return 0


def launch_case(case: Case, device: GpuDevice, launches: int) -> int:
    """Launch every set once, then launch inside the window. Return the kernels per launch."""
    op = ops.registry.get(case.problem.op)
    backend = find_backend(case, device.info)
    tensors = op.tensors(case.problem)
    plan = plan_sets(
        tensors,
        cache=case.timing.cache,
        cache_bytes=device.info.cache_bytes,
        free_bytes=device.free_bytes(),
        most=MAX_RECORDED_SETS,
        moved_bytes=op.bytes(case.problem),
    )
    rng = np.random.default_rng(case.timing.seed)
    buffer, sets = make_arena(device, tensors, plan.sets, rng)
    fill_inputs(
        device, Arena(buffer=buffer, sets=sets, numbers=[*range(len(sets))]), case.timing.seed
    )
    kernel = backend.prepare(case.problem, case.config, device, sets)
    for index in range(plan.sets):
        kernel.launch(device.stream, index)
    device.synchronize()
    kernels = max(1, len(device.kernel_names(kernel.launch)))
    for index in range(launches):
        if case.timing.cache is Cache.FLUSH or plan.evict:
            device.evict_cache()
            device.synchronize()
        _mark(device, _WINDOW[0])
        kernel.launch(device.stream, index % plan.sets)
        device.synchronize()
        _mark(device, _WINDOW[1])
    kernel.close()
    device.free(buffer)
    return kernels


def _mark(device: GpuDevice, symbol: str) -> None:
    """Mark the start or end of a window: by a driver call, or for rocprofv3 by an empty kernel."""
    if device.info.kind == "hip":
        device.start(MARK_KERNEL, 1, 1)
        device.synchronize()
    else:
        function = device.driver.library[symbol]
        function.restype = ctypes.c_int
        function()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernelmarkError as error:
        sys.exit(str(error))
