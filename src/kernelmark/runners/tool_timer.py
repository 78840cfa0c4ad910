"""timer=iree-benchmark-module: IREE's own benchmark program in place of kernelmark's clock.

Each block is one process of the program, and each of its repetitions is a sample. It calls the
function again and again on one set of arguments, so caches are hot; a call is timed as its caller
pays for it, with the launches and the wait for the end.
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
from kernelmark.measure.sets import Arena, fill_inputs, make_arena
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason

# A process of the program starts within this time.
_START_S = 0.1
_MOST_WARMUP_S = 0.1


def check_case(case: Case, backend: Backend) -> None:
    """Raise Unsupported for a case that the program cannot time."""
    timing = case.timing
    if not hasattr(backend, "benchmark"):
        raise Unsupported(Reason("timer-of-iree", timer=timing.timer, backend=case.backend))
    plain = (Cache.HOT, Strain.NONE, Duty.SUSTAINED)
    if (timing.cache, timing.strain, timing.duty) != plain:
        raise Unsupported(
            Reason("timer-hot-only", timer=timing.timer), hint="add --cache hot, without --strain"
        )


def checking_timing(timing: Timing) -> Timing:
    """Return the timing of the launches that are checked: as short as can be."""
    return dataclasses.replace(
        timing, timer=Timer.AUTO, allocations=1, max_allocations=1, max_s=0.05, warmup_s=0.0
    )


def measure_with_tool(
    case: Case, backend: Backend, device: Device, process: int, *, timeout_s: float
) -> Measurement:
    """Time a case that `check_case` accepts, on the inputs of its first argument set."""
    timing, end = case.timing, time.monotonic() + timeout_s
    # The program runs a repetition for up to twice the time that it is given.
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
                    # Its load is mostly that of the program.
                    telemetry=dataclasses.replace(device.telemetry(), load=None),
                )
            )
            # How long the program runs is not exactly ours to say: the least blocks come first.
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
    """Write the tensors of one argument set; return the files in order, and their bytes."""
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
