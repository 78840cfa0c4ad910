"""timer=iree-benchmark-module: time with IREE's own benchmark program.

Each block is one process of the program, and each of its repetitions is a sample. The program calls
the function repeatedly on one argument set, so caches are hot. The time of a call includes its
launches and the wait for their completion.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np

from kernelmark import ops
from kernelmark.backends.base import Backend
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Block, Case, Measurement
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.devices.base import Device
from kernelmark.measure.advice import (
    block_warnings,
    interval_warnings,
    reliability_warnings,
    sample_warnings,
)
from kernelmark.measure.blocks import block_seconds, interval_of, stop_reason
from kernelmark.measure.sets import Arena, fill_inputs, make_arena

# Estimated start-up time of the program until it measures.
_START_S = 0.1
_MOST_WARMUP_S = 0.1


def check_case(case: Case, backend: Backend) -> None:
    """Raise Unsupported for a case that the program cannot time."""
    timing = case.timing
    if not hasattr(backend, "benchmark"):
        raise Unsupported(Reason("timer-of-iree", timer=timing.timer, backend=case.backend))
    needed = {"cache": Cache.HOT, "strain": Strain.NONE, "duty": Duty.SUSTAINED}
    options = [f"--{name} {v}" for name, v in needed.items() if getattr(timing, name) != v]
    if options:
        raise Unsupported(
            Reason("timer-hot-only", timer=timing.timer), hint=f"use {' '.join(options)}"
        )


def checking_timing(timing: Timing) -> Timing:
    """Return the shortest timing, for kernelmark's own launches that check the output."""
    return dataclasses.replace(
        timing, timer=Timer.AUTO, allocations=1, max_allocations=1, max_s=0.05, warmup_s=0.0
    )


def measure_with_tool(
    case: Case, backend: Backend, device: Device, process: int, *, timeout_s: float
) -> Measurement:
    """Time a case that `check_case` accepts, on the inputs of its first argument set."""
    timing, end = case.timing, time.monotonic() + timeout_s
    # The program may run a repetition for twice its --benchmark_min_time.
    block_s = block_seconds(timing, _START_S) / 2
    warmup_s = min(timing.warmup_s, _MOST_WARMUP_S)
    blocks: list[Block] = []
    timed_s, stop = 0.0, None
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as folder:
        files, nbytes = _write_inputs(case, device, Path(folder))
        while stop is None:
            found = backend.benchmark(  # type: ignore[attr-defined]
                case.problem,
                case.config,
                device,
                files,
                repetitions=timing.min_samples,
                repetition_s=block_s / timing.min_samples,
                warmup_s=warmup_s,
                timeout_s=max(1.0, end - time.monotonic()),
            )
            timed_s += found.timed_s
            blocks.append(
                Block(
                    process=process,
                    allocation=len(blocks),
                    samples_s=found.samples_s,
                    # Most of the machine's load is the program itself, not other processes.
                    telemetry=dataclasses.replace(device.telemetry(), load=None),
                )
            )
            # The program decides how long it runs. Even if it exceeds the time limit, the minimum
            # number of blocks is measured.
            if len(blocks) >= timing.allocations:
                stop = stop_reason(blocks, timing=timing, timed_s=timed_s, next_s=block_s)
    interval = interval_of(blocks, timing)
    return Measurement(
        blocks=tuple(blocks),
        low_s=interval.low_s,
        high_s=interval.high_s,
        method=str(timing.timer),
        launches=1,
        sets=1,
        footprint_bytes=nbytes,
        stop=stop,
        warmup_s=warmup_s * len(blocks),
        timed_s=timed_s,
        warnings=(
            *sample_warnings(blocks, timing, 0),
            *block_warnings(blocks, timing.threads or device.info.units, timing.duty),
            *interval_warnings(interval, timing.target_rel_ci),
            *reliability_warnings(blocks, interval, timing.allocations),
        ),
        modes=interval.modes,
    )


def _write_inputs(case: Case, device: Device, folder: Path) -> tuple[list[Path], int]:
    """Write the tensors of one argument set to files; return the files in order and their total
    bytes."""
    tensors = ops.registry.get(case.problem.op).tensors(case.problem)
    buffer, sets = make_arena(device, tensors, 1, np.random.default_rng(case.timing.seed))
    try:
        fill_inputs(device, Arena(buffer=buffer, sets=sets, numbers=[0]), case.timing.seed)
        device.synchronize()
        files = []
        for spec in tensors:
            tensor = sets[0][spec.name]
            files.append(folder / f"{spec.name}.bin")
            files[-1].write_bytes(device.read(buffer, tensor.offset, spec.nbytes).tobytes())
    finally:
        device.free(buffer)
    return files, sum(spec.nbytes for spec in tensors)
